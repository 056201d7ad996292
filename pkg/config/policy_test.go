package config_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/pkg/runner"
)

func TestAbsentPolicies(t *testing.T) {
	t.Parallel()
	const prompt, allow = runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT, runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW
	usual := &runnerdv1.PathRules{Sensitive: runner.DefaultSensitive()}
	for name, tc := range map[string]struct {
		agent *configv1.Agent
		named *configv1.Policy // "p"
		want  []*runnerdv1.PolicyLayer
	}{
		"nothing is said": {&configv1.Agent{}, nil, []*runnerdv1.PolicyLayer{{Name: "agent", Mode: prompt, Paths: usual}}},
		"a mode alone": {
			&configv1.Agent{Policy: &configv1.Policy{Mode: "allow"}}, nil,
			[]*runnerdv1.PolicyLayer{{Name: "agent", Mode: allow, Paths: usual}},
		},
		"paths off": {
			&configv1.Agent{Policy: &configv1.Policy{Paths: &configv1.Paths{Off: true}}}, nil,
			[]*runnerdv1.PolicyLayer{{Name: "agent", Mode: prompt}},
		},
		"no sensitive path": {
			&configv1.Agent{Policy: &configv1.Policy{Paths: &configv1.Paths{NoSensitive: true}}}, nil,
			[]*runnerdv1.PolicyLayer{{Name: "agent", Mode: prompt, Paths: &runnerdv1.PathRules{}}},
		},
		"a named one says nothing by itself": {
			&configv1.Agent{Policies: []string{"p"}}, &configv1.Policy{},
			[]*runnerdv1.PolicyLayer{{Name: "agent", Mode: prompt, Paths: usual}, {Name: "p"}},
		},
		"a named one with a workspace": {
			&configv1.Agent{Policies: []string{"p"}}, &configv1.Policy{Paths: &configv1.Paths{Workspace: "/w"}},
			[]*runnerdv1.PolicyLayer{
				{Name: "agent", Mode: prompt, Paths: usual},
				{Name: "p", Paths: &runnerdv1.PathRules{Workspace: "/w", Sensitive: runner.DefaultSensitive()}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := &configv1.Config{
				Agents: map[string]*configv1.Agent{"a": tc.agent}, Policies: map[string]*configv1.Policy{"p": tc.named},
			}
			if diff := cmp.Diff(tc.want, config.Spec(cfg, "a").GetPolicy(), protocmp.Transform()); diff != "" {
				t.Errorf("policy (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAgentsKnowPoliciesAndPaths(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{File: fullFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	coder := config.Agents(cfg)["coder"]
	if got := coder.Policies["careful"]; got.GetName() != "careful" || coder.Policies["relaxed-paths"] == nil {
		t.Errorf("policies that a request may add: got %v", coder.Policies)
	}
	tools := coder.Hosts[0].Tools
	if !slices.Equal(tools["commit"].PathArguments, []string{"files"}) || tools["commit"].NoPaths || !tools["log"].NoPaths {
		t.Errorf("path arguments: got %+v", tools)
	}
}
