package runstate

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// history is a log under the knife.
type history struct {
	t      *testing.T
	events []*runnerdv1.Event
	spec   *runnerdv1.RunSpec // it is said to follow
}

// nth finds the n-th event of a type, from 1.
func (h *history) nth(kind string, n int) (int, *runnerdv1.Event) {
	h.t.Helper()
	for i, ev := range h.events {
		if ev.GetType() == kind {
			if n--; n == 0 {
				return i, ev
			}
		}
	}
	h.t.Fatalf("there is no such event: %s", kind)
	return 0, nil
}

func (h *history) first(kind string) *runnerdv1.Event { _, ev := h.nth(kind, 1); return ev }
func (h *history) last() *runnerdv1.Event             { return h.events[len(h.events)-1] }

// insert puts a copy of an event behind another, as if it had been recorded there. It is filled in to fit, and later
// events are renumbered, also where they are named.
func (h *history) insert(after int, ev *runnerdv1.Event) *runnerdv1.Event {
	ev = proto.CloneOf(ev)
	at := h.events[after]
	ev.RunId, ev.Time, ev.Leg, ev.Iteration, ev.Type = at.GetRunId(), at.GetTime(), at.GetLeg(), at.GetIteration(), typeOf(ev)
	h.events = slices.Insert(h.events, after+1, ev)
	h.renumber(at.GetSequence(), 1)
	return ev
}

// drop takes an event out, and renumbers those after it.
func (h *history) drop(i int) {
	sequence := h.events[i].GetSequence()
	h.events = slices.Delete(h.events, i, i+1)
	h.renumber(sequence, -1)
}

func (h *history) renumber(after uint64, by int) {
	move := func(id *uint64) {
		if *id > after {
			*id = uint64(int(*id) + by)
		}
	}
	for i, ev := range h.events {
		ev.Sequence = uint64(i + 1)
		if s := ev.GetToolCallStarted(); s != nil {
			move(&s.ApprovalId)
		}
		if in := ev.GetInputReceived(); in != nil {
			move(&in.QuestionSequence)
		}
		if p := ev.GetRunPaused(); p != nil {
			for j := range p.ApprovalIds {
				move(&p.ApprovalIds[j])
			}
		}
		if a := ev.GetToolCallApproved(); a != nil {
			move(&a.GrantId)
			if a.GetGrant() != nil {
				move(&a.Grant.GrantId)
			}
		}
		if r := ev.GetGrantRevoked(); r != nil {
			move(&r.GrantId)
		}
		if r := resolutionOf(ev); r != nil {
			move(&r.ApprovalId)
		}
	}
}

func resolutionOf(ev *runnerdv1.Event) *runnerdv1.Resolution {
	if p, ok := payloadOf(ev).(interface{ GetResolution() *runnerdv1.Resolution }); ok {
		return p.GetResolution()
	}
	return nil
}

// later moves the time of an event and all after it.
func (h *history) later(i int, by time.Duration) {
	for _, ev := range h.events[i:] {
		ev.Time = timestamppb.New(ev.GetTime().AsTime().Add(by))
	}
}

// breakage is a way to break a log, with the invariant that must see it.
type breakage struct {
	name      string
	invariant int
	folded    bool   // it is seen only with a spec
	history   string // long, if empty
	breaks    func(h *history)
}

var broken = []breakage{
	{"an event is missing", 1, false, "", func(h *history) { h.events = slices.Delete(h.events, 11, 12) }},
	{"an event is there twice", 1, false, "", func(h *history) { h.events = slices.Insert(h.events, 12, h.events[11]) }},
	{"two events change places", 1, false, "", func(h *history) { h.events[11], h.events[12] = h.events[12], h.events[11] }},
	{"an event of another run", 1, false, "", func(h *history) { h.events[11].RunId = "other" }},
	{"the log does not begin at 1", 1, false, "", func(h *history) { h.events = h.events[1:] }},

	{"the first event is not run_started", 2, false, "", func(h *history) { h.drop(0) }},
	{"a second run_started", 2, false, "", func(h *history) { h.insert(5, h.events[0]) }},
	{"another leg", 2, false, "", func(h *history) { h.events[11].Leg = 2 }},
	{"another iteration", 2, false, "", func(h *history) { h.events[11].Iteration = 2 }},
	{"an iteration is left out", 2, false, "", func(h *history) { h.first("iteration_started").GetIterationStarted().Iteration = 2 }},
	{"a leg begins while one is open", 2, false, "", func(h *history) {
		i, _ := h.nth("iteration_started", 2)
		h.insert(i, h.first("run_resumed"))
	}},
	{"a leg begins without run_resumed", 10, false, "", func(h *history) {
		i, _ := h.nth("run_resumed", 1)
		h.drop(i)
	}},

	{"a call has no outcome", 3, false, "", func(h *history) {
		i, _ := h.nth("tool_call_completed", 5)
		h.drop(i)
	}},
	{"a call has no outcome at the end", 3, false, "paused", func(h *history) {
		i, _ := h.nth("tool_call_failed", 1)
		h.drop(i)
	}},
	{"a call has two outcomes", 3, false, "", func(h *history) {
		i, ev := h.nth("tool_call_completed", 1)
		h.insert(i, ev)
	}},
	{"a completed call fails", 3, false, "", func(h *history) {
		i, ev := h.nth("tool_call_completed", 1)
		h.insert(i, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallFailed{ToolCallFailed: &runnerdv1.ToolCallFailed{
			CallId: ev.GetToolCallCompleted().GetCallId(), Attempt: 1, Reason: runnerdv1.CallReason_CALL_REASON_TOOL_ERROR,
		}}})
	}},
	{"a call is not requested", 3, false, "", func(h *history) {
		i, _ := h.nth("tool_call_requested", 5)
		h.drop(i)
	}},
	{"a call is requested twice", 3, false, "", func(h *history) {
		i, ev := h.nth("tool_call_requested", 2)
		h.insert(i, ev)
	}},
	{"calls are requested in another order", 3, false, "", func(h *history) {
		i, _ := h.nth("tool_call_requested", 1)
		h.events[i].Payload, h.events[i+1].Payload = h.events[i+1].GetPayload(), h.events[i].GetPayload()
	}},
	{"an outcome of a call nobody made", 3, false, "", func(h *history) { h.first("tool_call_completed").GetToolCallCompleted().CallId = "7.1" }},
	{"the model's ids are used", 3, false, "", func(h *history) { h.first("decision_made").GetDecisionMade().CallIds[0] = "x" }},
	{"a decision nobody asked for", 3, false, "", func(h *history) {
		i, ev := h.nth("decision_invalid", 1)
		h.insert(i, ev)
	}},
	{"an iteration without a decision", 3, false, "", func(h *history) {
		i, _ := h.nth("decision_invalid", 1)
		h.drop(i)
	}},
	{"an unstarted call completes", 3, false, "", func(h *history) {
		i, _ := h.nth("tool_call_started", 1)
		h.drop(i)
	}},
	{"the run pauses while a call runs", 3, false, "paused", func(h *history) {
		i, _ := h.nth("tool_call_started", 1)
		p := h.insert(i, h.first("run_paused"))
		p.GetRunPaused().ApprovalIds = nil
	}},

	{"a call starts without its approval", 4, false, "", func(h *history) {
		_, ev := h.nth("tool_call_started", 3)
		ev.GetToolCallStarted().ApprovalId = 0
	}},
	{"a call starts before its approval", 4, false, "", func(h *history) {
		i, _ := h.nth("tool_call_approved", 1)
		h.events[i].Payload, h.events[i+1].Payload = h.events[i+1].GetPayload(), h.events[i].GetPayload()
	}},
	{"a call starts that was blocked", 4, false, "", func(h *history) {
		h.first("tool_call_requested").GetToolCallRequested().Verdict = runnerdv1.Verdict_VERDICT_BLOCK
	}},
	{"a call starts out of turn", 4, false, "", func(h *history) {
		h.first("tool_call_requested").GetToolCallRequested().Tier = 2
	}},
	{"too many calls run together", 4, true, "", func(h *history) {
		j, _ := h.nth("tool_call_requested", 3)
		h.events[j].Payload = proto.CloneOf(h.events[j-1]).GetPayload()
		h.events[j].GetToolCallRequested().CallId = "1.3"
		i, started := h.nth("tool_call_started", 2)
		h.insert(i, started).GetToolCallStarted().CallId = "1.3"
	}},
	{"a call starts in a cancelled run", 4, false, "", func(h *history) {
		i, _ := h.nth("tool_call_started", 4)
		h.insert(i-1, &runnerdv1.Event{Payload: &runnerdv1.Event_CancelRequested{CancelRequested: &runnerdv1.CancelRequested{}}})
	}},
	{"a call is sent again in a cancelled run", 4, false, "", func(h *history) {
		i, _ := h.nth("tool_call_retried", 2)
		h.insert(i-1, &runnerdv1.Event{Payload: &runnerdv1.Event_CancelRequested{CancelRequested: &runnerdv1.CancelRequested{}}})
	}},
	{"a call starts after an unknown outcome", 4, false, "", func(h *history) {
		i, ev := h.nth("tool_call_completed", 3)
		done := ev.GetToolCallCompleted()
		h.events[i].Payload = &runnerdv1.Event_ToolCallFailed{ToolCallFailed: &runnerdv1.ToolCallFailed{
			CallId: done.GetCallId(), Attempt: done.GetAttempt(), Reason: runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME,
		}}
		h.events[i].Type = typeOf(h.events[i])
	}},

	{"cost decreases", 6, false, "", func(h *history) {
		_, ev := h.nth("decision_made", 2)
		ev.GetDecisionMade().Totals.CostNanocents = 1
	}},
	{"tokens decrease", 6, false, "", func(h *history) {
		_, ev := h.nth("decision_made", 2)
		ev.GetDecisionMade().Totals.OutputTokens = 1
	}},
	{"a decision is charged more than it brought", 6, false, "", func(h *history) {
		_, ev := h.nth("decision_made", 2)
		ev.GetDecisionMade().Totals.InputTokens++
	}},
	{"a decision is not counted", 6, false, "", func(h *history) {
		_, ev := h.nth("decision_made", 2)
		ev.GetDecisionMade().Totals.Decisions--
	}},
	{"a negative cost", 6, false, "", func(h *history) { h.first("decision_made").GetDecisionMade().CostNanocents = proto.Int64(-1) }},
	{"the end has other totals", 6, false, "", func(h *history) { h.last().GetRunCompleted().Usage.CostNanocents++ }},
	{"cents that are not the nanocents", 6, false, "", func(h *history) { h.first("decision_made").GetDecisionMade().Totals.CostCents = 7 }},

	{"observations are miscounted", 7, false, "", func(h *history) { h.events[0].GetRunStarted().ReplayedObservations = 2 }},
	{"a warning is given twice", 8, false, "", func(h *history) {
		i, ev := h.nth("budget_warning", 1)
		h.insert(i, ev)
	}},
	{"a level is warned of twice", 8, false, "budget", func(h *history) {
		i, ev := h.nth("budget_warning", 1)
		h.insert(i, ev)
	}},
	{"a level is warned of that was not reached", 8, false, "budget", func(h *history) {
		h.first("budget_warning").GetBudgetWarning().Level = 80
	}},
	{"read-only is suggested twice", 8, false, "budget", func(h *history) {
		i, ev := h.nth("budget_read_only_suggested", 1)
		h.insert(i, ev)
	}},
	{"the context is warned of twice", 8, false, "budget", func(h *history) {
		i, ev := h.nth("context_warning", 1)
		h.insert(i, ev)
	}},
	{"another cost is warned of", 6, false, "budget", func(h *history) {
		h.first("budget_warning").GetBudgetWarning().CostNanocents++
	}},
	{"a call starts while the budget is asked about", 4, false, "budget", func(h *history) {
		i, _ := h.nth("budget_prompt", 1)
		h.events[i].Payload, h.events[i+1].Payload = h.events[i+1].GetPayload(), h.events[i].GetPayload()
	}},
	{"a call starts after a no", 4, false, "budget", func(h *history) {
		p := h.first("budget_prompt").GetBudgetPrompt()
		p.Approved, p.Resolution.Verdict = false, deny
	}},
	{"the budget is not answered", 9, false, "budget", func(h *history) {
		i, _ := h.nth("budget_prompt", 1)
		h.drop(i)
	}},
	{"the budget is answered twice", 9, false, "budget", func(h *history) {
		i, ev := h.nth("budget_prompt", 1)
		h.insert(i, ev)
	}},
	{"the budget is asked about twice", 9, false, "budget", func(h *history) {
		i, _ := h.nth("budget_prompt", 1)
		h.insert(i, h.first("budget_confirmation_requested"))
	}},
	{"the budget is answered too late", 9, false, "budget", func(h *history) {
		i, _ := h.nth("budget_prompt", 1)
		h.later(i, time.Hour)
	}},
	{"the budget is agreed to by nobody", 9, false, "budget", func(h *history) {
		h.first("budget_prompt").Principal = ""
	}},
	{"another digest of the budget is approved", 9, false, "budget", func(h *history) {
		h.first("budget_prompt").GetBudgetPrompt().GetResolution().ApprovalDigest = "k:00"
	}},
	{"what was asked about the budget is changed", 9, true, "budget", func(h *history) {
		h.first("budget_confirmation_requested").GetBudgetConfirmationRequested().MaxCostCents = 7
	}},
	{"the run ends declined and nobody declined", 10, false, "budget", func(h *history) {
		h.last().Payload = &runnerdv1.Event_RunFailed{RunFailed: &runnerdv1.RunFailed{
			StopReason: runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED, Outcome: runnerdv1.Outcome_OUTCOME_CANCELLED,
			Category: runnerdv1.Category_CATEGORY_SYSTEM,
		}}
		h.last().Type = typeOf(h.last())
	}},

	{"another digest is approved", 9, false, "", func(h *history) {
		h.first("tool_call_approved").GetToolCallApproved().GetResolution().ApprovalDigest = "k:00"
	}},
	{"another digest runs", 9, false, "", func(h *history) {
		_, ev := h.nth("tool_call_started", 3)
		ev.GetToolCallStarted().ApprovalDigest = "k:00"
	}},
	{"the digest that was asked is changed", 9, false, "", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().ApprovalDigest = "k:00"
	}},
	{"the arguments are changed and their hash is not", 9, true, "", func(h *history) {
		h.first("tool_call_requested").GetToolCallRequested().ArgumentsRaw = `{"n":2}`
	}},
	{"the rule is changed that an approval was given for", 9, true, "", func(h *history) {
		_, ev := h.nth("tool_call_requested", 3)
		ev.GetToolCallRequested().Rule = "approval_for:*"
	}},
	{"the deadline of an approval is moved", 9, true, "", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().ExpiresAt.Seconds++
	}},
	{"the digest of a call in doubt is changed", 9, true, "", func(h *history) {
		h.first("tool_call_in_doubt").GetToolCallInDoubt().ApprovalDigest = "k:00"
	}},
	{"other arguments run", 9, false, "", func(h *history) { h.first("tool_call_started").GetToolCallStarted().ArgumentsHash = "k:00" }},
	{"another tool runs", 9, false, "", func(h *history) { h.first("tool_call_started").GetToolCallStarted().Host = "bank" }},
	{"another key is used", 9, false, "", func(h *history) { h.first("tool_call_started").GetToolCallStarted().IdempotencyKey = "r/1.9" }},
	{"another tool is asked about", 9, false, "", func(h *history) {
		h.first("tool_call_pending_approval").GetToolCallPendingApproval().Tool = "notify"
	}},
	{"a call starts twice", 9, false, "", func(h *history) {
		i, ev := h.nth("tool_call_started", 5)
		h.insert(i, ev)
	}},
	{"an approval is closed twice", 9, false, "", func(h *history) {
		i, ev := h.nth("tool_call_approved", 1)
		h.insert(i, ev)
	}},
	{"an approval is opened twice", 9, false, "", func(h *history) {
		i, ev := h.nth("tool_call_pending_approval", 1)
		h.insert(i, ev)
	}},
	{"an approval that was never opened", 9, false, "", func(h *history) {
		i, _ := h.nth("tool_call_pending_approval", 1)
		h.drop(i)
	}},
	{"another approval is closed", 9, false, "", func(h *history) {
		h.first("tool_call_approved").GetToolCallApproved().GetResolution().ApprovalId++
	}},
	{"an answer after the deadline", 9, false, "", func(h *history) {
		i, _ := h.nth("tool_call_approved", 1)
		h.later(i, time.Hour)
	}},
	{"a timeout before the deadline", 9, false, "", func(h *history) {
		_, ev := h.nth("tool_call_denied", 2)
		i, opened := h.nth("tool_call_pending_approval", 3)
		h.later(i+1, opened.GetTime().AsTime().Sub(ev.GetTime().AsTime())+time.Second)
	}},
	{"nobody approves", 9, false, "", func(h *history) { h.first("tool_call_approved").Principal = "" }},
	{"a cancel approves", 9, false, "", func(h *history) {
		h.first("tool_call_approved").GetToolCallApproved().GetResolution().Via = runnerdv1.Via_VIA_CANCEL
	}},
	{"a denial approves", 9, false, "", func(h *history) {
		h.first("tool_call_approved").GetToolCallApproved().GetResolution().Verdict = deny
	}},
	{"the pause names other approvals", 9, false, "paused", func(h *history) { h.first("run_paused").GetRunPaused().ApprovalIds[0]++ }},
	{"an approval is open at the end", 9, false, "paused", func(h *history) {
		i, _ := h.nth("tool_call_denied", 1)
		h.events = h.events[:i]
		h.insert(i-1, &runnerdv1.Event{Payload: &runnerdv1.Event_RunFailed{RunFailed: &runnerdv1.RunFailed{
			StopReason: runnerdv1.StopReason_STOP_REASON_STOPPED, Outcome: runnerdv1.Outcome_OUTCOME_CANCELLED,
			Category: runnerdv1.Category_CATEGORY_SYSTEM, Usage: h.first("decision_made").GetDecisionMade().GetTotals(),
		}}})
	}},

	{"something after the end", 10, false, "", func(h *history) { h.insert(len(h.events)-1, h.first("budget_warning")) }},
	{"an iteration after the end", 10, false, "", func(h *history) {
		h.insert(len(h.events)-1, h.first("iteration_started")).Iteration++
	}},
	{"a final run goes on", 10, false, "", func(h *history) { h.insert(len(h.events)-1, h.first("run_resumed")).Leg++ }},
	{"an input resumes what only ResumeRun can", 10, false, "", func(h *history) {
		h.first("run_resumed").GetRunResumed().Cause = runnerdv1.ResumeCause_RESUME_CAUSE_INPUT
	}},
	{"ResumeRun resumes a pause", 10, false, "paused", func(h *history) {
		h.first("run_resumed").GetRunResumed().Cause = runnerdv1.ResumeCause_RESUME_CAUSE_RESUME
	}},
	{"the outcome does not follow from the stop reason", 10, false, "", func(h *history) {
		h.first("run_failed").GetRunFailed().Outcome = runnerdv1.Outcome_OUTCOME_FAILED
	}},
	{"a success without success", 10, false, "", func(h *history) {
		h.last().GetRunCompleted().StopReason = runnerdv1.StopReason_STOP_REASON_MAX_COST
	}},
	{"a pause for another reason", 10, false, "paused", func(h *history) {
		h.first("run_paused").GetRunPaused().StopReason = runnerdv1.StopReason_STOP_REASON_STOPPED
	}},
	{"tools are pinned twice", 11, true, "", func(h *history) { h.insert(1, h.events[1]) }},

	{"a call of class NONE is sent again by itself", 13, false, "", func(h *history) {
		i, _ := h.nth("tool_call_in_doubt", 1)
		h.drop(i)
		ev := h.first("tool_call_retried").GetToolCallRetried()
		ev.Resolution, ev.Cause = nil, stream
	}},
	{"a call in doubt is sent again with a deadline's word", 13, false, "", func(h *history) {
		h.first("tool_call_retried").GetToolCallRetried().GetResolution().Via = runnerdv1.Via_VIA_TIMEOUT
	}},
	{"the policy that was not chosen", 13, true, "", func(h *history) {
		h.first("tool_call_in_doubt").GetToolCallInDoubt().Next = runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RETRY
	}},
	{"a host is asked that does not know", 13, false, "", func(h *history) {
		h.first("tool_call_in_doubt").GetToolCallInDoubt().Next = runnerdv1.InDoubtNext_IN_DOUBT_NEXT_RECONCILE
	}},

	{"time goes back", 14, false, "", func(h *history) { h.later(12, -time.Hour) }},

	{"the type does not name the payload", 0, false, "", func(h *history) { h.events[3].Type = "decision_invalid" }},
	{"no payload", 0, false, "", func(h *history) { h.events[3].Payload = nil }},
	{"an attempt of a call is left out", 0, false, "", func(h *history) { h.first("tool_call_retried").GetToolCallRetried().Attempt = 3 }},
	{"an attempt of a Decide is left out", 0, false, "", func(h *history) { h.first("decide_retried").GetDecideRetried().Attempt = 3 }},
	{"the decision of another attempt", 0, false, "", func(h *history) { h.first("decision_invalid").GetDecisionInvalid().Attempt = 1 }},
	{"the outcome of another attempt", 0, false, "", func(h *history) { h.first("tool_call_completed").GetToolCallCompleted().Attempt = 2 }},
	{"an epoch that was before", 0, false, "", func(h *history) {
		i, ev := h.nth("run_recovered", 1)
		h.insert(i, ev)
	}},
	{"the answer to another question", 0, false, "", func(h *history) { h.first("input_received").GetInputReceived().QuestionSequence = 1 }},
	{"a second question", 0, false, "", func(h *history) {
		i, ev := h.nth("input_requested", 1)
		h.insert(i, ev)
	}},
}
