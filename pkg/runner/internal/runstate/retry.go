package runstate

import (
	"hash/fnv"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	// maxAttempts of a call that are made without a person: the first and at most two further ones.
	maxAttempts = 3
	// lookupTime is how long a host is asked at least what became of a call whose deadline has passed.
	lookupTime = 5 * time.Second

	minBackoff = time.Second
	maxBackoff = 20 * time.Second
)

// backoff is how long to wait before the n-th further attempt, from 1: 1 to 20 s, doubling, the last fifth of it by
// the key, so that many runs do not come back at the same moment and one run is always planned in the same way.
func backoff(key string, n uint32) time.Duration {
	wait := minBackoff << min(n-1, 5)
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	_, _ = h.Write([]byte{byte(n)})
	jitter := time.Duration(h.Sum64() % uint64(wait/4+1))
	return min(wait+jitter, maxBackoff)
}

// lost is the one rule for an attempt without an outcome, be it by a restart, a timeout, a broken stream or a cancel.
func (t *advance) lost(c *call, cause runnerdv1.LostCause, message string) {
	ending := t.ending() != 0
	aborting := t.st.ctl.Cancel.Mode == runnerdv1.CancelMode_CANCEL_MODE_ABORT
	reconcile := c.Recovery == runnerdv1.Recovery_RECOVERY_RECONCILE
	restarted := cause == runnerdv1.LostCause_LOST_CAUSE_RESTART
	notSent, notSeen := cause == runnerdv1.LostCause_LOST_CAUSE_NOT_SENT, cause == runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN
	switch {
	case (notSent || notSeen) && !ending && c.Attempt < maxAttempts: // any class of tool may be sent again
		t.retry(c, cause, message, "", nil)
	case notSeen || notSent && !c.Sent:
		t.notExecuted(c, cause, message)
	case c.Status != callStarted:
		// The host is being asked already what became of it.
	case reconcile && aborting && !restarted:
		// Its host is asked since the cancel was durable.
	case c.Recovery == runnerdv1.Recovery_RECOVERY_REPEAT && !ending && c.Attempt < maxAttempts:
		t.retry(c, cause, message, "", nil)
	case c.Tier == 0:
		reason := runnerdv1.CallReason_CALL_REASON_NO_OUTCOME
		if ending {
			reason = runnerdv1.CallReason_CALL_REASON_CANCELLED
		}
		t.outcome(c, Result{Reason: reason, Text: "no result: " + message}, outcomeOf{})
	case aborting && !restarted:
		t.failUnknown(c, message)
	case reconcile:
		t.lookup(c, cause, message)
	default:
		t.doubt(c, cause, message)
	}
}

// notExecuted closes a call that surely had no effect.
func (t *advance) notExecuted(c *call, cause runnerdv1.LostCause, message string) {
	reason := runnerdv1.CallReason_CALL_REASON_HOST_UNAVAILABLE
	if cause == runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN {
		reason = runnerdv1.CallReason_CALL_REASON_NOT_EXECUTED
	}
	t.outcome(c, Result{Reason: reason, Text: "not executed: " + message}, outcomeOf{})
}

// retry makes the next attempt of a call durable, with the same key. It is made at once where the wait would help
// nobody: after a restart, and where a host or a person said so.
func (t *advance) retry(c *call, cause runnerdv1.LostCause, message, principal string, r *runnerdv1.Resolution) uint64 {
	at, why := t.now, cause
	if cause == runnerdv1.LostCause_LOST_CAUSE_IN_DOUBT && r == nil { // by policy: as long as after any loss
		why = c.Cause
	}
	switch why {
	case runnerdv1.LostCause_LOST_CAUSE_TIMEOUT, runnerdv1.LostCause_LOST_CAUSE_STREAM, runnerdv1.LostCause_LOST_CAUSE_NOT_SENT:
		at = at.Add(backoff(t.st.ctl.RunID+"/"+c.ID, c.Attempt))
	}
	return t.emit(&runnerdv1.Event{
		Principal: principal,
		Payload: &runnerdv1.Event_ToolCallRetried{ToolCallRetried: &runnerdv1.ToolCallRetried{
			CallId: c.ID, Attempt: c.Attempt + 1, Cause: cause, Message: message, RetryAt: timestamppb.New(at),
			Deadline: timestamppb.New(at.Add(t.toolTimeout(c))), Resolution: r,
		}},
	})
}

// toolTimeout is the longest time for one attempt of a call.
func (t *advance) toolTimeout(c *call) time.Duration {
	return t.st.env.Catalogue.Lookup(c.ToolName).GetTimeout().AsDuration()
}

// lookup asks the host what became of a call, until the deadline of the call.
func (t *advance) lookup(c *call, cause runnerdv1.LostCause, message string) {
	until := c.Deadline
	if least := t.now.Add(lookupTime); until.Before(least) || t.ending() != 0 {
		until = least
	}
	t.emitDoubt(c, cause, message, runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RECONCILE, until)
}

// lookupFailed puts a call in doubt whose host cannot tell what became of it.
func (t *advance) lookupFailed(f LookupFailed) {
	c := t.attempt(f.CallID, f.Attempt)
	switch {
	case c == nil:
	case c.Status == callLookup:
		t.doubt(c, c.Cause, f.Message)
	default: // the look-up of a run that is being aborted
		t.failUnknown(c, f.Message)
	}
}

// doubt deals with a call of which nobody knows whether it took effect, by the policy of the agent. A run that
// ends asks nobody and repeats nothing.
func (t *advance) doubt(c *call, cause runnerdv1.LostCause, message string) {
	spec := t.st.env.Spec
	policy := spec.GetInDoubt()
	switch {
	case t.ending() != 0,
		policy == runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_RETRY && c.Attempt >= maxAttempts,
		policy == runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK && spec.GetApproval().GetMode() == runnerdv1.ApprovalMode_APPROVAL_MODE_DENY:
		policy = runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_FAIL
	}
	switch policy {
	case runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK:
		t.emitDoubt(c, cause, message, runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK, t.approvalExpiry())
	case runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_RETRY:
		t.emitDoubt(c, cause, message, runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RETRY, time.Time{})
		t.retry(c, runnerdv1.LostCause_LOST_CAUSE_IN_DOUBT, message, "", nil)
	default:
		t.emitDoubt(c, cause, message, runnerdv1.InDoubtNext_IN_DOUBT_NEXT_FAIL, time.Time{})
		t.failUnknown(c, message)
	}
}

func (t *advance) emitDoubt(c *call, cause runnerdv1.LostCause, message string, next runnerdv1.InDoubtNext, expires time.Time) {
	d := &runnerdv1.ToolCallInDoubt{
		CallId: c.ID, Attempt: c.Attempt, Cause: cause, Next: next, Message: message, ExpiresAt: timestamp(expires),
		RequestedSequence: c.RequestedSeq, Host: c.Host, Tool: c.Tool,
	}
	if next == runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
		d.ApprovalDigest = t.st.approvalDigest(c, runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT, expires)
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallInDoubt{ToolCallInDoubt: d}})
}

// unknownOutcome is what the model is told of a call that may or may not have taken effect.
func unknownOutcome(why string) Result {
	return Result{
		Reason: runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME,
		Text:   "unknown outcome: nobody knows whether the call took effect (" + why + "); find out before you repeat it",
	}
}

func (t *advance) failUnknown(c *call, why string) {
	t.outcome(c, unknownOutcome(why), outcomeOf{})
}

// giveUp closes the approval of a call in doubt without learning what became of it.
func (t *advance) giveUp(c *call, principal string, via runnerdv1.Via, said string) uint64 {
	why := "the approver gave it up"
	switch via {
	case runnerdv1.Via_VIA_TIMEOUT:
		why = "nobody settled it in time"
	case runnerdv1.Via_VIA_CANCEL:
		why = "the run ended before anybody settled it"
	}
	return t.outcome(c, unknownOutcome(why), outcomeOf{
		principal: principal, resolution: c.resolution(via, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, said),
	})
}
