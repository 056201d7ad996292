package runstate

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// short is an enum value without the name of its enum.
func short(v fmt.Stringer, prefix string) string {
	return strings.TrimPrefix(v.String(), prefix+"_")
}

// describeEvent shows an event in one line.
func describeEvent(ev *runnerdv1.Event) string {
	line := fmt.Sprintf("%d %s", ev.GetSequence(), ev.GetType())
	if detail := describePayload(ev); detail != "" {
		line += " " + detail
	}
	if ev.GetPrincipal() != "" {
		line += " by " + ev.GetPrincipal()
	}
	return line
}

func describePayload(ev *runnerdv1.Event) string {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted:
		return ""
	case *runnerdv1.Event_RunResumed:
		detail := fmt.Sprintf("leg=%d cause=%s", ev.GetLeg(), short(p.RunResumed.GetCause(), "RESUME_CAUSE"))
		if p.RunResumed.GetBudget() != nil {
			detail += " budget"
		}
		if p.RunResumed.GetAutoModeLimits() != nil {
			detail += " auto_mode_limits"
		}
		return detail
	case *runnerdv1.Event_RunRecovered:
		detail := fmt.Sprintf("epoch=%d", p.RunRecovered.GetEpoch())
		if p.RunRecovered.GetDecideAgain() {
			detail += " decide_again"
		}
		return detail
	case *runnerdv1.Event_RunCompleted:
		return fmt.Sprintf("%s %q", short(p.RunCompleted.GetStopReason(), "STOP_REASON"), p.RunCompleted.GetAnswer().GetContent())
	case *runnerdv1.Event_RunFailed:
		detail := fmt.Sprintf("%s %s %s", short(p.RunFailed.GetStopReason(), "STOP_REASON"),
			short(p.RunFailed.GetOutcome(), "OUTCOME"), Status(p.RunFailed.GetStopReason()))
		if p.RunFailed.GetAnswer() != nil {
			detail += fmt.Sprintf(" %q", p.RunFailed.GetAnswer().GetContent())
		}
		return detail
	case *runnerdv1.Event_RunPaused:
		return fmt.Sprintf("%s %v", short(p.RunPaused.GetStopReason(), "STOP_REASON"), p.RunPaused.GetApprovalIds())
	case *runnerdv1.Event_ToolsPinned:
		return fmt.Sprint(p.ToolsPinned.GetTools())
	case *runnerdv1.Event_ToolHostUnavailable:
		return p.ToolHostUnavailable.GetHost()
	case *runnerdv1.Event_IterationStarted:
		return fmt.Sprint(p.IterationStarted.GetIteration())
	case *runnerdv1.Event_DecisionMade:
		d := p.DecisionMade
		detail := strings.ToLower(short(d.GetKind(), "DECISION_KIND"))
		if len(d.GetCallIds()) > 0 {
			detail += " " + strings.Join(d.GetCallIds(), ",")
		}
		return fmt.Sprintf("%s attempt=%d", detail, d.GetAttempt())
	case *runnerdv1.Event_DecisionInvalid:
		return fmt.Sprintf("%s attempt=%d", p.DecisionInvalid.GetCode(), p.DecisionInvalid.GetAttempt())
	case *runnerdv1.Event_DecideRetried:
		return fmt.Sprintf("attempt=%d %s at %s", p.DecideRetried.GetAttempt(), p.DecideRetried.GetCode(), seconds(p.DecideRetried.GetRetryAt()))
	case *runnerdv1.Event_BudgetWarning:
		w := p.BudgetWarning
		if w.GetKind() == runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_LEVEL {
			return fmt.Sprintf("LEVEL %d %s", w.GetLevel(), spent(w))
		}
		return short(w.GetKind(), "BUDGET_WARNING_KIND")
	case *runnerdv1.Event_BudgetReadOnlySuggested:
		return spent(p.BudgetReadOnlySuggested)
	case *runnerdv1.Event_BudgetConfirmationRequested:
		q := p.BudgetConfirmationRequested
		return fmt.Sprintf("%d %s%s", q.GetLevel(), spent(q), until(q.GetExpiresAt()))
	case *runnerdv1.Event_BudgetPrompt:
		return fmt.Sprintf("approved=%t %s%s", p.BudgetPrompt.GetApproved(), spent(p.BudgetPrompt), resolved(p.BudgetPrompt.GetResolution()))
	case *runnerdv1.Event_ContextWarning:
		w := p.ContextWarning
		return fmt.Sprintf("%d of %d %.4g%%", w.GetTokens(), w.GetMaxContextTokens(), w.GetPercent())
	case *runnerdv1.Event_InputRequested:
		return fmt.Sprintf("%q", p.InputRequested.GetText())
	case *runnerdv1.Event_InputReceived:
		return fmt.Sprintf("%q question=%d", p.InputReceived.GetText(), p.InputReceived.GetQuestionSequence())
	case *runnerdv1.Event_GrantRevoked:
		return fmt.Sprint(p.GrantRevoked.GetGrantId())
	case *runnerdv1.Event_CancelRequested:
		return short(p.CancelRequested.GetMode(), "CANCEL_MODE")
	default:
		return describeCall(ev)
	}
}

// spent shows how far the cost has got.
func spent(ev interface {
	GetPercent() float64
	GetCostCents() float64
	GetMaxCostCents() float64
},
) string {
	return fmt.Sprintf("%.4g%% %g/%g", ev.GetPercent(), ev.GetCostCents(), ev.GetMaxCostCents())
}

func describeCall(ev *runnerdv1.Event) string {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_ToolCallRequested:
		r := p.ToolCallRequested
		detail := fmt.Sprintf("%s %s %s", r.GetCallId(), r.GetToolName(), strings.ToLower(short(r.GetVerdict(), "VERDICT")))
		if r.GetGate() != "" && r.GetRule() != "no_objection" {
			detail += " " + r.GetGate()
		}
		return detail
	case *runnerdv1.Event_ToolCallPendingApproval:
		return p.ToolCallPendingApproval.GetCallId() + until(p.ToolCallPendingApproval.GetExpiresAt())
	case *runnerdv1.Event_ToolCallApproved:
		a := p.ToolCallApproved
		detail := a.GetCallId() + resolved(a.GetResolution())
		if a.GetGrantId() != 0 {
			detail += fmt.Sprintf(" of=%d", a.GetGrantId())
		}
		if a.EditedArgumentsJson != nil {
			detail += " runs " + a.GetEditedArgumentsJson()
		}
		if g := a.GetGrant(); g != nil {
			detail += " grants " + short(g.GetScope(), "GRANT_SCOPE")
			if g.GetProgram() != "" {
				detail += " " + g.GetProgram()
			}
		}
		return detail
	case *runnerdv1.Event_ToolCallDenied:
		d := p.ToolCallDenied
		return fmt.Sprintf("%s %s%s", d.GetCallId(), short(d.GetReason(), "CALL_REASON"), resolved(d.GetResolution()))
	case *runnerdv1.Event_ToolCallBlocked:
		return fmt.Sprintf("%s %s", p.ToolCallBlocked.GetCallId(), short(p.ToolCallBlocked.GetReason(), "CALL_REASON"))
	case *runnerdv1.Event_ToolCallStarted:
		detail := fmt.Sprintf("%s attempt=%d", p.ToolCallStarted.GetCallId(), p.ToolCallStarted.GetAttempt())
		if id := p.ToolCallStarted.GetApprovalId(); id != 0 {
			detail += fmt.Sprintf(" approval=%d", id)
		}
		return detail
	case *runnerdv1.Event_ToolCallRetried:
		r := p.ToolCallRetried
		detail := fmt.Sprintf("%s attempt=%d %s", r.GetCallId(), r.GetAttempt(), short(r.GetCause(), "LOST_CAUSE"))
		if r.GetRetryAt().AsTime() != ev.GetTime().AsTime() {
			detail += " later"
		}
		return detail + resolved(r.GetResolution())
	case *runnerdv1.Event_ToolCallInDoubt:
		d := p.ToolCallInDoubt
		return fmt.Sprintf("%s attempt=%d %s %s%s", d.GetCallId(), d.GetAttempt(), short(d.GetCause(), "LOST_CAUSE"),
			strings.ToLower(short(d.GetNext(), "IN_DOUBT_NEXT")), until(d.GetExpiresAt()))
	case *runnerdv1.Event_ToolCallCompleted:
		d := p.ToolCallCompleted
		detail := fmt.Sprintf("%s attempt=%d", d.GetCallId(), d.GetAttempt())
		if d.GetReconciled() {
			detail += " reconciled"
		}
		return detail + resolved(d.GetResolution())
	case *runnerdv1.Event_ToolCallFailed:
		d := p.ToolCallFailed
		detail := fmt.Sprintf("%s attempt=%d %s", d.GetCallId(), d.GetAttempt(), short(d.GetReason(), "CALL_REASON"))
		if d.GetReconciled() {
			detail += " reconciled"
		}
		return detail + resolved(d.GetResolution())
	default:
		return "?"
	}
}

func resolved(r *runnerdv1.Resolution) string {
	if r == nil {
		return ""
	}
	return fmt.Sprintf(" approval=%d via=%s", r.GetApprovalId(), short(r.GetVia(), "VIA"))
}

func until(at *timestamppb.Timestamp) string {
	if at == nil {
		return ""
	}
	return " until " + seconds(at)
}

// seconds is a time as the time since the test runs started.
func seconds(at *timestamppb.Timestamp) string { return since(at.AsTime()) }

func since(at time.Time) string { return at.Sub(timeZero).Round(100 * time.Millisecond).String() }
