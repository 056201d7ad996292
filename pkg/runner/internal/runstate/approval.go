package runstate

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// ask opens the approvals of all calls that must be asked, or denies them where nobody is there to be asked.
func (t *advance) ask() bool {
	before := len(t.events)
	for _, c := range t.st.ctl.Calls {
		if c.Status != callRequested || c.Verdict != runnerdv1.Verdict_VERDICT_ASK {
			continue
		}
		if t.st.env.Spec.GetApproval().GetMode() == runnerdv1.ApprovalMode_APPROVAL_MODE_DENY {
			t.deny(c, "", runnerdv1.CallReason_CALL_REASON_NO_APPROVER, runnerdv1.Via_VIA_AUTO, "")
			continue
		}
		expires := t.approvalExpiry()
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallPendingApproval{
			ToolCallPendingApproval: &runnerdv1.ToolCallPendingApproval{
				CallId: c.ID, Host: c.Host, Tool: c.Tool, ArgumentDigest: c.ArgumentDigest,
				ApprovalDigest: t.st.approvalDigest(c, runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, expires),
				Gate:           c.Gate, Rule: c.Rule, Annotations: c.Annotations, ExpiresAt: timestamp(expires),
				RequestedSequence: c.RequestedSeq,
			},
		}})
	}
	return len(t.events) > before
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

// approvalDigest binds a verdict to exactly what it is about. Every field is preceded by its length, so that no two
// sets of fields give the same bytes.
func (st *State) approvalDigest(c *call, kind runnerdv1.ApprovalKind, expires time.Time) string {
	var attempt uint32
	if kind == runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT {
		attempt = c.Attempt
	}
	var b []byte
	field := func(data []byte) {
		b = binary.BigEndian.AppendUint64(b, uint64(len(data)))
		b = append(b, data...)
	}
	number := func(n uint64) { b = binary.BigEndian.AppendUint64(b, n) }
	for _, s := range []string{st.ctl.RunID, c.ID, c.Host, c.Tool, c.SchemaDigest, st.ctl.SpecDigest, c.ArgumentsHash, c.Rule} {
		field([]byte(s))
	}
	number(uint64(kind))
	number(uint64(attempt))
	if expires.IsZero() {
		number(0)
	} else {
		number(uint64(expires.UnixNano()))
	}
	sum := sha256.Sum256(b)
	return st.env.Key.Digest(domainApproval, sum[:])
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
	doubt := c.Status == callDoubt
	if f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE && (!doubt || f.Result == nil) {
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE,
			"SETTLE is possible only for a call in doubt, with the result that was found to be true")
	}
	if f.Digest != c.ApprovalDigest {
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH,
			"approval_digest is not that of approval %d; look at what will run and answer that", f.ApprovalID)
	}
	t.reopen(f.Principal, runnerdv1.ResumeCause_RESUME_CAUSE_APPROVAL)
	return Reply{Sequence: t.voted(c, f, doubt)}
}

func (t *advance) voted(c *call, f Vote, doubt bool) uint64 {
	const human = runnerdv1.Via_VIA_HUMAN
	switch {
	case f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE:
		return t.outcome(c, *f.Result, outcomeOf{
			principal: f.Principal, resolution: c.resolution(human, f.Verdict, f.Reason),
		})
	case f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE && doubt:
		return t.retry(c, runnerdv1.LostCause_LOST_CAUSE_IN_DOUBT, "an approver wants it to be sent again", f.Principal,
			c.resolution(human, f.Verdict, f.Reason))
	case f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE:
		return t.emit(&runnerdv1.Event{
			Principal: f.Principal,
			Payload: &runnerdv1.Event_ToolCallApproved{ToolCallApproved: &runnerdv1.ToolCallApproved{
				CallId: c.ID, Resolution: c.resolution(human, f.Verdict, f.Reason),
			}},
		})
	case doubt:
		return t.giveUp(c, f.Principal, human, f.Reason)
	default:
		return t.deny(c, f.Principal, runnerdv1.CallReason_CALL_REASON_REJECTED_BY_APPROVER, human, f.Reason)
	}
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
	return t.emit(&runnerdv1.Event{
		Principal: principal,
		Payload: &runnerdv1.Event_ToolCallDenied{ToolCallDenied: &runnerdv1.ToolCallDenied{
			CallId: c.ID, Reason: reason, Message: message,
			Resolution: c.resolution(via, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, said),
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
