package runstate

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// decisionCheck is what a log said about the calls of the decision being worked on.
type decisionCheck struct {
	ids   []string // in order
	calls []*callCheck
}

// callCheck is what a log said about one call.
type callCheck struct {
	requested  *runnerdv1.ToolCallRequested
	sequence   uint64 // of it
	whole      bool   // it is not only the public part
	attempt    uint32 // 0: not started
	progress   bool   // an attempt or a look-up is in progress
	done       bool
	unknown    bool // its outcome is UNKNOWN_OUTCOME
	approval   approvalCheck
	approved   *runnerdv1.ToolCallApproved // not consumed yet
	doubtRetry bool                        // the in-doubt policy sends it again
}

func (c *checker) decisionMade(d *runnerdv1.DecisionMade) {
	c.decided(d.GetAttempt(), d.GetUsage(), d.CostNanocents, d.GetTotals())
	ids := d.GetCallIds()
	isCalls := d.GetKind() == runnerdv1.DecisionKind_DECISION_KIND_CALLS
	c.hold(isCalls == (len(ids) > 0), 3, "%s with %d calls", d.GetKind(), len(ids))
	for i, id := range ids {
		c.hold(id == callID(c.iteration, i), 3, "call %q is the call %s", id, callID(c.iteration, i))
	}
	c.decision = decisionCheck{ids: ids, calls: make([]*callCheck, 0, len(ids))}
}

// closeDecision judges the end of a decision: each call has an outcome, and nobody is asked about one any more.
func (c *checker) closeDecision() {
	c.allRequested()
	for i, call := range c.decision.calls {
		c.hold(call.done, 3, "call %s has no outcome", c.decision.ids[i])
		c.hold(!call.approval.open(), 9, "approval %d is not closed", call.approval.id)
	}
	c.decision = decisionCheck{}
}

// pauseDecision judges a pause.
func (c *checker) pauseDecision(ids []uint64) {
	c.allRequested()
	var open []uint64
	if c.budget.approval.open() {
		open = append(open, c.budget.approval.id)
	}
	for i, call := range c.decision.calls {
		c.hold(!call.progress, 3, "the run pauses while call %s is in progress", c.decision.ids[i])
		if call.approval.open() {
			open = append(open, call.approval.id)
		}
	}
	c.hold(len(open) > 0 && slices.Equal(open, ids), 9, "the approvals %v are open, not %v", open, ids)
}

func (c *checker) allRequested() {
	c.hold(len(c.decision.calls) == len(c.decision.ids), 3, "%d of the %d calls of the decision are requested",
		len(c.decision.calls), len(c.decision.ids))
}

// callEvent judges an event of one call.
func (c *checker) callEvent(ev *runnerdv1.Event) {
	if r := ev.GetToolCallRequested(); r != nil {
		c.callRequested(r)
		return
	}
	named, ok := payloadOf(ev).(interface{ GetCallId() string })
	if !ok {
		return // an event that says nothing about calls
	}
	id := named.GetCallId()
	at := slices.Index(c.decision.ids, id)
	if at < 0 || at >= len(c.decision.calls) {
		c.violate(3, "no call %q is requested in this iteration", id)
		return
	}
	call := c.decision.calls[at]
	if call.done {
		c.violate(3, "call %s has an outcome already", id)
		return
	}
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_ToolCallPendingApproval:
		c.callPending(call, p.ToolCallPendingApproval)
	case *runnerdv1.Event_ToolCallApproved:
		c.callApproved(call, p.ToolCallApproved)
	case *runnerdv1.Event_ToolCallStarted:
		c.callStarted(at, call, p.ToolCallStarted)
	case *runnerdv1.Event_ToolCallRetried:
		c.callRetried(call, p.ToolCallRetried)
	case *runnerdv1.Event_ToolCallInDoubt:
		c.callInDoubt(call, p.ToolCallInDoubt)
	case *runnerdv1.Event_ToolCallCompleted:
		c.callOutcome(call, p.ToolCallCompleted.GetAttempt(), p.ToolCallCompleted.GetResolution(),
			runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE)
	case *runnerdv1.Event_ToolCallFailed:
		f := p.ToolCallFailed
		if call.attempt == 0 {
			c.neverStarted(call, f)
			return
		}
		call.unknown = f.GetReason() == runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME
		verdict := runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
		if f.GetResolution().GetVerdict() == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE {
			verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
		}
		c.callOutcome(call, f.GetAttempt(), f.GetResolution(), verdict)
	case *runnerdv1.Event_ToolCallDenied:
		c.callDenied(call, p.ToolCallDenied)
	case *runnerdv1.Event_ToolCallBlocked:
		c.callBlocked(call, p.ToolCallBlocked)
	default:
	}
}

func (c *checker) callRequested(r *runnerdv1.ToolCallRequested) {
	n := len(c.decision.calls)
	if n >= len(c.decision.ids) || c.decision.ids[n] != r.GetCallId() {
		c.violate(3, "call %q is not the next call of the decision", r.GetCallId())
		return
	}
	c.decision.calls = append(c.decision.calls, &callCheck{
		requested: r, sequence: c.ev.GetSequence(), whole: !isPublicPart(c.ev),
	})
}

// callBlocked judges a refusal: by the gate that was told when the call was requested, or because it is not its turn any
// more.
func (c *checker) callBlocked(call *callCheck, b *runnerdv1.ToolCallBlocked) {
	r := call.requested
	c.hold(call.attempt == 0, 3, "a call that was started is blocked")
	c.hold(!call.approval.open(), 9, "approval %d is not closed", call.approval.id)
	switch b.GetReason() {
	case runnerdv1.CallReason_CALL_REASON_RUN_ENDING, runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN:
		c.hold(b.GetGate() == "" && b.GetRule() == "", 0, "call %s is blocked by gate %q when its turn is over", r.GetCallId(), b.GetGate())
	default:
		c.hold(r.GetVerdict() == runnerdv1.Verdict_VERDICT_BLOCK, 0, "call %s is blocked and its verdict is %s", r.GetCallId(), r.GetVerdict())
		c.hold(b.GetGate() == r.GetGate() && b.GetRule() == r.GetRule() && b.GetLayer() == r.GetLayer(), 0,
			"call %s is blocked by %q, %q of %q, which is not its verdict", r.GetCallId(), b.GetGate(), b.GetRule(), b.GetLayer())
	}
	call.done = true
}

// callStarted judges the start of a call.
func (c *checker) callStarted(at int, call *callCheck, s *runnerdv1.ToolCallStarted) {
	r, a := call.requested, call.approval
	c.hold(call.attempt == 0, 9, "call %s starts a second time", r.GetCallId())
	sent := r.GetArgumentsHash()
	switch {
	case call.approved != nil:
		c.hold(a.id == s.GetApprovalId() && (a.id == 0 || a.approved), 4, "approval %d does not let call %s run", s.GetApprovalId(), r.GetCallId())
		c.hold(call.approved.GetApprovalDigest() == s.GetApprovalDigest(), 9, "call %s is not what was approved", r.GetCallId())
		sent = call.approved.GetArgumentsHash()
	default:
		c.hold(s.GetApprovalId() == 0 && r.GetVerdict() == runnerdv1.Verdict_VERDICT_ALLOW, 4, "call %s starts without an approval", r.GetCallId())
	}
	c.hold(s.GetArgumentsHash() == sent, 9, "call %s is sent other arguments than those requested or approved", r.GetCallId())
	c.hold(s.GetHost() == r.GetHost() && s.GetTool() == r.GetTool() && s.GetToolName() == r.GetToolName(), 9,
		"call %s goes to another tool", r.GetCallId())
	c.hold(s.GetAttempt() == 1, 0, "a call starts with attempt %d", s.GetAttempt())
	key := fmt.Sprintf("%s/%s", c.run, r.GetCallId())
	c.hold(s.GetIdempotencyKey() == key, 9, "call %s has the key %q", r.GetCallId(), s.GetIdempotencyKey())
	c.hold(!c.cancelled, 4, "call %s starts in a run that was cancelled", r.GetCallId())
	c.mayGoOn("call " + r.GetCallId() + " starts")
	c.within("call "+r.GetCallId()+" starts", c.toolCalls, c.limits.budget.MaxToolCalls, c.toolCalls-c.imported, c.limits.auto.MaxToolCalls)
	c.turn(at)
	c.rateStarted(r)
	call.attempt, call.progress, call.approval, call.approved = 1, true, approvalCheck{}, nil
	c.toolCalls++
}

// turn judges the order of starts: all earlier calls have an outcome, or this one and all that have none are of tier 0.
func (c *checker) turn(at int) {
	tier0 := c.decision.calls[at].requested.GetTier() == 0
	together := uint32(1)
	for _, earlier := range c.decision.calls[:at] {
		c.hold(!earlier.unknown || tier0, 4, "call %s starts after one whose outcome is unknown", c.decision.ids[at])
		if earlier.done {
			continue
		}
		together++
		c.hold(tier0 && earlier.requested.GetTier() == 0, 4, "call %s starts before call %s has an outcome",
			c.decision.ids[at], earlier.requested.GetCallId())
	}
	if limit := c.spec.GetMaxParallelTools(); limit > 0 {
		c.hold(together <= limit, 4, "%d calls run together", together)
	}
}

// callRetried judges a further attempt.
func (c *checker) callRetried(call *callCheck, r *runnerdv1.ToolCallRetried) {
	id := call.requested.GetCallId()
	c.hold(call.attempt > 0 && r.GetAttempt() == call.attempt+1, 0, "attempt %d of call %s follows %d", r.GetAttempt(), id, call.attempt)
	c.hold(!c.cancelled, 4, "call %s is sent again in a run that was cancelled", id)
	person := false
	if call.approval.open() || r.GetResolution() != nil {
		c.resolve(call, r.GetResolution(), runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE)
		person = call.approval.open() && r.GetResolution().GetVia() == runnerdv1.Via_VIA_HUMAN
	}
	nothingHappened := r.GetCause() == runnerdv1.LostCause_LOST_CAUSE_NOT_SENT || r.GetCause() == runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN
	c.hold(call.requested.GetRecovery() == runnerdv1.Recovery_RECOVERY_REPEAT || person || nothingHappened || call.doubtRetry, 13,
		"call %s may not be repeated and is sent again (%s)", id, r.GetCause())
	call.attempt, call.progress, call.approval, call.doubtRetry = r.GetAttempt(), true, approvalCheck{}, false
}

func (c *checker) callInDoubt(call *callCheck, d *runnerdv1.ToolCallInDoubt) {
	id := call.requested.GetCallId()
	c.hold(call.progress && d.GetAttempt() == call.attempt, 0, "attempt %d of call %s is in doubt, and %d is in progress",
		d.GetAttempt(), id, call.attempt)
	switch d.GetNext() {
	case runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK:
		call.progress = false
		c.hold(d.GetHost() == call.requested.GetHost() && d.GetTool() == call.requested.GetTool() && d.GetRequestedSequence() == call.sequence, 9,
			"what is asked about call %s is not what was requested", id)
		call.approval = approvalCheck{id: c.ev.GetSequence(), digest: d.GetApprovalDigest()}
		if d.GetExpiresAt() != nil {
			call.approval.expires = d.GetExpiresAt().AsTime()
		}
	case runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RETRY:
		policy := c.spec.GetInDoubt()
		c.hold(c.spec == nil || policy == runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_RETRY, 13, "call %s is sent again under %s", id, policy)
		call.doubtRetry = true
	case runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RECONCILE:
		c.hold(call.requested.GetRecovery() == runnerdv1.Recovery_RECOVERY_RECONCILE, 13, "nobody can be asked about call %s", id)
	case runnerdv1.InDoubtNext_IN_DOUBT_NEXT_FAIL:
	default:
		c.violate(0, "call %s is in doubt and nothing follows", id)
	}
}

// callOutcome judges the outcome of a call that was started.
func (c *checker) callOutcome(call *callCheck, attempt uint32, r *runnerdv1.Resolution, verdict runnerdv1.ApprovalVerdict) {
	c.hold(call.attempt > 0, 3, "call %s was never started", call.requested.GetCallId())
	c.hold(attempt == call.attempt, 0, "outcome of attempt %d of call %s, not %d", attempt, call.requested.GetCallId(), call.attempt)
	if call.approval.open() || r != nil {
		c.resolve(call, r, verdict)
	}
	call.done, call.progress, call.approval = true, false, approvalCheck{}
}

// digests computes the digests of an event again, before it is folded: what was asked, approved and sent is what was
// requested.
func (c *checker) digests(ev *runnerdv1.Event) {
	st := c.fold
	if len(st.env.Key.Secret) == 0 {
		return
	}
	const toolCall, inDoubt = runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT
	same := func(id string, kind runnerdv1.ApprovalKind, expires *timestamppb.Timestamp, digest string) {
		call := st.call(id)
		if call == nil {
			return
		}
		at := call.ApprovalExpires
		if expires != nil {
			at = expires.AsTime()
		}
		c.hold(st.approvalDigest(call, kind, at) == digest, 9, "the approval digest is not that of call %s", id)
	}
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_BudgetConfirmationRequested:
		q := p.BudgetConfirmationRequested
		var expires time.Time
		if q.GetExpiresAt() != nil {
			expires = q.GetExpiresAt().AsTime()
		}
		c.hold(st.budgetDigest(q.GetCostNanocents(), q.GetMaxCostCents(), expires) == q.GetApprovalDigest(), 9,
			"the approval digest is not that of the budget")
	case *runnerdv1.Event_ToolCallRequested:
		r := p.ToolCallRequested
		sent := effectiveArguments(r)
		if sent.Ref == nil && r.GetArgumentsHash() != "" && !isPublicPart(ev) {
			c.hold(st.env.Key.Digest(domainExact, []byte(sent.Text)) == r.GetArgumentsHash(), 9,
				"the hash is not that of the arguments of call %s", r.GetCallId())
		}
	case *runnerdv1.Event_ToolCallPendingApproval:
		same(p.ToolCallPendingApproval.GetCallId(), toolCall, p.ToolCallPendingApproval.GetExpiresAt(), p.ToolCallPendingApproval.GetApprovalDigest())
	case *runnerdv1.Event_ToolCallApproved:
		if edited := p.ToolCallApproved.EditedArgumentsJson; edited != nil && !isPublicPart(ev) {
			c.hold(st.env.Key.Digest(domainExact, []byte(*edited)) == p.ToolCallApproved.GetArgumentsHash(), 9,
				"the hash is not that of the edited arguments of call %s", p.ToolCallApproved.GetCallId())
		}
	case *runnerdv1.Event_ToolCallStarted:
		if p.ToolCallStarted.GetApprovalDigest() != "" {
			same(p.ToolCallStarted.GetCallId(), toolCall, nil, p.ToolCallStarted.GetApprovalDigest())
		}
	case *runnerdv1.Event_ToolCallInDoubt:
		if p.ToolCallInDoubt.GetNext() == runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
			same(p.ToolCallInDoubt.GetCallId(), inDoubt, p.ToolCallInDoubt.GetExpiresAt(), p.ToolCallInDoubt.GetApprovalDigest())
		}
	default: // nothing to compute
	}
}
