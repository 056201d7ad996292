package e2e

import (
	"slices"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestPlans(t *testing.T) {
	t.Parallel()
	g := startGated(t)
	const (
		required = "BLOCK plan plan:required agent"
		targets  = "BLOCK plan plan:targets agent"
	)
	check := func(t *testing.T, agent string, plan *runnerdv1.PlanContract, calls ...string) {
		t.Helper()
		var made, want []string
		for i := 0; i < len(calls); i += 3 {
			made, want = append(made, calls[i], calls[i+1]), append(want, calls[i+2])
		}
		_, all := g.try(t, &runnerdv1.StartRunRequest{Agent: agent, Plan: plan, Approval: &runnerdv1.ApprovalSettings{Mode: denyMode}}, made...)
		for i, r := range all {
			verdict(t, r, want[i])
		}
	}
	bound := func(targets ...string) *runnerdv1.PlanContract {
		return &runnerdv1.PlanContract{ContentHash: "sha256:1", FileTargets: targets}
	}

	t.Run("T-120 T-122 a write needs a plan where one is required, and only a write", func(t *testing.T) {
		t.Parallel()
		check(t, "planned", nil,
			"tier1", `{"path":"a"}`, required,
			"tier3", `{"path":"a"}`, "ALLOW mode mode:allow/tier:3 agent",
			"tier2", `{}`, "ALLOW mode mode:allow/tier:2 agent")
		check(t, "planned", bound(), "tier1", `{"path":"a"}`, "ALLOW mode mode:allow/tier:1 agent")
		check(t, "reads", nil, "tier1", `{"path":"a"}`, "BLOCK mode mode:read-only/tier:1 agent")
	})

	t.Run("T-121 skipping the check lifts the need for a plan, not its targets", func(t *testing.T) {
		t.Parallel()
		check(t, "skips", nil, "tier1", `{"path":"docs/x"}`, "ALLOW mode mode:workspace-write/tier:1 agent")
		check(t, "skips", bound("src"),
			"tier1", `{"path":"docs/x"}`, targets,
			"tier1", `{"path":"src/x"}`, "ALLOW mode mode:workspace-write/tier:1 agent")
	})

	t.Run("T-123 T-84 workspace-write needs a plan, and a bound one is enough", func(t *testing.T) {
		t.Parallel()
		check(t, "workspace-write", nil, "tier1", `{"path":"a"}`, required)
		check(t, "workspace-write", bound("src"), "tier1", `{"path":"src/a"}`, "ALLOW mode mode:workspace-write/tier:1 agent")
	})

	t.Run("T-124 other modes look for no plan", func(t *testing.T) {
		t.Parallel()
		check(t, "prompt", nil, "tier1", `{}`, "ASK mode mode:prompt/tier:1 agent")
		check(t, "allow", nil, "tier1", `{}`, "ALLOW mode mode:allow/tier:1 agent")
	})

	t.Run("T-125 writes stay within the targets of the plan", func(t *testing.T) {
		t.Parallel()
		const allowed = "ALLOW mode mode:allow/tier:1 agent"
		check(t, "confined", bound("src", "docs/a.md"),
			"tier1", `{"path":"src/a/b"}`, allowed,
			"tier1", `{"path":"docs/a.md"}`, allowed,
			"tier1", `{"path":"/work/ws/src/a"}`, allowed,
			"tier1", `{"text":"no path"}`, allowed,
			"tier1", `{"path":"docs/x"}`, targets,
			"tier1", `{"path":"srcs/x"}`, targets,
			"tier1", `{"path":"src/../src/x"}`, targets,
			"tier3", `{"path":"docs/x"}`, "ALLOW mode mode:allow/tier:3 agent")
		check(t, "confined", bound(), "tier1", `{"path":"anything"}`, allowed)
		run, _ := g.try(t, &runnerdv1.StartRunRequest{Agent: "allow", Plan: bound("src")}, "tier1", `{"path":"docs/x"}`)
		refused := g.refusal(t, run)
		equal(t, "reason", refused.GetReason(), runnerdv1.CallReason_CALL_REASON_PLAN_CONTRACT_DENIED)
		has(t, refused.GetMessage(), `"docs/x"`, "no target of the plan")
	})

	t.Run("T-126 a plan does not silence the lint of the catalogue", func(t *testing.T) {
		t.Parallel()
		for _, agent := range []string{"skips", "planned", "danger-full-access"} {
			_, r := g.try(t, &runnerdv1.StartRunRequest{Agent: agent, Plan: bound()}, "both", `{}`)
			verdict(t, r[0], "FAILED lookup")
			list, err := g.Runs.ListTools(harness.Context(t), &runnerdv1.ListToolsRequest{Agent: agent})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(list.GetFindings(), func(f *runnerdv1.Finding) bool {
				return f.GetTool() == "both" && f.GetSeverity() == runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR
			}) {
				t.Errorf("%s: a contradictory tool is no finding: %v", agent, list.GetFindings())
			}
		}
	})
}
