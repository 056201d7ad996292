package e2e

import (
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

// endings are all that this version can come to, but for INTERNAL_ERROR, which is a bug, and POLICY_BLOCKED, which
// takes a gate that blocks.
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
