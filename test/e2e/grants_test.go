package e2e

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

const (
	runTool   = runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL
	runPrefix = runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX
)

// governed is a daemon whose agents ask for what their tools could break: by tier, by name, and of a command line.
func governed(t *testing.T) *world {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	w.hands.Offer(append(slices.Clone(tools),
		harness.Tool("run", `{"type":"object","properties":{"command":{"type":"string"}}}`),
		harness.Tool("shell", `{"type":"object"}`), harness.Tool("drop", `{"type":"object"}`))...)
	w.cfg.ToolHosts["hands"].Tools = map[string]*configv1.Tool{
		"drop": {Tier: proto.Uint32(4)}, "shell": {CommandArgument: "line"},
	}
	w.cfg.Agents["prompted"] = proto.CloneOf(w.cfg.Agents["asks"])
	w.cfg.Agents["prompted"].Policy = &configv1.Policy{Mode: "prompt", Deny: []*runnerdv1.DenyRule{{
		Id: "no-rm-rf", Tools: "run", Arguments: map[string]string{"command": "*rm -rf*"}, Message: "nothing is removed here",
	}}}
	w.cfg.Agents["prompted"].ToolHosts = []string{"other", "hands"}
	w.other.Offer(harness.Tool("deploy_site", `{"type":"object"}`))
	w.Daemon = harness.Start(t, w.cfg)
	return w
}

// ballot changes a verdict before it is given.
type ballot func(*runnerdv1.SubmitApprovalRequest)

func granting(scope runnerdv1.GrantScope) ballot {
	return func(r *runnerdv1.SubmitApprovalRequest) { r.Grant = scope }
}

func editing(arguments string) ballot {
	return func(r *runnerdv1.SubmitApprovalRequest) { r.EditedArgumentsJson = &arguments }
}

// say approves what an approval asks, as changed.
func (w *world) say(t *testing.T, a *runnerdv1.Approval, changes ...ballot) (*runnerdv1.Approval, error) {
	t.Helper()
	req := &runnerdv1.SubmitApprovalRequest{
		RunId: a.GetRunId(), ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: approve,
	}
	for _, change := range changes {
		change(req)
	}
	answer, err := w.Runs.SubmitApproval(harness.Context(t), req)
	return answer.GetApproval(), err
}

// agree expects that to be taken.
func (w *world) agree(t *testing.T, a *runnerdv1.Approval, changes ...ballot) *runnerdv1.Approval {
	t.Helper()
	closed, err := w.say(t, a, changes...)
	if err != nil {
		t.Fatalf("SubmitApproval: %v", err)
	}
	return closed
}

func (w *world) grants(t *testing.T, run string) []*runnerdv1.Grant {
	t.Helper()
	list, err := w.Runs.ListGrants(harness.Context(t), &runnerdv1.ListGrantsRequest{RunId: run})
	if err != nil {
		t.Fatalf("ListGrants: %v", err)
	}
	return list.GetGrants()
}

func (w *world) revoke(t *testing.T, run string, grant uint64) (sequence uint64, err error) {
	t.Helper()
	answer, err := w.Runs.RevokeGrant(harness.Context(t), &runnerdv1.RevokeGrantRequest{RunId: run, GrantId: grant, Reason: "not any more"})
	return answer.GetSequence(), err
}

func (w *world) approval(t *testing.T, run string, id uint64) *runnerdv1.Approval {
	t.Helper()
	answer, err := w.Runs.GetApproval(harness.Context(t), &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: id})
	if err != nil {
		t.Fatalf("GetApproval: %v", err)
	}
	return answer.GetApproval()
}

// approvedCall is the event that let a call run.
func (w *world) approvedCall(t *testing.T, run, call string) *runnerdv1.Event {
	t.Helper()
	return w.Until(t, run, "approval of "+call, func(ev *runnerdv1.Event) bool { return ev.GetToolCallApproved().GetCallId() == call })
}

func TestGrants(t *testing.T) {
	t.Parallel()
	w := governed(t)

	t.Run("T-95 A-66 a grant for a tool lets its later calls pass, unasked", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", `{"n":1}`), harness.Calls("deploy_site", `{"n":2}`, "look", "{}"),
			harness.Ask("enough?"), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		if !slices.Equal(a.GetPossibleGrants(), []runnerdv1.GrantScope{runTool}) || a.GetProgram() != "" {
			t.Errorf("possible are %v of %q", a.GetPossibleGrants(), a.GetProgram())
		}
		closed := w.agree(t, a, granting(runTool))
		given := closed.GetGrant()
		equal(t, "scope", given.GetScope(), runTool)
		equal(t, "tool", given.GetHost()+"/"+given.GetTool(), "hands/deploy_site")
		equal(t, "who", given.GetGrantedBy(), "local:owner")
		equal(t, "grant", given.GetGrantId(), w.approvedCall(t, run, "1.1").GetSequence())
		w.Idle(t, run)
		passed := w.approvedCall(t, run, "2.1")
		p := passed.GetToolCallApproved()
		equal(t, "via", p.GetResolution().GetVia(), runnerdv1.Via_VIA_GRANT)
		equal(t, "approval", p.GetResolution().GetApprovalId(), 0)
		equal(t, "grant of the call", p.GetGrantId(), given.GetGrantId())
		equal(t, "who said so", p.GetApprovedBy(), "local:owner")
		equal(t, "principal", passed.GetPrincipal(), "")
		equal(t, "approvals", harness.Count(w.Events(t, run), "tool_call_pending_approval"), 1)
		held := w.grants(t, run)
		if len(held) != 1 || held[0].GetUses() != 1 || held[0].GetGrantedAt() == nil {
			t.Errorf("grants are %v", held)
		}
		if shown := w.Run(t, run).GetGrants(); len(shown) != 1 || !proto.Equal(shown[0], held[0]) {
			t.Errorf("GetRun shows %v", shown)
		}
		w.Input(t, run, "yes")
		w.Done(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 3)
	})

	t.Run("T-96 an approval is for one call and used up by its start", func(t *testing.T) {
		t.Parallel()
		same := harness.Calls("deploy_site", `{"n":1}`) // and the same id of the model's
		run := w.play(t, "std", harness.Steps(same, same, harness.Calls("deploy_site", `{"n":2}`), harness.Answer("done")))
		var ids []uint64
		for range 3 {
			a := w.open(t, run, 1)[0]
			ids = append(ids, a.GetApprovalId())
			w.vote(t, a, approve)
			w.Until(t, run, "outcome", func(ev *runnerdv1.Event) bool { return ev.GetToolCallCompleted().GetCallId() == a.GetCallId() })
			w.vote(t, a, approve) // says the same again and lets nothing run
		}
		w.Done(t, run)
		slices.Sort(ids)
		equal(t, "approvals", len(slices.Compact(ids)), 3)
		equal(t, "calls", len(w.hands.Calls(run)), 3)
		equal(t, "grants", len(w.grants(t, run)), 0)
	})

	t.Run("T-98 a grant closes what is open for its tool, and only that", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prompted", harness.Steps(harness.Calls("deploy_site", `{"n":1}`, "deploy_site", `{"n":2}`, "charge", "{}", "x_deploy_site", "{}"),
			harness.Answer("done")))
		asks := w.open(t, run, 4)
		w.agree(t, asks[0], granting(runTool))
		w.Idle(t, run)
		left := w.open(t, run, 2)
		equal(t, "left", left[0].GetTool()+" "+left[1].GetHost(), "charge other")
		closed := w.approval(t, run, asks[1].GetApprovalId())
		equal(t, "via", closed.GetVia(), runnerdv1.Via_VIA_GRANT)
		equal(t, "verdict", closed.GetVerdict(), approve)
		equal(t, "grant", closed.GetGrant().GetGrantId(), w.approvedCall(t, run, "1.1").GetSequence())
		equal(t, "closed by", closed.GetClosedBy(), "")
		w.refused(t, asks[1], approve, "ALREADY_RESOLVED")
		w.refused(t, asks[1], deny, "ALREADY_RESOLVED")
		w.vote(t, left[0], deny)
		w.vote(t, left[1], deny)
		w.Done(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 2)
		equal(t, "calls of the other host", len(w.other.Calls(run)), 0)
	})

	t.Run("T-98 a grant never beats a deny, and neither does an edit", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prompted", harness.Steps(harness.Calls("run", `{"command":"make"}`),
			harness.Calls("run", `{"command":"rm -rf /"}`, "run", `{"command":"ls; ls"}`), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		_, err := w.say(t, a, editing(`{"command":"rm -rf /"}`))
		has(t, harness.Code(t, err, codes.InvalidArgument, "EDIT_REFUSED").Message(), "file_policy", "deny:no-rm-rf", "nothing is removed here")
		w.agree(t, a, granting(runTool))
		w.Done(t, run)
		blocked := w.UntilType(t, run, "tool_call_blocked").GetToolCallBlocked()
		equal(t, "reason", blocked.GetReason(), runnerdv1.CallReason_CALL_REASON_FILE_POLICY_DENIED)
		if got := w.sent(run); !slices.Equal(got, []string{`{"command":"make"}`, `{"command":"ls; ls"}`}) {
			t.Errorf("sent are %q", got)
		}
	})

	t.Run("T-98 a grant is of one run", func(t *testing.T) {
		t.Parallel()
		first := w.play(t, "std", asking())
		w.agree(t, w.open(t, first, 1)[0], granting(runTool))
		w.Done(t, first)
		second := w.play(t, "std", asking())
		w.vote(t, w.open(t, second, 1)[0], deny)
		w.Done(t, second)
		equal(t, "calls", len(w.hands.Calls(second)), 0)
	})

	t.Run("T-98 a grant holds over legs until it is revoked", func(t *testing.T) {
		t.Parallel()
		call := harness.Calls("deploy_site", "{}")
		run := w.play(t, "wide", harness.Steps(call, call, call, harness.Answer("done")),
			budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(1)}))
		w.agree(t, w.open(t, run, 1)[0], granting(runTool))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
		more := func(n uint32) {
			t.Helper()
			if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
				RunId: run, Budget: &runnerdv1.Budget{MaxIterations: &n},
			}); err != nil {
				t.Fatal(err)
			}
		}
		more(2)
		w.Done(t, run)
		equal(t, "calls after the second leg", len(w.hands.Calls(run)), 2)
		id := w.grants(t, run)[0].GetGrantId()
		sequence, err := w.revoke(t, run, id)
		if err != nil || sequence == 0 {
			t.Fatalf("RevokeGrant: %d, %v", sequence, err)
		}
		got := w.Run(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
		equal(t, "leg of the revocation", got.GetLeg(), 3)
		equal(t, "grants", len(w.grants(t, run)), 0)
		more(4)
		w.vote(t, w.open(t, run, 1)[0], deny)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "calls", len(w.hands.Calls(run)), 2)
	})

	t.Run("a revoked grant lets nothing start any more", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", `{"n":1}`, "deploy_site", `{"n":2}`), harness.Answer("done")),
			calls(func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				if req.GetCallId() == "1.1" {
					g.pass(s.Context())
				}
				return &runnerdv1.ToolResult{Text: "ok"}, nil
			}))
		asks := w.open(t, run, 2)
		id := w.agree(t, asks[0], granting(runTool)).GetGrant().GetGrantId()
		g.await(t)
		w.open(t, run, 0)
		_, err := w.Guest.RevokeGrant(harness.Context(t), &runnerdv1.RevokeGrantRequest{RunId: run, GrantId: id})
		harness.Code(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
		_, err = w.Guest.ListGrants(harness.Context(t), &runnerdv1.ListGrantsRequest{RunId: run})
		harness.Code(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
		for _, never := range []uint64{1, id + 1, 1 << 40} {
			_, err = w.revoke(t, run, never)
			harness.Code(t, err, codes.NotFound, "GRANT_NOT_FOUND")
		}
		sequence, err := w.revoke(t, run, id)
		if err != nil || sequence == 0 {
			t.Fatalf("RevokeGrant: %d, %v", sequence, err)
		}
		revoked := w.UntilType(t, run, "grant_revoked")
		equal(t, "sequence", sequence, revoked.GetSequence())
		equal(t, "who", revoked.GetPrincipal(), "local:owner")
		equal(t, "why", revoked.GetGrantRevoked().GetReason(), "not any more")
		if again, err := w.revoke(t, run, id); again != 0 || err != nil {
			t.Errorf("a second time: %d, %v", again, err)
		}
		asked := w.open(t, run, 1)[0] // asked again, under another approval
		equal(t, "call", asked.GetCallId(), "1.2")
		if asked.GetApprovalId() <= asks[1].GetApprovalId() {
			t.Errorf("approval %d follows %d", asked.GetApprovalId(), asks[1].GetApprovalId())
		}
		g.open()
		w.Idle(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 1)
		w.vote(t, asked, deny)
		w.Done(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 1)
	})

	t.Run("a final run keeps its grants, and none can be revoked", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		id := w.agree(t, w.open(t, run, 1)[0], granting(runTool)).GetGrant().GetGrantId()
		w.Done(t, run)
		_, err := w.revoke(t, run, id)
		harness.Code(t, err, codes.FailedPrecondition, "RUN_ENDED")
		equal(t, "grants", len(w.grants(t, run)), 1)
	})

	t.Run("T-99 A-67 a grant for a program covers its other arguments and no other command", func(t *testing.T) {
		t.Parallel()
		quoted := func(line string) string { return `{"command":` + string(must(t, line)) + `}` }
		asked := []string{
			"python x", "pytest x; rm y", "pytest x && rm y", "pytest | tee", "pytest > x", "pytest $(x)", "pytest `x`", "pytest\nrm y",
			"FOO=1 pytest", "./pytest", "(pytest)", "pytest &", "pytest <(x)", "! pytest", "pytest $X", "pytest\u202e x", "env pytest", "",
		}
		decision := []string{"run", quoted("'pytest' x"), "run", quoted("pytest --k='a; b'")}
		for _, line := range asked {
			decision = append(decision, "run", quoted(line))
		}
		run := w.play(t, "prompted", harness.Steps(harness.Calls("run", quoted("pytest -q")), harness.Calls(decision...), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		equal(t, "program", a.GetProgram(), "pytest")
		if !slices.Equal(a.GetPossibleGrants(), []runnerdv1.GrantScope{runTool, runPrefix}) {
			t.Errorf("possible are %v", a.GetPossibleGrants())
		}
		given := w.agree(t, a, granting(runPrefix)).GetGrant()
		equal(t, "grant", given.GetArgument()+" "+given.GetProgram(), "command pytest")
		open := w.open(t, run, len(asked))
		for i, a := range open {
			equal(t, "asked for", a.GetArgumentsJson(), quoted(asked[i]))
		}
		w.Until(t, run, "the calls that pass", func(ev *runnerdv1.Event) bool { return ev.GetToolCallCompleted().GetCallId() == "2.2" })
		equal(t, "uses", w.grants(t, run)[0].GetUses(), 2)
		// What is no plain command can be granted as a tool only.
		_, err := w.say(t, open[1], granting(runPrefix))
		harness.Code(t, err, codes.InvalidArgument, "GRANT_NOT_POSSIBLE")
		if fields := harness.Fields(err); !slices.Equal(fields, []string{"grant"}) {
			t.Errorf("fields are %q", fields)
		}
		w.open(t, run, len(asked))
		w.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_ABORT)
		w.Done(t, run)
	})

	t.Run("T-99 the operator says where the command line stands", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prompted", harness.Steps(
			harness.Calls("shell", `{"line":"make all","command":"rm x"}`),
			harness.Calls("shell", `{"line":"make clean"}`, "shell", `{"line":"rm x","command":"make all"}`, "run", `{"command":"make all"}`),
			harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		equal(t, "program", a.GetProgram(), "make")
		given := w.agree(t, a, granting(runPrefix)).GetGrant()
		equal(t, "argument", given.GetArgument(), "line")
		left := w.open(t, run, 2)
		equal(t, "asked for", left[0].GetArgumentsJson()+" "+left[1].GetTool(), `{"line":"rm x","command":"make all"} run`)
		w.vote(t, left[0], deny)
		w.vote(t, left[1], deny)
		w.Done(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 2)
	})

	t.Run("A-68 what cannot be undone is asked for every time", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prompted", harness.Steps(harness.Calls("drop", "{}"), harness.Calls("drop", "{}"), harness.Answer("done")))
		for range 2 {
			a := w.open(t, run, 1)[0]
			equal(t, "tier", a.GetTier(), 4)
			equal(t, "gate", a.GetGate()+" "+a.GetRule()+" "+a.GetLayer(), "mode mode:prompt/tier:4 agent")
			equal(t, "possible grants", len(a.GetPossibleGrants()), 0)
			for _, scope := range []runnerdv1.GrantScope{runTool, runPrefix} {
				_, err := w.say(t, a, granting(scope))
				harness.Code(t, err, codes.InvalidArgument, "GRANT_NOT_POSSIBLE")
			}
			w.vote(t, a, approve)
		}
		w.Done(t, run)
		equal(t, "approvals", harness.Count(w.Events(t, run), "tool_call_pending_approval"), 2)
		equal(t, "grants", len(w.grants(t, run)), 0)
	})

	t.Run("a grant is given with a yes to a call, and with nothing else", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		no := func(r *runnerdv1.SubmitApprovalRequest) { r.Verdict = deny }
		_, err := w.say(t, a, granting(runTool), no)
		harness.Code(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		_, err = w.say(t, a, granting(7))
		harness.Code(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		w.vote(t, a, deny)
		w.Done(t, run)
		equal(t, "grants", len(w.grants(t, run)), 0)
	})

	t.Run("the same verdict again is the one with the same grant", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prompted", harness.Steps(harness.Calls("run", `{"command":"make"}`), harness.Ask("and?")))
		a := w.open(t, run, 1)[0]
		first := w.agree(t, a, granting(runPrefix))
		w.Idle(t, run)
		if again := w.agree(t, a, granting(runPrefix)); !proto.Equal(again, first) {
			t.Errorf("again it is %v, was %v", again, first)
		}
		for _, other := range [][]ballot{nil, {granting(runTool)}, {granting(runPrefix), editing(`{"command":"make"}`)}} {
			_, err := w.say(t, a, other...)
			harness.Code(t, err, codes.FailedPrecondition, "ALREADY_RESOLVED")
		}
		equal(t, "grants", len(w.grants(t, run)), 1)
		w.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_ABORT)
		w.Done(t, run)
	})
}

// TestGrantsOverRestart kills the daemon while a grant holds.
func TestGrantsOverRestart(t *testing.T) {
	t.Parallel()
	w := governed(t)
	call := harness.Calls("deploy_site", "{}")
	run := w.play(t, "std", harness.Steps(call, harness.Ask("go on?"), call, harness.Answer("done")))
	w.agree(t, w.open(t, run, 1)[0], granting(runTool))
	w.Until(t, run, "the question", func(ev *runnerdv1.Event) bool { return ev.GetInputRequested() != nil })
	before := w.grants(t, run)
	w.Kill()
	w.Restart(t)
	after := w.grants(t, run)
	if len(before) != 1 || len(after) != 1 || !proto.Equal(before[0], after[0]) {
		t.Errorf("grants are %v, were %v", after, before)
	}
	w.Input(t, run, "yes")
	ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	equal(t, "via", w.approvedCall(t, run, "3.1").GetToolCallApproved().GetResolution().GetVia(), runnerdv1.Via_VIA_GRANT)
	equal(t, "calls", len(w.hands.Calls(run)), 2)
}

// TestVias closes approvals in every way.
func TestVias(t *testing.T) {
	t.Parallel()
	w := governed(t)
	var vias []runnerdv1.Via

	t.Run("T-117 A-66 every approval says how it was closed, and by whom", func(t *testing.T) {
		human := w.play(t, "std", asking())
		a := w.open(t, human, 1)[0]
		w.vote(t, a, approve)
		w.Done(t, human)
		closed := w.approval(t, human, a.GetApprovalId())
		equal(t, "by", closed.GetClosedBy(), "local:owner")
		vias = append(vias, closed.GetVia())

		brief := w.play(t, "std", asking(), patient(time.Second))
		w.Done(t, brief)
		closed = w.approval(t, brief, w.asked(t, brief).GetApprovalId())
		equal(t, "by", closed.GetClosedBy(), "")
		equal(t, "verdict", closed.GetVerdict(), deny)
		vias = append(vias, closed.GetVia())

		stopped := w.play(t, "std", asking())
		a = w.open(t, stopped, 1)[0]
		w.Cancel(t, stopped, runnerdv1.CancelMode_CANCEL_MODE_STOP)
		w.Done(t, stopped)
		vias = append(vias, w.approval(t, stopped, a.GetApprovalId()).GetVia())

		granted := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}", "deploy_site", "{}"), harness.Answer("done")))
		asks := w.open(t, granted, 2)
		w.agree(t, asks[0], granting(runTool))
		w.Done(t, granted)
		vias = append(vias, w.approval(t, granted, asks[1].GetApprovalId()).GetVia())

		unattended := w.play(t, "std", asking(), mode(denyMode))
		w.Done(t, unattended)
		vias = append(vias, w.UntilType(t, unattended, "tool_call_denied").GetToolCallDenied().GetResolution().GetVia())
	})
	want := []runnerdv1.Via{
		runnerdv1.Via_VIA_HUMAN, runnerdv1.Via_VIA_TIMEOUT, runnerdv1.Via_VIA_CANCEL, runnerdv1.Via_VIA_GRANT, runnerdv1.Via_VIA_AUTO,
	}
	if !slices.Equal(vias, want) {
		t.Errorf("closed via %v, want %v", vias, want)
	}
}
