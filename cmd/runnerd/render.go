package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// renderer prints events as a person wants to see them: one line an event, with
// the time, the leg and iteration, a symbol, what happened and what there is to
// know about it. An approval stands out, with what will run and how to answer.
//
//	12:04:05.301  1.1  →  1.1 echo        allow, tier 0
type renderer struct {
	out   io.Writer
	style style
	zone  *time.Location
	now   func() time.Time
	width int       // of the terminal; 0: lines are not cut
	runs  bool      // several runs: each line names its run
	live  *liveLine // nil: signals are not shown
	asked bool      // the person is asked below: questions are not shown here
	here  bool      // the person answers here: the commands to do so are not shown
	// approval gets an approval with its exact arguments; an error leaves them out.
	approval func(ctx context.Context, run string, id uint64) (*runnerdv1.Approval, error)

	calls map[string]string // names of the open calls, by run and call id
}

// Columns, in characters.
const (
	whatWidth   = 22
	detailWidth = 160 // where lines are not cut to a terminal
)

// entry is what a line says.
type entry struct {
	symbol string
	paint  func(style, string) string
	what   string   // what happened; made safe by whoever fills it in
	detail string   // what there is to know; likewise
	below  []string // further lines, likewise
}

// event prints an event.
func (r *renderer) event(ctx context.Context, ev *runnerdv1.Event) error {
	e := r.describe(ctx, ev)
	head := ev.GetTime().AsTime().In(r.zone).Format("15:04:05.000") +
		fmt.Sprintf("  %-6s", fmt.Sprintf("%d.%d", ev.GetLeg(), ev.GetIteration()))
	if r.runs {
		head += fmt.Sprintf("  %-12s", shortLine(ev.GetRunId(), 12))
	}
	indent := columns(head) + 3
	room := detailWidth
	if r.width > 0 {
		room = max(r.width-indent-whatWidth-1, 20)
	}
	paint := e.paint
	if paint == nil {
		paint = func(_ style, s string) string { return s }
	}
	line := r.style.dim(head) + " " + paint(r.style, e.symbol) + " " +
		paint(r.style, pad(cut(e.what, whatWidth), whatWidth)) + " " + cut(e.detail, room)
	var text strings.Builder
	text.WriteString(strings.TrimRight(line, " ") + "\n")
	for _, below := range e.below {
		text.WriteString(strings.Repeat(" ", indent) + paint(r.style, "┃") + " " + below + "\n")
	}
	if r.live != nil {
		r.live.clear()
	}
	_, err := io.WriteString(r.out, text.String())
	return err
}

// signal shows something live.
func (r *renderer) signal(s *runnerdv1.Signal) {
	if r.live != nil {
		r.live.signal(s, r.callName(s.GetRunId(), s.GetToolProgress().GetCallId()))
	}
}

func (r *renderer) remember(ev *runnerdv1.Event, callID, name string) string {
	if r.calls == nil {
		r.calls = map[string]string{}
	}
	if name != "" {
		r.calls[ev.GetRunId()+"/"+callID] = name
	}
	return safeLine(callID + " " + name)
}

// callName names a call by its id and, if its request was seen, its tool.
func (r *renderer) callName(run, callID string) string {
	return safeLine(strings.TrimSpace(callID + " " + r.calls[run+"/"+callID]))
}

// closed names a call that has its outcome, and forgets it.
func (r *renderer) closed(ev *runnerdv1.Event, callID string) string {
	name := r.callName(ev.GetRunId(), callID)
	delete(r.calls, ev.GetRunId()+"/"+callID)
	return name
}

// join joins what is not empty.
func join(sep string, parts ...string) string {
	var some []string
	for _, p := range parts {
		if p != "" {
			some = append(some, p)
		}
	}
	return strings.Join(some, sep)
}
