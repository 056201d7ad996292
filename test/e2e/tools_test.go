package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestTools(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-145 A-01 a call carries what it needs, and nothing that changes a run", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "charge", "{}"), harness.Answer("done")),
			func(_ *world, req *runnerdv1.StartRunRequest) { req.Identity = &runnerdv1.Identity{SessionId: "s-1"} },
			calls(byTool(map[string]harness.Handler{"look": harness.Result(strings.Repeat("x", 60_000)), "charge": g.slow("paid")})))
		g.await(t)
		req := w.hands.Calls(run)[1].Request
		equal(t, "run", req.GetRunId(), run)
		equal(t, "call", req.GetCallId(), "1.2")
		equal(t, "attempt", req.GetAttempt(), 1)
		equal(t, "key", req.GetIdempotencyKey(), run+"/1.2")
		equal(t, "agent", req.GetAgent(), "std")
		equal(t, "session", req.GetIdentity().GetSessionId(), "s-1")
		if left := time.Until(req.GetDeadline().AsTime()); left < time.Minute || left > 2*time.Minute {
			t.Errorf("the deadline is %s away, want about 2m", left)
		}

		token := metadata.AppendToOutgoingContext(harness.Context(t), "runnerd-run-token", req.GetRunToken())
		whole := w.UntilType(t, run, "tool_call_completed").GetToolCallCompleted().GetArtifacts()[0]
		if data, err := w.ReadArtifact(token, run, whole.GetArtifactId(), 0); err != nil || len(data) != 60_000 {
			t.Errorf("the token reads %d bytes of an artifact of its run: %v", len(data), err)
		}
		for name, call := range map[string]func(context.Context) error{
			"CancelRun": func(ctx context.Context) error {
				_, err := w.Runs.CancelRun(ctx, &runnerdv1.CancelRunRequest{RunId: run, Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT})
				return err
			},
			"SubmitInput": func(ctx context.Context) error {
				_, err := w.Runs.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: run, Text: "x"})
				return err
			},
			"SubmitApproval": func(ctx context.Context) error {
				_, err := w.Runs.SubmitApproval(ctx, &runnerdv1.SubmitApprovalRequest{
					RunId: run, ApprovalId: 1, ApprovalDigest: "x", Verdict: approve,
				})
				return err
			},
			"GetRun": func(ctx context.Context) error {
				_, err := w.Runs.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: run})
				return err
			},
		} {
			if err := call(token); status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s with a run token gives %v, want PERMISSION_DENIED", name, err)
			}
		}
		g.open()
		w.Done(t, run)
		_, err := w.ReadArtifact(token, run, whole.GetArtifactId(), 0)
		harness.Code(t, err, codes.Unauthenticated, "") // the call is over, and so is its token
	})

	t.Run("T-146 a result is one observation and one event of the same content", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", `{"key":"value-1"}`), harness.Answer("done")), calls(
			func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
				return &runnerdv1.ToolResult{Text: "value-2", StructuredJson: `{"n":1}`}, nil
			}))
		w.Done(t, run)
		event := w.UntilType(t, run, "tool_call_completed").GetToolCallCompleted()
		seen := shown(t, w, run, 2)
		equal(t, "text", event.GetText(), "value-2")
		equal(t, "text shown", seen.GetText(), event.GetText())
		equal(t, "structured shown", seen.GetStructuredJson(), event.GetStructuredJson())
		equal(t, "call", seen.GetCallId(), event.GetCallId())
		equal(t, "tool", seen.GetToolName(), "look")
	})

	t.Run("T-147 A-07 a failed call is an observation and the run goes on", func(t *testing.T) {
		t.Parallel()
		for name, handler := range map[string]harness.Handler{
			"TOOL_ERROR": harness.ToolError("no such seat"), "HOST_REFUSED": refuse(codes.FailedPrecondition),
		} {
			run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), calls(handler))
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			seen := shown(t, w, run, 2)
			equal(t, "kind", seen.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR)
			equal(t, "reason", seen.GetReason().String(), "CALL_REASON_"+name)
			equal(t, "attempts", len(w.hands.Calls(run)), 1)
		}
		every := w.play(t, "std", harness.Steps(
			&runnerdv1.Decision{}, harness.Calls("look", "{}", "nothing", "{}", "deploy_site", "{}"), harness.Ask("well?"), harness.Answer("done")),
			mode(denyMode))
		w.Idle(t, every)
		w.Input(t, every, "go on")
		w.Done(t, every)
		var kinds []string
		for _, e := range w.History(t, every) {
			if o := e.GetObservation(); o != nil {
				kinds = append(kinds, strings.TrimPrefix(o.GetKind().String(), "OBSERVATION_KIND_"))
			}
		}
		if want := []string{"NOTE", "TOOL_RESULT", "TOOL_ERROR", "DENIAL", "USER_INPUT"}; !slices.Equal(kinds, want) {
			t.Errorf("observations are %q, want %q", kinds, want)
		}
	})

	t.Run("T-148 A-50 arguments that miss the schema start nothing", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("book", `{"q":"many","x":1}`), harness.Answer("done")))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "starts", harness.Count(w.Events(t, run), "tool_call_started"), 0)
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
		seen := shown(t, w, run, 2)
		equal(t, "reason", seen.GetReason(), runnerdv1.CallReason_CALL_REASON_SCHEMA_MISMATCH)
		has(t, seen.GetText(), "at /q: got string, want integer", "'x' not allowed")
	})

	t.Run("A-50 a host that breaks down in a call", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), calls(refuse(codes.Internal)))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "reason", shown(t, w, run, 2).GetReason(), runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME)
		equal(t, "attempts", len(w.hands.Calls(run)), 1)
	})

	t.Run("A-49 E-14 a tool that nobody offers is an outcome the model can mend", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("lock", "{}"), harness.Calls("look", "{}"), harness.Answer("done")))
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "reason", shown(t, w, run, 2).GetReason(), runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL)
		equal(t, "tool calls counted", got.GetToolCalls(), 1)
	})

	t.Run("T-149 the history only grows", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Calls("look", "{}", "charge", "{}"), harness.Calls("nothing", "{}"), &runnerdv1.Decision{}, harness.Answer("done")))
		w.Done(t, run)
		var before []*runnerdv1.HistoryEntry
		for _, req := range w.brain.Requests(run) {
			if len(req.GetHistory()) < len(before) {
				t.Fatalf("Decide %d was shown %d entries, the one before %d", req.GetIteration(), len(req.GetHistory()), len(before))
			}
			for i := range before {
				if !proto.Equal(before[i], req.GetHistory()[i]) {
					t.Errorf("Decide %d was shown another entry %d", req.GetIteration(), i)
				}
			}
			before = req.GetHistory()
		}
		equal(t, "entries at the end", len(w.History(t, run)), len(before)+1)
	})

	t.Run("T-150 a result over 50000 bytes is a preview and an artifact", func(t *testing.T) {
		t.Parallel()
		whole := strings.Repeat("é", 30_000)
		exactly := strings.Repeat("x", 50_000)
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("put", "{}"), harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{"look": harness.Result(whole), "put": harness.Result(exactly)})))
		w.Done(t, run)
		seen := shown(t, w, run, 2)
		if !seen.GetTextTruncated() || len(seen.GetText()) > 50_000 || strings.Contains(seen.GetText(), "\uFFFD") {
			t.Errorf("the model is shown %d bytes, truncated=%t", len(seen.GetText()), seen.GetTextTruncated())
		}
		ref := seen.GetArtifacts()[0]
		sum := sha256.Sum256([]byte(whole))
		equal(t, "hash", ref.GetSha256(), hex.EncodeToString(sum[:]))
		equal(t, "size", ref.GetSize(), 60_000)
		equal(t, "whole", string(w.Artifact(t, run, ref.GetArtifactId())) == whole, true)
		slice, err := w.ReadArtifact(harness.Context(t), run, ref.GetArtifactId(), 59_990)
		if err != nil || string(slice) != whole[59_990:] {
			t.Errorf("from an offset it is %q, %v", slice, err)
		}
		equal(t, "a result of just 50000 bytes", shown(t, w, run, 3).GetText() == exactly, true)
	})

	t.Run("E-12 E-13 tools of several hosts, in the order of the agent's hosts", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "two", harness.Steps(harness.Calls("x_look", "{}", "look", "{}"), harness.Answer("done")))
		w.Done(t, run)
		var names []string
		for _, tool := range w.brain.Requests(run)[0].GetTools() {
			names = append(names, tool.GetName())
		}
		if want := []string{"x_look", "look", "put", "book", "charge", "deploy_site", "wipe"}; !slices.Equal(names, want) {
			t.Errorf("tools are offered as %q, want %q", names, want)
		}
		mine, other := w.hands.Calls(run), w.other.Calls(run)
		if len(mine) != 1 || len(other) != 1 || other[0].Request.GetName() != "look" {
			t.Errorf("the hosts got %v and %v", mine, other)
		}
		partial := w.play(t, "partial", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")))
		ended(t, w.Done(t, partial), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "host that could not list", w.UntilType(t, partial, "tool_host_unavailable").GetToolHostUnavailable().GetHost(), "nowhere")
	})

	t.Run("E-55 many calls in a decision run in order", func(t *testing.T) {
		t.Parallel()
		var running, most atomic.Int32
		handler := func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			return &runnerdv1.ToolResult{Text: "result of " + req.GetCallId()}, nil
		}
		run := w.play(t, "std", harness.Steps(harness.Calls("put", "{}", "charge", "{}", "nothing", "{}", "put", "{}"), harness.Answer("done")), calls(handler))
		w.Done(t, run)
		equal(t, "calls at once", most.Load(), 1)
		var order []string
		for _, c := range w.hands.Calls(run) {
			order = append(order, c.Request.GetCallId())
		}
		if want := []string{"1.1", "1.2", "1.4"}; !slices.Equal(order, want) {
			t.Errorf("the host was called in the order %q, want %q", order, want)
		}
		for i, e := range w.History(t, run)[1:5] {
			equal(t, "call of the result", e.GetObservation().GetCallId(), fmt.Sprintf("1.%d", i+1))
		}
	})

	t.Run("E-55 calls that only read run together, their results in order", func(t *testing.T) {
		t.Parallel()
		gates := map[string]*gate{"1.1": newGate(), "1.2": newGate(), "1.3": newGate()}
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "look", "{}", "charge", "{}"), harness.Answer("done")), calls(
			func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				gates[req.GetCallId()].pass(s.Context())
				return &runnerdv1.ToolResult{Text: "result of " + req.GetCallId()}, nil
			}))
		gates["1.1"].await(t)
		gates["1.2"].await(t) // while the first still runs
		gates["1.2"].open()
		w.Until(t, run, "outcome of 1.2", func(ev *runnerdv1.Event) bool { return ev.GetToolCallCompleted().GetCallId() == "1.2" })
		equal(t, "starts before the first has an outcome", harness.Count(w.Events(t, run), "tool_call_started"), 2)
		gates["1.1"].open()
		gates["1.3"].await(t)
		gates["1.3"].open()
		w.Done(t, run)
		for i, e := range w.History(t, run)[1:4] {
			equal(t, "result", e.GetObservation().GetText(), fmt.Sprintf("result of 1.%d", i+1))
		}
	})

	t.Run("A-06 what was called and what came of it is read from the log", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Calls("look", `{"file":"a"}`), harness.Calls("put", `{"file":"b"}`), harness.Answer("done")))
		w.Done(t, run)
		events, err := w.Read(harness.Context(t), &runnerdv1.StreamEventsRequest{
			Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, IncludeRaw: true,
			Types: []string{"tool_call_requested", "tool_call_completed"},
		})
		if err != nil {
			t.Fatal(err)
		}
		var ledger []string
		for _, ev := range events {
			if r := ev.GetToolCallRequested(); r != nil {
				ledger = append(ledger, fmt.Sprintf("%s %s/%s tier %d %s", r.GetCallId(), r.GetHost(), r.GetTool(), r.GetTier(), r.GetArgumentsRaw()))
			} else {
				ledger = append(ledger, ev.GetToolCallCompleted().GetCallId()+" completed")
			}
		}
		want := []string{
			`1.1 hands/look tier 0 {"file":"a"}`, "1.1 completed", `2.1 hands/put tier 2 {"file":"b"}`, "2.1 completed",
		}
		if !slices.Equal(ledger, want) {
			t.Errorf("the log says %q, want %q", ledger, want)
		}
	})

	t.Run("A-09 an answer is a proposal: what people said meanwhile comes first", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(
			func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
				g.pass(s.Context())
				return harness.Send(s, harness.Answer("too early"))
			}, harness.Answer("done")))
		g.await(t)
		w.Input(t, run, "one thing more")
		g.open()
		got := w.Done(t, run)
		equal(t, "answer", got.GetFinalAnswer().GetContent(), "done")
		equal(t, "iterations", got.GetIteration(), 2)
		equal(t, "what the model was shown", shown(t, w, run, 2).GetText(), "one thing more")
		equal(t, "run_completed events", harness.Count(w.Events(t, run), "run_completed"), 1)
	})
}
