package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// A question of a real daemon says which layer and rule asks, and whose words
// stand beside it; its arguments can be edited and it can be granted.
func TestEditedAndGrantedByARealDaemon(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "g", "announce it, then ask").must(t, exitOK)
	d.idle(t, "g")
	has(t, d.run(t, "approvals", "g").must(t, exitOK).out, "demo/announce (tier 2, not destructive)", "asked by approval_for:announce (layer agent)",
		`text  "announce it, then ask"`, "host says | Announces something; a person is asked first.", "runnerd approve g 6 --grant tool")

	with := func(text string) func(*program) { return func(p *program) { p.in = strings.NewReader(text) } }
	wrong := d.runWith(t, with(`{"text":7}`), "approve", "g", "--arguments", "-").must(t, exitFailure)
	has(t, wrong.err, `- text  "announce it, then ask"`, `+ text  7`, "hint: the approval stays open")
	has(t, d.run(t, "approve", "g", "--grant", "prefix").must(t, exitFailure).err, "hint: the approval stays open; runnerd approvals shows")

	r := d.runWith(t, with(`{"text":"tea"}`), "approve", "g", "--arguments", "-", "--grant", "tool", "--reason", "shorter").must(t, exitOK)
	has(t, r.out, "approved demo/announce with other arguments", "grant 7 for demo/announce, whatever its arguments")
	d.idle(t, "g")
	has(t, d.run(t, "watch", "g", "--follow=false", "--raw").must(t, exitOK).out, `with other arguments {"text":"tea"}`, "shorter",
		"grant 7: does not ask again for demo/announce", "announced (1 so far): tea")
	has(t, d.run(t, "runs", "g").must(t, exitOK).out, "grant 7", "does not ask for demo/announce", "used 0 times")

	has(t, d.run(t, "grants", "g").must(t, exitOK).out, "GRANT", "local:owner", "for demo/announce, whatever its arguments")
	grants := messages(t, d.run(t, "grants", "g", "-o", "json").must(t, exitOK).out, func() *runnerdv1.Grant { return &runnerdv1.Grant{} })
	if len(grants) != 1 || grants[0].GetGrantId() != 7 || grants[0].GetScope() != runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL {
		t.Errorf("got %v", grants)
	}
	has(t, d.anonymous(t, "grants", "g").must(t, exitFailure).err, "hint: approver.token")
	has(t, d.run(t, "grants").must(t, exitUsage).err, "name one run")
	has(t, d.run(t, "grants", "revoke", "g", "x").must(t, exitUsage).err, `"x" is no grant id`)
	has(t, d.run(t, "grants", "revoke", "g", "3").must(t, exitFailure).err, "hint: runnerd grants lists")
	has(t, d.run(t, "grants", "revoke", "g", "7", "--reason", "enough").must(t, exitOK).out, "grant 7 of run g is revoked (event ")
	has(t, d.run(t, "grants", "revoke", "g", "7").must(t, exitOK).out, "is revoked") // again is the same
	if r := d.run(t, "grants", "g").must(t, exitOK); r.out != "" {
		t.Errorf("a revoked grant is listed: %q", r.out)
	}
	has(t, d.run(t, "watch", "g", "--follow=false").must(t, exitOK).out, "grant revoked", "enough")
}

func TestPolicyExplain(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	explain := func(args ...string) string {
		t.Helper()
		return d.run(t, append([]string{"policy", "explain"}, args...)...).must(t, exitOK).out
	}
	asked := explain("announce", `{"text":"x"}`)
	has(t, asked, "announce (demo/announce, tier 2) would be asked first: approval_for:announce (layer agent).\n", "GATE", "LAYER", "RULE", "VERDICT", "WHY", "→", `the policy asks for "announce"`)
	has(t, explain("echo", `{"text":"x"}`), "echo (demo/echo, tier 0) would run")
	has(t, explain("announce", `{"text":1}`), "would fail its checks (SCHEMA_MISMATCH)")
	has(t, explain("nosuch\x1b[2J"), `nosuch\u001b[2J would fail its checks (UNKNOWN_TOOL)`)
	has(t, explain("--mode", "read-only", "announce", `{"text":"x"}`), "would be blocked (READ_ONLY_MODE)", "layer request")
	has(t, d.runWith(t, func(p *program) { p.in = strings.NewReader(`{"text":"x"}`) }, "policy", "explain", "announce", "-").must(t, exitOK).out, "asked first")
	got := messages(t, explain("announce", `{"text":"x"}`, "-o", "json"), func() *runnerdv1.ExplainPolicyResponse { return &runnerdv1.ExplainPolicyResponse{} })
	if len(got) != 1 || got[0].GetVerdict() != runnerdv1.Verdict_VERDICT_ASK {
		t.Errorf("got %v", got)
	}

	d.run(t, "run", "--id", "p", "--mode", "read_only", "announce it, then ask").must(t, exitOK)
	d.idle(t, "p")
	has(t, explain("--run", "p", "announce", `{"text":"x"}`), "would be blocked (READ_ONLY_MODE)")
	has(t, d.run(t, "watch", "p", "--follow=false").must(t, exitOK).out, "blocked · READ_ONLY_MODE", "layer request")

	for _, tc := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "leave out --mode and --agent", []string{"--run", "p", "--mode", "prompt", "--agent", "demo", "echo"}},
		{exitUsage, `--mode "yolo" is none of allow, danger-full-access`, []string{"--mode", "yolo", "echo"}},
		{exitUsage, "give --plan-hash", []string{"--plan-target", "a", "echo"}},
		{exitFailure, "hint: agents are configured", []string{"--agent", "nobody", "echo"}},
		{exitFailure, "hint: what an agent allows is configured", []string{"--policy", "nosuch", "echo"}},
		{exitFailure, "hint: runnerd runs", []string{"--run", "nosuch", "echo"}},
	} {
		has(t, d.run(t, append([]string{"policy", "explain"}, tc.args...)...).must(t, tc.code).err, tc.want)
	}
}

// The policy flags of run go into its request, and only those that are given.
func TestRunTakesPolicy(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	r := d.run(t, "run", "-o", "json", "--mode", "workspace-write", "--plan-hash", "9f2c", "--plan-target", "src", "--plan-target", "doc", "--auto-mode=false", "say hello").must(t, exitOK)
	run := messages(t, r.out, newRun)[0].GetRunId()
	spec := messages(t, d.run(t, "runs", "-o", "json", run).must(t, exitOK).out, newRun)[0].GetSpec()
	layers := spec.GetPolicy()
	if len(layers) == 0 || layers[len(layers)-1].GetMode() != runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE ||
		spec.GetPlan().GetContentHash() != "9f2c" || len(spec.GetPlan().GetFileTargets()) != 2 || spec.GetAutoMode() != nil {
		t.Errorf("got %v", spec)
	}
	has(t, d.run(t, "run", "--auto-mode", "say hello").must(t, exitFailure).err, "auto_mode", "hint: what an agent allows is configured")
	has(t, d.run(t, "run", "--policy", "nosuch", "say hello").must(t, exitFailure).err, "policies")
	has(t, d.run(t, "run", "--plan-target", "a", "say hello").must(t, exitUsage).err, "give --plan-hash")
}

func TestAutoModeIsShown(t *testing.T) {
	t.Parallel()
	f := &fakeDaemon{run: &runnerdv1.Run{RunId: "3f2a", AutoMode: &runnerdv1.AutoModeSummary{
		Iterations: 3, ToolCalls: 7, CostCents: 1.5, RunningTime: durationpb.New(61e9), ApprovedCalls: 5,
		Limits: &runnerdv1.AutoModeLimits{
			MaxIterations: new(uint32(50)), MaxToolCalls: new(uint32(100)), MaxCostCents: new(500.0), MaxDuration: durationpb.New(600e9),
		},
	}}}
	has(t, f.serve(t).run(t, "runs", "3f2a").must(t, exitOK).out,
		"on, approved 5 calls; 3 of 50 iterations, 7 of 100 calls, 1.50 of 500.00 ¢, 1m1s of 10m0s")
}

func TestFindingsAreShownWithTheirCure(t *testing.T) {
	t.Parallel()
	finding := func(tool, code, message string, severity runnerdv1.FindingSeverity) *runnerdv1.Finding {
		return &runnerdv1.Finding{Host: "box", Tool: tool, Code: code, Message: message, Severity: severity}
	}
	const warning, failure = runnerdv1.FindingSeverity_FINDING_SEVERITY_WARNING, runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR
	f := &fakeDaemon{tools: &runnerdv1.ListToolsResponse{
		Tools: []*runnerdv1.Tool{{
			OfferedName: "box_sh", Host: "box", Name: "sh", Tier: 3, Recovery: runnerdv1.Recovery_RECOVERY_NONE, Description: "Runs a command.",
			Timeout: durationpb.New(60e9), RateLimit: &runnerdv1.RateLimit{MaxCalls: 2, Per: durationpb.New(60e9)},
			Annotations: &runnerdv1.Annotations{Destructive: new(true), Stateful: new(true), SecurityTier: "high"},
		}},
		Findings: []*runnerdv1.Finding{
			finding("a", "missing_description", "no description: add one", warning), finding("b", "missing_description", "no description: add one", warning),
			finding("x", "name_collision", "two hosts have it: give one a prefix", failure), finding("", "host_unavailable", "refused", failure),
		},
	}}
	out := f.serve(t).run(t, "tools", "coder").must(t, exitOK).out
	has(t, out, "destructive, remembers between calls, risk high", "1m0s, 2 calls in 1m0s", "none",
		"error  box/x: name_collision: two hosts have it: give one a prefix\nerror  box: host_unavailable: refused\n",
		"warning  box/a, box/b: missing_description: no description: add one\n")
}
