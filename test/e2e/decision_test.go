package e2e

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestDecisions(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-20 A-15 an answer, calls or a question, each as the only content", func(t *testing.T) {
		t.Parallel()
		answered := w.play(t, "std", harness.Steps(harness.Answer("the answer")))
		equal(t, "answer", w.Done(t, answered).GetFinalAnswer().GetContent(), "the answer")
		plain := w.play(t, "std", harness.Steps(harness.Text("text alone")))
		equal(t, "text taken as the answer", w.Done(t, plain).GetFinalAnswer().GetContent(), "text alone")
		called := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")))
		equal(t, "calls", w.Done(t, called).GetToolCalls(), 1)
		asked := w.play(t, "std", harness.Steps(harness.Ask("which one?"), harness.Answer("done")))
		equal(t, "question", w.Idle(t, asked).GetQuestion().GetText(), "which one?")
		w.Input(t, asked, "this one")
		equal(t, "what the model is told", func() string { w.Done(t, asked); return shown(t, w, asked, 2).GetText() }(), "this one")

		for name, step := range map[string]harness.Step{
			"no_decision": func(*runnerdv1.DecideRequest, harness.DecideStream) error { return nil },
			"several_decisions": func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
				if err := harness.Send(s, harness.Answer("one")); err != nil {
					return err
				}
				return harness.Send(s, harness.Answer("two"))
			},
			"empty": harness.Forever(&runnerdv1.Decision{}),
		} {
			run := w.play(t, "std", harness.Steps(step, harness.Answer("good")))
			equal(t, "answer after "+name, w.Done(t, run).GetFinalAnswer().GetContent(), "good")
			equal(t, "code", w.UntilType(t, run, "decision_invalid").GetDecisionInvalid().GetCode(), name)
		}
	})

	t.Run("T-21 T-24 Decide is given task, history and context, and context replaces neither", func(t *testing.T) {
		t.Parallel()
		const text = `{"task":"another","history":[],"observations":["x"],"id":9007199254740993}`
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")),
			func(_ *world, req *runnerdv1.StartRunRequest) { req.ContextJson = text })
		w.Done(t, run)
		requests := w.brain.Requests(run)
		equal(t, "task", requests[1].GetTask(), "a task")
		equal(t, "context", requests[1].GetContextJson(), text)
		equal(t, "entries of the first", len(requests[0].GetHistory()), 0)
		equal(t, "entries of the second", len(requests[1].GetHistory()), 2)
		equal(t, "tools", len(requests[1].GetTools()), len(tools))
	})

	t.Run("T-22 E-21 usage is given a Decide at a time and summed exactly", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Costing(harness.Calls("look", "{}"), 3, 10, 1),
			harness.Calls("look", "{}"),
			harness.Costing(harness.Answer("done"), 7, 20, 2)))
		w.Done(t, run)
		usage := w.UntilType(t, run, "run_completed").GetRunCompleted().GetUsage()
		equal(t, "cents", usage.GetCostCents(), 10)
		equal(t, "nanocents", usage.GetCostNanocents(), 10_000_000_000)
		equal(t, "input tokens", usage.GetInputTokens(), 30)
		equal(t, "decisions", usage.GetDecisions(), 3)
		equal(t, "decisions without cost", usage.GetDecisionsWithoutCost(), 1)
	})

	t.Run("T-23 A-16 totals never fall, and no decision can set them", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Costing(harness.Calls("look", "{}"), 5, 10, 1),
			harness.Costing(harness.Calls("look", "{}"), 2, 5, 1),
			harness.Costing(harness.Calls("charge", "{}"), -4, 1, 1),
			harness.Answer("done")))
		equal(t, "cents", w.Done(t, run).GetUsage().GetCostCents(), 7)
		var last int64
		for _, ev := range w.Events(t, run) {
			totals := ev.GetDecisionMade().GetTotals()
			if totals == nil {
				totals = ev.GetDecisionInvalid().GetTotals()
			}
			if totals != nil && totals.GetCostNanocents() < last {
				t.Errorf("cost fell from %d to %d", last, totals.GetCostNanocents())
			}
			last = max(last, totals.GetCostNanocents())
		}
		made := w.UntilType(t, run, "decision_made")
		equal(t, "attempt", made.GetDecisionMade().GetAttempt(), 1)
		equal(t, "call id", made.GetDecisionMade().GetCallIds()[0], "1.1")
	})

	t.Run("T-25 a blank name and arguments that are no object", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("", "{}", "look", `[1]`, "look", `{"a":}`), harness.Answer("done")))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		failed := harness.Only(w.Events(t, run), "tool_call_failed")
		if len(failed) != 3 {
			t.Fatalf("%d calls failed, want 3", len(failed))
		}
		equal(t, "reason", failed[0].GetToolCallFailed().GetReason(), runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL)
		has(t, failed[1].GetToolCallFailed().GetMessage(), "arguments must be a JSON object, got array")
		has(t, failed[2].GetToolCallFailed().GetMessage(), "at byte 5")
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
	})

	t.Run("A-08 every decision is kept with what came of it", func(t *testing.T) {
		t.Parallel()
		first := harness.Calls("look", `{"at":"x"}`)
		first.Text, first.Reasoning, first.ProviderState = "let me look", "it may be there", []byte{0xff, 0}
		run := w.play(t, "std", harness.Steps(first, harness.Answer("done")), calls(harness.Result("seen")))
		w.Done(t, run)
		history := w.History(t, run)
		d := history[0].GetDecision()
		if d.GetText() != "let me look" || d.GetReasoning() != "it may be there" || string(d.GetProviderState()) != "\xff\x00" ||
			d.GetCalls()[0].GetToolName() != "look" || d.GetCalls()[0].GetArgumentsRaw() != `{"at":"x"}` {
			t.Errorf("first entry is %v", history[0])
		}
		equal(t, "what came of it", history[1].GetObservation().GetText(), "seen")
		equal(t, "provider state handed back", string(w.brain.Requests(run)[1].GetHistory()[0].GetDecision().GetProviderState()), "\xff\x00")
	})

	t.Run("A-17 A-18 an invalid decision is counted, billed, recorded and told; the run goes on", func(t *testing.T) {
		t.Parallel()
		bad := harness.Costing(&runnerdv1.Decision{}, 2, 10, 2)
		run := w.play(t, "std", harness.Steps(bad, bad, harness.Calls("look", "{}"), harness.Answer("done")))
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "decision_invalid events", harness.Count(w.Events(t, run), "decision_invalid"), 2)
		equal(t, "cents", got.GetUsage().GetCostCents(), 4)
		equal(t, "failures in a row after a call that completed", got.GetConsecutiveFailures(), 0)
		told := shown(t, w, run, 2)
		equal(t, "kind", told.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE)
		has(t, told.GetText(), "neither text nor calls")
	})

	t.Run("A-19 a question is answered by an input, or blocks", func(t *testing.T) {
		t.Parallel()
		waits := w.play(t, "std", harness.Steps(harness.Ask("red or blue?"), harness.Answer("done")))
		got := w.Idle(t, waits)
		equal(t, "state", got.GetState(), runnerdv1.RunState_RUN_STATE_WAITING_INPUT)
		w.Input(t, waits, "blue")
		w.Done(t, waits)
		equal(t, "answer shown", shown(t, w, waits, 2).GetText(), "blue")

		blocks := w.play(t, "block", harness.Steps(harness.Ask("red or blue?"), harness.Answer("done")))
		got = w.Done(t, blocks)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_NEEDS_INPUT, "failed:model_logic")
		equal(t, "outcome", got.GetOutcome(), runnerdv1.Outcome_OUTCOME_BLOCKED)
		equal(t, "question that blocks", got.GetQuestion().GetText(), "red or blue?")
		_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: blocks})
		harness.Code(t, err, codes.FailedPrecondition, "INPUT_REQUIRED")
		w.Input(t, blocks, "red")
		got = w.Done(t, blocks)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "leg", got.GetLeg(), 2)
	})

	t.Run("A-20 the transport of a decision is kept", func(t *testing.T) {
		t.Parallel()
		d := harness.Answer("done")
		d.Transport = "json_fallback"
		run := w.play(t, "std", harness.Steps(d))
		w.Done(t, run)
		equal(t, "transport", w.UntilType(t, run, "decision_made").GetDecisionMade().GetTransport(), "json_fallback")
	})
}

// TestDecisionCases plays the cases that are about what models write.
func TestDecisionCases(t *testing.T) {
	t.Parallel()
	w := shared(t)

	// one plays one decision of calls and returns its events.
	one := func(t *testing.T, d *runnerdv1.Decision, changes ...with) (string, []*runnerdv1.Event) {
		t.Helper()
		run := w.play(t, "std", harness.Steps(d, harness.Answer("done")), changes...)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		return run, w.Events(t, run)
	}
	// refused plays a call with bad arguments and returns what the model is told.
	refused := func(t *testing.T, arguments string) string {
		t.Helper()
		run, events := one(t, harness.Calls("look", arguments))
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
		equal(t, "starts", harness.Count(events, "tool_call_started"), 0)
		failed := harness.Only(events, "tool_call_failed")[0].GetToolCallFailed()
		equal(t, "reason", failed.GetReason(), runnerdv1.CallReason_CALL_REASON_ARGUMENTS_INVALID)
		equal(t, "what the model is told", shown(t, w, run, 2).GetText(), failed.GetMessage()+"; near: "+failed.GetArgumentsPreview())
		return failed.GetMessage()
	}

	t.Run("CASE-01 arguments that are an empty string", func(t *testing.T) {
		t.Parallel()
		run, events := one(t, harness.Calls("look", "", "look", " \n", "book", ""))
		executed := w.hands.Calls(run)
		if len(executed) != 2 || executed[0].Request.GetArgumentsJson() != "{}" || executed[1].Request.GetArgumentsJson() != "{}" {
			t.Errorf("the host got %v, want two calls with {}", executed)
		}
		requested := harness.Only(events, "tool_call_requested")
		equal(t, "raw", requested[1].GetToolCallRequested().GetArgumentsRaw(), " \n")
		equal(t, "effective", requested[1].GetToolCallRequested().GetArgumentsJson(), "{}")
		equal(t, "same digest", requested[0].GetToolCallRequested().GetArgumentDigest(), requested[1].GetToolCallRequested().GetArgumentDigest())
		equal(t, "the third", harness.Only(events, "tool_call_failed")[0].GetToolCallFailed().GetReason(),
			runnerdv1.CallReason_CALL_REASON_SCHEMA_MISMATCH)
	})

	t.Run("CASE-02 valid JSON that is no object", func(t *testing.T) {
		t.Parallel()
		for arguments, got := range map[string]string{
			`null`: "null", `[{"old":"a","new":"b"}]`: "array", `42`: "number", `"{\"path\":\"a.txt\"}"`: "string",
		} {
			has(t, refused(t, arguments), "arguments must be a JSON object, got "+got)
		}
	})

	t.Run("CASE-03 malformed JSON never becomes {}", func(t *testing.T) {
		t.Parallel()
		for _, arguments := range []string{`{"{"tagIds":[1]}`, `{'path': 'a'}`, `{"path":"a"} trailing`, strings.Repeat(`{"a":`, 100_000)} {
			message := refused(t, arguments)
			has(t, message, "at byte", `{"type":"object"}`) // where, and the schema
			if len(message) > 10_000 {
				t.Errorf("the message has %d bytes", len(message))
			}
		}
	})

	t.Run("CASE-04 arguments cut off by the output limit", func(t *testing.T) {
		t.Parallel()
		has(t, refused(t, `{"path":"a.md","content":"# Tit`), "at byte 31")
		cut := harness.Calls("look", `{"path":"a.md"}`)
		cut.Truncated = true
		run, events := one(t, cut)
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
		equal(t, "code", harness.Only(events, "decision_invalid")[0].GetDecisionInvalid().GetCode(), "truncated")
		has(t, shown(t, w, run, 2).GetText(), "cut off", "send less at a time")
	})

	t.Run("CASE-05 lone surrogates, NUL and bytes that are no UTF-8", func(t *testing.T) {
		t.Parallel()
		refused(t, `{"text":"\ud99c x"}`)
		refused(t, `{"path":"a\u0000b"}`)
		preview := strings.Repeat("x", 49_998) + "😀" + strings.Repeat("y", 100)
		run, events := one(t, harness.Calls("look", "{}", "put", "{}"), calls(byTool(map[string]harness.Handler{
			"look": func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
				return &runnerdv1.ToolResult{Blobs: []*runnerdv1.Blob{{MimeType: "text/plain", Data: []byte("\xff\xfeA")}}}, nil
			},
			"put": harness.Result(preview),
		})))
		completed := harness.Only(events, "tool_call_completed")
		bytes := completed[0].GetToolCallCompleted()
		if !bytes.GetTextRepaired() || !strings.Contains(bytes.GetText(), "\uFFFD") || !strings.Contains(bytes.GetText(), "A") {
			t.Errorf("bytes that are no UTF-8 are shown as %q, repaired=%t", bytes.GetText(), bytes.GetTextRepaired())
		}
		equal(t, "whole bytes", string(w.Artifact(t, run, bytes.GetArtifacts()[0].GetArtifactId())), "\xff\xfeA")
		long := completed[1].GetToolCallCompleted()
		if !long.GetTextTruncated() || strings.Contains(long.GetText(), "\uFFFD") || len(long.GetText()) > 50_000 {
			t.Errorf("preview has %d bytes, truncated=%t", len(long.GetText()), long.GetTextTruncated())
		}
		equal(t, "whole text", string(w.Artifact(t, run, long.GetArtifacts()[0].GetArtifactId())), preview)
	})

	t.Run("CASE-06 integers above 2^53", func(t *testing.T) {
		t.Parallel()
		const arguments, structured = `{"q":9007199254740993}`, `{"Id":9223372036854775807,"price":1.10,"n":1e2}`
		const free = `{"id":9007199254740993,"price":1.10,"n":1e2}`
		run, events := one(t, harness.Calls("book", arguments, "look", free), calls(
			func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
				return &runnerdv1.ToolResult{StructuredJson: structured}, nil
			}))
		executed := w.hands.Calls(run)
		equal(t, "what the host got", executed[0].Request.GetArgumentsJson(), arguments)
		equal(t, "what the host got", executed[1].Request.GetArgumentsJson(), free)
		equal(t, "in the log", harness.Only(events, "tool_call_requested")[1].GetToolCallRequested().GetArgumentsRaw(), free)
		equal(t, "result in the log", harness.Only(events, "tool_call_completed")[0].GetToolCallCompleted().GetStructuredJson(), structured)
		equal(t, "result shown", shown(t, w, run, 2).GetStructuredJson(), structured)
	})

	t.Run("CASE-07 the same call id twice in one decision, or none", func(t *testing.T) {
		t.Parallel()
		for _, id := range []string{"x", ""} {
			d := harness.Calls("put", `{"a":1}`, "put", `{"a":2}`)
			for _, c := range d.GetToolCalls().GetCalls() {
				c.Id = id
			}
			run, events := one(t, d, calls(func(req *runnerdv1.CallToolRequest, _ harness.CallStream) (*runnerdv1.ToolResult, error) {
				return &runnerdv1.ToolResult{Text: "for " + req.GetArgumentsJson()}, nil
			}))
			executed := w.hands.Calls(run)
			if len(executed) != 2 || executed[0].Request.GetIdempotencyKey() == executed[1].Request.GetIdempotencyKey() {
				t.Fatalf("the host got %v", executed)
			}
			history := w.History(t, run)
			for i, want := range []string{`for {"a":1}`, `for {"a":2}`} {
				o := history[1+i].GetObservation()
				equal(t, "result", o.GetText(), want)
				equal(t, "the model's own id", o.GetProviderCallId(), id)
				equal(t, "call id", o.GetCallId(), []string{"1.1", "1.2"}[i])
			}
			equal(t, "outcomes", harness.Count(events, "tool_call_completed"), 2)
		}
	})

	t.Run("CASE-08 the same call id again in a later decision", func(t *testing.T) {
		t.Parallel()
		first, second := harness.Calls("deploy_site", `{"n":1}`), harness.Calls("deploy_site", `{"n":1}`)
		first.GetToolCalls().GetCalls()[0].Id, second.GetToolCalls().GetCalls()[0].Id = "call_0", "call_0"
		run := w.play(t, "std", harness.Steps(first, second, harness.Answer("done")), calls(
			func(req *runnerdv1.CallToolRequest, _ harness.CallStream) (*runnerdv1.ToolResult, error) {
				return &runnerdv1.ToolResult{Text: "result of " + req.GetCallId()}, nil
			}))
		one := w.Approve(t, run, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE)
		w.UntilType(t, run, "tool_call_completed")
		open := w.Until(t, run, "a second approval", func(ev *runnerdv1.Event) bool {
			return ev.GetToolCallPendingApproval().GetCallId() == "2.1"
		})
		if open.GetToolCallPendingApproval().GetApprovalDigest() == one.GetApprovalDigest() {
			t.Error("the second call has the approval of the first")
		}
		// The first approval does not let the second call pass.
		_, err := w.Runs.SubmitApproval(harness.Context(t), &runnerdv1.SubmitApprovalRequest{
			RunId: run, ApprovalId: open.GetSequence(), Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
			ApprovalDigest: one.GetApprovalDigest(),
		})
		harness.Code(t, err, codes.FailedPrecondition, "DIGEST_MISMATCH")
		w.Approve(t, run, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE)
		w.Done(t, run)
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 2)
		equal(t, "what the model is shown last", shown(t, w, run, 3).GetText(), "result of 2.1")
	})

	t.Run("CASE-09 neither text nor calls", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Forever(&runnerdv1.Decision{Usage: &runnerdv1.Usage{
			InputTokens: proto.Int64(86183), OutputTokens: proto.Int64(2), CostCents: new(0.5),
		}}))
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_DECISION_INVALID, "failed:model_logic")
		equal(t, "decisions", got.GetUsage().GetDecisions(), 5)
		equal(t, "input tokens", got.GetUsage().GetInputTokens(), 5*86183)
		equal(t, "cents", got.GetUsage().GetCostCents(), 2.5)
	})

	t.Run("CASE-11 a tool that does not exist", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{"search_web", "tool:look", "look ", "functions.look", "look<|channel|>json", "", "lookk"} {
			run, events := one(t, harness.Calls(name, "{}"))
			equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
			failed := harness.Only(events, "tool_call_failed")[0].GetToolCallFailed()
			equal(t, "reason", failed.GetReason(), runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL)
			has(t, failed.GetMessage(), "no such tool", "look", "deploy_site")
		}
		has(t, w.nearest(t, "lookk"), `did you mean "look"?`)
		run := w.play(t, "std", harness.Forever(harness.Calls("search_web", "{}")))
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_FAILURES, "failed:model_logic")
		equal(t, "tool calls charged", got.GetToolCalls(), 0)
	})

	t.Run("CASE-20 costs that are negative, no number, or too much", func(t *testing.T) {
		t.Parallel()
		for name, usage := range map[string]*runnerdv1.Usage{
			"negative": {CostCents: proto.Float64(-5)}, "nan": {CostCents: new(math.NaN())},
			"infinite": {CostCents: new(math.Inf(1))}, "huge": {CostCents: new(1e308)},
			"tokens": {InputTokens: proto.Int64(-1)},
		} {
			d := harness.Calls("charge", "{}")
			d.Usage = usage
			run := w.play(t, "std", harness.Steps(harness.Costing(harness.Calls("look", "{}"), 1, 1, 1), d, harness.Answer("done")))
			got := w.Done(t, run)
			equal(t, name+": cents", got.GetUsage().GetCostCents(), 1)
			equal(t, name+": calls that reached the host", len(w.hands.Calls(run)), 1)
			equal(t, name+": code", w.UntilType(t, run, "decision_invalid").GetDecisionInvalid().GetCode(), "bad_usage")
		}
		small := w.play(t, "wide", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
			d := harness.Calls("book", `{}`) // fails its check, so that nothing else takes time
			if req.GetIteration() > 200 {
				d = harness.Answer("done")
			}
			return harness.Send(s, harness.Costing(d, 0.0001, 0, 0))
		}, budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(1000), MaxConsecutiveFailures: proto.Uint32(0)}))
		equal(t, "201 times 0.0001 cents, in nanocents", w.Done(t, small).GetUsage().GetCostNanocents(), 20_100_000)
	})

	t.Run("CASE-21 no usage at all", func(t *testing.T) {
		t.Parallel()
		some := func(u *runnerdv1.Usage) *runnerdv1.Decision {
			d := harness.Calls("look", "{}")
			d.Usage = u
			return d
		}
		run := w.play(t, "std", harness.Steps(
			some(nil), some(&runnerdv1.Usage{}), some(&runnerdv1.Usage{InputTokens: proto.Int64(10)}),
			some(&runnerdv1.Usage{InputTokens: proto.Int64(1), CachedInputTokens: proto.Int64(5)}), harness.Answer("done")))
		usage := w.Done(t, run).GetUsage()
		equal(t, "decisions", usage.GetDecisions(), 5)
		equal(t, "without usage", usage.GetDecisionsWithoutUsage(), 3)
		equal(t, "without cost", usage.GetDecisionsWithoutCost(), 5)
		equal(t, "input tokens", usage.GetInputTokens(), 11)
		equal(t, "warnings", harness.Count(w.Events(t, run), "budget_warning"), 1)
		limited := w.play(t, "std", harness.Forever(harness.Calls("look", "{}")), budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(2)}))
		ended(t, w.Done(t, limited), runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
	})

	t.Run("CASE-03 a decision that cannot be decoded or is too large", func(t *testing.T) {
		t.Parallel()
		undecodable := &runnerdv1.Decision{}
		undecodable.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff\xfe"))
		tooLarge := harness.Answer(strings.Repeat("x", 2<<20))
		for code, d := range map[string]*runnerdv1.Decision{"undecodable": undecodable, "too_large": tooLarge} {
			run := w.play(t, "std", harness.Steps(d, harness.Answer("done")))
			equal(t, "answer after "+code, w.Done(t, run).GetFinalAnswer().GetContent(), "done")
			equal(t, "code", w.UntilType(t, run, "decision_invalid").GetDecisionInvalid().GetCode(), code)
		}
		many := harness.Calls()
		for range 129 {
			many.GetToolCalls().Calls = append(many.GetToolCalls().Calls, &runnerdv1.ToolCall{Name: "look"})
		}
		run := w.play(t, "std", harness.Steps(many, harness.Answer("done")))
		w.Done(t, run)
		equal(t, "code", w.UntilType(t, run, "decision_invalid").GetDecisionInvalid().GetCode(), "too_many_calls")
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
	})
}

// nearest is what the model is told after it called a tool by a wrong name.
func (w *world) nearest(t *testing.T, name string) string {
	t.Helper()
	run := w.play(t, "std", harness.Steps(harness.Calls(name, "{}"), harness.Answer("done")))
	w.Done(t, run)
	return shown(t, w, run, 2).GetText()
}
