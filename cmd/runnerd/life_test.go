package main

import (
	"fmt"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// lifeOfARun is the log of a real run with one approval, one line a commit.
// Events of one append share a position.
func lifeOfARun(t *testing.T, _ string) string {
	t.Helper()
	d := startDaemon(t, "", "127.0.0.1:0")
	// The catalogue of the agent is fetched once, so that it does not take a commit of its own here.
	d.run(t, "run", "--id", "before", "say hello").must(t, exitOK)
	d.idle(t, "before")
	d.run(t, "run", "--id", "lunch", "announce lunch").must(t, exitOK)
	d.idle(t, "lunch")
	d.run(t, "approve", "lunch").must(t, exitOK)
	d.idle(t, "lunch")

	var out strings.Builder
	position, commit := uint64(0), 0
	events := d.run(t, "watch", "lunch", "-o", "json", "--raw").must(t, exitOK).out
	for _, m := range messages(t, events, func() *runnerdv1.StreamEventsResponse { return &runnerdv1.StreamEventsResponse{} }) {
		ev := m.GetEvent()
		if ev.GetPosition() != position {
			position = ev.GetPosition()
			commit++
			fmt.Fprintf(&out, "commit %d\n", commit)
		}
		fmt.Fprintf(&out, "  %2d  %-26s %s\n", ev.GetSequence(), ev.GetType(), lifeDetail(ev))
	}
	return "```\n" + strings.ReplaceAll(out.String(), " \n", "\n") + "```\n"
}

// lifeDetail says the part of an event that is the same whenever the run is made.
func lifeDetail(ev *runnerdv1.Event) string {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted:
		return "agent " + p.RunStarted.GetAgent() + ", task " + p.RunStarted.GetTask()
	case *runnerdv1.Event_ToolsPinned:
		return count(p.ToolsPinned.GetTools(), "tool", "tools")
	case *runnerdv1.Event_IterationStarted:
		return fmt.Sprint(p.IterationStarted.GetIteration())
	case *runnerdv1.Event_DecisionMade:
		return short(p.DecisionMade.GetKind())
	case *runnerdv1.Event_ToolCallRequested:
		r := p.ToolCallRequested
		return join(", ", r.GetCallId()+" "+r.GetToolName()+r.GetArgumentsRaw(), short(r.GetVerdict()), r.GetRule())
	case *runnerdv1.Event_ToolCallPendingApproval:
		return p.ToolCallPendingApproval.GetCallId() + ", approval " + fmt.Sprint(ev.GetSequence())
	case *runnerdv1.Event_ToolCallApproved:
		return fmt.Sprintf("%s, approval %d, %s via %s", p.ToolCallApproved.GetCallId(),
			p.ToolCallApproved.GetResolution().GetApprovalId(), ev.GetPrincipal(), short(p.ToolCallApproved.GetResolution().GetVia()))
	case *runnerdv1.Event_ToolCallStarted:
		return fmt.Sprintf("%s, attempt %d, key %s", p.ToolCallStarted.GetCallId(), p.ToolCallStarted.GetAttempt(),
			p.ToolCallStarted.GetIdempotencyKey())
	case *runnerdv1.Event_ToolCallCompleted:
		return p.ToolCallCompleted.GetCallId() + " " + p.ToolCallCompleted.GetText()
	case *runnerdv1.Event_RunCompleted:
		return short(p.RunCompleted.GetStopReason())
	}
	return ""
}
