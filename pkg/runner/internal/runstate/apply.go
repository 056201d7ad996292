package runstate

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// maxInputsSeen is how many request ids of inputs a run remembers.
const maxInputsSeen = 64

// Apply folds one event into the state and evaluates no rule: it only refuses, with ErrIllegalEvent, what cannot
// follow. The event must be whole (private payload where there is one) and is kept: it must not change afterwards.
func Apply(st *State, ev *runnerdv1.Event) error {
	if err := st.legal(ev); err != nil {
		return fmt.Errorf("%w: %s at %s/%d: %w", ErrIllegalEvent, ev.GetType(), ev.GetRunId(), ev.GetSequence(), err)
	}
	now := ev.GetTime().AsTime()
	if st.Status() == runnerdv1.RunState_RUN_STATE_RUNNING && ev.GetRunRecovered() == nil {
		st.ctl.Running += now.Sub(st.ctl.Time) // the time between a crash and the recovery is not the run's
	}
	st.ctl.Sequence, st.ctl.Time = ev.GetSequence(), now
	if err := st.control(ev, now); err != nil {
		return fmt.Errorf("%w: %s at %s/%d: %w", ErrIllegalEvent, ev.GetType(), ev.GetRunId(), ev.GetSequence(), err)
	}
	st.mem.apply(ev)
	st.ctl.HistoryEntries = uint32(len(st.mem.entries))
	return nil
}

// legal checks what holds for every event.
func (st *State) legal(ev *runnerdv1.Event) error {
	_, starts := ev.GetPayload().(*runnerdv1.Event_RunStarted)
	_, resumes := ev.GetPayload().(*runnerdv1.Event_RunResumed)
	_, iterates := ev.GetPayload().(*runnerdv1.Event_IterationStarted)
	leg, iteration := st.ctl.Leg, st.ctl.Iteration
	if starts || resumes {
		leg++
	}
	if iterates {
		iteration++
	}
	switch {
	case ev.GetRunId() != st.ctl.RunID:
		return fmt.Errorf("it belongs to run %q", ev.GetRunId())
	case ev.GetSequence() != st.ctl.Sequence+1:
		return fmt.Errorf("it follows %d", st.ctl.Sequence)
	case starts != (st.ctl.Sequence == 0):
		return fmt.Errorf("run_started is the first event and only that")
	case ev.GetTime().AsTime().Before(st.ctl.Time):
		return fmt.Errorf("it is older than the event before")
	case st.Closed() != resumes:
		return fmt.Errorf("a leg begins with run_resumed exactly when the one before is closed")
	case resumes && st.Final():
		return fmt.Errorf("the run is final")
	case ev.GetLeg() != leg || ev.GetIteration() != iteration:
		return fmt.Errorf("it lies in leg %d, iteration %d, not %d, %d", ev.GetLeg(), ev.GetIteration(), leg, iteration)
	}
	return nil
}

var (
	errNoSuchCall = fmt.Errorf("no such call")
	errCallState  = fmt.Errorf("the call is not in a state for it")
	errPhase      = fmt.Errorf("the run is not in a state for it")
	errDigest     = fmt.Errorf("the digest is not the one approved")
	errNoGrant    = fmt.Errorf("no such grant holds")
)

func (st *State) control(ev *runnerdv1.Event, now time.Time) error {
	c := &st.ctl
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted:
		c.Leg = 1
		for _, o := range p.RunStarted.GetObservations() {
			if o.GetKind() == runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT ||
				o.GetKind() == runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR {
				c.ToolCalls++
				c.Imported++
			}
		}
	case *runnerdv1.Event_RunResumed:
		st.resumed(p.RunResumed, now)
	case *runnerdv1.Event_RunRecovered:
		if c.Phase == phaseDecide { // its patience begins anew: nobody was asked while the daemon was away
			c.Decide = decideState{Attempt: c.Decide.Attempt + 1, AskAt: now}
		}
	case *runnerdv1.Event_RunCompleted:
		c.Stop = p.RunCompleted.GetStopReason()
	case *runnerdv1.Event_RunFailed:
		c.Stop = p.RunFailed.GetStopReason()
	case *runnerdv1.Event_RunPaused:
		c.Stop = p.RunPaused.GetStopReason()
	case *runnerdv1.Event_ToolsPinned:
		if c.Phase != phaseQueued {
			return errPhase
		}
		c.CatalogueDigest, c.Phase = p.ToolsPinned.GetCatalogueDigest(), phaseBetween
	case *runnerdv1.Event_ToolHostUnavailable, *runnerdv1.Event_BudgetReadOnlySuggested:
	case *runnerdv1.Event_BudgetWarning, *runnerdv1.Event_BudgetConfirmationRequested, *runnerdv1.Event_BudgetPrompt:
		return st.budgetEvent(ev, now)
	case *runnerdv1.Event_ContextWarning:
		c.ContextWarned = true
	case *runnerdv1.Event_IterationStarted:
		if c.Phase == phaseDecide || c.Phase == phaseCalls || c.Phase == phaseQueued || c.Confirm.open() {
			return errPhase
		}
		c.Iteration++
		c.Phase, c.Calls, c.Unread = phaseDecide, nil, 0
		c.Decide = decideState{Attempt: 1, AskAt: now}
	case *runnerdv1.Event_DecisionMade:
		return st.decided(p.DecisionMade)
	case *runnerdv1.Event_DecisionInvalid:
		if c.Phase != phaseDecide {
			return errPhase
		}
		c.Usage.set(p.DecisionInvalid.GetTotals())
		st.contextUsed(p.DecisionInvalid.GetUsage())
		c.Failures++
		c.InvalidInRow++
		st.iterationDone(phaseBetween)
	case *runnerdv1.Event_DecideRetried:
		if c.Phase != phaseDecide {
			return errPhase
		}
		if c.Decide.Failed == 0 {
			c.Decide.FirstFailure = now
		}
		c.Decide.Failed++
		c.Decide.Attempt, c.Decide.AskAt = p.DecideRetried.GetAttempt(), p.DecideRetried.GetRetryAt().AsTime()
	case *runnerdv1.Event_InputRequested:
		if c.Phase != phaseQuestion || c.Confirm.open() {
			return errPhase
		}
		c.Question = ev.GetSequence()
	case *runnerdv1.Event_InputReceived:
		c.Unread++
		if id := p.InputReceived.GetRequestId(); id != "" {
			c.Inputs = append(c.Inputs, inputSeen{id, ev.GetSequence()})
			c.Inputs = c.Inputs[max(0, len(c.Inputs)-maxInputsSeen):]
		}
		if c.Phase == phaseQuestion {
			c.Phase, c.Question = phaseBetween, 0
		}
	case *runnerdv1.Event_CancelRequested:
		c.Cancel = cancelRequest{p.CancelRequested.GetMode(), now}
	case *runnerdv1.Event_GrantRevoked:
		return st.revoked(p.GrantRevoked)
	default:
		return st.callEvent(ev, now)
	}
	return nil
}

func (st *State) resumed(r *runnerdv1.RunResumed, now time.Time) {
	c := &st.ctl
	c.Leg++
	c.Stop = 0
	if r.GetBudget() != nil {
		c.Budget = r.GetBudget()
	}
	if r.GetAutoModeLimits() != nil {
		c.AutoLimits = r.GetAutoModeLimits()
	}
	if r.GetCause() == runnerdv1.ResumeCause_RESUME_CAUSE_RESUME {
		c.Failures, c.InvalidInRow, c.Refusals, c.ToolBudgetHit, c.AutoCallsHit = 0, 0, 0, false, false
	}
	if c.Phase == phaseDecide { // asked again with the same key
		c.Decide = decideState{Attempt: c.Decide.Attempt + 1, AskAt: now}
	}
}

func (st *State) decided(d *runnerdv1.DecisionMade) error {
	c := &st.ctl
	if c.Phase != phaseDecide {
		return errPhase
	}
	c.Usage.set(d.GetTotals())
	st.contextUsed(d.GetUsage())
	switch d.GetKind() {
	case runnerdv1.DecisionKind_DECISION_KIND_ANSWER:
		st.iterationDone(phaseAnswer)
	case runnerdv1.DecisionKind_DECISION_KIND_QUESTION:
		st.iterationDone(phaseQuestion)
	case runnerdv1.DecisionKind_DECISION_KIND_CALLS:
		c.Phase = phaseCalls
		c.Calls = make([]*call, 0, len(d.GetCallIds()))
		for _, id := range d.GetCallIds() {
			c.Calls = append(c.Calls, &call{ID: id})
		}
	default:
		return fmt.Errorf("a decision has a kind")
	}
	return nil
}

// iterationDone marks the last event as the checkpoint of the iteration.
func (st *State) iterationDone(next phase) {
	st.ctl.Phase, st.ctl.CheckpointSeq = next, st.ctl.Sequence
}

// callEvent folds the events of one call.
func (st *State) callEvent(ev *runnerdv1.Event, now time.Time) error {
	named, ok := payloadOf(ev).(interface{ GetCallId() string })
	if !ok {
		return fmt.Errorf("unknown payload")
	}
	c := st.call(named.GetCallId())
	if c == nil || st.ctl.Phase != phaseCalls {
		return errNoSuchCall
	}
	if c.done() {
		return errCallState
	}
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_ToolCallRequested:
		return c.requested(p.ToolCallRequested, ev.GetSequence())
	case *runnerdv1.Event_ToolCallPendingApproval:
		if c.Status != callRequested || c.Verdict != runnerdv1.Verdict_VERDICT_ASK {
			return errCallState
		}
		c.Status = callPending
		c.ask(ev.GetSequence(), now, p.ToolCallPendingApproval.GetApprovalDigest(), p.ToolCallPendingApproval.GetExpiresAt())
	case *runnerdv1.Event_ToolCallApproved:
		return st.approved(c, p.ToolCallApproved, ev)
	case *runnerdv1.Event_ToolCallStarted:
		return st.started(c, p.ToolCallStarted, now)
	case *runnerdv1.Event_ToolCallRetried:
		r := p.ToolCallRetried
		if r.GetAttempt() != c.Attempt+1 || !c.inProgress() && c.Status != callDoubt {
			return errCallState
		}
		c.Status, c.Attempt = callStarted, r.GetAttempt()
		c.StartAt, c.Deadline = r.GetRetryAt().AsTime(), r.GetDeadline().AsTime()
		switch r.GetCause() {
		case runnerdv1.LostCause_LOST_CAUSE_NOT_SENT: // says nothing of the attempts before
		case runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN:
			c.Sent = false // of none of them
		default:
			c.Sent = true
		}
		c.closeApproval()
	case *runnerdv1.Event_ToolCallInDoubt:
		return c.inDoubt(p.ToolCallInDoubt, ev.GetSequence(), now)
	case *runnerdv1.Event_ToolCallCompleted:
		if !c.inProgress() && c.Status != callDoubt {
			return errCallState
		}
		st.outcome(c, callCompleted, runnerdv1.CallReason_CALL_REASON_UNSPECIFIED)
	case *runnerdv1.Event_ToolCallFailed:
		checks := c.Status == callRequested && c.Verdict == runnerdv1.Verdict_VERDICT_FAILED
		limited := c.mayBeRateLimited(p.ToolCallFailed.GetReason())
		if !checks && !limited && !c.inProgress() && c.Status != callDoubt {
			return errCallState
		}
		st.outcome(c, callFailed, p.ToolCallFailed.GetReason())
	case *runnerdv1.Event_ToolCallDenied:
		asked := c.Status == callRequested && c.Verdict == runnerdv1.Verdict_VERDICT_ASK
		if !asked && c.Status != callPending {
			return errCallState
		}
		c.ClosedVia = p.ToolCallDenied.GetResolution().GetVia()
		st.outcome(c, callDenied, p.ToolCallDenied.GetReason())
	case *runnerdv1.Event_ToolCallBlocked:
		if c.Status != callRequested && c.Status != callApproved {
			return errCallState
		}
		if p.ToolCallBlocked.GetReason() == runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET {
			st.ctl.ToolBudgetHit = p.ToolCallBlocked.GetGate() != gateAuto || st.ctl.ToolBudgetHit
			st.ctl.AutoCallsHit = p.ToolCallBlocked.GetGate() == gateAuto || st.ctl.AutoCallsHit
		}
		st.outcome(c, callBlocked, p.ToolCallBlocked.GetReason())
	}
	return nil
}

func (c *call) requested(r *runnerdv1.ToolCallRequested, sequence uint64) error {
	if c.Status != "" {
		return errCallState
	}
	*c = call{
		ID: r.GetCallId(), ToolName: r.GetToolName(), Host: r.GetHost(), Tool: r.GetTool(),
		arguments: effectiveArguments(r), ArgumentsHash: r.GetArgumentsHash(), ArgumentDigest: r.GetArgumentDigest(),
		SchemaDigest: r.GetSchemaDigest(),
		Verdict:      r.GetVerdict(), Gate: r.GetGate(), Rule: r.GetRule(), Layer: r.GetLayer(),
		Tier: r.GetTier(), RateLimit: r.GetRateLimit(), Recovery: r.GetRecovery(),
		Annotations: r.GetAnnotations(), RequestedSeq: sequence, Status: callRequested,
	}
	return nil
}

// started folds the start of a call: never without the verdict allow or an approval, which is consumed by it.
func (st *State) started(c *call, s *runnerdv1.ToolCallStarted, now time.Time) error {
	switch {
	case st.ctl.Confirm.open():
		return errPhase
	case c.Status == callRequested && c.Verdict == runnerdv1.Verdict_VERDICT_ALLOW && s.GetApprovalId() == 0:
	case c.Status == callApproved && s.GetApprovalId() == c.Approval:
		if s.GetApprovalDigest() != c.ApprovalDigest {
			return errDigest
		}
	default:
		return errCallState
	}
	if s.GetArgumentsHash() != c.ArgumentsHash {
		return errDigest
	}
	c.Status, c.Attempt, c.StartAt, c.Deadline = callStarted, s.GetAttempt(), now, s.GetDeadline().AsTime()
	c.closeApproval()
	st.rememberStart(c, now)
	st.ctl.ToolCalls++
	return nil
}

func (c *call) inDoubt(d *runnerdv1.ToolCallInDoubt, sequence uint64, now time.Time) error {
	if !c.inProgress() {
		return errCallState
	}
	c.Cause = d.GetCause()
	switch d.GetNext() {
	case runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RECONCILE:
		c.Status, c.Deadline = callLookup, d.GetExpiresAt().AsTime()
	case runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK:
		c.Status = callDoubt
		c.ask(sequence, now, d.GetApprovalDigest(), d.GetExpiresAt())
	}
	return nil
}

// outcome closes a call. When it was the last open one, the iteration is complete and its outcomes are counted in
// call order, whatever the order in which they came.
func (st *State) outcome(c *call, status callStatus, reason runnerdv1.CallReason) {
	c.Status, c.Reason = status, reason
	c.closeApproval()
	if !slices.ContainsFunc(st.ctl.Calls, func(c *call) bool { return !c.done() }) {
		for _, c := range st.ctl.Calls {
			switch c.Status {
			case callCompleted:
				st.ctl.Failures, st.ctl.InvalidInRow = 0, 0
			case callFailed:
				st.ctl.Failures++
				st.ctl.InvalidInRow = 0
			}
			switch {
			case c.Attempt > 0:
				st.ctl.Refusals = 0
			case c.refused():
				st.ctl.Refusals++
			}
		}
		st.iterationDone(phaseBetween)
	}
}

// refused reports whether a person or a gate did not let the call run. Calls that were not run because there was
// nothing left to run them with, or nobody any more, were not refused.
func (c *call) refused() bool {
	switch c.Reason {
	case runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET, runnerdv1.CallReason_CALL_REASON_RUN_ENDING,
		runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN, runnerdv1.CallReason_CALL_REASON_APPROVAL_CANCELLED:
		return false
	}
	return c.Status == callDenied || c.Status == callBlocked
}

func (st *State) contextUsed(used *runnerdv1.Usage) {
	if tokens := tokensOf(used); tokens > 0 {
		st.ctl.ContextTokens = tokens
	}
}

func (u *usage) set(t *runnerdv1.UsageTotals) {
	*u = usage{
		CostNano: t.GetCostNanocents(), In: t.GetInputTokens(), Out: t.GetOutputTokens(), Cached: t.GetCachedInputTokens(),
		Decisions: t.GetDecisions(), WithoutUsage: t.GetDecisionsWithoutUsage(), WithoutCost: t.GetDecisionsWithoutCost(),
	}
}

func callID(iteration uint32, index int) string {
	return strconv.FormatUint(uint64(iteration), 10) + "." + strconv.Itoa(index+1)
}
