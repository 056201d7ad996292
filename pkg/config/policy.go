package config

import (
	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// agentLayer is the name of the layer that an agent's own policy is.
const agentLayer = "agent"

// DefaultMode is the mode of an agent whose policy names none.
const DefaultMode = "prompt"

var (
	permissionModes = map[string]runnerdv1.PermissionMode{
		"read-only":          runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY,
		"workspace-write":    runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE,
		"prompt":             runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT,
		"allow":              runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW,
		"danger-full-access": runnerdv1.PermissionMode_PERMISSION_MODE_DANGER_FULL_ACCESS,
	}
	planRules = map[string]runnerdv1.PlanRule{
		"required":     runnerdv1.PlanRule_PLAN_RULE_REQUIRED,
		"not-required": runnerdv1.PlanRule_PLAN_RULE_NOT_REQUIRED,
	}
)

// layersOf is the policy of an agent's runs: its own layer, then the named
// ones in their order.
func layersOf(cfg *configv1.Config, agent *configv1.Agent) []*runnerdv1.PolicyLayer {
	own := layer(agentLayer, agent.GetPolicy())
	if own.GetMode() == runnerdv1.PermissionMode_PERMISSION_MODE_UNSPECIFIED {
		own.Mode = permissionModes[DefaultMode]
	}
	if agent.GetPolicy().GetPaths() == nil {
		own.Paths = &runnerdv1.PathRules{Sensitive: runner.DefaultSensitive()}
	}
	layers := []*runnerdv1.PolicyLayer{own}
	for _, name := range agent.GetPolicies() {
		layers = append(layers, layer(name, cfg.GetPolicies()[name]))
	}
	return layers
}

// namedLayers are the configured policies as layers, by name.
func namedLayers(cfg *configv1.Config) map[string]*runnerdv1.PolicyLayer {
	layers := make(map[string]*runnerdv1.PolicyLayer, len(cfg.GetPolicies()))
	for name, policy := range cfg.GetPolicies() {
		layers[name] = layer(name, policy)
	}
	return layers
}

// layer is a policy as it stands in the log of runs.
func layer(name string, policy *configv1.Policy) *runnerdv1.PolicyLayer {
	return &runnerdv1.PolicyLayer{
		Name:        name,
		Mode:        permissionModes[policy.GetMode()],
		Deny:        policy.GetDeny(),
		Paths:       pathRules(policy.GetPaths()),
		Plan:        planRules[policy.GetPlan()],
		ApprovalFor: policy.GetApprovalFor(),
	}
}

func pathRules(paths *configv1.Paths) *runnerdv1.PathRules {
	if paths == nil || paths.GetOff() {
		return nil
	}
	rules := &runnerdv1.PathRules{
		Workspace: paths.GetWorkspace(), Shared: paths.GetShared(), Sensitive: paths.GetSensitive(),
	}
	if len(rules.GetSensitive()) == 0 && !paths.GetNoSensitive() {
		rules.Sensitive = runner.DefaultSensitive()
	}
	return rules
}
