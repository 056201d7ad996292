package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// describeCall says what an event of a call is about.
func (r *renderer) describeCall(ctx context.Context, ev *runnerdv1.Event) entry {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_ToolCallRequested:
		return r.describeRequested(ev, p.ToolCallRequested)
	case *runnerdv1.Event_ToolCallPendingApproval:
		pending := p.ToolCallPendingApproval
		return r.describeQuestion(ctx, ev, pending.GetCallId(), "waits for approval",
			askedBy(pending.GetGate(), pending.GetLayer(), pending.GetRule()), pending.GetExpiresAt())
	case *runnerdv1.Event_ToolCallApproved:
		return r.describeApproved(ev, p.ToolCallApproved)
	case *runnerdv1.Event_GrantRevoked:
		return entry{"×", style.yellow, "grant revoked", join(" · ", fmt.Sprintf("grant %d", p.GrantRevoked.GetGrantId()), byText(ev),
			shortLine(p.GrantRevoked.GetReason(), detailWidth)), nil}
	case *runnerdv1.Event_ToolCallDenied:
		denied := p.ToolCallDenied
		return entry{"✗", style.red, r.closed(ev, denied.GetCallId()), join(" · ", "denied", short(denied.GetReason()),
			resolutionText(ev, denied.GetResolution())), nil}
	case *runnerdv1.Event_ToolCallBlocked:
		blocked := p.ToolCallBlocked
		return entry{"✗", style.red, r.closed(ev, blocked.GetCallId()), join(" · ", "blocked", short(blocked.GetReason()),
			askedBy(blocked.GetGate(), blocked.GetLayer(), blocked.GetRule()), shortLine(blocked.GetMessage(), detailWidth)), nil}
	case *runnerdv1.Event_ToolCallStarted:
		started := p.ToolCallStarted
		return entry{
			"▸", style.cyan, r.remember(ev, started.GetCallId(), started.GetToolName()),
			"started at " + safeLine(started.GetHost()), nil,
		}
	case *runnerdv1.Event_ToolCallRetried:
		retried := p.ToolCallRetried
		return entry{"↻", style.yellow, r.callName(ev.GetRunId(), retried.GetCallId()), join(" · ",
			fmt.Sprintf("attempt %d", retried.GetAttempt()), short(retried.GetCause()), safeLine(retried.GetMessage()),
			retryText(ev, retried.GetRetryAt()), resolutionText(ev, retried.GetResolution())), nil}
	case *runnerdv1.Event_ToolCallInDoubt:
		return r.describeInDoubt(ctx, ev, p.ToolCallInDoubt)
	case *runnerdv1.Event_ToolCallCompleted:
		done := p.ToolCallCompleted
		reconciled := ""
		if done.GetReconciled() {
			reconciled = "found by asking the host"
		}
		return entry{"✓", style.green, r.closed(ev, done.GetCallId()), join(" · ", durationText(done.GetDuration()), reconciled,
			answeredBy(done.GetAnsweredBy()),
			quoted(done.GetText(), nil), artifactsText(done.GetArtifacts()), resolutionText(ev, done.GetResolution())), nil}
	case *runnerdv1.Event_ToolCallFailed:
		failed := p.ToolCallFailed
		return entry{"✗", style.red, r.closed(ev, failed.GetCallId()), join(" · ", durationText(failed.GetDuration()),
			short(failed.GetReason()), safeLine(failed.GetCode()), answeredBy(failed.GetAnsweredBy()), shortLine(failed.GetMessage(), detailWidth),
			artifactsText(failed.GetArtifacts()), resolutionText(ev, failed.GetResolution())), nil}
	}
	// A kind this program does not know yet is shown by its name.
	return entry{"·", nil, safeLine(ev.GetType()), "", nil}
}

func (r *renderer) describeRequested(ev *runnerdv1.Event, q *runnerdv1.ToolCallRequested) entry {
	arguments := q.GetArgumentsRaw()
	if q.ArgumentsJson != nil {
		arguments = q.GetArgumentsJson()
	}
	rule := "" // what lets a call pass is of interest to policy explain only
	if q.GetVerdict() != runnerdv1.Verdict_VERDICT_ALLOW {
		rule = askedBy(q.GetGate(), q.GetLayer(), q.GetRule())
	}
	e := entry{"→", nil, r.remember(ev, q.GetCallId(), q.GetToolName()), join(" · ",
		strings.ToLower(short(q.GetVerdict())), fmt.Sprintf("tier %d", q.GetTier()), rule,
		quoted(arguments, q.GetArgumentsRef())), nil}
	if q.GetVerdict() == runnerdv1.Verdict_VERDICT_FAILED || q.GetVerdict() == runnerdv1.Verdict_VERDICT_BLOCK {
		e.paint = style.red
	}
	return e
}

// describeApproved says who or what let a call pass, what else that lets pass,
// and whether something else runs than what the model wrote.
func (r *renderer) describeApproved(ev *runnerdv1.Event, p *runnerdv1.ToolCallApproved) entry {
	how := resolutionText(ev, p.GetResolution())
	switch {
	case p.GetResolution().GetVia() == runnerdv1.Via_VIA_GRANT:
		how = fmt.Sprintf("by grant %d of %s", p.GetGrantId(), safeLine(p.GetApprovedBy()))
	case p.GetResolution().GetVia() == runnerdv1.Via_VIA_AUTO:
		how = "by auto mode"
	}
	edited := ""
	if p.EditedArgumentsJson != nil || p.GetEditedArgumentsRef() != nil {
		edited = join(" ", "with other arguments", quoted(p.GetEditedArgumentsJson(), p.GetEditedArgumentsRef()))
	}
	e := entry{"✓", style.green, r.callName(ev.GetRunId(), p.GetCallId()), join(" · ", "approved", how, edited), nil}
	if g := p.GetGrant(); g != nil {
		e.below = []string{fmt.Sprintf("grant %d: does not ask again %s", g.GetGrantId(),
			grantCovers(g.GetScope(), g.GetHost(), g.GetTool(), g.GetProgram()))}
	}
	return e
}

// describeQuestion shows what a person is asked about a call: the exact
// arguments, and how to answer. The sequence of the event is the approval id.
func (r *renderer) describeQuestion(
	ctx context.Context, ev *runnerdv1.Event, callID, what, asked string, expires *timestamppb.Timestamp,
) entry {
	id := ev.GetSequence()
	e := entry{
		"?", func(s style, t string) string { return s.bold(s.yellow(t)) },
		r.callName(ev.GetRunId(), callID), join(" · ", fmt.Sprintf("%s %d", what, id), r.untilText(expires), asked), nil,
	}
	if r.asked {
		return e
	}
	ways := []string{waysToAnswer(ev.GetRunId(), id, r.style)}
	if r.approval != nil {
		if a, err := r.approval(ctx, ev.GetRunId(), id); err == nil {
			e.below = questionLines(a, brief, r.style)
			if a.GetVia() != runnerdv1.Via_VIA_UNSPECIFIED {
				return e // answered since; the answer follows
			}
			ways = answerLines(a, r.style)
		}
	}
	if len(e.below) == 0 {
		e.below = append(e.below, "what will run is shown to approvers: runnerd approvals")
	}
	if !r.here {
		e.below = append(e.below, ways...)
	}
	return e
}

// untilText says when a question is answered by its timeout.
func (r *renderer) untilText(expires *timestamppb.Timestamp) string {
	if expires == nil {
		return ""
	}
	text := "until " + expires.AsTime().In(r.zone).Format("15:04:05")
	if left := expires.AsTime().Sub(r.now()).Round(time.Second); left > 0 {
		text += " (" + left.String() + ")"
	}
	return text
}

func (r *renderer) describeInDoubt(ctx context.Context, ev *runnerdv1.Event, d *runnerdv1.ToolCallInDoubt) entry {
	if d.GetNext() == runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
		return r.describeQuestion(ctx, ev, d.GetCallId(), "in doubt, asks", "", d.GetExpiresAt())
	}
	return entry{"?", style.yellow, r.callName(ev.GetRunId(), d.GetCallId()), join(" · ", "in doubt", short(d.GetCause()),
		safeLine(d.GetMessage()), "next: "+strings.ToLower(short(d.GetNext()))), nil}
}
