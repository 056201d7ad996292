package config

import (
	"maps"
	"slices"
	"strings"

	"buf.build/go/protovalidate"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// checkPolicies looks at the named policies.
func checkPolicies(root fieldPath, cfg *configv1.Config) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	for _, name := range slices.Sorted(maps.Keys(cfg.GetPolicies())) {
		at := root.key("policies", name)
		if name == agentLayer || name == runner.RequestLayer {
			all = append(all, at.violation("name", "%q is the name of a layer that every run can have", name))
		}
		all = append(all, checkPolicy(at, cfg.GetPolicies()[name])...)
	}
	return all
}

// checkPolicyOf looks at the policy of an agent and at those that it names.
func checkPolicyOf(at fieldPath, cfg *configv1.Config, agent *configv1.Agent) []*protovalidate.Violation {
	all := checkPolicy(at.field("policy"), agent.GetPolicy())
	for i, name := range agent.GetPolicies() {
		if cfg.GetPolicies()[name] == nil {
			all = append(all, at.index("policies", i).violation("reference", "no policy %q is configured%s",
				name, instead(slices.Collect(maps.Keys(cfg.GetPolicies())))))
		}
	}
	return all
}

func checkPolicy(at fieldPath, policy *configv1.Policy) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	first := map[string]int{}
	for i, rule := range policy.GetDeny() {
		rules := at.index("deny", i)
		if n, ok := first[rule.GetId()]; ok {
			all = append(all, rules.field("id").violation("unique", "%q is the id of deny[%d], too", rule.GetId(), n))
		} else {
			first[rule.GetId()] = i
		}
		all = append(all, checkGlob(rules.field("tools"), strings.TrimPrefix(rule.GetTools(), "tool:"))...)
	}
	for i, glob := range policy.GetApprovalFor() {
		all = append(all, checkGlob(at.index("approval_for", i), strings.TrimPrefix(glob, "tool:"))...)
	}
	return append(all, checkPaths(at.field("paths"), policy.GetPaths())...)
}

func checkPaths(at fieldPath, paths *configv1.Paths) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	says := paths.GetWorkspace() != "" || paths.GetShared() || len(paths.GetSensitive()) > 0 || paths.GetNoSensitive()
	if paths.GetOff() && says {
		all = append(all, at.field("off").violation("off", "paths are not looked at, and yet something is said about them"))
	}
	if paths.GetNoSensitive() && len(paths.GetSensitive()) > 0 {
		all = append(all, at.field("no_sensitive").violation("no_sensitive", "no path is sensitive, and yet globs of sensitive paths are named"))
	}
	if paths.GetShared() && paths.GetWorkspace() == "" {
		all = append(all, at.field("shared").violation("shared", "a workspace must be named to be shared"))
	}
	if err := runner.CheckWorkspace(paths.GetWorkspace()); err != nil {
		all = append(all, at.field("workspace").violation("workspace", "%v", err))
	}
	for i, glob := range paths.GetSensitive() {
		all = append(all, checkGlob(at.index("sensitive", i), glob)...)
	}
	if err := runner.CheckSensitive(paths.GetSensitive()); err != nil {
		all = append(all, at.field("sensitive").violation("glob", "%v", err))
	}
	return all
}

func checkGlob(at fieldPath, glob string) []*protovalidate.Violation {
	if err := runner.CheckGlob(glob); err != nil {
		return []*protovalidate.Violation{at.violation("glob", "%v", err)}
	}
	return nil
}

// checkTools looks at what is said about the tools of a host.
func checkTools(at fieldPath, host *configv1.ToolHost) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	for _, name := range slices.Sorted(maps.Keys(host.GetTools())) {
		tool := host.GetTools()[name]
		if tool.GetNoPaths() && len(tool.GetPathArguments()) > 0 {
			all = append(all, at.key("tools", name).field("no_paths").violation("no_paths",
				"no argument is a path, and yet path_arguments are named"))
		}
	}
	return all
}
