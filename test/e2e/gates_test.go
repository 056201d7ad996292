package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// gated is a daemon whose agents have each their policy, and whose one host has a tool of each tier: tier0 to tier4.
type gated struct {
	*harness.Daemon
	brain     *harness.Brain
	hands     *harness.Hands
	workspace string // shared by the agent of that name
}

var modeNames = []string{"read-only", "workspace-write", "prompt", "allow", "danger-full-access"}

func startGated(t *testing.T) *gated {
	t.Helper()
	g := &gated{}
	var err error
	if g.brain, err = harness.NewBrain(); err != nil {
		t.Fatal(err)
	}
	var tools []*runnerdv1.ToolDefinition
	said := map[string]*configv1.Tool{}
	for tier := range uint32(5) {
		name := fmt.Sprint("tier", tier)
		tools = append(tools, harness.Tool(name, `{"type":"object"}`))
		said[name] = &configv1.Tool{Tier: new(tier)}
	}
	tools = append(tools,
		harness.Tool("silent", `{"type":"object"}`), harness.Tool("look", `{"type":"object"}`, harness.ReadOnly),
		harness.Tool("both", `{"type":"object"}`, harness.ReadOnly, func(a *runnerdv1.Annotations) { a.Destructive = new(true) }),
		harness.Tool("strict", bookSchema, harness.ReadOnly),
		harness.Tool("folder", `{"type":"object"}`, harness.ReadOnly), harness.Tool("pathless", `{"type":"object"}`, harness.ReadOnly))
	said["folder"] = &configv1.Tool{PathArguments: []string{"dir"}}
	said["pathless"] = &configv1.Tool{NoPaths: true}
	if g.hands, err = harness.NewHands(tools...); err != nil {
		t.Fatal(err)
	}
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g.workspace = filepath.Join(base, "ws")
	for _, dir := range []string{"src", "docs"} {
		if err := os.MkdirAll(filepath.Join(g.workspace, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(g.workspace, "src", "link")); err != nil {
		t.Fatal(err)
	}
	agent := func(p *configv1.Policy, change func(*configv1.Agent)) *configv1.Agent {
		a := &configv1.Agent{
			DecideService: "brain", ToolHosts: []string{"hands"}, Policy: p,
			Approval: &configv1.Approval{Modes: []string{"wait", "deny"}},
		}
		if change != nil {
			change(a)
		}
		return a
	}
	deny := []*runnerdv1.DenyRule{
		{Id: "no-rm", Tools: "tier*", Arguments: map[string]string{"command": "rm -rf*"}, Message: "nothing is removed here"},
		{Id: "no-r", Arguments: map[string]string{"command": "r*"}, Message: "the second rule"},
		{Id: "both", Arguments: map[string]string{"a": "1", "/b/c": "x*"}},
	}
	agents := map[string]*configv1.Agent{
		"plain":     {DecideService: "brain", ToolHosts: []string{"hands"}},
		"denies":    agent(&configv1.Policy{Mode: "danger-full-access", Deny: deny}, nil),
		"failing":   agent(&configv1.Policy{Mode: "allow", Deny: deny}, func(a *configv1.Agent) { a.OnBlock = "fail" }),
		"layered":   agent(&configv1.Policy{Mode: "allow"}, func(a *configv1.Agent) { a.Policies = []string{"team"} }),
		"confined":  agent(&configv1.Policy{Mode: "allow", Paths: &configv1.Paths{Workspace: "/work/ws"}}, nil),
		"workspace": agent(&configv1.Policy{Mode: "allow", Paths: &configv1.Paths{Workspace: g.workspace, Shared: true}}, nil),
		"gone":      agent(&configv1.Policy{Mode: "allow", Paths: &configv1.Paths{Workspace: base + "/gone", Shared: true}}, nil),
		"planned":   agent(&configv1.Policy{Mode: "allow", Plan: "required"}, nil),
		"skips":     agent(&configv1.Policy{Mode: "workspace-write", Plan: "not-required"}, nil),
		"reads":     agent(&configv1.Policy{Mode: "read-only", Plan: "required"}, nil),
	}
	for _, name := range modeNames {
		agents[name] = agent(&configv1.Policy{Mode: name}, nil)
	}
	g.Daemon = harness.Start(t, &configv1.Config{
		DecideServices: map[string]*configv1.DecideService{"brain": {Address: g.brain.Addr}},
		ToolHosts:      map[string]*configv1.ToolHost{"hands": {Address: g.hands.Addr, Tools: said}},
		Policies: map[string]*configv1.Policy{
			"team":    {Mode: "prompt", ApprovalFor: []string{"tool:look"}},
			"nothing": {Deny: []*runnerdv1.DenyRule{{Id: "all"}}},
		},
		Agents: agents,
	})
	return g
}

// try plays one decision with calls and gives the run and its events up to where the calls are gated.
func (g *gated) try(t *testing.T, req *runnerdv1.StartRunRequest, calls ...string) (string, []*runnerdv1.ToolCallRequested) {
	t.Helper()
	req.RunId, req.Task = g.RunID(t), "a task"
	g.brain.Script(req.GetRunId(), harness.Steps(harness.Calls(calls...), harness.Answer("done")))
	g.Start(t, req)
	var requested []*runnerdv1.ToolCallRequested
	g.Until(t, req.GetRunId(), "requests of all calls", func(ev *runnerdv1.Event) bool {
		if r := ev.GetToolCallRequested(); r != nil {
			requested = append(requested, r)
		}
		return len(requested) == len(calls)/2
	})
	return req.GetRunId(), requested
}

// one is the verdict about one call of an agent's run.
func (g *gated) one(t *testing.T, agent, tool, arguments string) (string, *runnerdv1.ToolCallRequested) {
	t.Helper()
	run, all := g.try(t, &runnerdv1.StartRunRequest{Agent: agent}, tool, arguments)
	return run, all[0]
}

// verdict checks what is recorded about a call.
func verdict(t *testing.T, r *runnerdv1.ToolCallRequested, want string) {
	t.Helper()
	got := strings.TrimPrefix(r.GetVerdict().String(), "VERDICT_") + " " + r.GetGate() + " " + r.GetRule() + " " + r.GetLayer()
	if strings.TrimSpace(got) != want {
		t.Errorf("%s %s: verdict is %q, want %q", r.GetToolName(), r.GetArgumentsRaw(), strings.TrimSpace(got), want)
	}
}

// refusal is the event by which a call was blocked.
func (g *gated) refusal(t *testing.T, run string) *runnerdv1.ToolCallBlocked {
	t.Helper()
	return g.UntilType(t, run, "tool_call_blocked").GetToolCallBlocked()
}

func TestGates(t *testing.T) {
	t.Parallel()
	g := startGated(t)

	t.Run("T-60 an unknown tool is told to the model and the run goes on", func(t *testing.T) {
		t.Parallel()
		run, r := g.one(t, "allow", "tier9", "{}")
		equal(t, "verdict", r.GetVerdict(), runnerdv1.Verdict_VERDICT_FAILED)
		ended(t, g.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		failed := g.UntilType(t, run, "tool_call_failed").GetToolCallFailed()
		equal(t, "reason", failed.GetReason(), runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL)
		has(t, failed.GetMessage(), "tier")
	})

	t.Run("T-61 T-63 T-64 T-104 A-59 every refusal names gate, rule, layer and reason, and nothing starts", func(t *testing.T) {
		t.Parallel()
		for name, tc := range map[string]struct {
			agent, tool, arguments, want string
			reason                       runnerdv1.CallReason
		}{
			"deny":      {"denies", "tier0", `{"command":"rm -rf /"}`, "BLOCK file_policy deny:no-rm agent", runnerdv1.CallReason_CALL_REASON_FILE_POLICY_DENIED},
			"path":      {"confined", "tier0", `{"path":"../x"}`, "BLOCK paths path:outside agent", runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE},
			"unclear":   {"confined", "tier0", "{\"path\":\"a\u200bb\"}", "BLOCK paths path:unclear agent", runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE},
			"symlink":   {"workspace", "tier0", `{"path":"src/link/passwd"}`, "BLOCK paths path:symlink agent", runnerdv1.CallReason_CALL_REASON_PATH_SYMLINK},
			"plan":      {"planned", "tier1", `{}`, "BLOCK plan plan:required agent", runnerdv1.CallReason_CALL_REASON_PLAN_REQUIRED},
			"read-only": {"read-only", "tier1", `{}`, "BLOCK mode mode:read-only/tier:1 agent", runnerdv1.CallReason_CALL_REASON_READ_ONLY_MODE},
			"write":     {"skips", "tier3", `{}`, "BLOCK mode mode:workspace-write/tier:3 agent", runnerdv1.CallReason_CALL_REASON_WORKSPACE_WRITE_MODE},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run, r := g.one(t, tc.agent, tc.tool, tc.arguments)
				verdict(t, r, tc.want)
				done := g.Done(t, run)
				ended(t, done, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
				equal(t, "reason", g.refusal(t, run).GetReason(), tc.reason)
				equal(t, "calls started", done.GetToolCalls(), 0)
				equal(t, "calls at the host", len(g.hands.Calls(run)), 0)
				equal(t, "refusals in a row", done.GetConsecutiveRefusals(), 1)
				equal(t, "failures in a row", done.GetConsecutiveFailures(), 0)
				events := g.Events(t, run)
				equal(t, "endings of the call", len(harness.Only(events, "tool_call_completed", "tool_call_failed", "tool_call_blocked", "tool_call_denied")), 1)
				requests := g.brain.Requests(run)
				seen := requests[1].GetHistory()[len(requests[1].GetHistory())-1].GetObservation()
				equal(t, "kind shown", seen.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL)
				equal(t, "reason shown", seen.GetReason(), tc.reason)
				has(t, seen.GetText(), "n") // some words
			})
		}
	})

	t.Run("T-62 with on_block fail a refusal ends the run", func(t *testing.T) {
		t.Parallel()
		run, _ := g.one(t, "failing", "tier0", `{"command":"rm -rf /"}`)
		ended(t, g.Done(t, run), runnerdv1.StopReason_STOP_REASON_POLICY_BLOCKED, "failed:permission")
	})

	t.Run("T-70 T-71 T-72 deny rules", func(t *testing.T) {
		t.Parallel()
		_, all := g.try(t, &runnerdv1.StartRunRequest{Agent: "denies"},
			"tier0", `{"command":"rm -rf /"}`, "look", `{"command":"rm -rf /"}`, "tier0", `{"command":"ls; rm -rf"}`,
			"tier0", `{"a":1}`, "tier0", `{"a":1,"b":{"c":"xyz"}}`, "tier4", `{"command":"x"}`)
		for i, want := range []string{
			"BLOCK file_policy deny:no-rm agent", "BLOCK file_policy deny:no-r agent", "ALLOW mode mode:danger-full-access/tier:0 agent",
			"ALLOW mode mode:danger-full-access/tier:0 agent", "BLOCK file_policy deny:both agent",
			"ALLOW mode mode:danger-full-access/tier:4 agent",
		} {
			verdict(t, all[i], want)
		}
		run, _ := g.one(t, "denies", "tier0", `{"command":"rm -rf /"}`)
		equal(t, "message", g.refusal(t, run).GetMessage(), "nothing is removed here")
		run, _ = g.one(t, "denies", "tier0", `{"a":1,"b":{"c":"x"}}`)
		equal(t, "message of a rule without one", g.refusal(t, run).GetMessage(), "not run: denied by rule both")
	})

	t.Run("T-73 rules of a request are checked, and what it may not say is refused", func(t *testing.T) {
		t.Parallel()
		refused := func(reason, field string, change func(*runnerdv1.StartRunRequest)) {
			t.Helper()
			req := &runnerdv1.StartRunRequest{RunId: g.RunID(t), Agent: "allow", Task: "t"}
			change(req)
			_, err := g.Runs.StartRun(harness.Context(t), req)
			harness.Code(t, err, codes.InvalidArgument, reason)
			if fields := harness.Fields(err); len(fields) != 1 || fields[0] != field {
				t.Errorf("fields are %q, want %q", fields, field)
			}
		}
		layer := func(p *runnerdv1.PolicyLayer) func(*runnerdv1.StartRunRequest) {
			return func(req *runnerdv1.StartRunRequest) { req.Policy = p }
		}
		refused("POLICY_NOT_ALLOWED", "policies[0]", func(req *runnerdv1.StartRunRequest) { req.Policies = []string{"none"} })
		refused("POLICY_NOT_ALLOWED", "policy.name", layer(&runnerdv1.PolicyLayer{Name: "agent"}))
		refused("POLICY_NOT_ALLOWED", "policy.paths.shared", layer(&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: "/", Shared: true}}))
		refused("INVALID_REQUEST", "policy.deny[0].tools", layer(&runnerdv1.PolicyLayer{Deny: []*runnerdv1.DenyRule{{Id: "a", Tools: "["}}}))
		refused("INVALID_REQUEST", "policy.deny[1].id", layer(&runnerdv1.PolicyLayer{Deny: []*runnerdv1.DenyRule{{Id: "a"}, {Id: "a"}}}))
		refused("INVALID_REQUEST", "policy.approval_for[0]", layer(&runnerdv1.PolicyLayer{ApprovalFor: []string{"{"}}))
		refused("INVALID_REQUEST", "policy.approval_for[0]", layer(&runnerdv1.PolicyLayer{ApprovalFor: []string{strings.Repeat("{,}", 85)}}))
		refused("INVALID_REQUEST", "policy.paths.sensitive[0]", layer(&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Sensitive: []string{"{"}}}))
		refused("INVALID_REQUEST", "policy.paths.workspace", layer(&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: "/a/"}}))
		refused("INVALID_REQUEST", "plan.file_targets[0]", func(req *runnerdv1.StartRunRequest) {
			req.Plan = &runnerdv1.PlanContract{ContentHash: "h", FileTargets: []string{"../x"}}
		})
	})

	t.Run("T-80 another mode is INVALID_ARGUMENT, and prompt is the default", func(t *testing.T) {
		t.Parallel()
		_, err := g.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{
			RunId: g.RunID(t), Agent: "allow", Policy: &runnerdv1.PolicyLayer{Mode: 99},
		})
		harness.Code(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		_, r := g.one(t, "plain", "silent", "{}")
		verdict(t, r, "ASK mode mode:prompt/tier:3 agent")
	})

	t.Run("T-81 T-82 T-83 T-84 T-85 T-86 T-87 A-55 the cell of mode and tier decides", func(t *testing.T) {
		t.Parallel()
		cells := map[string][5]string{
			"read-only":          {"ALLOW", "BLOCK", "BLOCK", "BLOCK", "BLOCK"},
			"workspace-write":    {"ALLOW", "BLOCK", "ALLOW", "BLOCK", "BLOCK"}, // tier 1: no plan is bound
			"prompt":             {"ALLOW", "ASK", "ALLOW", "ASK", "ASK"},
			"allow":              {"ALLOW", "ALLOW", "ALLOW", "ALLOW", "ASK"},
			"danger-full-access": {"ALLOW", "ALLOW", "ALLOW", "ALLOW", "ALLOW"},
		}
		for _, mode := range modeNames {
			_, all := g.try(t, &runnerdv1.StartRunRequest{Agent: mode, Approval: &runnerdv1.ApprovalSettings{Mode: denyMode}},
				"tier0", "{}", "tier1", "{}", "tier2", "{}", "tier3", "{}", "tier4", "{}", "silent", "{}", "look", "{}")
			for tier, want := range cells[mode] {
				rule := fmt.Sprintf("%s mode mode:%s/tier:%d agent", want, mode, tier)
				if mode == "workspace-write" && tier == 1 {
					rule = "BLOCK plan plan:required agent"
				}
				verdict(t, all[tier], rule)
			}
			verdict(t, all[5], fmt.Sprintf("%s mode mode:%s/tier:3 agent", cells[mode][3], mode)) // nothing is declared
			verdict(t, all[6], fmt.Sprintf("ALLOW mode mode:%s/tier:0 agent", mode))
		}
	})

	t.Run("T-88 what a mode blocks is not asked for", func(t *testing.T) {
		t.Parallel()
		run, _ := g.one(t, "read-only", "tier3", "{}")
		g.Done(t, run)
		equal(t, "approvals", harness.Count(g.Events(t, run), "tool_call_pending_approval"), 0)
	})

	t.Run("A-56 with nobody to ask what would be asked is denied", func(t *testing.T) {
		t.Parallel()
		run, _ := g.try(t, &runnerdv1.StartRunRequest{Agent: "prompt", Approval: &runnerdv1.ApprovalSettings{Mode: denyMode}}, "tier3", "{}")
		g.Done(t, run)
		denied := g.UntilType(t, run, "tool_call_denied").GetToolCallDenied()
		equal(t, "reason", denied.GetReason(), runnerdv1.CallReason_CALL_REASON_NO_APPROVER)
	})

	t.Run("A-60 readers of the stream do not change a verdict", func(t *testing.T) {
		t.Parallel()
		run, r := g.one(t, "prompt", "tier3", "{}")
		verdict(t, r, "ASK mode mode:prompt/tier:3 agent")
		var readers sync.WaitGroup
		for range 8 {
			readers.Go(func() {
				_, _ = g.Read(harness.Context(t), &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}})
			})
		}
		readers.Wait()
		equal(t, "state", g.Run(t, run).GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		g.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_ABORT)
	})

	t.Run("layers only narrow, and each verdict names its layer", func(t *testing.T) {
		t.Parallel()
		_, all := g.try(t, &runnerdv1.StartRunRequest{
			Agent: "layered", Policies: []string{"team"}, Policy: &runnerdv1.PolicyLayer{
				Mode: runnerdv1.PermissionMode_PERMISSION_MODE_DANGER_FULL_ACCESS, Deny: []*runnerdv1.DenyRule{{Id: "mine", Tools: "tier2"}},
			},
			Approval: &runnerdv1.ApprovalSettings{Mode: denyMode},
		}, "tier3", "{}", "look", "{}", "tier2", "{}", "tier4", "{}", "tier0", "{}")
		for i, want := range []string{
			"ASK mode mode:prompt/tier:3 team", "ASK approval_for approval_for:tool:look team", "BLOCK file_policy deny:mine request",
			"ASK mode mode:allow/tier:4 agent", "ALLOW mode mode:allow/tier:0 agent",
		} {
			verdict(t, all[i], want)
		}
		_, r := g.try(t, &runnerdv1.StartRunRequest{Agent: "danger-full-access", Policies: []string{"nothing"}}, "tier0", "{}")
		verdict(t, r[0], "BLOCK file_policy deny:all nothing")
	})

	t.Run("a policy is explained", func(t *testing.T) {
		t.Parallel()
		ask := func(req *runnerdv1.ExplainPolicyRequest) *runnerdv1.ExplainPolicyResponse {
			t.Helper()
			resp, err := g.Runs.ExplainPolicy(harness.Context(t), req)
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		decides := func(resp *runnerdv1.ExplainPolicyResponse, want string) {
			t.Helper()
			var got []string
			for _, s := range resp.GetSteps() {
				if s.GetDecides() {
					got = append(got, strings.Join([]string{s.GetVerdict().String(), s.GetGate(), s.GetLayer(), s.GetRule()}, " "))
				}
			}
			if len(got) != 1 || got[0] != "VERDICT_"+want {
				t.Errorf("it is decided by %q, want %q", got, want)
			}
		}
		start := func(agent string, p *runnerdv1.PolicyLayer) *runnerdv1.ExplainPolicyRequest_Start {
			return &runnerdv1.ExplainPolicyRequest_Start{Start: &runnerdv1.StartRunRequest{Agent: agent, Policy: p}}
		}
		resp := ask(&runnerdv1.ExplainPolicyRequest{Subject: start("layered", nil), Tool: "tier3", ArgumentsJson: `{"path":"a"}`})
		decides(resp, "ASK mode team mode:prompt/tier:3")
		equal(t, "tool", resp.GetDefinition().GetTier(), 3)
		decides(ask(&runnerdv1.ExplainPolicyRequest{Subject: start("allow", nil), Tool: "nothing"}), "FAILED lookup  ")
		decides(ask(&runnerdv1.ExplainPolicyRequest{Subject: start("allow", nil), Tool: "strict", ArgumentsJson: "{}"}), "FAILED schema  ")
		decides(ask(&runnerdv1.ExplainPolicyRequest{Subject: start("workspace", nil), Tool: "look", ArgumentsJson: `{"path":"src/link/x"}`}),
			"BLOCK paths agent path:symlink")
		_, err := g.Runs.ExplainPolicy(harness.Context(t), &runnerdv1.ExplainPolicyRequest{Subject: start("none", nil), Tool: "x"})
		harness.Code(t, err, codes.NotFound, "AGENT_NOT_FOUND")
		_, err = g.Runs.ExplainPolicy(harness.Context(t), &runnerdv1.ExplainPolicyRequest{Subject: start("allow", &runnerdv1.PolicyLayer{Name: "x"}), Tool: "x"})
		harness.Code(t, err, codes.InvalidArgument, "POLICY_NOT_ALLOWED")

		run, _ := g.one(t, "prompt", "tier3", "{}")
		before := g.Run(t, run)
		byRun := &runnerdv1.ExplainPolicyRequest{Subject: &runnerdv1.ExplainPolicyRequest_RunId{RunId: run}, Tool: "tier3", ArgumentsJson: "{}"}
		decides(ask(byRun), "ASK mode agent mode:prompt/tier:3")
		equal(t, "events after it", g.Run(t, run).GetHeadSequence(), before.GetHeadSequence())
		a := before.GetApprovals()[0]
		if _, err := g.Runs.SubmitApproval(harness.Context(t), &runnerdv1.SubmitApprovalRequest{
			RunId: run, ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: approve,
			Grant: runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL,
		}); err != nil {
			t.Fatal(err)
		}
		g.Done(t, run)
		resp = ask(byRun)
		equal(t, "verdict under a grant", resp.GetVerdict(), runnerdv1.Verdict_VERDICT_ALLOW)
		last := resp.GetSteps()[len(resp.GetSteps())-1]
		equal(t, "gate", last.GetGate(), "grants")
		has(t, last.GetRule(), "grant:")
	})
}
