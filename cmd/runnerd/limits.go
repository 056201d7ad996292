package main

import (
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// budgetFlags are limits. Only those that are given go into the request.
type budgetFlags struct {
	iterations, toolCalls, failures, refusals, context uint32
	costCents                                          float64
	duration                                           time.Duration
	budget                                             *runnerdv1.Budget // nil: none was given
}

func addBudgetFlags(cmd *cobra.Command) *budgetFlags {
	b := &budgetFlags{}
	flags := cmd.Flags()
	flags.Uint32Var(&b.iterations, "max-iterations", 0, "limit of decisions")
	flags.Uint32Var(&b.toolCalls, "max-tool-calls", 0, "limit of tool calls")
	flags.Float64Var(&b.costCents, "max-cost-cents", 0, "limit of cost in cents")
	flags.DurationVar(&b.duration, "max-duration", 0, "limit of running time, for example 10m; 0 is none")
	flags.Uint32Var(&b.failures, "max-failures", 0, "limit of failures in a row; 0 is none")
	flags.Uint32Var(&b.refusals, "max-refusals", 0, "limit of denied and blocked calls in a row; 0 is none")
	flags.Uint32Var(&b.context, "max-context-tokens", 0, "limit of the size of a request in tokens")
	return b
}

func (b *budgetFlags) set(cmd *cobra.Command) {
	budget := &runnerdv1.Budget{}
	changed := cmd.Flags().Changed
	if changed("max-iterations") {
		budget.MaxIterations = &b.iterations
	}
	if changed("max-tool-calls") {
		budget.MaxToolCalls = &b.toolCalls
	}
	if changed("max-cost-cents") {
		budget.MaxCostCents = &b.costCents
	}
	if changed("max-duration") {
		budget.MaxDuration = durationpb.New(b.duration)
	}
	if changed("max-failures") {
		budget.MaxConsecutiveFailures = &b.failures
	}
	if changed("max-refusals") {
		budget.MaxConsecutiveRefusals = &b.refusals
	}
	if changed("max-context-tokens") {
		budget.MaxContextTokens = &b.context
	}
	if proto.Size(budget) > 0 {
		b.budget = budget
	}
}

// autoLimitFlags are limits of auto mode. Only those that are given go into the request.
type autoLimitFlags struct {
	iterations, toolCalls uint32
	costCents             float64
	duration              time.Duration
	limits                *runnerdv1.AutoModeLimits // nil: none was given
}

func addAutoLimitFlags(cmd *cobra.Command) *autoLimitFlags {
	a := &autoLimitFlags{}
	flags := cmd.Flags()
	flags.Uint32Var(&a.iterations, "auto-max-iterations", 0, "limit of decisions in auto mode")
	flags.Uint32Var(&a.toolCalls, "auto-max-tool-calls", 0, "limit of tool calls in auto mode")
	flags.Float64Var(&a.costCents, "auto-max-cost-cents", 0, "limit of cost in cents in auto mode")
	flags.DurationVar(&a.duration, "auto-max-duration", 0, "limit of running time in auto mode, for example 10m")
	return a
}

func (a *autoLimitFlags) set(cmd *cobra.Command) {
	limits := &runnerdv1.AutoModeLimits{}
	changed := cmd.Flags().Changed
	if changed("auto-max-iterations") {
		limits.MaxIterations = &a.iterations
	}
	if changed("auto-max-tool-calls") {
		limits.MaxToolCalls = &a.toolCalls
	}
	if changed("auto-max-cost-cents") {
		limits.MaxCostCents = &a.costCents
	}
	if changed("auto-max-duration") {
		limits.MaxDuration = durationpb.New(a.duration)
	}
	if proto.Size(limits) > 0 {
		a.limits = limits
	}
}

// raiseFlag is the flag of resume that raises the limit which ended a run, if it has to be raised.
func raiseFlag(run *runnerdv1.Run) string {
	switch run.GetStopReason() { //nolint:exhaustive // others need no limit raised
	case runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS:
		return "--max-iterations N"
	case runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS:
		return "--max-tool-calls N"
	case runnerdv1.StopReason_STOP_REASON_MAX_COST:
		return "--max-cost-cents N"
	case runnerdv1.StopReason_STOP_REASON_MAX_DURATION:
		return "--max-duration D"
	case runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT:
		return "--max-context-tokens N"
	case runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT:
		auto := run.GetAutoMode()
		limits := auto.GetLimits()
		switch {
		case auto.GetCostCents() > limits.GetMaxCostCents():
			return "--auto-max-cost-cents N"
		case auto.GetRunningTime().AsDuration() >= limits.GetMaxDuration().AsDuration():
			return "--auto-max-duration D"
		case auto.GetIterations() >= limits.GetMaxIterations():
			return "--auto-max-iterations N"
		}
		return "--auto-max-tool-calls N"
	}
	return ""
}
