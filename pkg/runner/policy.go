package runner

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// RequestLayer is the name of the policy layer that a StartRun brings.
const RequestLayer = "request"

// DefaultSensitive are the globs of paths that are asked for where the operator says nothing: credentials by the names
// under which they usually lie. The caller owns the list.
func DefaultSensitive() []string { return slices.Clone(runstate.DefaultSensitive) }

// CheckWorkspace says why a text cannot be the path of a workspace; nil: it can, or it is empty.
func CheckWorkspace(workspace string) error {
	switch {
	case workspace == "":
		return nil
	case !strings.HasPrefix(workspace, "/"):
		return fmt.Errorf("%q is not an absolute path", workspace)
	case path.Clean(workspace) != workspace:
		return fmt.Errorf("%q is not written in its shortest form, which is %q", workspace, path.Clean(workspace))
	case strings.ContainsRune(workspace, 0):
		return errors.New("holds a NUL character")
	}
	return nil
}

// CheckGlob says why a text cannot be a glob over names of tools or paths; nil: it can.
func CheckGlob(glob string) error { return runstate.CheckGlob(glob) }

// CheckSensitive says why globs, each of which is one by itself, cannot be the sensitive ones of a policy; nil: they
// can.
func CheckSensitive(globs []string) error { return runstate.CheckSensitive(globs) }

// resolvePolicy adds to a spec what a request brings: configured policies, a layer of its own, a plan. All of it can
// only narrow what the agent allows.
func resolvePolicy(spec *runnerdv1.RunSpec, agent *Agent, req *runnerdv1.StartRunRequest) error {
	var unknown []Violation
	for i, name := range req.GetPolicies() {
		layer := agent.Policies[name]
		if layer == nil {
			unknown = append(unknown, Violation{
				Field: fmt.Sprintf("policies[%d]", i), Description: fmt.Sprintf("no policy %q is configured", name), Rule: "policy",
			})
			continue
		}
		if !slices.ContainsFunc(spec.GetPolicy(), func(have *runnerdv1.PolicyLayer) bool { return have.GetName() == name }) {
			spec.Policy = append(spec.Policy, layer)
		}
	}
	if err := policyNotAllowed(unknown); err != nil {
		return err
	}
	if own := req.GetPolicy(); own != nil {
		if err := checkRequestLayer(own); err != nil {
			return err
		}
		spec.Policy = append(spec.Policy, &runnerdv1.PolicyLayer{
			Name: RequestLayer, Mode: own.GetMode(), Deny: own.GetDeny(), Paths: own.GetPaths(), Plan: own.GetPlan(),
			ApprovalFor: own.GetApprovalFor(),
		})
	}
	if req.GetPlan() != nil {
		spec.Plan = req.GetPlan()
	}
	return checkPlan(req.GetPlan())
}

// policyNotAllowed is POLICY_NOT_ALLOWED with the violations, nil if there are none.
func policyNotAllowed(violations []Violation) error {
	if len(violations) == 0 {
		return nil
	}
	e := errorf(runnerdv1.ErrorReason_ERROR_REASON_POLICY_NOT_ALLOWED, "%s: %s", violations[0].Field, violations[0].Description)
	e.Violations = violations
	return e
}

// checkRequestLayer looks at the layer of a request: at what only the configuration may say, and at what no rule in the
// proto can.
func checkRequestLayer(layer *runnerdv1.PolicyLayer) error {
	var forbidden []Violation
	if layer.GetName() != "" {
		forbidden = append(forbidden, Violation{Field: "policy.name", Description: "must be empty", Rule: "policy"})
	}
	if layer.GetPaths().GetShared() {
		forbidden = append(forbidden, Violation{
			Field: "policy.paths.shared", Description: "only the configuration may say that a folder is shared", Rule: "policy",
		})
	}
	if err := policyNotAllowed(forbidden); err != nil {
		return err
	}
	var wrong []Violation
	glob := func(field, glob string) {
		if err := CheckGlob(glob); err != nil {
			wrong = append(wrong, Violation{Field: "policy." + field, Description: err.Error(), Rule: "glob"})
		}
	}
	first := make(map[string]int)
	for i, rule := range layer.GetDeny() {
		if n, ok := first[rule.GetId()]; ok {
			wrong = append(wrong, Violation{
				Field:       fmt.Sprintf("policy.deny[%d].id", i),
				Description: fmt.Sprintf("%q is the id of deny[%d], too", rule.GetId(), n), Rule: "unique",
			})
		} else {
			first[rule.GetId()] = i
		}
		glob(fmt.Sprintf("deny[%d].tools", i), strings.TrimPrefix(rule.GetTools(), "tool:"))
	}
	for i, g := range layer.GetApprovalFor() {
		glob(fmt.Sprintf("approval_for[%d]", i), strings.TrimPrefix(g, "tool:"))
	}
	for i, g := range layer.GetPaths().GetSensitive() {
		glob(fmt.Sprintf("paths.sensitive[%d]", i), g)
	}
	if err := CheckSensitive(layer.GetPaths().GetSensitive()); err != nil {
		wrong = append(wrong, Violation{Field: "policy.paths.sensitive", Description: err.Error(), Rule: "glob"})
	}
	if err := CheckWorkspace(layer.GetPaths().GetWorkspace()); err != nil {
		wrong = append(wrong, Violation{Field: "policy.paths.workspace", Description: err.Error(), Rule: "workspace"})
	}
	return invalidRequest(wrong)
}

// checkPlan looks at the targets of a plan: one that leads up, or out of every workspace, would never cover a path.
func checkPlan(plan *runnerdv1.PlanContract) error {
	var wrong []Violation
	for i, target := range plan.GetFileTargets() {
		if slices.Contains(strings.Split(target, "/"), "..") || strings.HasPrefix(target, "~") {
			wrong = append(wrong, Violation{
				Field: fmt.Sprintf("plan.file_targets[%d]", i), Description: "must be a path beneath the workspace, without ..", Rule: "target",
			})
		}
	}
	return invalidRequest(wrong)
}
