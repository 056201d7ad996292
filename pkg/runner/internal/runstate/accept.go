package runstate

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// accept takes one fact into the run. Facts from the world that come too late or twice are dropped; facts that
// somebody waits for are answered.
func (t *advance) accept(f Fact) Reply {
	switch f := f.(type) {
	case Start:
		t.emit(&runnerdv1.Event{Principal: f.Principal, Payload: &runnerdv1.Event_RunStarted{RunStarted: f.Started}})
	case Pinned:
		t.pin(f)
	case Decided:
		t.decided(f)
	case DecideBroken:
		if t.deciding(f.Iteration, f.Attempt) {
			t.invalid(f.Attempt, f.Code, f.Message, f.Preview, nil)
		}
	case DecideFailed:
		t.decideFailed(f)
	case CallFinished:
		t.finished(f)
	case CallLost:
		if c := t.attempt(f.CallID, f.Attempt); c != nil {
			t.lost(c, f.Cause, f.Message)
		}
	case LookupFailed:
		t.lookupFailed(f)
	case Vote:
		return t.vote(f)
	case Revoke:
		return t.revoke(f)
	case Input:
		return t.input(f)
	case Cancel:
		return t.cancel(f)
	case Resume:
		return t.resume(f)
	case Restart:
		t.restart(f)
	}
	return Reply{}
}

// pin fixes the tools of the run, unless a host is not there without whose tools it must not begin: then it ends for
// now, and stays queued for a ResumeRun.
func (t *advance) pin(f Pinned) {
	if t.st.Closed() || t.st.ctl.Phase != phaseQueued || t.ending() != 0 {
		return
	}
	var missing *runnerdv1.ToolHostUnavailable
	for _, u := range f.Unavailable {
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolHostUnavailable{ToolHostUnavailable: u}})
		if missing == nil && slices.Contains(t.st.env.Spec.GetRequiredHosts(), u.GetHost()) {
			missing = u
		}
	}
	if missing != nil {
		t.fail(runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR,
			fmt.Sprintf("the tool host %s, without which no run of this agent begins, cannot list its tools: %s", missing.GetHost(), missing.GetMessage()),
			"ResumeRun asks again once the tool host is back")
		return
	}
	t.st.env.Catalogue = f.Catalogue
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ToolsPinned{ToolsPinned: &runnerdv1.ToolsPinned{
		CatalogueDigest: fmt.Sprintf("%x", f.Catalogue.Digest()),
		Tools:           uint32(len(f.Catalogue.Names())),
		Findings:        leftOut(f.Findings),
	}}})
}

// How many findings are recorded with a run, and how many bytes of each message; ListTools gives them all.
const (
	maxPinnedFindings = 100
	maxPinnedMessage  = 1 << 10
)

// leftOut keeps the findings that took a tool out.
func leftOut(findings []*runnerdv1.Finding) []*runnerdv1.Finding {
	var out []*runnerdv1.Finding
	for _, f := range findings {
		if f.GetSeverity() != runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR || len(out) == maxPinnedFindings {
			continue
		}
		if len(f.GetMessage()) > maxPinnedMessage {
			f = proto.CloneOf(f) // others share it
			f.Message = cutText(f.GetMessage(), maxPinnedMessage)
		}
		out = append(out, f)
	}
	return out
}

// input records what a person says. It is shown to the next Decide.
func (t *advance) input(f Input) Reply {
	st := t.st
	if f.RequestID != "" {
		for _, seen := range st.ctl.Inputs {
			if seen.RequestID == f.RequestID {
				return Reply{Sequence: seen.Sequence}
			}
		}
	}
	if st.Done() {
		switch Resumable(st.ctl.Stop) {
		case ResumeByInput:
		case ResumeByCall:
			return refuse(runnerdv1.ErrorReason_ERROR_REASON_USE_RESUME, "the run ended and goes on by ResumeRun, not by an input")
		default:
			return refuse(runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED, "the run has ended")
		}
	}
	t.reopen(f.Principal, runnerdv1.ResumeCause_RESUME_CAUSE_INPUT)
	in := &runnerdv1.InputReceived{
		Text: f.Text, TextRef: f.TextRef, RequestId: f.RequestID, QuestionSequence: st.ctl.Question,
	}
	if f.TextRef != nil {
		in.Text = ""
	}
	return Reply{Sequence: t.emit(&runnerdv1.Event{
		Principal: f.Principal, Payload: &runnerdv1.Event_InputReceived{InputReceived: in},
	})}
}

// cancel records that somebody wants the run to end. A run that is DONE stays as it is.
func (t *advance) cancel(f Cancel) Reply {
	asked := t.st.ctl.Cancel.Mode
	stronger := asked == runnerdv1.CancelMode_CANCEL_MODE_UNSPECIFIED ||
		asked == runnerdv1.CancelMode_CANCEL_MODE_STOP && f.Mode == runnerdv1.CancelMode_CANCEL_MODE_ABORT
	if t.st.Done() || !stronger {
		return Reply{}
	}
	t.reopen(f.Principal, runnerdv1.ResumeCause_RESUME_CAUSE_CANCEL)
	return Reply{Sequence: t.emit(&runnerdv1.Event{
		Principal: f.Principal,
		Payload: &runnerdv1.Event_CancelRequested{CancelRequested: &runnerdv1.CancelRequested{
			Mode: f.Mode, Reason: f.Reason,
		}},
	})}
}

// reopen begins a leg if the one before is closed.
func (t *advance) reopen(principal string, cause runnerdv1.ResumeCause) {
	if t.st.Closed() {
		t.emit(&runnerdv1.Event{
			Principal: principal,
			Payload:   &runnerdv1.Event_RunResumed{RunResumed: &runnerdv1.RunResumed{Cause: cause}},
		})
	}
}

// resume lets a resumable run go on.
func (t *advance) resume(f Resume) Reply {
	st := t.st
	switch {
	case !st.Closed() && (f.Budget != nil || f.AutoLimits != nil):
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_RUN_ACTIVE, "the run is active; limits can be raised when it has ended or paused")
	case !st.Closed():
		return Reply{}
	case st.paused():
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_OPEN, "the run waits for an approval; SubmitApproval goes on with it")
	}
	switch Resumable(st.ctl.Stop) {
	case ResumeByCall:
	case ResumeByInput:
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_INPUT_REQUIRED, "the run waits for an input; SubmitInput goes on with it")
	default:
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED, "the run has ended")
	}
	budget := proto.CloneOf(st.ctl.Budget)
	if f.Budget != nil {
		ChangeBudget(budget, f.Budget)
	}
	auto := proto.CloneOf(st.ctl.AutoLimits)
	if f.AutoLimits != nil {
		if auto == nil {
			return refuse(runnerdv1.ErrorReason_ERROR_REASON_POLICY_NOT_ALLOWED, "the run is not in auto mode and has no limits of it")
		}
		ChangeAutoLimits(auto, f.AutoLimits)
	}
	if limit := st.reached(budget, auto); limit != "" {
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_LIMIT_STILL_REACHED, "%s still holds; raise it", limit)
	}
	resumed := &runnerdv1.RunResumed{Cause: runnerdv1.ResumeCause_RESUME_CAUSE_RESUME}
	if f.Budget != nil {
		resumed.Budget = budget
	}
	if f.AutoLimits != nil {
		resumed.AutoModeLimits = auto
	}
	return Reply{Sequence: t.emit(&runnerdv1.Event{
		Principal: f.Principal, Payload: &runnerdv1.Event_RunResumed{RunResumed: resumed},
	})}
}

// reached names the first limit, of a budget or of auto mode, that would end the run again at once; empty: none.
func (st *State) reached(b *runnerdv1.Budget, auto *runnerdv1.AutoModeLimits) string {
	c := &st.ctl
	switch {
	case c.Phase != phaseDecide && c.Iteration >= b.GetMaxIterations():
		return "max_iterations"
	case c.ToolBudgetHit && c.ToolCalls >= b.GetMaxToolCalls():
		return "max_tool_calls"
	case b.MaxCostCents != nil && c.Usage.CostNano > nanocentsOf(b.GetMaxCostCents()):
		return "max_cost_cents"
	case b.GetMaxDuration().AsDuration() > 0 && c.Running >= b.GetMaxDuration().AsDuration():
		return "max_duration"
	case st.between() && st.overContext(b.GetMaxContextTokens()):
		return "max_context_tokens"
	}
	if limit := st.autoLimit(auto, c.Time, c.Phase != phaseDecide); limit != "" {
		return "auto_mode_limits." + limit
	}
	return ""
}

// restart tells the run that the daemon came back: what was in progress has no outcome and follows the rule for that.
// Runs that wait for people, or for a slot, get no event.
func (t *advance) restart(f Restart) {
	st := t.st
	if st.Status() != runnerdv1.RunState_RUN_STATE_RUNNING {
		return
	}
	deciding := st.ctl.Phase == phaseDecide
	ending := st.ctl.Cancel.Mode != runnerdv1.CancelMode_CANCEL_MODE_UNSPECIFIED
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_RunRecovered{RunRecovered: &runnerdv1.RunRecovered{
		Epoch: f.Epoch, DecideAgain: deciding && !ending,
	}}})
	if deciding && ending { // nothing new starts, also no Decide
		t.close(t.ending())
		return
	}
	for _, c := range st.ctl.Calls {
		switch {
		case c.Status == callStarted:
			t.lost(c, runnerdv1.LostCause_LOST_CAUSE_RESTART, "the daemon stopped while the call was in progress")
		case c.Status == callLookup && c.Deadline.Before(t.now.Add(lookupTime)):
			t.lookup(c, c.Cause, "the daemon stopped while the host was asked")
		}
	}
}

// finished records the outcome of an attempt.
func (t *advance) finished(f CallFinished) {
	c := t.attempt(f.CallID, f.Attempt)
	if c == nil {
		return
	}
	t.outcome(c, f.Result, outcomeOf{
		duration: durationpb.New(f.Duration), reconciled: f.Reconciled, answeredBy: f.AnsweredBy,
	})
}

// attempt finds the call whose given attempt is in progress; nil: it is not, and what is told about it is dropped.
func (t *advance) attempt(callID string, attempt uint32) *call {
	if t.st.Closed() || t.st.ctl.Phase != phaseCalls {
		return nil
	}
	c := t.st.call(callID)
	if c == nil || !c.inProgress() || c.Attempt != attempt {
		return nil
	}
	return c
}

// outcomeOf is what is recorded with an outcome besides the result.
type outcomeOf struct {
	principal  string
	resolution *runnerdv1.Resolution
	duration   *durationpb.Duration
	reconciled bool
	answeredBy string
}

// outcome records the result of a call, a failed one or not.
func (t *advance) outcome(c *call, r Result, of outcomeOf) uint64 {
	if r.Reason == runnerdv1.CallReason_CALL_REASON_UNSPECIFIED {
		return t.emit(&runnerdv1.Event{
			Principal: of.principal,
			Payload: &runnerdv1.Event_ToolCallCompleted{ToolCallCompleted: &runnerdv1.ToolCallCompleted{
				CallId: c.ID, Attempt: c.Attempt, Text: r.Text, StructuredJson: r.StructuredJSON,
				StructuredRef: r.StructuredRef, Artifacts: r.Artifacts, TextTruncated: r.TextTruncated,
				TextRepaired: r.TextRepaired, Duration: of.duration, Resolution: of.resolution, Reconciled: of.reconciled,
				AnsweredBy: of.answeredBy,
			}},
		})
	}
	return t.emit(&runnerdv1.Event{
		Principal: of.principal,
		Payload: &runnerdv1.Event_ToolCallFailed{ToolCallFailed: &runnerdv1.ToolCallFailed{
			CallId: c.ID, Attempt: c.Attempt, Reason: r.Reason, Message: r.Text, StructuredJson: r.StructuredJSON,
			StructuredRef: r.StructuredRef, Artifacts: r.Artifacts, TextTruncated: r.TextTruncated,
			TextRepaired: r.TextRepaired, Duration: of.duration, Resolution: of.resolution, Reconciled: of.reconciled,
			Code: r.Code, AnsweredBy: of.answeredBy, ArgumentsPreview: r.Preview,
		}},
	})
}

// ChangeBudget sets the limits in budget that changes has. A duration is set as a whole: it is a message of its own,
// which merging would only fill up, so that no limit could become none and 20 s could become 20.5 s.
func ChangeBudget(budget, changes *runnerdv1.Budget) {
	if changes.GetMaxDuration() != nil {
		budget.MaxDuration = nil
	}
	proto.Merge(budget, changes)
}
