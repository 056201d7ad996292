package runstate

import (
	"slices"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// writeTier is the tier of tools that write in the workspace: those the plan gate looks at.
const writeTier = 1

// planGate blocks writes without a plan where the layer needs one, and writes beyond the targets of the one that is
// bound. A layer that only reads blocks writes by its mode.
func planGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	if s.tool.GetTier() != writeTier || layer.GetMode() == runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY {
		return nil
	}
	if needsPlan(layer) && strings.TrimSpace(s.plan.GetContentHash()) == "" {
		return &objection{
			verdict: block, rule: "plan:required", reason: runnerdv1.CallReason_CALL_REASON_PLAN_REQUIRED,
			message: "not run: a write needs a plan, and none is bound to this run",
		}
	}
	if s.planned {
		return nil // what is said about the targets is the same in every layer
	}
	s.planned = true
	return targetsGate(s)
}

func needsPlan(layer *runnerdv1.PolicyLayer) bool {
	switch layer.GetPlan() {
	case runnerdv1.PlanRule_PLAN_RULE_REQUIRED:
		return true
	case runnerdv1.PlanRule_PLAN_RULE_NOT_REQUIRED:
		return false
	default:
		return layer.GetMode() == runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE
	}
}

// targetsGate blocks a path that is no target of the bound plan and does not lie below one.
func targetsGate(s *subject) *objection {
	targets := s.plan.GetFileTargets()
	if len(targets) == 0 {
		return nil
	}
	g := newGround(s.workspace)
	for _, p := range s.pathArguments() {
		for _, r := range p.readings {
			if p.unclear != "" || !slices.ContainsFunc(targets, func(target string) bool { return g.covers(target, r) }) {
				return blockPath("plan:targets", runnerdv1.CallReason_CALL_REASON_PLAN_CONTRACT_DENIED,
					"%s is no target of the plan that is bound to this run", p)
			}
		}
	}
	return nil
}

// covers reports whether a path is a target or lies below it. What leads up is never covered: where it ends depends on
// links that only the tool can see.
func (g ground) covers(target string, r reading) bool {
	if r.foreign || slices.Contains(r.parts, "..") {
		return false
	}
	if r.exact {
		return g.lies(r, target)
	}
	alike := lookAlikes(target)
	return g.lies(r, alike) || g.lies(r, decodePercent(alike))
}

// lies reports whether a path lies at or below a target.
func (g ground) lies(r reading, target string) bool {
	t := readAs(target, true)
	t.exact = r.exact
	if t.foreign || slices.Contains(t.parts, "..") || !g.is && t.rooted != r.rooted {
		return false
	}
	folder, ok := g.beneath(t)
	if !ok {
		return false
	}
	path, ok := g.beneath(r)
	if !ok {
		return false
	}
	_, ok = below(path, folder)
	return ok
}

// workspaceOf is the workspace to which the targets of a plan are relative: that of the first layer that names one.
func workspaceOf(spec *runnerdv1.RunSpec) string {
	for _, layer := range spec.GetPolicy() {
		if workspace := layer.GetPaths().GetWorkspace(); workspace != "" {
			return workspace
		}
	}
	return ""
}
