package config

import (
	"strings"
	"time"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// Defaults of auto mode.
const (
	DefaultAutoIterations = 50
	DefaultAutoToolCalls  = 100
	DefaultAutoCostCents  = 500.0
	DefaultAutoDuration   = 600 * time.Second
)

// autoMode is auto mode as runs have it; nil: the agent has none.
func autoMode(auto *configv1.AutoMode) *runnerdv1.AutoMode {
	if auto == nil {
		return nil
	}
	limits, widest := autoLimits(auto)
	return &runnerdv1.AutoMode{
		AllowedTools: auto.GetAllowedTools(), DeniedTools: auto.GetDeniedTools(), Limits: limits, LimitsMax: widest,
	}
}

// autoLimits resolves the limits of auto mode and the widest ones that a
// resume may name: absent fields of the first have their defaults, those of the
// second are those of the first.
func autoLimits(auto *configv1.AutoMode) (limits, widest *runnerdv1.AutoModeLimits) {
	limits = &runnerdv1.AutoModeLimits{
		MaxIterations: proto.Uint32(DefaultAutoIterations),
		MaxToolCalls:  proto.Uint32(DefaultAutoToolCalls),
		MaxCostCents:  new(DefaultAutoCostCents),
		MaxDuration:   durationpb.New(DefaultAutoDuration),
	}
	runner.ChangeAutoLimits(limits, auto.GetLimits())
	widest = proto.CloneOf(limits)
	runner.ChangeAutoLimits(widest, auto.GetLimitsMax())
	return limits, widest
}

// checkAutoMode looks at the globs and holds the limits against their maximum.
// The field to blame is the one that was written.
func checkAutoMode(at fieldPath, auto *configv1.AutoMode) []*protovalidate.Violation {
	if auto == nil {
		return nil
	}
	var all []*protovalidate.Violation
	for _, list := range []struct {
		name  string
		globs []string
	}{{"allowed_tools", auto.GetAllowedTools()}, {"denied_tools", auto.GetDeniedTools()}} {
		for i, glob := range list.globs {
			all = append(all, checkGlob(at.index(list.name, i), strings.TrimPrefix(glob, "tool:"))...)
		}
	}
	if len(auto.GetAllowedTools()) > 0 && len(auto.GetDeniedTools()) > 0 {
		all = append(all, at.field("denied_tools").violation("unused",
			"says nothing beside allowed_tools: only the tools of that list may be called; leave one of them out"))
	}
	return append(all, checkAutoLimits(at, auto)...)
}

func checkAutoLimits(at fieldPath, auto *configv1.AutoMode) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	limits, widest := autoLimits(auto)
	own := auto.GetLimits()
	for _, limit := range []struct {
		field         string
		over, written bool
		have, most    any
	}{
		{
			"max_iterations", limits.GetMaxIterations() > widest.GetMaxIterations(), own != nil && own.MaxIterations != nil,
			limits.GetMaxIterations(), widest.GetMaxIterations(),
		},
		{
			"max_tool_calls", limits.GetMaxToolCalls() > widest.GetMaxToolCalls(), own != nil && own.MaxToolCalls != nil,
			limits.GetMaxToolCalls(), widest.GetMaxToolCalls(),
		},
		{
			"max_cost_cents", limits.GetMaxCostCents() > widest.GetMaxCostCents(), own != nil && own.MaxCostCents != nil,
			limits.GetMaxCostCents(), widest.GetMaxCostCents(),
		},
		{
			"max_duration", limits.GetMaxDuration().AsDuration() > widest.GetMaxDuration().AsDuration(), own.GetMaxDuration() != nil,
			limits.GetMaxDuration().AsDuration(), widest.GetMaxDuration().AsDuration(),
		},
	} {
		switch {
		case limit.over && limit.written:
			all = append(all, at.field("limits").field(limit.field).violation("limits_max", "is over limits_max, which is %v", limit.most))
		case limit.over:
			all = append(all, at.field("limits_max").field(limit.field).violation("limits_max",
				"is below the default of limits, which is %v", limit.have))
		}
	}
	return all
}
