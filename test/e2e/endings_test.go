package e2e

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// ending is one way for a leg to end.
type ending struct {
	play      func(t *testing.T, w *world) (run string) // returns when it has ended
	reason    runnerdv1.StopReason
	status    string
	outcome   runnerdv1.Outcome
	resumable bool
}

// done plays a script to the end of its run.
func done(agent string, step harness.Step, changes ...with) func(*testing.T, *world) string {
	return func(t *testing.T, w *world) string {
		t.Helper()
		run := w.play(t, agent, step, changes...)
		w.Done(t, run)
		return run
	}
}

// cancelled plays a run that is cancelled in a call.
func cancelled(m runnerdv1.CancelMode) func(*testing.T, *world) string {
	return func(t *testing.T, w *world) string {
		t.Helper()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}")), calls(g.slow("done")))
		g.await(t)
		w.Cancel(t, run, m)
		g.open()
		w.Done(t, run)
		return run
	}
}

// endings are all that this version can come to, but for INTERNAL_ERROR, which is a bug.
var endings = map[string]ending{
	"COMPLETED": {
		play:   done("std", harness.Steps(harness.Answer("done"))),
		reason: runnerdv1.StopReason_STOP_REASON_COMPLETED, status: "completed", outcome: runnerdv1.Outcome_OUTCOME_SUCCESS,
	},
	"WAITING_APPROVAL": {
		play: func(t *testing.T, w *world) string {
			run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}")), mode(runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE))
			w.Idle(t, run)
			return run
		},
		reason: runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL, status: "pending_approval",
	},
	"MAX_ITERATIONS": {
		play:   done("std", harness.Forever(harness.Calls("look", "{}")), budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(2)})),
		reason: runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, status: "failed:model_logic",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"MAX_TOOL_CALLS": {
		play:   done("std", harness.Forever(harness.Calls("look", "{}")), budget(&runnerdv1.Budget{MaxToolCalls: proto.Uint32(2)})),
		reason: runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS, status: "failed:budget_exceeded",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"MAX_COST": {
		play:   done("std", harness.Forever(harness.Costing(harness.Calls("look", "{}"), 60, 1, 1))),
		reason: runnerdv1.StopReason_STOP_REASON_MAX_COST, status: "failed:budget_exceeded",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"MAX_DURATION": {
		play:   done("timed", harness.Hang),
		reason: runnerdv1.StopReason_STOP_REASON_MAX_DURATION, status: "failed:budget_exceeded",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"MAX_CONTEXT": {
		play:   done("std", harness.Steps(harness.Answer("done")), budget(&runnerdv1.Budget{MaxContextTokens: proto.Uint32(1)})),
		reason: runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT, status: "failed:budget_exceeded",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"BUDGET_DECLINED": {
		play:   done("confirms", harness.Forever(harness.Costing(harness.Calls("look", "{}"), 95, 1, 1)), mode(denyMode)),
		reason: runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED, status: "failed:system", outcome: runnerdv1.Outcome_OUTCOME_CANCELLED,
	},
	"MAX_FAILURES": {
		play:   done("std", harness.Forever(harness.Calls("look", "{}")), calls(harness.ToolError("no"))),
		reason: runnerdv1.StopReason_STOP_REASON_MAX_FAILURES, status: "failed:model_logic",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"NEEDS_INPUT": {
		play:   done("block", harness.Steps(harness.Ask("which?"))),
		reason: runnerdv1.StopReason_STOP_REASON_NEEDS_INPUT, status: "failed:model_logic",
		outcome: runnerdv1.Outcome_OUTCOME_BLOCKED, resumable: true,
	},
	"DECISION_INVALID": {
		play:   done("std", harness.Forever(&runnerdv1.Decision{})),
		reason: runnerdv1.StopReason_STOP_REASON_DECISION_INVALID, status: "failed:model_logic",
		outcome: runnerdv1.Outcome_OUTCOME_FAILED,
	},
	"PERMISSION_DENIED": {
		play: func(t *testing.T, w *world) string {
			run := w.play(t, "denyfail", harness.Steps(harness.Calls("deploy_site", "{}")))
			w.Approve(t, run, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY)
			w.Done(t, run)
			return run
		},
		reason: runnerdv1.StopReason_STOP_REASON_PERMISSION_DENIED, status: "failed:permission", outcome: runnerdv1.Outcome_OUTCOME_FAILED,
	},
	"POLICY_BLOCKED": {
		play: done("blockfail", harness.Steps(harness.Calls("charge", "{}")), func(_ *world, req *runnerdv1.StartRunRequest) {
			req.Policy = &runnerdv1.PolicyLayer{Mode: runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY}
		}),
		reason: runnerdv1.StopReason_STOP_REASON_POLICY_BLOCKED, status: "failed:permission", outcome: runnerdv1.Outcome_OUTCOME_FAILED,
	},
	"AUTO_MODE_LIMIT": {
		play:   done("auto-two", harness.Forever(harness.Calls("charge", "{}"))),
		reason: runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT, status: "failed:budget_exceeded",
		outcome: runnerdv1.Outcome_OUTCOME_INCOMPLETE, resumable: true,
	},
	"STOPPED": {
		play:   cancelled(runnerdv1.CancelMode_CANCEL_MODE_STOP),
		reason: runnerdv1.StopReason_STOP_REASON_STOPPED, status: "failed:system", outcome: runnerdv1.Outcome_OUTCOME_CANCELLED,
	},
	"CANCELLED": {
		play:   cancelled(runnerdv1.CancelMode_CANCEL_MODE_ABORT),
		reason: runnerdv1.StopReason_STOP_REASON_CANCELLED, status: "failed:system", outcome: runnerdv1.Outcome_OUTCOME_CANCELLED,
	},
	"TRANSPORT_ERROR": {
		play:   done("std", harness.Fail(codes.Unauthenticated)),
		reason: runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR, status: "failed:transient",
		outcome: runnerdv1.Outcome_OUTCOME_FAILED, resumable: true,
	},
}

// TestFailures looks at what a run says about its end, and what its closing event says.
func TestFailures(t *testing.T) {
	t.Parallel()
	w := shared(t)
	categories := map[string]runnerdv1.Category{
		"failed:transient":       runnerdv1.Category_CATEGORY_TRANSIENT,
		"failed:model_logic":     runnerdv1.Category_CATEGORY_MODEL_LOGIC,
		"failed:permission":      runnerdv1.Category_CATEGORY_PERMISSION,
		"failed:system":          runnerdv1.Category_CATEGORY_SYSTEM,
		"failed:budget_exceeded": runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED,
	}

	t.Run("T-195 each failure has one of five categories, and its status names it", func(t *testing.T) {
		t.Parallel()
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := w.Run(t, end.play(t, w))
				equal(t, "category", got.GetCategory(), categories[got.GetStatus()])
				failed := got.GetState() == runnerdv1.RunState_RUN_STATE_DONE && got.GetOutcome() != runnerdv1.Outcome_OUTCOME_SUCCESS
				equal(t, "there is a category", got.GetCategory() != 0, failed)
			})
		}
	})

	t.Run("T-196 outcome and category of a stop reason are the same everywhere", func(t *testing.T) {
		t.Parallel()
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run := end.play(t, w)
				got, events := w.Run(t, run), w.Events(t, run)
				f := events[len(events)-1].GetRunFailed()
				if f == nil {
					return // it did not fail
				}
				equal(t, "stop reason", f.GetStopReason(), got.GetStopReason())
				equal(t, "outcome", f.GetOutcome(), got.GetOutcome())
				equal(t, "category", f.GetCategory(), got.GetCategory())
				listed, err := w.Runs.WaitRun(harness.Context(t), &runnerdv1.WaitRunRequest{RunId: run})
				if err != nil {
					t.Fatal(err)
				}
				equal(t, "status where it is waited for", listed.GetRun().GetStatus(), end.status)
			})
		}
	})

	t.Run("T-197 a message says what happened, and a hint apart from it what to do", func(t *testing.T) {
		t.Parallel()
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := w.Run(t, end.play(t, w))
				failed := got.GetState() == runnerdv1.RunState_RUN_STATE_DONE && got.GetOutcome() != runnerdv1.Outcome_OUTCOME_SUCCESS
				equal(t, "there is a message", got.GetErrorMessage() != "", failed)
				if got.GetResumable() && got.GetHint() == "" {
					t.Errorf("nothing says how the run goes on: %q", got.GetErrorMessage())
				}
				if got.GetHint() != "" && strings.Contains(got.GetErrorMessage(), got.GetHint()) {
					t.Errorf("the hint is part of the message: %q", got.GetErrorMessage())
				}
			})
		}
	})
}
