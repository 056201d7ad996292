package runstate

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// ask opens the approvals of all calls that must be asked, but for those that auto mode or a grant covers, or denies
// them where nobody is there to be asked.
func (t *advance) ask() bool {
	before := len(t.events)
	for _, c := range t.st.ctl.Calls {
		asked := c.Status == callRequested && c.Verdict == runnerdv1.Verdict_VERDICT_ASK
		switch {
		case !asked && c.Status != callPending:
		case t.letPass(c) || !asked:
		case t.st.env.Spec.GetApproval().GetMode() == runnerdv1.ApprovalMode_APPROVAL_MODE_DENY:
			t.deny(c, "", runnerdv1.CallReason_CALL_REASON_NO_APPROVER, runnerdv1.Via_VIA_AUTO, "")
		default:
			expires := t.approvalExpiry()
			t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallPendingApproval{
				ToolCallPendingApproval: &runnerdv1.ToolCallPendingApproval{
					CallId: c.ID, Host: c.Host, Tool: c.Tool, ArgumentDigest: c.ArgumentDigest,
					ApprovalDigest: t.st.approvalDigest(c, runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, expires),
					Gate:           c.Gate, Rule: c.Rule, Layer: c.Layer, Tier: c.Tier, Annotations: c.Annotations,
					ExpiresAt: timestamp(expires), RequestedSequence: c.RequestedSeq,
				},
			}})
		}
	}
	return len(t.events) > before
}

// letPass approves a call that auto mode or a grant covers, and reports whether one does.
func (t *advance) letPass(c *call) bool {
	via, approved := runnerdv1.Via_VIA_AUTO, &runnerdv1.ToolCallApproved{CallId: c.ID}
	if !t.st.autoCovers(c) {
		g := t.st.coveredBy(c)
		if g == nil {
			return false
		}
		via, approved.GrantId, approved.ApprovedBy = runnerdv1.Via_VIA_GRANT, g.ID, g.By
	}
	approved.ArgumentDigest, approved.ArgumentsHash = c.ArgumentDigest, c.ArgumentsHash
	approved.ApprovalDigest = t.st.approvalDigest(c, runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, c.ApprovalExpires)
	approved.Resolution = &runnerdv1.Resolution{
		ApprovalId: c.Approval, Via: via, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
		ApprovalDigest: approved.GetApprovalDigest(),
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallApproved{ToolCallApproved: approved}})
	return true
}

// approvalExpiry is when an approval that is opened now is denied via TIMEOUT; zero: never.
func (t *advance) approvalExpiry() time.Time {
	a := t.st.env.Spec.GetApproval()
	if a.GetMode() != runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT {
		return time.Time{}
	}
	return t.now.Add(a.GetTimeout().AsDuration())
}

func timestamp(at time.Time) *timestamppb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return timestamppb.New(at)
}

// approvalDigest binds a verdict to exactly what it is about.
func (st *State) approvalDigest(c *call, kind runnerdv1.ApprovalKind, expires time.Time) string {
	var attempt uint32
	if kind == runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT {
		attempt = c.Attempt
	}
	return st.env.Key.bind(domainApproval,
		[]string{st.ctl.RunID, c.ID, c.Host, c.Tool, c.SchemaDigest, st.ctl.SpecDigest, c.ArgumentsHash, c.Rule},
		int64(kind), int64(attempt), unixNano(expires))
}

// sentHash is the hash of what is sent to the host, computed from the very text: the start of a call is legal only if it
// is that of what was requested or approved. Text in an artifact is held against its own digest when it is read.
func (st *State) sentHash(c *call) string {
	if c.arguments.Ref != nil {
		return c.ArgumentsHash
	}
	return st.env.Key.Digest(domainExact, []byte(c.arguments.Text))
}

func (c *call) ask(id uint64, opened time.Time, digest string, expires *timestamppb.Timestamp) {
	c.Approval, c.ApprovalDigest, c.ApprovalOpened = id, digest, opened
	c.ApprovalExpires = time.Time{}
	if expires != nil {
		c.ApprovalExpires = expires.AsTime()
	}
}

func (c *call) closeApproval() {
	c.Approval, c.ApprovalDigest, c.ApprovalOpened, c.ApprovalExpires = 0, "", time.Time{}, time.Time{}
}

// expire closes the approvals whose deadline has passed. A paused run has no deadlines.
func (t *advance) expire() {
	if t.st.Closed() {
		return
	}
	t.expireConfirm()
	for _, c := range t.st.ctl.Calls {
		if !c.asks() || c.ApprovalExpires.IsZero() || t.now.Before(c.ApprovalExpires) {
			continue
		}
		if c.Status == callDoubt {
			t.giveUp(c, "", runnerdv1.Via_VIA_TIMEOUT, "")
		} else {
			t.deny(c, "", runnerdv1.CallReason_CALL_REASON_APPROVAL_TIMEOUT, runnerdv1.Via_VIA_TIMEOUT, "")
		}
	}
}

// vote takes an approver's verdict.
func (t *advance) vote(f Vote) Reply {
	if open := &t.st.ctl.Confirm; open.open() && open.Approval == f.ApprovalID {
		switch {
		case f.Edited != nil:
			return Reply{Err: notEditable()}
		case f.Grant != runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED:
			return Reply{Err: notGrantable()}
		}
		return t.voteBudget(f)
	}
	var c *call
	for _, open := range t.st.ctl.Calls {
		if open.asks() && open.Approval == f.ApprovalID {
			c = open
		}
	}
	if c == nil {
		return Reply{Err: ErrNotOpen}
	}
	if refused := t.st.votable(c, f); refused != nil {
		return Reply{Err: refused}
	}
	var edited *edited
	if f.Edited != nil {
		var refused *Refusal
		if edited, refused = t.st.edit(c, f); refused != nil {
			return Reply{Err: refused}
		}
	}
	if refused := t.st.grantable(c, f, edited); refused != nil {
		return Reply{Err: refused}
	}
	t.reopen(f.Principal, runnerdv1.ResumeCause_RESUME_CAUSE_APPROVAL)
	return Reply{Sequence: t.voted(c, f, edited)}
}

// votable says why a verdict on an open approval of a call is refused; nil: it is not.
func (st *State) votable(c *call, f Vote) *Refusal {
	doubt := c.Status == callDoubt
	approve := f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	settle := f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
	otherDigest := f.Digest != c.ApprovalDigest
	switch {
	case settle && (!doubt || f.Result == nil && !otherDigest): // a result for another digest was not brought
		return &Refusal{
			Reason:  runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE,
			Message: "SETTLE is possible only for a call in doubt, with the result that was found to be true",
		}
	case f.Edited != nil && (doubt || !approve):
		return notEditable()
	case otherDigest:
		return &Refusal{
			Reason:  runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH,
			Message: fmt.Sprintf("approval_digest is not that of approval %d; look at what will run and answer that", f.ApprovalID),
		}
	case approve && f.Found.Changed:
		return &Refusal{
			Reason:  runnerdv1.ErrorReason_ERROR_REASON_TOOL_CHANGED,
			Message: "the host has changed the tool since the run began, so what was asked cannot run any more; deny it",
		}
	case approve && f.Edited == nil && len(f.Found.Paths) > 0: // of an edit its gates say so
		p := f.Found.Paths[0]
		return &Refusal{
			Reason: runnerdv1.ErrorReason_ERROR_REASON_PATH_CHANGED,
			Message: fmt.Sprintf("the path %q by now %s, so what was asked cannot run any more; deny it, or approve it with other arguments",
				p.Path, p.Message),
		}
	}
	return nil
}

// notEditable refuses edited arguments where there are none to edit.
func notEditable() *Refusal {
	return &Refusal{
		Reason:  runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE,
		Message: "arguments can be edited only when a call is approved that has not run",
		Field:   "edited_arguments_json",
	}
}

// edited is what an approver lets run instead of what the model wrote.
type edited struct {
	arguments Arguments
	ref       *runnerdv1.ArtifactRef
	hash      string
	digest    string
}

// edit passes edited arguments through the checks and gates of the call. That a person must be asked is no objection:
// one was.
func (st *State) edit(c *call, f Vote) (*edited, *Refusal) {
	tool := st.env.Catalogue.find(c.Host, c.Tool)
	if tool == nil {
		return nil, &Refusal{Reason: runnerdv1.ErrorReason_ERROR_REASON_TOOL_CHANGED, Message: "the tool is not offered any more"}
	}
	v := st.judge(&runnerdv1.ToolCall{Name: tool.GetOfferedName(), ArgumentsJson: f.Edited.Text}, f.Found)
	if v.verdict == block || v.verdict == runnerdv1.Verdict_VERDICT_FAILED {
		by := v.gate
		if v.rule != "" {
			by += ", " + v.rule
		}
		if v.layer != "" {
			by += " of " + v.layer
		}
		return nil, &Refusal{
			Reason:  runnerdv1.ErrorReason_ERROR_REASON_EDIT_REFUSED,
			Message: fmt.Sprintf("the edited arguments are refused (%s): %s", by, v.message),
			Field:   "edited_arguments_json",
		}
	}
	e := &edited{
		arguments: v.arguments, ref: f.Edited.Ref,
		hash:   st.env.Key.Digest(domainExact, []byte(v.arguments.Text)),
		digest: st.env.Key.Digest(domainArguments, v.arguments.Canonical),
	}
	if v.arguments.Text != f.Edited.Text {
		e.ref = nil // blank text, however long, is {}
	}
	return e, nil
}

// Asked returns the offered name and the arguments of the call that an approval asks about; not ok: none asks about a
// call that has not run, or its tool is not offered any more.
func (st *State) Asked(approval uint64) (name string, arguments Part, ok bool) {
	for _, c := range st.ctl.Calls {
		if c.Status != callPending || c.Approval != approval {
			continue
		}
		if tool := st.env.Catalogue.find(c.Host, c.Tool); tool != nil {
			return tool.GetOfferedName(), c.arguments, true
		}
	}
	return "", Part{}, false
}

func (e *edited) part() Part {
	if e.ref != nil {
		return Part{Ref: e.ref}
	}
	return Part{Text: e.arguments.Text}
}

// as is the call with the arguments that will run.
func (e *edited) as(c *call) *call {
	if e == nil {
		return c
	}
	with := *c
	with.arguments, with.ArgumentsHash, with.ArgumentDigest = e.part(), e.hash, e.digest
	return &with
}

// grantable says why a grant cannot be given with an approval; nil: it can, or none is wanted.
func (st *State) grantable(c *call, f Vote, e *edited) *Refusal {
	if f.Grant == runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED {
		return nil
	}
	possible, _ := st.possibleGrants(e.as(c))
	if f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE && slices.Contains(possible, f.Grant) {
		return nil
	}
	return notGrantable()
}

// notGrantable refuses a grant that is none of the possible ones.
func notGrantable() *Refusal {
	return &Refusal{
		Reason: runnerdv1.ErrorReason_ERROR_REASON_GRANT_NOT_POSSIBLE,
		Message: "this grant cannot be given here: a grant comes with the approval of a call below tier 4, one by program " +
			"only where a single plain command runs, and a run has at most 256",
		Field: "grant",
	}
}

func (t *advance) voted(c *call, f Vote, e *edited) uint64 {
	const human = runnerdv1.Via_VIA_HUMAN
	doubt := c.Status == callDoubt
	switch {
	case f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE:
		return t.outcome(c, *f.Result, outcomeOf{
			principal: f.Principal, resolution: c.resolution(human, f.Verdict, f.Reason),
		})
	case f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE && doubt:
		return t.retry(c, runnerdv1.LostCause_LOST_CAUSE_IN_DOUBT, "an approver wants it to be sent again", f.Principal,
			c.resolution(human, f.Verdict, f.Reason))
	case f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE:
		return t.approve(c, f, e)
	case doubt:
		return t.giveUp(c, f.Principal, human, f.Reason)
	default:
		return t.deny(c, f.Principal, runnerdv1.CallReason_CALL_REASON_REJECTED_BY_APPROVER, human, f.Reason)
	}
}

// approve records that a person lets a call run, as it was asked or edited.
func (t *advance) approve(c *call, f Vote, e *edited) uint64 {
	runs := e.as(c)
	p := &runnerdv1.ToolCallApproved{
		CallId: c.ID, Resolution: c.resolution(runnerdv1.Via_VIA_HUMAN, f.Verdict, f.Reason), Grant: t.st.given(runs, f),
		ApprovedBy: f.Principal, ArgumentDigest: runs.ArgumentDigest, ArgumentsHash: runs.ArgumentsHash,
		ApprovalDigest: t.st.approvalDigest(runs, runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, c.ApprovalExpires),
	}
	if e != nil {
		if p.EditedArgumentsRef = e.ref; e.ref == nil {
			p.EditedArgumentsJson = &e.arguments.Text
		}
	}
	return t.emit(&runnerdv1.Event{
		Principal: f.Principal, Payload: &runnerdv1.Event_ToolCallApproved{ToolCallApproved: p},
	})
}

// approved folds that a call may run: a person said so about the digest that was asked, or a grant that holds, or auto
// mode, which open no approval of their own but may close one.
func (st *State) approved(c *call, p *runnerdv1.ToolCallApproved, ev *runnerdv1.Event) error {
	r := p.GetResolution()
	asked := c.Status == callPending || c.Status == callRequested && c.Verdict == runnerdv1.Verdict_VERDICT_ASK
	if !asked || r.GetApprovalId() != c.Approval {
		return errCallState
	}
	if c.Approval != 0 && r.GetApprovalDigest() != c.ApprovalDigest {
		return errDigest
	}
	switch r.GetVia() {
	case runnerdv1.Via_VIA_GRANT:
		g := st.grant(p.GetGrantId())
		if g == nil {
			return errNoGrant
		}
		g.Uses++
	case runnerdv1.Via_VIA_AUTO:
		st.ctl.AutoApproved++
	default:
		if c.Approval == 0 {
			return errCallState
		}
	}
	if p.EditedArgumentsJson != nil || p.GetEditedArgumentsRef() != nil {
		c.arguments, c.Edited = editedArguments(p), true
		c.ArgumentsHash, c.ArgumentDigest = p.GetArgumentsHash(), p.GetArgumentDigest()
	}
	if p.GetArgumentsHash() != c.ArgumentsHash {
		return errDigest
	}
	c.Status, c.ClosedVia, c.GrantID, c.ApprovalDigest = callApproved, r.GetVia(), p.GetGrantId(), p.GetApprovalDigest()
	if g := p.GetGrant(); g != nil {
		if len(st.ctl.Grants) >= maxGrants {
			return errNoGrant
		}
		st.ctl.Grants = append(st.ctl.Grants, &grant{
			ID: ev.GetSequence(), Scope: g.GetScope(), Host: g.GetHost(), Tool: g.GetTool(), Argument: g.GetArgument(),
			Program: g.GetProgram(), By: g.GetGrantedBy(), At: ev.GetTime().AsTime(),
		})
	}
	return nil
}

// editedArguments returns what is sent instead of what the model wrote.
func editedArguments(p *runnerdv1.ToolCallApproved) Part {
	return Part{Text: p.GetEditedArgumentsJson(), Ref: p.GetEditedArgumentsRef()}
}

// resolution closes the approval of the call; nil if none is open.
func (c *call) resolution(via runnerdv1.Via, verdict runnerdv1.ApprovalVerdict, reason string) *runnerdv1.Resolution {
	if c.Approval == 0 {
		return nil
	}
	return &runnerdv1.Resolution{
		ApprovalId: c.Approval, Via: via, Verdict: verdict, ApprovalDigest: c.ApprovalDigest, Reason: reason,
	}
}

// deny refuses a call that a person was, or should have been, asked about.
func (t *advance) deny(c *call, principal string, reason runnerdv1.CallReason, via runnerdv1.Via, said string) uint64 {
	message := denialMessages[reason]
	if said != "" {
		message += ": " + said
	}
	resolution := c.resolution(via, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, said)
	if resolution == nil { // nobody was asked
		resolution = &runnerdv1.Resolution{Via: via, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY}
	}
	return t.emit(&runnerdv1.Event{
		Principal: principal,
		Payload: &runnerdv1.Event_ToolCallDenied{ToolCallDenied: &runnerdv1.ToolCallDenied{
			CallId: c.ID, Reason: reason, Message: message, Resolution: resolution,
		}},
	})
}

var denialMessages = map[runnerdv1.CallReason]string{
	runnerdv1.CallReason_CALL_REASON_REJECTED_BY_APPROVER: "not run: rejected by the approver",
	runnerdv1.CallReason_CALL_REASON_APPROVAL_TIMEOUT:     "not run: nobody approved it in time",
	runnerdv1.CallReason_CALL_REASON_NO_APPROVER:          "not run: it needs an approval and nobody is there to give it",
	runnerdv1.CallReason_CALL_REASON_APPROVAL_CANCELLED:   "not run: the run ended before anybody approved it",
	runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN: blockMessages[runnerdv1.
		CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN],
}
