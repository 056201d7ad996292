package runstate

import (
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// approvalCheck is the approval of a call that is open, or granted and not consumed.
type approvalCheck struct {
	id       uint64 // 0: none
	digest   string
	expires  time.Time // zero: never
	approved bool
}

func (a *approvalCheck) open() bool { return a.id != 0 && !a.approved }

func (c *checker) callPending(call *callCheck, p *runnerdv1.ToolCallPendingApproval) {
	r := call.requested
	c.hold(r.GetVerdict() == runnerdv1.Verdict_VERDICT_ASK && call.attempt == 0, 9, "nobody need be asked about call %s", r.GetCallId())
	c.hold(call.approval.id == 0, 9, "approval %d is not closed", call.approval.id)
	c.hold(p.GetHost() == r.GetHost() && p.GetTool() == r.GetTool() && p.GetArgumentDigest() == r.GetArgumentDigest(), 9,
		"what is asked is not what was requested")
	c.hold(p.GetGate() == r.GetGate() && p.GetRule() == r.GetRule() && p.GetLayer() == r.GetLayer() && p.GetTier() == r.GetTier() &&
		p.GetRequestedSequence() == call.sequence, 9, "why call %s is asked about is not what was requested", r.GetCallId())
	if c.spec != nil {
		mode := c.spec.GetApproval().GetMode()
		c.hold(mode != runnerdv1.ApprovalMode_APPROVAL_MODE_DENY, 9, "somebody is asked about call %s, and nobody is there", r.GetCallId())
		c.hold((mode == runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT) == (p.GetExpiresAt() != nil), 9,
			"approval %d expires at %v in mode %s", c.ev.GetSequence(), p.GetExpiresAt().AsTime(), mode)
	}
	call.approval = approvalCheck{id: c.ev.GetSequence(), digest: p.GetApprovalDigest()}
	if p.GetExpiresAt() != nil {
		call.approval.expires = p.GetExpiresAt().AsTime()
	}
}

// resolve judges the closing of the approval of a call.
func (c *checker) resolve(call *callCheck, r *runnerdv1.Resolution, verdict runnerdv1.ApprovalVerdict) {
	c.closeApproval(call.approval, r, verdict)
}

// callApproved judges what lets a call run: an approver's yes to exactly what was asked or edited, a grant that holds,
// or auto mode. Only an approver can change what runs, and give a grant with it.
func (c *checker) callApproved(call *callCheck, p *runnerdv1.ToolCallApproved) {
	r, res := call.requested, p.GetResolution()
	id := r.GetCallId()
	c.hold(r.GetVerdict() == runnerdv1.Verdict_VERDICT_ASK && call.attempt == 0 && call.approved == nil, 9, "nobody need approve call %s", id)
	edited := p.EditedArgumentsJson != nil || p.GetEditedArgumentsRef() != nil
	c.hold(edited || p.GetArgumentsHash() == r.GetArgumentsHash() && p.GetArgumentDigest() == r.GetArgumentDigest(), 9,
		"what is approved of call %s is not what was requested", id)
	switch res.GetVia() {
	case runnerdv1.Via_VIA_GRANT:
		g := c.grants[p.GetGrantId()]
		c.hold(g.covers(r), 9, "grant %d does not let call %s run", p.GetGrantId(), id)
		if g != nil {
			c.hold(p.GetApprovedBy() == g.GetGrantedBy(), 9, "grant %d is said to be given by %q", g.GetGrantId(), p.GetApprovedBy())
			c.sameProgram(call, g.Grant, nil)
		}
		c.letPass(call, p, edited)
	case runnerdv1.Via_VIA_AUTO:
		c.hold(c.spec == nil || c.spec.GetAutoMode() != nil, 9, "call %s is approved by auto mode, which is off", id)
		c.hold(r.GetTier() < ungrantableTier, 9, "auto mode approves call %s of tier %d", id, r.GetTier())
		c.hold(p.GetGrantId() == 0 && p.GetApprovedBy() == "", 9, "call %s is approved by auto mode, and by %q", id, p.GetApprovedBy())
		c.letPass(call, p, edited)
	default:
		c.resolve(call, res, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE)
		c.hold(p.GetApprovedBy() == c.ev.GetPrincipal(), 9, "call %s is approved by %q", id, p.GetApprovedBy())
		c.hold(p.GetGrantId() == 0, 9, "call %s is approved by a person, and by grant %d", id, p.GetGrantId())
		call.approval.approved = true
		if g := p.GetGrant(); g != nil {
			c.granted(r, g)
			c.sameProgram(call, g, p)
		}
	}
	call.approved = p
}

// letPass judges an approval that no person gave. It opens no approval, but may close one.
func (c *checker) letPass(call *callCheck, p *runnerdv1.ToolCallApproved, edited bool) {
	id := p.GetResolution().GetApprovalId()
	c.hold(id == call.approval.id && (id == 0 || call.approval.open()), 9, "approval %d is closed and not open", id)
	c.hold(!edited && p.GetGrant() == nil && c.ev.GetPrincipal() == "", 9, "call %s is changed, or grants something, by nobody",
		p.GetCallId())
	if id != 0 {
		call.approval.approved = true
	}
}

// granted judges a grant.
func (c *checker) granted(r *runnerdv1.ToolCallRequested, g *runnerdv1.Grant) {
	c.hold(g.GetRunId() == c.run && g.GetGrantId() == c.ev.GetSequence() && g.GetGrantedBy() == c.ev.GetPrincipal(), 9, "grant %d is not of this event", g.GetGrantId())
	c.hold(g.GetHost() == r.GetHost() && g.GetTool() == r.GetTool() && r.GetTier() < ungrantableTier, 9,
		"grant %d is not for the tool of call %s", g.GetGrantId(), r.GetCallId())
	prefix := g.GetScope() == runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX
	c.hold(prefix == (g.GetProgram() != "") && prefix == (g.GetArgument() != ""), 9, "grant %d has no program", g.GetGrantId())
	if c.grants == nil {
		c.grants = make(map[uint64]*grantCheck)
	}
	c.grants[c.ev.GetSequence()] = &grantCheck{g}
}

// sameProgram judges that a call runs the program of a grant, as far as it can be seen: approved is what edited it, if
// anything did.
func (c *checker) sameProgram(call *callCheck, g *runnerdv1.Grant, approved *runnerdv1.ToolCallApproved) {
	if g.GetScope() != runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX || c.rules != RulesVersion {
		return // what a program is, is a rule
	}
	sent, seen := effectiveArguments(call.requested), call.whole
	if approved != nil && approved.EditedArgumentsJson != nil {
		sent, seen = editedArguments(approved), !isPublicPart(c.ev)
	}
	if !seen {
		return
	}
	argument, program := commandProgram(g.GetArgument(), sent.Text)
	c.hold(sent.Ref == nil && argument == g.GetArgument() && program == g.GetProgram(), 9, "call %s does not run %q of grant %d",
		call.requested.GetCallId(), g.GetProgram(), g.GetGrantId())
}

// grantCheck is a grant that holds; nil: it does not.
type grantCheck struct{ *runnerdv1.Grant }

func (g *grantCheck) covers(r *runnerdv1.ToolCallRequested) bool {
	return g != nil && g.GetHost() == r.GetHost() && g.GetTool() == r.GetTool() && r.GetTier() < ungrantableTier
}

// grantRevoked judges the end of a grant: what it let pass and has not started is asked for again.
func (c *checker) grantRevoked(p *runnerdv1.GrantRevoked) {
	c.hold(c.grants[p.GetGrantId()] != nil, 9, "grant %d does not hold", p.GetGrantId())
	c.hold(c.ev.GetPrincipal() != "", 9, "grant %d is revoked by nobody", p.GetGrantId())
	delete(c.grants, p.GetGrantId())
	for _, call := range c.decision.calls {
		if call.approved.GetGrantId() == p.GetGrantId() && call.approved != nil {
			call.approved, call.approval = nil, approvalCheck{}
		}
	}
}

// closeApproval judges the closing of an approval.
func (c *checker) closeApproval(a approvalCheck, r *runnerdv1.Resolution, verdict runnerdv1.ApprovalVerdict) {
	if !a.open() || r.GetApprovalId() != a.id {
		c.violate(9, "approval %d is closed and not open", r.GetApprovalId())
		return
	}
	at, person := c.ev.GetTime().AsTime(), false
	switch r.GetVia() {
	case runnerdv1.Via_VIA_HUMAN:
		person = true
		c.hold(c.ev.GetPrincipal() != "", 9, "approval %d is closed by nobody", a.id)
		c.hold(a.expires.IsZero() || at.Before(a.expires), 9, "approval %d is answered at %s, and expired at %s", a.id, at, a.expires)
		c.hold(r.GetApprovalDigest() == a.digest, 9, "approval %d is answered for another digest", a.id)
	case runnerdv1.Via_VIA_TIMEOUT:
		c.hold(!a.expires.IsZero() && !at.Before(a.expires), 9, "approval %d expires before its time", a.id)
	case runnerdv1.Via_VIA_CANCEL:
	default:
		c.violate(9, "approval %d is closed via %s", a.id, r.GetVia())
	}
	c.hold(r.GetVerdict() == verdict, 9, "approval %d is closed with %s", a.id, r.GetVerdict())
	c.hold(person || verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, 9, "approval %d is granted by nobody", a.id)
}

func (c *checker) callDenied(call *callCheck, d *runnerdv1.ToolCallDenied) {
	c.hold(call.attempt == 0, 3, "call %s was started and is denied", call.requested.GetCallId())
	if d.GetResolution().GetApprovalId() == 0 && !call.approval.open() {
		c.hold(call.requested.GetVerdict() == runnerdv1.Verdict_VERDICT_ASK && call.approved == nil, 9, "nobody was to be asked about call %s", call.requested.GetCallId())
		via := d.GetResolution().GetVia() // an answer that nobody gave
		c.hold(via == runnerdv1.Via_VIA_AUTO && c.ev.GetPrincipal() == "", 9, "call %s is denied via %s", call.requested.GetCallId(), via)
		c.hold(c.spec == nil || c.spec.GetApproval().GetMode() == runnerdv1.ApprovalMode_APPROVAL_MODE_DENY, 9,
			"call %s is denied and nobody was asked", call.requested.GetCallId())
	} else {
		c.resolve(call, d.GetResolution(), runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY)
	}
	call.done, call.approval = true, approvalCheck{}
}
