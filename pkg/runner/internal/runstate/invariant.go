package runstate

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Violation is a place in a run's log at which an invariant does not hold.
type Violation struct {
	Invariant int    // number in the list of Check; 0: a rule of form that has no number
	Sequence  uint64 // event at which it shows
	Message   string
}

// CheckOptions say with what a log is checked.
type CheckOptions struct {
	// Env of the run. Without a spec the events are not folded, and what depends on the spec is not checked; without a
	// key digests are compared but not computed again. The catalogue is not needed.
	Env Env
}

// maxViolations is where a check gives up: one broken event makes all later ones look wrong.
const maxViolations = 100

// Check reads the events of one run from the first on and gives the places at which the invariants of a log do not
// hold. It takes whole events and public ones. Unless events are folded, its memory is bounded by the calls of one
// decision, the grants that hold, and the rate limits of tools. Invariants that need more than the events of one run are not checked here: hashes (1) are the store's,
// what a child spent (12) needs the child.
//
//	 1 sequences are 1, 2, … without a gap, all of one run
//	 2 legs open and close exactly once, and every event lies in one
//	 3 each call of a decision is requested once, in order, and has exactly one outcome before the next iteration and
//	   before the run is DONE
//	 4 no call starts without its verdict's allow or an approval, out of turn, over the rate limit of its tool, in a run
//	   that is being ended, or while a person is asked about the budget or said no; no call and no iteration starts over
//	   the budget or a limit of auto mode
//	 5 the history only grows
//	 6 cost and tokens never decrease, and totals are the sum of what the decisions brought
//	 7 tool calls are those given at the start and those started, attempts not counted
//	 8 each warning is given once, of a level of the cost cap when it is reached
//	 9 what ran is what was approved, by digest, once; every approval is closed exactly once, in time
//	10 a closing event is what its stop reason says; after it comes only run_resumed, after a final one nothing
//	11 folding the events is possible
//	13 no call that may not be repeated is sent twice without a person, the retry policy, or a host that never saw it
//	14 time never decreases
func Check(events iter.Seq[*runnerdv1.Event], opt CheckOptions) []Violation {
	c := &checker{spec: opt.Env.Spec, limits: limitsOf(opt.Env.Spec)}
	for ev := range events {
		if c.run == "" {
			c.run = ev.GetRunId()
			if opt.Env.Spec != nil {
				c.fold = New(opt.Env, c.run)
			}
		}
		c.event(ev)
		if len(c.violations) >= maxViolations {
			break
		}
	}
	return c.violations
}

// checker is what must be known of a log to judge its next event.
type checker struct {
	spec       *runnerdv1.RunSpec // nil: not known
	fold       *State             // nil: not folded, or no longer
	run        string
	violations []Violation
	ev         *runnerdv1.Event // being judged

	sequence  uint64
	time      time.Time
	leg       uint32
	iteration uint32
	stop      runnerdv1.StopReason // of the last closing event; unspecified while a leg is open
	cancelled bool
	epoch     uint64

	totals     *runnerdv1.UsageTotals
	budget     budgetCheck
	limits     limitsCheck
	toolCalls  uint32
	imported   uint32 // of them, given at the start
	rules      uint32 // version of the rules
	maxHistory int

	pinned   bool // the tools are
	missing  bool // a required host is, in this leg
	decide   int  // attempt of the Decide in progress; 0: none is
	question uint64
	decision decisionCheck
	grants   map[uint64]*grantCheck  // that hold
	starts   map[ownName][]time.Time // that the rate limits of tools still look at
}

func (c *checker) violate(invariant int, format string, args ...any) {
	c.violations = append(c.violations, Violation{invariant, c.ev.GetSequence(), fmt.Sprintf(format, args...)})
}

// hold records a violation unless the condition holds.
func (c *checker) hold(ok bool, invariant int, format string, args ...any) {
	if !ok {
		c.violate(invariant, format, args...)
	}
}

func (c *checker) event(ev *runnerdv1.Event) {
	c.ev = ev
	c.envelope(ev)
	if c.bounds(ev) {
		c.payload(ev)
	}
	c.folded(ev)
}

// envelope judges what every event has.
func (c *checker) envelope(ev *runnerdv1.Event) {
	c.hold(ev.GetRunId() == c.run, 1, "event of run %q in the log of run %q", ev.GetRunId(), c.run)
	c.hold(ev.GetSequence() == c.sequence+1, 1, "sequence %d follows %d", ev.GetSequence(), c.sequence)
	c.sequence = ev.GetSequence()
	at := ev.GetTime().AsTime()
	c.hold(!at.Before(c.time), 14, "time %s follows %s", at, c.time)
	c.time = at
	c.hold(ev.GetType() == typeOf(ev), 0, "type %q does not name the payload", ev.GetType())
}

// bounds judges where an event lies, and opens and closes legs and iterations. It says whether the payload can be
// judged at all.
func (c *checker) bounds(ev *runnerdv1.Event) bool {
	switch p := ev.GetPayload().(type) {
	case nil:
		c.violate(0, "the event has no payload that is known")
		return false
	case *runnerdv1.Event_RunStarted:
		c.hold(c.leg == 0, 2, "run_started is not the first event")
		c.leg = max(c.leg, 1)
	case *runnerdv1.Event_RunResumed:
		c.resumed(p.RunResumed)
	case *runnerdv1.Event_IterationStarted:
		c.iterationStarted(p.IterationStarted)
	default:
		c.hold(c.leg > 0, 2, "the first event is not run_started")
		c.hold(c.stop == 0, 10, "an event follows the closing event of leg %d", c.leg)
	}
	c.hold(ev.GetLeg() == c.leg, 2, "the event lies in leg %d, not %d", c.leg, ev.GetLeg())
	c.hold(ev.GetIteration() == c.iteration, 2, "the event lies in iteration %d, not %d", c.iteration, ev.GetIteration())
	return true
}

func (c *checker) resumed(r *runnerdv1.RunResumed) {
	c.hold(c.stop != 0, 2, "leg %d is still open", c.leg)
	cause := r.GetCause()
	revoke := cause == runnerdv1.ResumeCause_RESUME_CAUSE_REVOKE // the leg only records it
	switch Resumable(c.stop) {
	case ResumeNever:
		c.hold(c.stop == 0, 10, "the run was final: %s", c.stop)
	case ResumeByVote:
		c.hold(cause != runnerdv1.ResumeCause_RESUME_CAUSE_RESUME, 10, "a paused run is resumed by %s", cause)
	case ResumeByCall:
		c.hold(revoke || cause == runnerdv1.ResumeCause_RESUME_CAUSE_RESUME, 10, "a run ended by %s is resumed by %s", c.stop, cause)
	case ResumeByInput:
		c.hold(revoke || cause == runnerdv1.ResumeCause_RESUME_CAUSE_INPUT, 10, "a run ended by %s is resumed by %s", c.stop, cause)
	}
	c.stop, c.missing = 0, false
	c.leg++
	if c.spec != nil {
		c.limits.raise(r)
	}
	c.askedAgain()
}

func (c *checker) iterationStarted(p *runnerdv1.IterationStarted) {
	c.hold(c.stop == 0, 10, "an event follows the closing event of leg %d", c.leg)
	c.hold(c.decide == 0, 3, "iteration %d has no decision", c.iteration)
	c.hold(!c.cancelled, 4, "an iteration starts in a run that was cancelled")
	c.hold(c.pinned, 0, "an iteration starts and no tools are pinned")
	c.mayGoOn("an iteration starts")
	c.within("an iteration starts", c.iteration, c.limits.budget.MaxIterations, c.iteration, c.limits.auto.MaxIterations)
	c.closeDecision()
	c.iteration++
	c.hold(p.GetIteration() == c.iteration, 2, "iteration %d follows %d", p.GetIteration(), c.iteration-1)
	c.decide, c.question = 1, 0
}

// askedAgain counts the attempt with which a Decide that was in progress is asked again.
func (c *checker) askedAgain() {
	if c.decide > 0 {
		c.decide++
	}
}

// payload judges what an event says.
func (c *checker) payload(ev *runnerdv1.Event) {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted:
		c.started(p.RunStarted)
	case *runnerdv1.Event_RunRecovered:
		c.hold(p.RunRecovered.GetEpoch() > c.epoch, 0, "epoch %d follows %d", p.RunRecovered.GetEpoch(), c.epoch)
		c.epoch = p.RunRecovered.GetEpoch()
		c.askedAgain()
	case *runnerdv1.Event_RunCompleted:
		c.closed(p.RunCompleted.GetStopReason(), runnerdv1.Outcome_OUTCOME_SUCCESS, 0, p.RunCompleted.GetUsage())
	case *runnerdv1.Event_RunFailed:
		f := p.RunFailed
		c.hold(f.GetOutcome() != 0 && f.GetOutcome() != runnerdv1.Outcome_OUTCOME_SUCCESS, 10, "run_failed with %s", f.GetOutcome())
		c.closed(f.GetStopReason(), f.GetOutcome(), f.GetCategory(), f.GetUsage())
	case *runnerdv1.Event_RunPaused:
		c.paused(p.RunPaused)
	case *runnerdv1.Event_ToolHostUnavailable:
		c.hold(!c.pinned, 0, "a host is missed after the tools were pinned")
		c.missing = c.missing || slices.Contains(c.spec.GetRequiredHosts(), p.ToolHostUnavailable.GetHost())
	case *runnerdv1.Event_ToolsPinned:
		c.hold(!c.pinned, 0, "tools are pinned twice")
		c.hold(!c.missing, 0, "tools are pinned without those of a required host")
		c.pinned = true
	case *runnerdv1.Event_DecisionMade:
		c.decisionMade(p.DecisionMade)
	case *runnerdv1.Event_DecisionInvalid:
		d := p.DecisionInvalid
		c.decided(d.GetAttempt(), d.GetUsage(), d.CostNanocents, d.GetTotals())
	case *runnerdv1.Event_DecideRetried:
		c.hold(c.decide > 0 && int(p.DecideRetried.GetAttempt()) == c.decide+1, 0,
			"attempt %d of a Decide follows %d", p.DecideRetried.GetAttempt(), c.decide)
		c.decide = int(p.DecideRetried.GetAttempt())
	case *runnerdv1.Event_BudgetWarning:
		c.budgetWarning(p.BudgetWarning)
	case *runnerdv1.Event_BudgetReadOnlySuggested:
		c.once("the suggestion to go read-only")
		c.sameCost(p.BudgetReadOnlySuggested.GetCostNanocents())
	case *runnerdv1.Event_ContextWarning:
		c.once("the warning of the context")
	case *runnerdv1.Event_BudgetConfirmationRequested:
		c.budgetAsked(p.BudgetConfirmationRequested)
	case *runnerdv1.Event_BudgetPrompt:
		c.budgetAnswered(p.BudgetPrompt)
	case *runnerdv1.Event_InputRequested:
		c.mayGoOn("a question is asked")
		c.hold(c.question == 0, 0, "the question %d is still open", c.question)
		c.question = ev.GetSequence()
	case *runnerdv1.Event_InputReceived:
		c.hold(p.InputReceived.GetQuestionSequence() == c.question, 0, "it answers %d, and the open question is %d",
			p.InputReceived.GetQuestionSequence(), c.question)
		c.question = 0
	case *runnerdv1.Event_CancelRequested:
		c.cancelled = true
	case *runnerdv1.Event_GrantRevoked:
		c.grantRevoked(p.GrantRevoked)
	default:
		c.callEvent(ev)
	}
}

func (c *checker) started(s *runnerdv1.RunStarted) {
	c.rules = s.GetRulesVersion()
	c.hold(int(s.GetReplayedObservations()) == len(s.GetObservations()), 7, "%d observations are given, not %d",
		len(s.GetObservations()), s.GetReplayedObservations())
	for _, o := range s.GetObservations() {
		switch o.GetKind() {
		case runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR:
			c.toolCalls++
			c.imported++
		default:
		}
	}
}

// closed judges the end of a run.
func (c *checker) closed(reason runnerdv1.StopReason, outcome runnerdv1.Outcome, category runnerdv1.Category, totals *runnerdv1.UsageTotals) {
	c.hold(outcome == Outcome(reason) && category == Category(reason) && outcome != 0, 10,
		"%s, %s do not follow from %s", outcome, category, reason)
	c.closeDecision()
	c.hold(!c.budget.approval.open(), 9, "approval %d is not closed", c.budget.approval.id)
	c.hold(reason != runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED || c.budget.declined, 10, "nobody declined the budget")
	c.sameTotals(totals)
	c.stop = reason
}

// paused judges a pause: calls stay open, but nothing runs.
func (c *checker) paused(p *runnerdv1.RunPaused) {
	c.hold(p.GetStopReason() == runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL, 10, "run_paused with %s", p.GetStopReason())
	c.pauseDecision(p.GetApprovalIds())
	c.sameTotals(p.GetUsage())
	c.stop = runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL
}

// decided judges the end of a Decide and what it cost.
func (c *checker) decided(attempt uint32, used *runnerdv1.Usage, cost *int64, totals *runnerdv1.UsageTotals) {
	c.hold(c.decide > 0, 3, "a decision nobody asked for")
	c.hold(c.decide == 0 || int(attempt) == c.decide, 0, "a decision of attempt %d of a Decide, not %d", attempt, c.decide)
	c.decide = 0
	before := c.totals
	c.hold(totals.GetCostNanocents() >= before.GetCostNanocents() && totals.GetInputTokens() >= before.GetInputTokens() &&
		totals.GetOutputTokens() >= before.GetOutputTokens() && totals.GetCachedInputTokens() >= before.GetCachedInputTokens() &&
		totals.GetDecisions() >= before.GetDecisions(), 6, "totals decrease")
	var spent int64
	withoutCost := before.GetDecisionsWithoutCost()
	if cost != nil {
		spent = *cost
	} else {
		withoutCost++
	}
	c.hold(spent >= 0, 6, "a negative cost")
	c.hold(totals.GetCostNanocents() == before.GetCostNanocents()+spent, 6, "cost %d is not %d+%d",
		totals.GetCostNanocents(), before.GetCostNanocents(), spent)
	c.hold(totals.GetInputTokens() == before.GetInputTokens()+used.GetInputTokens() &&
		totals.GetOutputTokens() == before.GetOutputTokens()+used.GetOutputTokens() &&
		totals.GetCachedInputTokens() == before.GetCachedInputTokens()+used.GetCachedInputTokens(), 6,
		"token totals are not the sum of what the decisions brought")
	c.hold(totals.GetDecisions() == before.GetDecisions()+1 && totals.GetDecisionsWithoutCost() == withoutCost, 6,
		"decisions are miscounted")
	c.hold(math.Abs(totals.GetCostCents()-float64(totals.GetCostNanocents())/1e9) <= 1e-9*max(1, totals.GetCostCents()), 6,
		"%g cents are not %d nanocents", totals.GetCostCents(), totals.GetCostNanocents())
	c.totals = totals
}

// sameTotals judges the totals in a closing event.
func (c *checker) sameTotals(totals *runnerdv1.UsageTotals) {
	before := c.totals
	c.hold(totals.GetCostNanocents() == before.GetCostNanocents() && totals.GetInputTokens() == before.GetInputTokens() &&
		totals.GetOutputTokens() == before.GetOutputTokens() && totals.GetCachedInputTokens() == before.GetCachedInputTokens() &&
		totals.GetDecisions() == before.GetDecisions(), 6, "totals changed without a decision")
}

// folded folds the event and compares what only the state shows.
func (c *checker) folded(ev *runnerdv1.Event) {
	if c.fold == nil {
		return
	}
	c.digests(ev)
	if err := Apply(c.fold, ev); err != nil {
		c.violate(11, "%v", err)
		c.fold = nil // what follows says nothing any more
		return
	}
	history := c.fold.historyLen()
	c.hold(history >= c.maxHistory, 5, "the history shrinks from %d entries to %d", c.maxHistory, history)
	c.maxHistory = history
	c.hold(c.fold.ctl.ToolCalls == c.toolCalls, 7, "the state counts %d tool calls, the events %d", c.fold.ctl.ToolCalls, c.toolCalls)
}
