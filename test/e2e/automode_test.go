package e2e

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// autoAgents are agents with auto mode: always on, on request, with a list of tools, and with narrow limits.
func autoAgents(agent func(func(*configv1.Agent)) *configv1.Agent) map[string]*configv1.Agent {
	auto := func(a *configv1.AutoMode) *configv1.Agent {
		return agent(func(c *configv1.Agent) {
			c.Policy = &configv1.Policy{Mode: "prompt", ApprovalFor: []string{"book"}}
			c.BudgetMax = &runnerdv1.Budget{MaxIterations: proto.Uint32(1000), MaxToolCalls: proto.Uint32(1000), MaxCostCents: new(1e6)}
			c.AutoMode = a
		})
	}
	wide := &runnerdv1.AutoModeLimits{
		MaxIterations: proto.Uint32(100), MaxToolCalls: proto.Uint32(200), MaxCostCents: new(1000.0), MaxDuration: durationpb.New(time.Hour),
	}
	return map[string]*configv1.Agent{
		"auto":      auto(&configv1.AutoMode{Enabled: true, DeniedTools: []string{"put"}}),
		"auto-asks": auto(&configv1.AutoMode{}),
		"auto-list": auto(&configv1.AutoMode{Enabled: true, AllowedTools: []string{"charge", "tool:look"}}),
		"auto-two":  auto(&configv1.AutoMode{Enabled: true, Limits: &runnerdv1.AutoModeLimits{MaxIterations: proto.Uint32(2)}, LimitsMax: wide}),
		"auto-calls": auto(&configv1.AutoMode{
			Enabled: true, Limits: &runnerdv1.AutoModeLimits{MaxToolCalls: proto.Uint32(2)}, LimitsMax: wide,
		}),
		"auto-cents": auto(&configv1.AutoMode{Enabled: true, Limits: &runnerdv1.AutoModeLimits{MaxCostCents: new(5.0)}, LimitsMax: wide}),
		"auto-brief": auto(&configv1.AutoMode{
			Enabled: true, Limits: &runnerdv1.AutoModeLimits{MaxDuration: durationpb.New(300 * time.Millisecond)}, LimitsMax: wide,
		}),
	}
}

func autoMode(on bool) with {
	return func(_ *world, req *runnerdv1.StartRunRequest) { req.AutoMode = &on }
}

func TestAutoMode(t *testing.T) {
	t.Parallel()
	w := shared(t)
	const limit = runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT
	resume := func(t *testing.T, run string, l *runnerdv1.AutoModeLimits) error {
		t.Helper()
		_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run, AutoModeLimits: l})
		return err
	}
	endless := harness.Forever(harness.Calls("charge", "{}"))

	t.Run("T-205 off unless the agent has it, with limits of its own", func(t *testing.T) {
		t.Parallel()
		plain := w.Idle(t, w.play(t, "auto-asks", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done"))))
		equal(t, "state without auto mode", plain.GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		if plain.GetAutoMode() != nil || plain.GetSpec().GetAutoMode() != nil {
			t.Errorf("auto mode is on: %v", plain)
		}
		on := w.Done(t, w.play(t, "auto-asks", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), autoMode(true)))
		ended(t, on, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		got := on.GetAutoMode().GetLimits()
		if got.GetMaxIterations() != 50 || got.GetMaxToolCalls() != 100 || got.GetMaxCostCents() != 500 ||
			got.GetMaxDuration().AsDuration() != 600*time.Second {
			t.Errorf("default limits are %v", got)
		}
		off := w.Idle(t, w.play(t, "auto", harness.Steps(harness.Calls("charge", "{}")), autoMode(false)))
		equal(t, "state where the request switches it off", off.GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		_, err := w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{Agent: "std", AutoMode: new(true)})
		harness.Code(t, err, codes.InvalidArgument, "POLICY_NOT_ALLOWED")
	})

	t.Run("T-206 a tool outside the list is blocked before any approval", func(t *testing.T) {
		t.Parallel()
		for agent, rule := range map[string]string{"auto": "auto_mode:denied:put", "auto-list": "auto_mode:not_allowed"} {
			run := w.play(t, agent, harness.Steps(harness.Calls("put", "{}", "look", "{}"), harness.Answer("done")))
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			events := w.Events(t, run)
			blocked := harness.Only(events, "tool_call_blocked")
			equal(t, "blocked calls", len(blocked), 1)
			b := blocked[0].GetToolCallBlocked()
			equal(t, "reason", b.GetReason(), runnerdv1.CallReason_CALL_REASON_AUTO_MODE_BLOCKED)
			equal(t, "gate", b.GetGate(), "auto_mode")
			equal(t, "rule", b.GetRule(), rule)
			equal(t, "approvals", harness.Count(events, "tool_call_pending_approval"), 0)
			equal(t, "calls at the host", len(w.hands.Calls(run)), 1)
		}
	})

	t.Run("T-207 a limit of 2 allows two whole iterations, or calls", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "auto-two", endless)
		got := w.Done(t, run)
		ended(t, got, limit, "failed:budget_exceeded")
		has(t, got.GetErrorMessage(), "iterations of auto mode", "2 of 2")
		equal(t, "iterations", harness.Count(w.Events(t, run), "iteration_started"), 2)
		equal(t, "calls", len(w.hands.Calls(run)), 2)

		run = w.play(t, "auto-calls", harness.Steps(harness.Calls("look", "{}", "charge", "{}", "charge", "{}")))
		got = w.Done(t, run)
		ended(t, got, limit, "failed:budget_exceeded")
		has(t, got.GetErrorMessage(), "calls of auto mode", "2 of 2")
		equal(t, "calls", len(w.hands.Calls(run)), 2)
		b := harness.Only(w.Events(t, run), "tool_call_blocked")[0].GetToolCallBlocked()
		equal(t, "rule of the third", b.GetRule(), "auto_mode.max_tool_calls")
		equal(t, "reason of the third", b.GetReason(), runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET)
	})

	t.Run("T-208 cost and time are limits like iterations and calls", func(t *testing.T) {
		t.Parallel()
		costs := w.play(t, "auto-cents", harness.Forever(harness.Costing(harness.Calls("charge", "{}"), 2.5, 1, 1)))
		got := w.Done(t, costs)
		ended(t, got, limit, "failed:budget_exceeded")
		equal(t, "decisions until strictly more was spent", got.GetUsage().GetDecisions(), 3)
		ended(t, w.Done(t, w.play(t, "auto-brief", harness.Hang)), limit, "failed:budget_exceeded")
	})

	t.Run("T-209 the end loses no result, and the run goes on with raised limits", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "auto-two", harness.Steps(
			harness.Calls("charge", "{}"), harness.Calls("charge", "{}"), harness.Answer("done")))
		ended(t, w.Done(t, run), limit, "failed:budget_exceeded")
		events := w.Events(t, run)
		equal(t, "results", harness.Count(events, "tool_call_completed"), 2)
		equal(t, "last event", events[len(events)-1].GetType(), "run_failed")
		harness.Code(t, resume(t, run, nil), codes.FailedPrecondition, "LIMIT_STILL_REACHED")
		harness.Code(t, resume(t, run, &runnerdv1.AutoModeLimits{MaxIterations: proto.Uint32(101)}), codes.InvalidArgument, "POLICY_NOT_ALLOWED")
		if err := resume(t, run, &runnerdv1.AutoModeLimits{MaxIterations: proto.Uint32(3)}); err != nil {
			t.Fatal(err)
		}
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "iterations", got.GetIteration(), 3)
		equal(t, "limit that holds", got.GetAutoMode().GetLimits().GetMaxIterations(), 3)
		late := w.play(t, "auto-cents", harness.Steps(harness.Costing(harness.Answer("late"), 6, 1, 1)))
		ended(t, w.Done(t, late), limit, "failed:budget_exceeded")
		equal(t, "late answer kept", w.UntilType(t, late, "run_failed").GetRunFailed().GetAnswer().GetContent(), "late")
		harness.Code(t, resume(t, w.play(t, "std", harness.Hang), &runnerdv1.AutoModeLimits{MaxIterations: proto.Uint32(3)}),
			codes.InvalidArgument, "POLICY_NOT_ALLOWED")
	})

	t.Run("T-210 ask becomes an approved event via AUTO, never for tier 4", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "auto", harness.Steps(harness.Calls("charge", `{"a":1}`, "book", `{"q":1}`, "wipe", "{}"), harness.Answer("done")),
			mode(denyMode))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		events := w.Events(t, run)
		approved := harness.Only(events, "tool_call_approved")
		equal(t, "approved", len(approved), 2)
		for _, ev := range approved {
			a := ev.GetToolCallApproved()
			equal(t, "via", a.GetResolution().GetVia(), runnerdv1.Via_VIA_AUTO)
			equal(t, "principal", ev.GetPrincipal(), "")
			if a.GetArgumentDigest() == "" || a.GetApprovalDigest() == "" {
				t.Errorf("approved for no digest: %v", a)
			}
		}
		started := harness.Only(events, "tool_call_started")
		equal(t, "what was started is what was approved", started[0].GetToolCallStarted().GetApprovalDigest(),
			approved[0].GetToolCallApproved().GetApprovalDigest())
		denied := harness.Only(events, "tool_call_denied")
		equal(t, "denied", len(denied), 1)
		equal(t, "the call of tier 4", denied[0].GetToolCallDenied().GetReason(), runnerdv1.CallReason_CALL_REASON_NO_APPROVER)
		equal(t, "calls at the host", len(w.hands.Calls(run)), 2)
	})

	t.Run("T-211 the result holds counts and limits", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "auto", harness.Steps(
			harness.Costing(harness.Calls("charge", "{}", "look", "{}"), 1.5, 1, 1), harness.Answer("done")))
		got := w.Done(t, run).GetAutoMode()
		if got.GetIterations() != 2 || got.GetToolCalls() != 2 || got.GetApprovedCalls() != 1 || got.GetCostCents() != 1.5 ||
			got.GetRunningTime().AsDuration() <= 0 || got.GetLimits().GetMaxIterations() != 50 {
			t.Errorf("summary is %v", got)
		}
	})

	t.Run("T-09 the answer's metadata stands beside the summary", func(t *testing.T) {
		t.Parallel()
		answer := harness.Answer("done")
		answer.GetAnswer().MetadataJson = `{"files":3}`
		got := w.Done(t, w.play(t, "auto", harness.Steps(harness.Calls("charge", "{}"), answer)))
		equal(t, "metadata", got.GetFinalAnswer().GetMetadataJson(), `{"files":3}`)
		equal(t, "calls in the summary", got.GetAutoMode().GetToolCalls(), 1)
	})
}
