package e2e

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// checkpoint is a checkpoint of a run, the latest without a label.
func (w *world) checkpoint(t *testing.T, run, label string) *runnerdv1.Checkpoint {
	t.Helper()
	answer, err := w.Runs.GetCheckpoint(harness.Context(t), &runnerdv1.GetCheckpointRequest{RunId: run, Label: label})
	if err != nil {
		t.Fatalf("GetCheckpoint %q of %s: %v", label, run, err)
	}
	return answer.GetCheckpoint()
}

// checkpoints is all checkpoints of a run.
func (w *world) checkpoints(t *testing.T, run string) []*runnerdv1.Checkpoint {
	t.Helper()
	answer, err := w.Runs.ListCheckpoints(harness.Context(t), &runnerdv1.ListCheckpointsRequest{RunId: run})
	if err != nil {
		t.Fatalf("ListCheckpoints of %s: %v", run, err)
	}
	return answer.GetCheckpoints()
}

// resume lets a run go on with more iterations.
func (w *world) resume(t *testing.T, run string, iterations uint32) {
	t.Helper()
	if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
		RunId: run, Budget: &runnerdv1.Budget{MaxIterations: new(iterations)},
	}); err != nil {
		t.Fatalf("ResumeRun: %v", err)
	}
}

func iterations(n uint32) with { return budget(&runnerdv1.Budget{MaxIterations: new(n)}) }

func TestCheckpoint(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-165 E-51 each iteration whose calls have outcomes, labelled step-<iteration>", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(
			harness.Calls("look", "{}", "put", "{}"), // both complete
			harness.Calls("nowhere", "{}"),           // fails its check
			harness.Calls("charge", "{}"),            // is still running when we look
			harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{"charge": g.slow("charged")})))
		g.await(t)
		_, err := w.Runs.GetCheckpoint(harness.Context(t), &runnerdv1.GetCheckpointRequest{RunId: run, Label: "step-3"})
		harness.Code(t, err, codes.NotFound, "CHECKPOINT_NOT_FOUND")
		equal(t, "latest while 3 is open", w.checkpoint(t, run, "").GetLabel(), "step-2")
		g.open()
		w.Done(t, run)
		var labels []string
		for i, c := range w.checkpoints(t, run) {
			labels = append(labels, c.GetLabel())
			equal(t, "iteration", c.GetIteration(), uint32(i+1))
			if got := w.checkpoint(t, run, c.GetLabel()); !proto.Equal(got, c) {
				t.Errorf("GetCheckpoint gives %v, ListCheckpoints %v", got, c)
			}
		}
		if want := []string{"step-1", "step-2", "step-3"}; !slices.Equal(labels[:min(3, len(labels))], want) {
			t.Errorf("checkpoints are %q, want %q first", labels, want)
		}
	})

	t.Run("T-165 a run that rests with a call open has its last whole iteration", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		w.Idle(t, run)
		_, err := w.Runs.GetCheckpoint(harness.Context(t), &runnerdv1.GetCheckpointRequest{RunId: run})
		harness.Code(t, err, codes.NotFound, "CHECKPOINT_NOT_FOUND")
		w.Approve(t, run, approve)
		w.Done(t, run)
	})

	t.Run("T-166 a checkpoint has history and counters as they were", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Costing(harness.Calls("look", "{}"), 2, 10, 1),
			harness.Costing(harness.Calls("look", "{}", "put", "{}"), 3, 20, 2), harness.Costing(harness.Answer("done"), 4, 30, 3)))
		w.Done(t, run)
		first, second := w.checkpoint(t, run, "step-1"), w.checkpoint(t, run, "step-2")
		equal(t, "calls at step-1", first.GetToolCalls(), 1)
		equal(t, "cost at step-1", first.GetUsage().GetCostCents(), 2)
		equal(t, "history at step-1", first.GetHistoryEntries(), 2)
		equal(t, "calls at step-2", second.GetToolCalls(), 3)
		equal(t, "cost at step-2", second.GetUsage().GetCostCents(), 5)
		equal(t, "tokens at step-2", second.GetUsage().GetInputTokens(), 30)
		equal(t, "history at step-2", second.GetHistoryEntries(), 5)
		page, err := w.Runs.ListHistory(harness.Context(t), &runnerdv1.ListHistoryRequest{RunId: run, AtSequence: second.GetSequence()})
		if err != nil {
			t.Fatal(err)
		}
		asked := w.brain.Requests(run)[2].GetHistory()
		if !slices.EqualFunc(page.GetEntries(), asked, func(a, b *runnerdv1.HistoryEntry) bool { return proto.Equal(a, b) }) {
			t.Errorf("the history at step-2 is %v, Decide 3 was shown %v", page.GetEntries(), asked)
		}
	})

	t.Run("T-167 an unknown run is not found", func(t *testing.T) {
		t.Parallel()
		_, err := w.Runs.GetCheckpoint(harness.Context(t), &runnerdv1.GetCheckpointRequest{RunId: "nobody"})
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
		_, err = w.Runs.ListCheckpoints(harness.Context(t), &runnerdv1.ListCheckpointsRequest{RunId: "nobody"})
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})

	t.Run("T-168 imported observations count, iterations begin at 1", func(t *testing.T) {
		t.Parallel()
		given := func(_ *world, req *runnerdv1.StartRunRequest) {
			req.InitialObservations = []*runnerdv1.InitialObservation{
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, ToolName: "look", Text: "seen before"},
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR, ToolName: "put", Text: "did not work"},
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: "from another run"},
			}
		}
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), given,
			func(_ *world, req *runnerdv1.StartRunRequest) {
				req.Budget = &runnerdv1.Budget{MaxToolCalls: proto.Uint32(3)}
			})
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "imported", got.GetImportedObservations(), 3)
		equal(t, "tool calls", got.GetToolCalls(), 3)
		first := w.brain.Requests(run)[0]
		equal(t, "iteration of the first Decide", first.GetIteration(), 1)
		equal(t, "history of the first Decide", len(first.GetHistory()), 3)
		equal(t, "marked", first.GetHistory()[0].GetObservation().GetImported(), true)
		equal(t, "calls left at the first Decide", first.GetBudgetLeft().GetToolCalls(), 1)
	})

	t.Run("T-169 what is rebuilt is what was, not what may be shown", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", `{"token":"s3cr3t-in-args"}`), harness.Answer("done")),
			calls(harness.Result("password=s3cr3t-in-result")), iterations(1))
		w.Done(t, run) // at rest: it is rebuilt from here on
		for _, ev := range w.Public(t, run) {
			if s := ev.String(); strings.Contains(s, "s3cr3t-in-args") {
				t.Errorf("the secret stands in the public event %v", ev)
			}
		}
		history := w.History(t, run)
		equal(t, "arguments", history[0].GetDecision().GetCalls()[0].GetArgumentsRaw(), `{"token":"s3cr3t-in-args"}`)
		equal(t, "result", history[1].GetObservation().GetText(), "password=s3cr3t-in-result")
	})

	t.Run("E-50 decisions and calls are recorded in the order they happened", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("put", `{"n":1}`, "put", `{"n":2}`), harness.Calls("look", "{}"), harness.Answer("done")))
		w.Done(t, run)
		var steps []string
		for _, ev := range w.Events(t, run) {
			switch p := ev.GetPayload().(type) {
			case *runnerdv1.Event_DecisionMade:
				steps = append(steps, "decision")
			case *runnerdv1.Event_ToolCallStarted:
				steps = append(steps, "start "+p.ToolCallStarted.GetCallId())
			case *runnerdv1.Event_ToolCallCompleted:
				steps = append(steps, "end "+p.ToolCallCompleted.GetCallId())
			}
		}
		want := []string{"decision", "start 1.1", "end 1.1", "start 1.2", "end 1.2", "decision", "start 2.1", "end 2.1", "decision"}
		if !slices.Equal(steps, want) {
			t.Errorf("steps are %q, want %q", steps, want)
		}
	})

	t.Run("E-52 a resumed run goes on counting where it was", func(t *testing.T) {
		t.Parallel()
		call := harness.Costing(harness.Calls("look", "{}"), 1, 10, 1)
		run := w.play(t, "wide", harness.Steps(call, call, call, call, call), iterations(2))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
		_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run})
		harness.Code(t, err, codes.FailedPrecondition, "LIMIT_STILL_REACHED")
		w.resume(t, run, 4)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
		equal(t, "leg", got.GetLeg(), 2)
		equal(t, "iteration", got.GetIteration(), 4)
		equal(t, "tool calls", got.GetToolCalls(), 4)
		equal(t, "cost", got.GetUsage().GetCostCents(), 4)
		requests := w.brain.Requests(run)
		equal(t, "Decides", len(requests), 4)
		equal(t, "history after the resume", len(requests[2].GetHistory()), 4)
		equal(t, "iterations left after the resume", requests[2].GetBudgetLeft().GetIterations(), 2)
		equal(t, "checkpoints", len(w.checkpoints(t, run)), 4)
	})
}

// TestCheckpointOverRestart kills the daemon with a run at rest and one in progress that has more events than are
// kept without a checkpoint body.
func TestCheckpointOverRestart(t *testing.T) {
	t.Parallel()
	w := own(t)
	call := harness.Costing(harness.Calls("look", "{}"), 0.5, 10, 1)
	resting := w.play(t, "wide", harness.Forever(call), iterations(30), func(_ *world, req *runnerdv1.StartRunRequest) {
		req.Budget.MaxToolCalls = proto.Uint32(100)
	})
	w.Done(t, resting)
	g := newGate()
	running := w.play(t, "wide", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
		switch {
		case req.GetIteration() > 20:
			return harness.Send(s, harness.Answer("done"))
		case req.GetIteration() == 20 && req.GetAttempt() == 1:
			g.pass(s.Context())
		}
		return harness.Send(s, call)
	})
	g.await(t)
	before := map[string][]*runnerdv1.Checkpoint{}
	for _, run := range []string{resting, running} {
		before[run] = w.checkpoints(t, run)
	}
	history := w.History(t, resting)
	w.Kill()
	w.Restart(t)

	t.Run("T-167 checkpoints survive a restart", func(t *testing.T) {
		equal(t, "checkpoints of the run at rest", len(before[resting]), 30)
		equal(t, "checkpoints of the run in progress", len(before[running]), 19)
		for run, want := range before {
			got := w.checkpoints(t, run)
			for i := range want {
				if i >= len(got) || !proto.Equal(got[i], want[i]) {
					t.Errorf("checkpoint %d of %s is lost or another", i+1, run)
				}
			}
		}
	})

	t.Run("T-166 E-52 a run goes on from where it was", func(t *testing.T) {
		ended(t, w.Done(t, running), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		requests := w.brain.Requests(running)
		last := requests[len(requests)-1]
		equal(t, "iteration of the last Decide", last.GetIteration(), 21)
		equal(t, "its history", len(last.GetHistory()), 40)
		equal(t, "cost", w.Run(t, running).GetUsage().GetCostCents(), 10)

		again := w.History(t, resting)
		if !slices.EqualFunc(history, again, func(a, b *runnerdv1.HistoryEntry) bool { return proto.Equal(a, b) }) {
			t.Error("the history of the run at rest is not what it was")
		}
		w.resume(t, resting, 31)
		got := w.Done(t, resting)
		equal(t, "iteration", got.GetIteration(), 31)
		equal(t, "tool calls", got.GetToolCalls(), 31)
		equal(t, "cost", got.GetUsage().GetCostCents(), 15.5)
	})
}
