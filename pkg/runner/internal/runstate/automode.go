package runstate

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// autoListGate blocks the tools that auto mode must not use.
func autoListGate(spec *runnerdv1.RunSpec, s *subject) *objection {
	auto := spec.GetAutoMode()
	if auto == nil {
		return nil
	}
	blocked := func(rule, why string) *objection {
		return &objection{
			verdict: block, rule: "auto_mode:" + rule, reason: runnerdv1.CallReason_CALL_REASON_AUTO_MODE_BLOCKED,
			message: "not run: in auto mode " + why,
		}
	}
	if allowed := auto.GetAllowedTools(); len(allowed) > 0 {
		for _, glob := range allowed {
			if matchesTool(glob, s.tool) {
				return nil
			}
		}
		return blocked("not_allowed", "only the tools on its list may be called, and this is none of them")
	}
	for _, glob := range auto.GetDeniedTools() {
		if matchesTool(glob, s.tool) {
			return blocked("denied:"+glob, "this tool may not be called")
		}
	}
	return nil
}

// autoCovers reports whether auto mode approves a call that must be asked. That it is a tool of auto mode was looked at
// by its gate.
func (st *State) autoCovers(c *call) bool {
	return st.env.Spec.GetAutoMode() != nil && c.Tier < ungrantableTier
}

// autoLimitsOf are the limits of auto mode that a run starts with; nil: it is off.
func autoLimitsOf(spec *runnerdv1.RunSpec) *runnerdv1.AutoModeLimits {
	if spec.GetAutoMode() == nil {
		return nil
	}
	if limits := spec.GetAutoMode().GetLimits(); limits != nil {
		return limits
	}
	return &runnerdv1.AutoModeLimits{}
}

// callsStarted is how many calls the run has started; those it was given at its start are not its own.
func (st *State) callsStarted() uint32 { return st.ctl.ToolCalls - st.ctl.Imported }

// autoCallsLeft is how many calls auto mode still lets start.
func (st *State) autoCallsLeft() int64 {
	limits := st.ctl.AutoLimits
	if limits == nil || limits.MaxToolCalls == nil {
		return math.MaxInt64
	}
	return int64(limits.GetMaxToolCalls()) - int64(st.callsStarted())
}

// autoLimit names the limit of auto mode that is reached; empty: none. Between iterations all are looked at, else only
// what may end a run in the middle of one.
func (st *State) autoLimit(limits *runnerdv1.AutoModeLimits, now time.Time, between bool) string {
	c := &st.ctl
	switch {
	case limits == nil:
		return ""
	case between && limits.MaxIterations != nil && c.Iteration >= limits.GetMaxIterations():
		return "max_iterations"
	case between && c.AutoCallsHit && st.callsStarted() >= limits.GetMaxToolCalls():
		return "max_tool_calls"
	case limits.MaxCostCents != nil && c.Usage.CostNano > nanocentsOf(limits.GetMaxCostCents()):
		return "max_cost_cents"
	}
	inProgress := c.Phase == phaseDecide || c.Phase == phaseCalls // an answer or a question that is there is worth having
	if left, limited := st.autoTimeLeft(limits, now); limited && left <= 0 && (between || inProgress) {
		return "max_duration"
	}
	return ""
}

// autoTimeLeft is what is left of max_duration of auto mode at now.
func (st *State) autoTimeLeft(limits *runnerdv1.AutoModeLimits, now time.Time) (left time.Duration, limited bool) {
	if limits.GetMaxDuration() == nil {
		return 0, false
	}
	return limits.GetMaxDuration().AsDuration() - st.running(now), true
}

// autoMessage says which limit of auto mode ended the run.
func (st *State) autoMessage() string {
	c, limits := &st.ctl, st.ctl.AutoLimits
	switch st.autoLimit(limits, c.Time, st.between()) {
	case "max_iterations":
		return fmt.Sprintf("the iterations of auto mode are used up: %d of %d", c.Iteration, limits.GetMaxIterations())
	case "max_tool_calls":
		return fmt.Sprintf("the calls of auto mode are used up: %d of %d", st.callsStarted(), limits.GetMaxToolCalls())
	case "max_cost_cents":
		return fmt.Sprintf("the cost of auto mode is exceeded: %g of %g cents", float64(c.Usage.CostNano)/1e9, limits.GetMaxCostCents())
	default:
		return fmt.Sprintf("the time of auto mode is used up: %s", limits.GetMaxDuration().AsDuration())
	}
}

// autoSummary is what the run did in auto mode; nil: it is off.
func (st *State) autoSummary() *runnerdv1.AutoModeSummary {
	c := &st.ctl
	if c.AutoLimits == nil {
		return nil
	}
	return &runnerdv1.AutoModeSummary{
		Iterations: c.Iteration, ToolCalls: st.callsStarted(), CostCents: float64(c.Usage.CostNano) / 1e9,
		RunningTime: durationpb.New(c.Running), Limits: c.AutoLimits, ApprovedCalls: c.AutoApproved,
	}
}

// ChangeAutoLimits sets the limits in limits that changes has.
func ChangeAutoLimits(limits, changes *runnerdv1.AutoModeLimits) {
	if changes.GetMaxDuration() != nil {
		limits.MaxDuration = nil // a message of its own, which merging would only fill up
	}
	proto.Merge(limits, changes)
}
