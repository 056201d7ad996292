package runstate

import (
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// step takes the next step of an open leg and reports whether it took one.
func (t *advance) step() bool {
	if reason := t.ending(); reason != 0 {
		return t.end(reason)
	}
	if held, stepped := t.confirm(); held {
		return stepped
	}
	switch t.st.ctl.Phase {
	case phaseBetween:
		return t.iterate()
	case phaseAnswer:
		return t.answered()
	case phaseQuestion:
		return t.questioned()
	case phaseCalls:
		return t.calls()
	}
	return false // queued, or a Decide is in progress
}

// ending returns why the run must end now; unspecified: it goes on. Where several reasons hold, the first wins.
func (t *advance) ending() runnerdv1.StopReason {
	st, c := t.st, &t.st.ctl
	switch c.Cancel.Mode {
	case runnerdv1.CancelMode_CANCEL_MODE_STOP:
		return runnerdv1.StopReason_STOP_REASON_STOPPED
	case runnerdv1.CancelMode_CANCEL_MODE_ABORT:
		return runnerdv1.StopReason_STOP_REASON_CANCELLED
	}
	if t.refused() {
		return runnerdv1.StopReason_STOP_REASON_PERMISSION_DENIED
	}
	if t.blocked() {
		return runnerdv1.StopReason_STOP_REASON_POLICY_BLOCKED
	}
	if c.Confirm.Status == confirmDeclined {
		return runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED
	}
	if c.Phase == phaseQueued {
		return 0
	}
	between := st.between()
	if between {
		if c.ToolBudgetHit {
			return runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS
		}
		if c.Iteration >= c.Budget.GetMaxIterations() {
			return runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS
		}
	}
	if st.overCost() {
		return runnerdv1.StopReason_STOP_REASON_MAX_COST
	}
	if left, limited := st.durationLeft(t.now); limited && left <= 0 {
		if between || c.Phase == phaseDecide || c.Phase == phaseCalls { // an answer or a question that is there is worth having
			return runnerdv1.StopReason_STOP_REASON_MAX_DURATION
		}
	}
	if st.autoLimit(c.AutoLimits, t.now, between) != "" {
		return runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT
	}
	if !between {
		return 0
	}
	if st.overContext(c.Budget.GetMaxContextTokens()) {
		return runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT
	}
	if most := c.Budget.GetMaxConsecutiveFailures(); most > 0 && c.Failures >= most {
		if c.InvalidInRow >= c.Failures {
			return runnerdv1.StopReason_STOP_REASON_DECISION_INVALID
		}
		return runnerdv1.StopReason_STOP_REASON_MAX_FAILURES
	}
	if st.overRefusals() {
		return runnerdv1.StopReason_STOP_REASON_MAX_FAILURES
	}
	return 0
}

// between reports whether the next step is another iteration: every call has its outcome, or the model wants to end
// or ask and somebody said something that it was not shown.
func (st *State) between() bool {
	c := &st.ctl
	return c.Phase == phaseBetween || c.Unread > 0 && (c.Phase == phaseAnswer || c.Phase == phaseQuestion)
}

// overRefusals reports whether as many calls in a row were refused as may be.
func (st *State) overRefusals() bool {
	most := st.ctl.Budget.GetMaxConsecutiveRefusals()
	return most > 0 && st.ctl.Refusals >= most
}

// refused reports whether a person refused a call of this decision and the agent ends on that.
func (t *advance) refused() bool {
	if t.st.env.Spec.GetOnDenial() != runnerdv1.OnRefusal_ON_REFUSAL_FAIL {
		return false
	}
	for _, c := range t.st.ctl.Calls {
		if c.Status == callDenied && c.ClosedVia != runnerdv1.Via_VIA_CANCEL {
			return true
		}
	}
	return false
}

// blocked reports whether a gate refused a call of this decision and the agent ends on that.
func (t *advance) blocked() bool {
	return t.st.env.Spec.GetOnBlock() == runnerdv1.OnRefusal_ON_REFUSAL_FAIL &&
		slices.ContainsFunc(t.st.ctl.Calls, func(c *call) bool { return c.Status == callBlocked && c.refused() })
}

// overCost reports whether strictly more was spent than the cap allows. What was not reported is not known.
func (st *State) overCost() bool {
	limit, capped := st.costCap()
	return capped && st.ctl.Usage.CostNano > limit
}

// costCap is the cost cap in nanocents.
func (st *State) costCap() (nanocents int64, capped bool) {
	if st.ctl.Budget.MaxCostCents == nil {
		return 0, false
	}
	return nanocentsOf(st.ctl.Budget.GetMaxCostCents()), true
}

// nanocentsOf rounds cents, checked to lie within 0 and 1e9, to a billionth.
func nanocentsOf(cents float64) int64 { return int64(math.Round(cents * 1e9)) }

// iterate asks for the next Decide.
func (t *advance) iterate() bool {
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_IterationStarted{IterationStarted: &runnerdv1.IterationStarted{
		Iteration: t.st.ctl.Iteration + 1,
	}}})
	return true
}

// answered ends the run with the answer, unless somebody said something that the model was not shown.
func (t *advance) answered() bool {
	if t.st.ctl.Unread > 0 {
		return t.iterate()
	}
	t.close(runnerdv1.StopReason_STOP_REASON_COMPLETED)
	return true
}

// questioned asks a person, unless somebody said something that the model was not shown.
func (t *advance) questioned() bool {
	c := &t.st.ctl
	switch {
	case c.Unread > 0:
		return t.iterate()
	case c.Question != 0:
		return false
	case t.st.env.Spec.GetOnQuestion() == runnerdv1.OnQuestion_ON_QUESTION_BLOCK:
		return t.end(runnerdv1.StopReason_STOP_REASON_NEEDS_INPUT)
	}
	last := t.st.mem.entries[len(t.st.mem.entries)-1].GetDecision()
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_InputRequested{InputRequested: &runnerdv1.InputRequested{
		Text: last.GetText(), TextRef: last.GetTextRef(),
	}}})
	return true
}

// calls takes the next step of a decision with calls: asks are opened together, starts follow the order of the calls.
func (t *advance) calls() bool {
	if t.ask() || t.start() {
		return true
	}
	if t.st.working() || !t.st.asking() {
		return false
	}
	return t.pause()
}

// pause closes the leg of a run that waits for a person, where the agent wants that. It reports whether it did.
func (t *advance) pause() bool {
	if t.st.env.Spec.GetApproval().GetMode() != runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE {
		return false
	}
	t.close(runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL)
	return true
}

// start starts the calls whose turn it is: a call starts when all earlier ones have an outcome; adjacent calls of
// tier 0 run together. After an unknown outcome, later calls above tier 0 are blocked.
func (t *advance) start() bool {
	before := len(t.events)
	unknown, open, parallel := false, false, 0
	for _, c := range t.st.ctl.Calls {
		if c.done() {
			unknown = unknown || c.Reason == runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME
			continue
		}
		if unknown && c.Tier > 0 && !c.inProgress() && c.Status != callDoubt {
			t.skip(c, runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN)
			continue
		}
		ready := c.Status == callApproved || c.Status == callRequested
		together := c.Tier == 0 && parallel > 0 && uint32(parallel) < t.st.env.Spec.GetMaxParallelTools()
		if ready && (!open || together) {
			if t.rateLimited(c) {
				continue
			}
			t.startCall(c)
		}
		if c.Tier == 0 && c.inProgress() && (!open || parallel > 0) {
			parallel++
		} else {
			parallel = 0
		}
		open = true
	}
	return len(t.events) > before
}

func (t *advance) startCall(c *call) {
	s := &runnerdv1.ToolCallStarted{
		CallId: c.ID, Attempt: 1, Host: c.Host, Tool: c.Tool, ToolName: c.ToolName,
		IdempotencyKey: t.st.ctl.RunID + "/" + c.ID, Deadline: timestamppb.New(t.now.Add(t.toolTimeout(c))),
		ArgumentsHash: t.st.sentHash(c), Annotations: c.Annotations,
	}
	if c.Status == callApproved {
		s.ApprovalId = c.Approval // 0: a grant or auto mode let it pass
		s.ApprovalDigest = t.st.approvalDigest(c, runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, c.ApprovalExpires)
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallStarted{ToolCallStarted: s}})
}

// skip closes a call that is not started any more.
func (t *advance) skip(c *call, reason runnerdv1.CallReason) {
	if c.Status == callPending {
		if reason == runnerdv1.CallReason_CALL_REASON_RUN_ENDING {
			reason = runnerdv1.CallReason_CALL_REASON_APPROVAL_CANCELLED
		}
		t.deny(c, "", reason, runnerdv1.Via_VIA_CANCEL, "")
		return
	}
	t.refuse(c, verdict{reason: reason})
}

// refuse records that a gate, or a limit, does not let a call run.
func (t *advance) refuse(c *call, v verdict) {
	if v.message == "" {
		v.message = blockMessages[v.reason]
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallBlocked{ToolCallBlocked: &runnerdv1.ToolCallBlocked{
		CallId: c.ID, Reason: v.reason, Gate: v.gate, Rule: v.rule, Layer: v.layer, Message: v.message,
	}}})
}

var blockMessages = map[runnerdv1.CallReason]string{
	runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET: "not run: the budget of tool calls is used up",
	runnerdv1.CallReason_CALL_REASON_RUN_ENDING:  "not run: the run ended before it was its turn",
	runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN: "not run: nobody knows whether an earlier call of the same " +
		"decision took effect; find out before you go on",
}

// end brings a run to its end: nothing new starts, what runs is let finish or was cut, then the leg is closed. It
// reports whether it took a step.
func (t *advance) end(reason runnerdv1.StopReason) bool {
	before := len(t.events)
	if t.st.ctl.Confirm.open() {
		t.closeConfirm("", runnerdv1.Via_VIA_CANCEL, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, "")
	}
	for _, c := range t.st.ctl.Calls {
		switch {
		case c.Status == callStarted && t.now.Before(c.StartAt):
			t.unsent(c)
		case c.done() || c.inProgress():
		case c.Status == callDoubt:
			t.giveUp(c, "", runnerdv1.Via_VIA_CANCEL, "")
		default:
			t.skip(c, runnerdv1.CallReason_CALL_REASON_RUN_ENDING)
		}
	}
	if t.st.working() {
		aborting := reason == runnerdv1.StopReason_STOP_REASON_CANCELLED
		if !aborting || t.now.Before(t.st.settleBy()) {
			return len(t.events) > before
		}
		for _, c := range t.st.ctl.Calls {
			if c.inProgress() {
				t.failUnknown(c, "no outcome within 5 s of the cancel")
			}
		}
	}
	if t.st.ctl.Phase == phaseDecide && reason == runnerdv1.StopReason_STOP_REASON_STOPPED && !t.now.Before(t.st.ctl.Decide.AskAt) {
		return false // the Decide in progress is let finish
	}
	t.close(reason)
	return true
}

// unsent closes a call that waits to be sent again: a run that ends repeats nothing.
func (t *advance) unsent(c *call) {
	const why = "the run ended before it was sent again"
	if !c.Sent {
		t.notExecuted(c, runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN, why)
		return
	}
	if c.Tier == 0 {
		t.outcome(c, Result{Reason: runnerdv1.CallReason_CALL_REASON_CANCELLED, Text: "no result: " + why}, outcomeOf{})
		return
	}
	t.failUnknown(c, why)
}

// close closes the leg.
func (t *advance) close(reason runnerdv1.StopReason) {
	st := t.st
	totals := st.ctl.Usage.totals()
	switch {
	case reason == runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL:
		p := &runnerdv1.RunPaused{StopReason: reason, Usage: totals}
		if st.ctl.Confirm.open() {
			p.ApprovalIds = append(p.ApprovalIds, st.ctl.Confirm.Approval)
		}
		for _, c := range st.ctl.Calls {
			if c.asks() {
				p.ApprovalIds = append(p.ApprovalIds, c.Approval)
			}
		}
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_RunPaused{RunPaused: p}})
	case Outcome(reason) == runnerdv1.Outcome_OUTCOME_SUCCESS:
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_RunCompleted{RunCompleted: &runnerdv1.RunCompleted{
			StopReason: reason, Answer: st.mem.answer, Usage: totals,
		}}})
	default:
		t.fail(reason, st.endMessage(reason), endHints[reason])
	}
}

// fail closes the leg of a run that did not succeed.
func (t *advance) fail(reason runnerdv1.StopReason, message, hint string) {
	p := &runnerdv1.RunFailed{
		StopReason: reason, Outcome: Outcome(reason), Category: Category(reason), Message: message, Hint: hint,
		Usage: t.st.ctl.Usage.totals(),
	}
	if t.st.ctl.Phase == phaseAnswer {
		p.Answer = t.st.mem.answer
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_RunFailed{RunFailed: p}})
}

func (st *State) endMessage(reason runnerdv1.StopReason) string {
	c := &st.ctl
	switch reason {
	case runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS:
		return fmt.Sprintf("the iteration budget is used up: %d of %d", c.Iteration, c.Budget.GetMaxIterations())
	case runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS:
		return fmt.Sprintf("the budget of tool calls is used up: %d of %d", c.ToolCalls, c.Budget.GetMaxToolCalls())
	case runnerdv1.StopReason_STOP_REASON_MAX_COST:
		return fmt.Sprintf("the cost budget is exceeded: %g of %g cents", float64(c.Usage.CostNano)/1e9, c.Budget.GetMaxCostCents())
	case runnerdv1.StopReason_STOP_REASON_MAX_DURATION:
		return fmt.Sprintf("the time budget is used up: %s", c.Budget.GetMaxDuration().AsDuration())
	case runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT:
		return fmt.Sprintf("the next request would be over the context of the model: about %d tokens of %d",
			st.nextRequest()/tokenBytes, c.Budget.GetMaxContextTokens())
	case runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT:
		return st.autoMessage()
	case runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED:
		return fmt.Sprintf("nobody agreed to go on with %g of %g cents spent", float64(c.Usage.CostNano)/1e9, c.Budget.GetMaxCostCents())
	case runnerdv1.StopReason_STOP_REASON_MAX_FAILURES:
		if most := c.Budget.GetMaxConsecutiveFailures(); most == 0 || c.Failures < most {
			return fmt.Sprintf("%d refused calls in a row", c.Refusals)
		}
		return fmt.Sprintf("%d failures in a row", c.Failures)
	case runnerdv1.StopReason_STOP_REASON_DECISION_INVALID:
		return fmt.Sprintf("%d decisions in a row could not be used", c.Failures)
	case runnerdv1.StopReason_STOP_REASON_NEEDS_INPUT:
		return "the model asked a question and this agent does not wait for answers"
	case runnerdv1.StopReason_STOP_REASON_PERMISSION_DENIED:
		return "a call was denied and this agent ends on that"
	case runnerdv1.StopReason_STOP_REASON_POLICY_BLOCKED:
		return "a call was blocked by the policy and this agent ends on that"
	case runnerdv1.StopReason_STOP_REASON_STOPPED, runnerdv1.StopReason_STOP_REASON_CANCELLED:
		return "cancelled"
	case runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR:
		return "the decide service cannot be reached"
	}
	return ""
}

var endHints = map[runnerdv1.StopReason]string{
	runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS:   "ResumeRun with a higher max_iterations goes on with all counters",
	runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS:   "ResumeRun with a higher max_tool_calls goes on with all counters",
	runnerdv1.StopReason_STOP_REASON_MAX_COST:         "ResumeRun with a higher max_cost_cents goes on with all counters",
	runnerdv1.StopReason_STOP_REASON_MAX_DURATION:     "ResumeRun with a higher max_duration goes on with all counters",
	runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT:      "ResumeRun with a higher max_context_tokens goes on with all counters",
	runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT:  "ResumeRun with a higher limit in auto_mode_limits goes on with all counters",
	runnerdv1.StopReason_STOP_REASON_MAX_FAILURES:     "ResumeRun goes on with failures and refusals in a row at 0",
	runnerdv1.StopReason_STOP_REASON_NEEDS_INPUT:      "SubmitInput answers the question and goes on",
	runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR:  "ResumeRun asks again once the decide service is back",
	runnerdv1.StopReason_STOP_REASON_DECISION_INVALID: "look at the decision_invalid events: the decide service answers what cannot be used",
}
