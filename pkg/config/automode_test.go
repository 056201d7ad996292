package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
)

func TestAutoMode(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{File: fullFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Spec(cfg, "coder").GetAutoMode(); got != nil {
		t.Errorf("auto mode that is not enabled is on: %v", got)
	}
	limits := &runnerdv1.AutoModeLimits{
		MaxIterations: proto.Uint32(8), MaxToolCalls: proto.Uint32(20), MaxCostCents: new(2.5),
		MaxDuration: durationpb.New(5 * time.Minute),
	}
	widest := proto.CloneOf(limits)
	widest.MaxDuration = durationpb.New(10 * time.Minute)
	want := &runnerdv1.AutoMode{DeniedTools: []string{"git_push"}, Limits: limits, LimitsMax: widest}
	agents := config.Agents(cfg)
	if diff := cmp.Diff(want, agents["coder"].AutoMode, protocmp.Transform()); diff != "" {
		t.Errorf("on request (-want +got):\n%s", diff)
	}
	limits = &runnerdv1.AutoModeLimits{
		MaxIterations: proto.Uint32(50), MaxToolCalls: proto.Uint32(100), MaxCostCents: new(500.0),
		MaxDuration: durationpb.New(600 * time.Second),
	}
	want = &runnerdv1.AutoMode{AllowedTools: []string{"read_*"}, Limits: limits, LimitsMax: limits}
	if diff := cmp.Diff(want, config.Spec(cfg, "helper").GetAutoMode(), protocmp.Transform()); diff != "" {
		t.Errorf("with the defaults (-want +got):\n%s", diff)
	}
}

func TestMistakesInAutoModeAreNamed(t *testing.T) {
	t.Parallel()
	const before = "decide_services: {m: {scripted: builtin}}\nagents:\n  a:\n    decide_service: m\n    auto_mode:\n      "
	for name, tc := range map[string]struct{ text, want string }{
		"glob":                 {"allowed_tools: ['[x']", `:6:23 agents["a"].auto_mode.allowed_tools[0]: "[x" is not a glob`},
		"two lists":            {"allowed_tools: [a]\n      denied_tools: [b]", `:7:21 agents["a"].auto_mode.denied_tools: says nothing beside allowed_tools`},
		"calls over the most":  {"limits: {max_tool_calls: 5}\n      limits_max: {max_tool_calls: 4}", `:6:32 agents["a"].auto_mode.limits.max_tool_calls: is over limits_max, which is 4`},
		"below the default":    {"limits_max: {max_iterations: 4}", `:6:36 agents["a"].auto_mode.limits_max.max_iterations: is below the default of limits, which is 50`},
		"cost over the most":   {"limits: {max_cost_cents: 5}\n      limits_max: {max_cost_cents: 4.5}", `limits.max_cost_cents: is over limits_max, which is 4.5`},
		"time over the most":   {"limits: {max_duration: 5m}\n      limits_max: {max_duration: 4m}", `limits.max_duration: is over limits_max, which is 4m0s`},
		"a negative limit":     {"limits: {max_cost_cents: -1}", `auto_mode.limits.max_cost_cents: must be greater`},
		"a field that is none": {"limit: 3", `unknown field "limit"`},
	} {
		_, err := config.Load(config.Source{File: write(t, before+tc.text), LookupEnv: env("HOME", "/h")})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}
