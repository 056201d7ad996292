package runstate

import (
	"testing"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// calling is the decision of the Decide in progress with one call.
func (w *world) calling(tool, arguments string) Decided {
	w.t.Helper()
	return w.decision(&runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{
		Calls: []*runnerdv1.ToolCall{{Name: tool, ArgumentsJson: arguments}},
	}}})
}

// grantedHistory is a run with an edit, and with grants by tool and by program, of which the first is revoked.
func grantedHistory(t *testing.T) *world {
	t.Helper()
	spec := newSpec()
	spec.Policy = askFor("charge", "order")
	w := newWorld(t, spec)
	granting := func(scope runnerdv1.GrantScope, edit string) {
		v := w.vote(w.open(), approve)
		v.Grant = scope
		if edit != "" {
			v.Edited = &Edit{Text: edit}
		}
		w.do(v)
	}
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("charge", "charge", "order"))
	granting(runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL, `{"n":2}`) // lets 1.2 pass
	w.finish("1.1", 1)
	w.finish("1.2", 1)
	w.do(w.vote(w.open(), approve))
	w.finish("1.3", 1)
	w.do(w.decided("charge")) // passes unasked
	w.finish("2.1", 1)
	w.do(Revoke{Principal: "approver", GrantID: w.st.Grants()[0].GetGrantId()})
	w.do(w.calling("charge", `{"command":"make all"}`))
	granting(runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX, "")
	w.finish("3.1", 1)
	w.do(w.calling("charge", `{"command":"make clean"}`)) // passes unasked
	w.finish("4.1", 1)
	w.do(w.decision(answerDecision("done")))
	return w
}

// blockedHistory is a run with a call that a gate blocks.
func blockedHistory(t *testing.T) *world {
	t.Helper()
	spec := newSpec()
	spec.Policy = []*runnerdv1.PolicyLayer{{Name: "agent", Mode: runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY}}
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("read", "charge"))
	w.finish("1.1", 1)
	w.do(w.decision(answerDecision("done")))
	return w
}

// approvedNth is the n-th approval of a history.
func (h *history) approvedNth(n int) *runnerdv1.ToolCallApproved {
	h.t.Helper()
	_, ev := h.nth("tool_call_approved", n)
	return ev.GetToolCallApproved()
}

func (h *history) requestedNth(n int) *runnerdv1.ToolCallRequested {
	h.t.Helper()
	_, ev := h.nth("tool_call_requested", n)
	return ev.GetToolCallRequested()
}

func (h *history) startedNth(n int) *runnerdv1.ToolCallStarted {
	h.t.Helper()
	_, ev := h.nth("tool_call_started", n)
	return ev.GetToolCallStarted()
}

// brokenGrants break what approvals give beside a yes. Of the history "granted" the approvals are, in this order: 1.1
// edited and with a grant by tool, 1.2 by that grant, 1.3 by a person, 2.1 by the grant, 3.1 with a grant by program, 4.1 by
// that; the requests are those of 1.1, 1.2, 1.3, 2.1, 3.1, 4.1.
var brokenGrants = []breakage{
	{"a call passes by a grant that nobody gave", 9, false, "granted", func(h *history) { h.approvedNth(4).GrantId = 1 }},
	{"a call passes by a grant that was revoked", 9, false, "granted", func(h *history) {
		i, _ := h.nth("tool_call_completed", 1)
		revoked := h.insert(i, h.first("grant_revoked"))
		revoked.Principal = "approver"
	}},
	{"a call passes by the grant for another tool", 9, false, "granted", func(h *history) { h.requestedNth(4).Tool = "notify" }},
	{"a call passes by the grant for another host", 9, false, "granted", func(h *history) { h.requestedNth(4).Host = "shop" }},
	{"a call of tier 4 passes by a grant", 9, false, "granted", func(h *history) { h.requestedNth(4).Tier = 4 }},
	{"a call passes by a grant and closes an approval that is not open", 9, false, "granted", func(h *history) {
		h.approvedNth(4).GetResolution().ApprovalId = 9
	}},
	{"a call passes by a grant and leaves its approval open", 9, false, "granted", func(h *history) {
		h.approvedNth(2).GetResolution().ApprovalId = 0
	}},
	{"auto mode lets a call pass and is off", 9, true, "granted", func(h *history) {
		h.approvedNth(4).GetResolution().Via, h.approvedNth(4).GrantId = runnerdv1.Via_VIA_AUTO, 0
	}},
	{"auto mode lets a call of tier 4 pass", 9, false, "granted", func(h *history) {
		h.approvedNth(4).GetResolution().Via, h.approvedNth(4).GrantId = runnerdv1.Via_VIA_AUTO, 0
		h.requestedNth(4).Tier = 4
	}},
	{"a deadline lets a call pass", 9, false, "granted", func(h *history) {
		h.approvedNth(3).GetResolution().Via = runnerdv1.Via_VIA_TIMEOUT
	}},
	{"a call is approved that need not be", 9, false, "granted", func(h *history) {
		h.requestedNth(4).Verdict = runnerdv1.Verdict_VERDICT_ALLOW
	}},
	{"a call is approved that is blocked", 9, false, "granted", func(h *history) { h.requestedNth(3).Verdict = runnerdv1.Verdict_VERDICT_BLOCK }},

	{"arguments are edited by nobody", 9, false, "granted", func(h *history) {
		h.approvedNth(2).EditedArgumentsJson = new(`{"n":7}`)
	}},
	{"other arguments are approved than were edited", 9, true, "granted", func(h *history) {
		h.approvedNth(1).EditedArgumentsJson = new(`{"n":7}`)
	}},
	{"other arguments are approved than were asked for", 9, false, "granted", func(h *history) { h.approvedNth(3).ArgumentsHash = "k:00" }},
	{"other arguments are shown as approved than were asked for", 9, false, "granted", func(h *history) { h.approvedNth(3).ArgumentDigest = "k:00" }},
	{"an edit is lost, and what the model wrote is sent", 9, false, "granted", func(h *history) {
		h.startedNth(1).ArgumentsHash = h.requestedNth(1).GetArgumentsHash()
	}},
	{"an edited call starts on the digest of what was asked", 9, false, "granted", func(h *history) {
		h.startedNth(1).ApprovalDigest = h.approvedNth(1).GetResolution().GetApprovalDigest()
	}},
	{"a call that a grant let pass starts on another digest", 9, false, "granted", func(h *history) { h.startedNth(4).ApprovalDigest = "k:00" }},
	{"another approval is used than the one that was given", 4, false, "granted", func(h *history) {
		h.startedNth(3).ApprovalId = h.startedNth(1).GetApprovalId()
	}},
	{"somebody else is named as the approver", 9, false, "granted", func(h *history) { h.approvedNth(3).ApprovedBy = "somebody" }},

	{"a grant is said to be given by somebody else", 9, false, "granted", func(h *history) { h.approvedNth(4).ApprovedBy = "somebody" }},
	{"a person approves with a grant", 9, false, "granted", func(h *history) {
		h.approvedNth(3).GrantId = h.approvedNth(1).GetGrant().GetGrantId()
	}},
	{"auto mode approves for somebody", 9, false, "granted", func(h *history) {
		h.approvedNth(4).GetResolution().Via, h.approvedNth(4).GrantId = runnerdv1.Via_VIA_AUTO, 0
	}},
	{"another program passes by a grant", 9, false, "granted", func(h *history) { h.requestedNth(6).ArgumentsRaw = `{"command":"rm clean"}` }},
	{"two programs pass by a grant for one", 9, false, "granted", func(h *history) {
		h.requestedNth(6).ArgumentsRaw = `{"command":"make clean; rm x"}`
	}},
	{"a grant is for another program than the call", 9, false, "granted", func(h *history) { h.requestedNth(5).ArgumentsRaw = `{"command":"rm all"}` }},
	{"a grant is for another run", 9, false, "granted", func(h *history) { h.approvedNth(1).GetGrant().RunId = "other" }},

	{"a person is told another rule than that which asks", 9, false, "granted", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().Rule = "approval_for:other"
	}},
	{"a person is told another tier", 9, false, "granted", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().Tier = 0
	}},
	{"a person is shown the arguments of another call", 9, false, "granted", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().RequestedSequence++
	}},
	{"a person who settles is shown the arguments of another call", 9, false, "", func(h *history) {
		for _, ev := range h.events {
			if d := ev.GetToolCallInDoubt(); d.GetNext() == runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
				d.RequestedSequence++
			}
		}
	}},
	{"an approval has no deadline in mode WAIT", 9, true, "granted", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().ExpiresAt = nil
	}},
	{"an approval is open in a run where nobody is there", 9, true, "granted", func(h *history) {
		h.spec.Approval.Mode = runnerdv1.ApprovalMode_APPROVAL_MODE_DENY
	}},
	{"a call is blocked by a gate that did not say so", 0, false, "blocked", func(h *history) {
		h.first("tool_call_blocked").GetToolCallBlocked().Gate = "paths"
	}},
	{"a call is blocked that was allowed", 0, false, "blocked", func(h *history) {
		h.requestedNth(2).Verdict = runnerdv1.Verdict_VERDICT_ALLOW
	}},
	{"a call is blocked by a gate when its turn is over", 0, false, "blocked", func(h *history) {
		h.first("tool_call_blocked").GetToolCallBlocked().Reason = runnerdv1.CallReason_CALL_REASON_RUN_ENDING
	}},
	{"a call starts over the budget", 4, true, "granted", func(h *history) { h.spec.Budget.MaxToolCalls = new(uint32(3)) }},
	{"an iteration starts over the budget", 4, true, "granted", func(h *history) { h.spec.Budget.MaxIterations = new(uint32(3)) }},
	{"a call starts over the limit of auto mode", 4, true, "granted", func(h *history) {
		h.spec.AutoMode = &runnerdv1.AutoMode{Limits: &runnerdv1.AutoModeLimits{MaxToolCalls: new(uint32(3))}}
	}},
	{"an iteration starts over the limit of auto mode", 4, true, "granted", func(h *history) {
		h.spec.AutoMode = &runnerdv1.AutoMode{Limits: &runnerdv1.AutoModeLimits{MaxIterations: new(uint32(3))}}
	}},
	{"a leg that was given less starts a call", 4, true, "paused", func(h *history) {
		h.first("run_resumed").GetRunResumed().Budget = &runnerdv1.Budget{MaxToolCalls: new(uint32(0))}
	}},

	{"a grant is given by nobody", 9, false, "granted", func(h *history) { h.approvedNth(1).GetGrant().GrantedBy = "" }},
	{"a grant is given with a grant", 9, false, "granted", func(h *history) {
		g := proto.CloneOf(h.approvedNth(1).GetGrant())
		_, ev := h.nth("tool_call_approved", 4)
		g.GrantId, ev.GetToolCallApproved().Grant = ev.GetSequence(), g
	}},
	{"a grant is for another tool than the call", 9, false, "granted", func(h *history) { h.approvedNth(1).GetGrant().Tool = "order" }},
	{"a grant is given for a tool of tier 4", 9, false, "granted", func(h *history) { h.requestedNth(1).Tier = 4 }},
	{"a grant has the number of another event", 9, false, "granted", func(h *history) { h.approvedNth(1).GetGrant().GrantId++ }},
	{"a grant by program has none", 9, false, "granted", func(h *history) { h.approvedNth(5).GetGrant().Program = "" }},
	{"a grant by program has no argument", 9, false, "granted", func(h *history) { h.approvedNth(5).GetGrant().Argument = "" }},
	{"a grant by tool has a program", 9, false, "granted", func(h *history) { h.approvedNth(1).GetGrant().Program = "make" }},

	{"a grant is revoked twice", 9, false, "granted", func(h *history) {
		i, ev := h.nth("grant_revoked", 1)
		h.insert(i, ev).Principal = "approver"
	}},
	{"a grant is revoked that nobody gave", 9, false, "granted", func(h *history) { h.first("grant_revoked").GetGrantRevoked().GrantId = 1 }},
	{"a grant is revoked by nobody", 9, false, "granted", func(h *history) { h.first("grant_revoked").Principal = "" }},
	{"a call starts whose grant was revoked before", 4, false, "granted", func(h *history) {
		i, _ := h.nth("tool_call_approved", 2)
		h.insert(i, h.first("grant_revoked")).Principal = "approver"
	}},

	{"a call is denied and nobody was asked", 9, true, "", func(h *history) {
		i, _ := h.nth("tool_call_pending_approval", 2)
		h.drop(i)
		_, ev := h.nth("tool_call_denied", 1)
		ev.GetToolCallDenied().GetResolution().ApprovalId = 0
	}},
}
