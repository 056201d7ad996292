package runner

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// ChangeAutoLimits sets the limits in limits that changes has.
func ChangeAutoLimits(limits, changes *runnerdv1.AutoModeLimits) {
	runstate.ChangeAutoLimits(limits, changes)
}

// resolveAutoMode switches auto mode of a run on or off as its request wants it: off always, on where the agent has it.
func resolveAutoMode(spec *runnerdv1.RunSpec, agent *Agent, req *runnerdv1.StartRunRequest) error {
	switch {
	case req.AutoMode == nil:
		return nil
	case !req.GetAutoMode():
		spec.AutoMode = nil
		return nil
	case spec.GetAutoMode() != nil:
		return nil
	case agent.AutoMode == nil:
		return autoNotAllowed("auto_mode", "the agent has no auto mode")
	}
	spec.AutoMode = proto.CloneOf(agent.AutoMode)
	return nil
}

// checkAutoLimits is POLICY_NOT_ALLOWED naming the fields in which limits of auto mode that a resume names are wider
// than those of the run may get; nil if none is.
func checkAutoLimits(want *runnerdv1.AutoModeLimits, auto *runnerdv1.AutoMode) error {
	if want == nil {
		return nil
	}
	if auto == nil {
		return autoNotAllowed("auto_mode_limits", "the run is not in auto mode")
	}
	most := auto.GetLimitsMax()
	for _, limit := range []struct {
		field   string
		tooWide bool
		most    any
	}{
		{"max_iterations", want.GetMaxIterations() > most.GetMaxIterations(), most.GetMaxIterations()},
		{"max_tool_calls", want.GetMaxToolCalls() > most.GetMaxToolCalls(), most.GetMaxToolCalls()},
		{"max_cost_cents", want.GetMaxCostCents() > most.GetMaxCostCents(), most.GetMaxCostCents()},
		{
			"max_duration", want.GetMaxDuration().AsDuration() > most.GetMaxDuration().AsDuration(),
			most.GetMaxDuration().AsDuration(),
		},
	} {
		if limit.tooWide {
			return autoNotAllowed("auto_mode_limits."+limit.field, fmt.Sprintf("the agent allows at most %v", limit.most))
		}
	}
	return nil
}

func autoNotAllowed(field, why string) error {
	return policyNotAllowed([]Violation{{Field: field, Description: why, Rule: "auto_mode"}})
}
