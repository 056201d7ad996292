package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestLifecycle(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-01 the caller's id, or one of 32 hex digits", func(t *testing.T) {
		t.Parallel()
		answer, err := w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{Agent: "std"})
		if err != nil {
			t.Fatal(err)
		}
		if id := answer.GetRun().GetRunId(); !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id) {
			t.Errorf("id is %q", id)
		}
		run := w.play(t, "std", harness.Steps(harness.Answer("done")))
		w.Done(t, run)
		again := &runnerdv1.StartRunRequest{RunId: run, Agent: "std", Task: "a task"}
		same, err := w.Runs.StartRun(harness.Context(t), again)
		if err != nil || !same.GetAlreadyStarted() || same.GetRun().GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("the same request again gives %v, %v; want the run as it is", same, err)
		}
		again.Task = "another task"
		_, err = w.Runs.StartRun(harness.Context(t), again)
		harness.Code(t, err, codes.AlreadyExists, "RUN_EXISTS")
		again.Task = "a task"
		_, err = w.Guest.StartRun(harness.Context(t), again) // the same request of another principal
		harness.Code(t, err, codes.AlreadyExists, "RUN_EXISTS")
	})

	t.Run("T-02 run_started comes first, with what the caller gave", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Answer("done")), func(_ *world, req *runnerdv1.StartRunRequest) {
			req.Labels = map[string]string{"team": "blue"}
			req.MetadataJson = `{"ticket": 9007199254740993}`
			req.InitialObservations = []*runnerdv1.InitialObservation{
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: "mind the gap"},
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, ToolName: "look", Text: "seen"},
			}
		})
		w.Done(t, run)
		first := w.Events(t, run)[0]
		started := first.GetRunStarted()
		if first.GetSequence() != 1 || started.GetTask() != "a task" || started.GetReplayedObservations() != 2 ||
			started.GetLabels()["team"] != "blue" || started.GetMetadataJson() != `{"ticket": 9007199254740993}` {
			t.Errorf("first event is %v", first)
		}
	})

	t.Run("T-03 A-34 each leg ends with exactly one closing event", func(t *testing.T) {
		t.Parallel()
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run := end.play(t, w)
				events := w.Events(t, run)
				closed := 0
				for i, ev := range events {
					switch ev.GetType() {
					case "run_completed", "run_failed", "run_paused":
						closed++
						if i != len(events)-1 {
							t.Errorf("event %d follows %s", i+2, ev.GetType())
						}
					}
				}
				equal(t, "number of closing events", closed, 1)
			})
		}
	})

	t.Run("E-02 T-07 each stop reason by its own cause, and its status", func(t *testing.T) {
		t.Parallel()
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := w.Run(t, end.play(t, w))
				equal(t, "stop reason", got.GetStopReason(), end.reason)
				equal(t, "status", got.GetStatus(), end.status)
				equal(t, "outcome", got.GetOutcome(), end.outcome)
				equal(t, "resumable", got.GetResumable(), end.resumable)
			})
		}
		live := w.play(t, "std", harness.Hang)
		equal(t, "status of a live run", w.Run(t, live).GetStatus(), "running")
		w.Cancel(t, live, runnerdv1.CancelMode_CANCEL_MODE_ABORT)
		w.Done(t, live)
	})

	t.Run("T-04 what breaks inside a run ends that run alone", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		healthy := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), calls(g.slow("seen")))
		g.await(t)
		broken := w.play(t, "std", harness.Fail(codes.Unimplemented))
		ended(t, w.Done(t, broken), runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR, "failed:transient")
		equal(t, "run_failed events", harness.Count(w.Events(t, broken), "run_failed"), 1)
		g.open()
		ended(t, w.Done(t, healthy), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})

	t.Run("T-05 A-27 E-04 iterations from 1, each in one order", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("put", "{}"), harness.Answer("done")))
		w.Done(t, run)
		want := []string{"run_started", "tools_pinned"}
		for range 2 {
			want = append(want, "iteration_started", "decision_made", "tool_call_requested", "tool_call_started", "tool_call_completed")
		}
		want = append(want, "iteration_started", "decision_made", "run_completed")
		got := slices.DeleteFunc(harness.Types(w.Events(t, run)), func(s string) bool { return s == "budget_warning" })
		if !slices.Equal(got, want) {
			t.Errorf("events are %q, want %q", got, want)
		}
		for i, ev := range harness.Only(w.Events(t, run), "iteration_started") {
			equal(t, "iteration", ev.GetIterationStarted().GetIteration(), uint32(i+1))
			equal(t, "leg", ev.GetLeg(), 1)
		}
	})

	t.Run("T-06 E-01 A-05 the result has all that a run came to", func(t *testing.T) {
		t.Parallel()
		answer := harness.Costing(harness.Answer("forty-two"), 1.5, 100, 10)
		answer.GetAnswer().MetadataJson = `{"sure": true}`
		run := w.play(t, "std", harness.Steps(harness.Costing(harness.Calls("look", "{}", "book", `{"q":"x"}`), 0.5, 50, 5), answer))
		got := w.Done(t, run)
		equal(t, "answer", got.GetFinalAnswer().GetContent(), "forty-two")
		equal(t, "metadata", got.GetFinalAnswer().GetMetadataJson(), `{"sure": true}`)
		equal(t, "iterations", got.GetIteration(), 2)
		equal(t, "tool calls", got.GetToolCalls(), 1)
		equal(t, "failures in a row", got.GetConsecutiveFailures(), 1)
		equal(t, "cost", got.GetUsage().GetCostCents(), 2)
		equal(t, "input tokens", got.GetUsage().GetInputTokens(), 150)
		equal(t, "output tokens", got.GetUsage().GetOutputTokens(), 15)
		equal(t, "outcome", got.GetOutcome(), runnerdv1.Outcome_OUTCOME_SUCCESS)
		equal(t, "error message", got.GetErrorMessage(), "")

		failed := w.Done(t, w.play(t, "std", harness.Fail(codes.NotFound)))
		if failed.GetFinalAnswer() != nil || failed.GetErrorMessage() == "" {
			t.Errorf("a failed run has the answer %v and the message %q", failed.GetFinalAnswer(), failed.GetErrorMessage())
		}
	})

	t.Run("T-08 run_completed has answer, metadata and usage", func(t *testing.T) {
		t.Parallel()
		answer := harness.Costing(harness.Answer("done"), 7, 3, 2)
		answer.GetAnswer().MetadataJson = `{"a":1}`
		run := w.play(t, "std", harness.Steps(answer))
		w.Done(t, run)
		end := w.UntilType(t, run, "run_completed").GetRunCompleted()
		if end.GetAnswer().GetContent() != "done" || end.GetAnswer().GetMetadataJson() != `{"a":1}` ||
			end.GetUsage().GetCostCents() != 7 || end.GetUsage().GetInputTokens() != 3 || end.GetUsage().GetOutputTokens() != 2 {
			t.Errorf("run_completed is %v", end)
		}
	})

	t.Run("E-03 a checkpoint has what a run goes on from", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Costing(harness.Calls("look", "{}"), 2, 7, 1), harness.Costing(harness.Calls("put", "{}", "look", "{}"), 3, 5, 1),
			harness.Answer("done")), budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(2)}))
		w.Done(t, run)
		get := func(label string) *runnerdv1.Checkpoint {
			answer, err := w.Runs.GetCheckpoint(harness.Context(t), &runnerdv1.GetCheckpointRequest{RunId: run, Label: label})
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetCheckpoint()
		}
		first, latest := get("step-1"), get("")
		equal(t, "entries after the first iteration", first.GetHistoryEntries(), 2)
		equal(t, "cents after it", first.GetUsage().GetCostCents(), 2)
		equal(t, "stop reason after it", first.GetStopReason(), runnerdv1.StopReason_STOP_REASON_UNSPECIFIED)
		equal(t, "label of the latest", latest.GetLabel(), "step-2")
		equal(t, "entries", latest.GetHistoryEntries(), 5)
		equal(t, "tool calls", latest.GetToolCalls(), 3)
		equal(t, "cents", latest.GetUsage().GetCostCents(), 5)
		equal(t, "input tokens", latest.GetUsage().GetInputTokens(), 12)
		if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
			RunId: run, Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(3)},
		}); err != nil {
			t.Fatal(err)
		}
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "tool calls after it went on", got.GetToolCalls(), 3)
		equal(t, "entries it went on with", len(w.brain.Requests(run)[2].GetHistory()), 5)
	})

	t.Run("T-12 what a tool did before it failed stays done", func(t *testing.T) {
		t.Parallel()
		written := ""
		run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}", "look", "{}"), harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{
				"charge": func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
					written = "half"
					return &runnerdv1.ToolResult{Text: "broke down", IsError: true}, nil
				},
				"look": func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
					return &runnerdv1.ToolResult{Text: written}, nil
				},
			})))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "what the next tool saw", shown(t, w, run, 2).GetText(), "half")
	})

	t.Run("A-02 A-03 A-04 the kind of a run, and where it came from", func(t *testing.T) {
		t.Parallel()
		plain := w.play(t, "std", harness.Steps(harness.Answer("done")))
		got := w.Done(t, plain)
		equal(t, "kind", got.GetKind(), runnerdv1.TaskKind_TASK_KIND_EDIT)
		equal(t, "source", got.GetKindSource(), "default")
		given := w.play(t, "std", harness.Steps(harness.Answer("done")), func(_ *world, req *runnerdv1.StartRunRequest) {
			req.Kind = runnerdv1.TaskKind_TASK_KIND_INVESTIGATE
		})
		got = w.Done(t, given)
		equal(t, "kind", got.GetKind(), runnerdv1.TaskKind_TASK_KIND_INVESTIGATE)
		equal(t, "source", got.GetKindSource(), "override")
		equal(t, "kind the decide service sees", w.brain.Requests(given)[0].GetKind(), runnerdv1.TaskKind_TASK_KIND_INVESTIGATE)
		started := w.Events(t, given)[0].GetRunStarted()
		equal(t, "source in run_started", started.GetKindSource(), "override")
		// What it does and how it ended are two facts.
		equal(t, "state", got.GetState(), runnerdv1.RunState_RUN_STATE_DONE)
		equal(t, "outcome", got.GetOutcome(), runnerdv1.Outcome_OUTCOME_SUCCESS)
	})

	t.Run("A-36 who waits and who watches see the same run", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), calls(g.slow("seen")))
		var followed []*runnerdv1.Event
		watched := make(chan error, 1)
		go func() {
			var err error
			followed, err = w.Read(harness.Context(t), &runnerdv1.StreamEventsRequest{
				Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Follow: true,
			})
			watched <- err
		}()
		g.await(t)
		g.open()
		got := w.Done(t, run)
		if err := <-watched; err != nil {
			t.Fatal(err)
		}
		read := w.Public(t, run)
		if len(followed) != len(read) {
			t.Fatalf("the watcher saw %d events, %d are there", len(followed), len(read))
		}
		for i := range read {
			if !proto.Equal(followed[i], read[i]) {
				t.Errorf("event %d differs", i+1)
			}
		}
		equal(t, "head", got.GetHeadSequence(), uint64(len(read)))
	})

	t.Run("A-37 a slow tool of one run delays no other", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		slow := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), calls(g.slow("late")))
		g.await(t)
		for range 3 {
			quick := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")))
			ended(t, w.Done(t, quick), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		}
		equal(t, "state of the slow run", w.Run(t, slow).GetState(), runnerdv1.RunState_RUN_STATE_RUNNING)
		g.open()
		w.Done(t, slow)
	})

	t.Run("E-10 E-11 E-15 E-16 what is given for the model reaches it, and nothing else", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Answer("done")), func(_ *world, req *runnerdv1.StartRunRequest) {
			req.Model, req.Effort = "big-one", "high"
			req.Identity = &runnerdv1.Identity{AgentId: "agent-7"}
		})
		got := w.Done(t, run)
		req := w.brain.Requests(run)[0]
		equal(t, "model", req.GetModel(), "big-one")
		equal(t, "effort", req.GetEffort(), "high")
		if !proto.Equal(req.GetIdentity(), &runnerdv1.Identity{AgentId: "agent-7"}) {
			t.Errorf("identity is %v", req.GetIdentity())
		}
		equal(t, "model of the run", got.GetModel(), "big-one")
		without := w.play(t, "std", harness.Steps(harness.Answer("done")))
		w.Done(t, without)
		equal(t, "model that nobody named", w.brain.Requests(without)[0].GetModel(), "")

		_, err := w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{RunId: w.RunID(t), Agent: "nobody"})
		harness.Code(t, err, codes.NotFound, "AGENT_NOT_FOUND")
		id := w.RunID(t)
		_, err = w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{RunId: id})
		harness.Code(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		_, err = w.Runs.GetRun(harness.Context(t), &runnerdv1.GetRunRequest{RunId: id})
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})

	t.Run("A-26 E-17 E-18 T-30 the defaults, as GetRun shows them", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Answer("done")))
		spec := w.Done(t, run).GetSpec()
		b := spec.GetBudget()
		equal(t, "max_iterations", b.GetMaxIterations(), 25)
		equal(t, "max_tool_calls", b.GetMaxToolCalls(), 25)
		equal(t, "max_cost_cents", b.GetMaxCostCents(), 100)
		equal(t, "max_duration", b.GetMaxDuration().AsDuration(), 0)
		equal(t, "max_consecutive_failures", b.GetMaxConsecutiveFailures(), 5)
		equal(t, "max_consecutive_refusals", b.GetMaxConsecutiveRefusals(), 10)
		equal(t, "max_context_tokens", b.GetMaxContextTokens(), 200_000)
		equal(t, "confirm_at_90", spec.GetConfirmAt_90(), false)
		equal(t, "context_warning_percent", spec.GetContextWarningPercent(), 60)
		equal(t, "approval mode", spec.GetApproval().GetMode(), runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT)
		equal(t, "approval timeout", fmt.Sprint(spec.GetApproval().GetTimeout().AsDuration()), "1h0m0s")
		equal(t, "decide_timeout", fmt.Sprint(spec.GetDecideTimeout().AsDuration()), "4m0s")
		equal(t, "decide_patience", fmt.Sprint(spec.GetDecidePatience().AsDuration()), "5m0s")
		equal(t, "max_parallel_tools", spec.GetMaxParallelTools(), 4)
		equal(t, "max_result_bytes", spec.GetMaxResultBytes(), 16<<20)
		list, err := w.Runs.ListTools(harness.Context(t), &runnerdv1.ListToolsRequest{Agent: "std"})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "tool_timeout", fmt.Sprint(list.GetTools()[0].GetTimeout().AsDuration()), "2m0s")
	})
}
