package main

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// describe says what an event is about. Each string of it is safe to print.
func (r *renderer) describe(ctx context.Context, ev *runnerdv1.Event) entry {
	by := byText(ev)
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted:
		return entry{"▶", style.bold, "run started", join(" · ", safeLine("agent "+p.RunStarted.GetAgent()), by,
			quoted(p.RunStarted.GetTask(), p.RunStarted.GetTaskRef())), nil}
	case *runnerdv1.Event_RunResumed:
		return entry{"▶", style.bold, "run resumed", join(" · ", short(p.RunResumed.GetCause()), by,
			budgetText(p.RunResumed.GetBudget()), autoLimitsText(p.RunResumed.GetAutoModeLimits())), nil}
	case *runnerdv1.Event_RunRecovered:
		again := ""
		if p.RunRecovered.GetDecideAgain() {
			again = "the decide service is asked again"
		}
		return entry{"↻", style.yellow, "daemon restarted", again, nil}
	case *runnerdv1.Event_RunCompleted:
		return entry{"■", style.green, "run completed", join(" · ", usageText(p.RunCompleted.GetUsage()),
			quoted(p.RunCompleted.GetAnswer().GetContent(), p.RunCompleted.GetAnswer().GetContentRef())), nil}
	case *runnerdv1.Event_RunFailed:
		return describeRunFailed(p.RunFailed)
	case *runnerdv1.Event_RunPaused:
		return entry{"‖", style.yellow, "run paused", join(" · ", short(p.RunPaused.GetStopReason()),
			usageText(p.RunPaused.GetUsage())), nil}
	case *runnerdv1.Event_ToolsPinned:
		return describeToolsPinned(p.ToolsPinned)
	case *runnerdv1.Event_ToolHostUnavailable:
		return entry{"!", style.yellow, "tool host unavailable", safeLine(p.ToolHostUnavailable.GetHost() + ": " +
			p.ToolHostUnavailable.GetMessage()), nil}
	case *runnerdv1.Event_IterationStarted:
		return entry{"·", style.dim, fmt.Sprintf("iteration %d", p.IterationStarted.GetIteration()), "", nil}
	case *runnerdv1.Event_DecisionMade:
		return describeDecision(p.DecisionMade)
	case *runnerdv1.Event_DecisionInvalid:
		return entry{"✗", style.red, "decision invalid", safeLine(p.DecisionInvalid.GetCode() + ": " +
			p.DecisionInvalid.GetMessage()), nil}
	case *runnerdv1.Event_DecideRetried:
		return entry{"↻", style.yellow, "decide retried", join(" · ", fmt.Sprintf("attempt %d", p.DecideRetried.GetAttempt()),
			safeLine(p.DecideRetried.GetCode()+": "+p.DecideRetried.GetMessage()),
			retryText(ev, p.DecideRetried.GetRetryAt())), nil}
	case *runnerdv1.Event_BudgetWarning:
		return describeWarning(p.BudgetWarning)
	case *runnerdv1.Event_BudgetConfirmationRequested:
		return r.describeBudgetQuestion(ev, p.BudgetConfirmationRequested)
	case *runnerdv1.Event_BudgetPrompt:
		prompt := p.BudgetPrompt
		e := entry{"✓", style.green, "budget", join(" · ", "may go on", spentText(prompt), resolutionText(ev, prompt.GetResolution())), nil}
		if !prompt.GetApproved() {
			e = entry{"✗", style.red, "budget", join(" · ", "may not go on", spentText(prompt), resolutionText(ev, prompt.GetResolution())), nil}
		}
		return e
	case *runnerdv1.Event_BudgetReadOnlySuggested:
		return entry{"!", style.yellow, "budget used up", join(" · ", spentText(p.BudgetReadOnlySuggested),
			"only looking from now on would be wise"), nil}
	case *runnerdv1.Event_ContextWarning:
		w := p.ContextWarning
		return entry{"!", style.yellow, "context fills up", fmt.Sprintf("%d of %d tokens (%.4g %%)",
			w.GetTokens(), w.GetMaxContextTokens(), w.GetPercent()), nil}
	case *runnerdv1.Event_InputRequested:
		return entry{"?", style.yellow, "question", quoted(p.InputRequested.GetText(), p.InputRequested.GetTextRef()), []string{
			"runnerd input " + safeLine(ev.GetRunId()) + " \"…\"",
		}}
	case *runnerdv1.Event_InputReceived:
		return entry{"«", style.cyan, "input", join(" · ", by,
			quoted(p.InputReceived.GetText(), p.InputReceived.GetTextRef())), nil}
	case *runnerdv1.Event_CancelRequested:
		return entry{"×", style.red, "cancel requested", join(" · ", short(p.CancelRequested.GetMode()), by,
			safeLine(p.CancelRequested.GetReason())), nil}
	}
	return r.describeCall(ctx, ev)
}

func describeRunFailed(f *runnerdv1.RunFailed) entry {
	e := entry{"■", style.red, "run " + strings.ToLower(short(f.GetOutcome())), join(" · ", short(f.GetStopReason()),
		usageText(f.GetUsage()), shortLine(f.GetMessage(), detailWidth)), nil}
	if f.GetOutcome() == runnerdv1.Outcome_OUTCOME_INCOMPLETE || f.GetOutcome() == runnerdv1.Outcome_OUTCOME_BLOCKED {
		e.paint = style.yellow
	}
	if f.GetHint() != "" {
		e.below = []string{safeLine(f.GetHint())}
	}
	return e
}

func describeToolsPinned(p *runnerdv1.ToolsPinned) entry {
	e := entry{"·", style.dim, "tools pinned", count(p.GetTools(), "tool", "tools"), nil}
	for _, f := range p.GetFindings() {
		if f.GetSeverity() == runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR {
			e.paint = style.yellow
			e.below = append(e.below, safeLine(fmt.Sprintf("left out %s/%s: %s", f.GetHost(), f.GetTool(), f.GetMessage())))
		}
	}
	return e
}

func describeDecision(d *runnerdv1.DecisionMade) entry {
	what := map[runnerdv1.DecisionKind]string{
		runnerdv1.DecisionKind_DECISION_KIND_ANSWER:   "answer",
		runnerdv1.DecisionKind_DECISION_KIND_QUESTION: "question",
		runnerdv1.DecisionKind_DECISION_KIND_CALLS:    count(len(d.GetCallIds()), "call", "calls"),
	}[d.GetKind()]
	cost := ""
	if d.CostNanocents != nil {
		cost = cents(d.GetCostNanocents())
	}
	text := quoted(d.GetText(), d.GetTextRef())
	if d.GetKind() != runnerdv1.DecisionKind_DECISION_KIND_CALLS {
		text = "" // it stands in the event that follows
	}
	return entry{"◆", style.bold, "decided: " + what, join(" · ", durationText(d.GetDuration()), cost,
		tokensText(d.GetUsage()), answeredBy(d.GetAnsweredBy()), text), nil}
}

func describeWarning(w *runnerdv1.BudgetWarning) entry {
	if w.GetKind() == runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_COST_UNKNOWN {
		return entry{"!", style.yellow, "budget warning", fmt.Sprintf(
			"the decide service reports no cost: the cap of %.2f ¢ cannot be enforced", w.GetMaxCostCents()), nil}
	}
	if w.GetKind() == runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_LEVEL {
		return entry{"!", style.yellow, "budget warning", join(" · ", fmt.Sprintf("%d %% reached", w.GetLevel()), spentText(w)), nil}
	}
	return entry{"!", style.yellow, "budget warning", short(w.GetKind()), nil}
}

// spentText says how far the cost of a run has got.
func spentText(ev interface {
	GetPercent() float64
	GetCostNanocents() int64
	GetMaxCostCents() float64
},
) string {
	return fmt.Sprintf("%s of %.2f ¢ spent (%.4g %%)", cents(ev.GetCostNanocents()), ev.GetMaxCostCents(), ev.GetPercent())
}

// describeBudgetQuestion shows what a person is asked about the budget, and how
// to answer.
func (r *renderer) describeBudgetQuestion(ev *runnerdv1.Event, q *runnerdv1.BudgetConfirmationRequested) entry {
	e := entry{
		"?", func(s style, t string) string { return s.bold(s.yellow(t)) }, "budget",
		join(" · ", fmt.Sprintf("asks to go on, approval %d", ev.GetSequence()), spentText(q), r.untilText(q.GetExpiresAt())), nil,
	}
	if !r.asked {
		e.below = []string{waysToAnswer(ev.GetRunId(), ev.GetSequence(), r.style)}
	}
	return e
}

func annotationsText(a *runnerdv1.Annotations) string {
	if a == nil {
		return ""
	}
	word := func(value *bool, yes, no string) string {
		switch {
		case value == nil:
			return ""
		case *value:
			return yes
		}
		return no
	}
	risk := ""
	if a.GetSecurityTier() != "" {
		risk = safeLine("risk " + a.GetSecurityTier())
	}
	return join(", ", word(a.ReadOnly, "read-only", ""), word(a.Destructive, "destructive", "not destructive"),
		word(a.Idempotent, "idempotent", ""), word(a.Stateful, "remembers between calls", ""), risk)
}

// quoted shows the beginning of a text, or where it is.
func quoted(text string, ref *runnerdv1.ArtifactRef) string {
	if ref != nil {
		return safeLine(fmt.Sprintf("[%d bytes, artifact %s]", ref.GetSize(), ref.GetArtifactId()))
	}
	if text == "" {
		return ""
	}
	return shortLine(text, detailWidth)
}

func artifactsText(refs []*runnerdv1.ArtifactRef) string {
	if len(refs) == 0 {
		return ""
	}
	var size uint64
	for _, ref := range refs {
		size += ref.GetSize()
	}
	return fmt.Sprintf("%s, %d bytes", count(len(refs), "artifact", "artifacts"), size)
}

func resolutionText(ev *runnerdv1.Event, res *runnerdv1.Resolution) string {
	if res == nil {
		return ""
	}
	id := ""
	if res.GetApprovalId() != 0 {
		id = fmt.Sprintf("approval %d", res.GetApprovalId())
	}
	return join(" · ", join(" ", id, byText(ev), "via "+short(res.GetVia())), shortLine(res.GetReason(), detailWidth))
}

// byText names who caused an event; nobody is runnerd itself.
func byText(ev *runnerdv1.Event) string {
	if ev.GetPrincipal() == "" {
		return ""
	}
	return "by " + safeLine(ev.GetPrincipal())
}

// answeredBy names the service that answered, as its certificate says.
func answeredBy(identity string) string {
	if identity == "" {
		return ""
	}
	return "from " + safeLine(identity)
}

// usageText is what a run cost so far. What was not reported is unknown, not 0.
func usageText(u *runnerdv1.UsageTotals) string {
	if u.GetDecisions() == 0 {
		return ""
	}
	cost := cents(u.GetCostNanocents())
	switch u.GetDecisionsWithoutCost() {
	case 0:
	case u.GetDecisions():
		cost = "cost unknown"
	default:
		cost = "at least " + cost
	}
	tokens := ""
	if u.GetDecisionsWithoutUsage() < u.GetDecisions() {
		tokens = fmt.Sprintf("%d+%d tokens", u.GetInputTokens(), u.GetOutputTokens())
	}
	return join(", ", count(u.GetDecisions(), "decision", "decisions"), cost, tokens)
}

func tokensText(u *runnerdv1.Usage) string {
	if u.GetInputTokens() == 0 && u.GetOutputTokens() == 0 {
		return ""
	}
	return fmt.Sprintf("%d+%d tokens", u.GetInputTokens(), u.GetOutputTokens())
}

func budgetText(b *runnerdv1.Budget) string {
	if b == nil {
		return ""
	}
	return fmt.Sprintf("%d iterations, %d calls, %.2f ¢", b.GetMaxIterations(), b.GetMaxToolCalls(), b.GetMaxCostCents())
}

func autoLimitsText(l *runnerdv1.AutoModeLimits) string {
	if l == nil {
		return ""
	}
	return fmt.Sprintf("auto mode: %d iterations, %d calls, %.2f ¢, %s", l.GetMaxIterations(), l.GetMaxToolCalls(),
		l.GetMaxCostCents(), lasted(l.GetMaxDuration().AsDuration()))
}

func durationText(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return lasted(d.AsDuration())
}

func retryText(ev *runnerdv1.Event, at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	if wait := at.AsTime().Sub(ev.GetTime().AsTime()); wait > 0 {
		return "in " + lasted(wait)
	}
	return ""
}
