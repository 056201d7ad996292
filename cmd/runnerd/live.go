package main

import (
	"fmt"
	"io"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// liveLine is the last line of a terminal, which shows what is in progress and
// is written over. Elsewhere each signal gets a line of its own.
type liveLine struct {
	out   io.Writer
	style style
	width int // of the terminal; 0: no terminal
	shown bool
	text  string // the end of what the model has said so far
	step  string // what the text belongs to
}

// keptText bounds the text that is kept, in bytes.
const keptText = 4096

// signal shows a signal. call names the call that a tool progress belongs to.
func (l *liveLine) signal(s *runnerdv1.Signal, call string) {
	if step := fmt.Sprintf("%s/%d/%d", s.GetRunId(), s.GetIteration(), s.GetAttempt()); step != l.step {
		l.step, l.text = step, ""
	}
	switch p := s.GetPayload().(type) {
	case *runnerdv1.Signal_TextDelta:
		l.text += p.TextDelta.GetText()
		if len(l.text) > keptText {
			l.text = l.text[len(l.text)-keptText:]
		}
		if l.width == 0 {
			l.show("… " + shortLine(p.TextDelta.GetText(), detailWidth))
			return
		}
		l.show("… " + tail(safeLine(l.text), l.width-3))
	case *runnerdv1.Signal_ToolProgress:
		done := ""
		if p.ToolProgress.Fraction != nil {
			done = fmt.Sprintf("%.0f %%", 100*p.ToolProgress.GetFraction())
		}
		l.show("… " + join(" · ", call, done, shortLine(p.ToolProgress.GetMessage(), detailWidth)))
	case *runnerdv1.Signal_Heartbeat:
		elapsed := p.Heartbeat.GetElapsed().AsDuration().Round(time.Second).String()
		if l.text != "" { // what the model says tells more than that it is busy
			l.show("… " + elapsed + " · " + tail(safeLine(l.text), l.width-len(elapsed)-6))
			return
		}
		l.show("… " + safeLine(p.Heartbeat.GetEffect()) + " " + elapsed)
	}
}

// show writes text, which is safe already, over what was shown.
func (l *liveLine) show(text string) {
	if l.width == 0 {
		fmt.Fprintln(l.out, l.style.dim(text))
		return
	}
	fmt.Fprint(l.out, "\r\x1b[K"+l.style.dim(cut(text, l.width-1)))
	l.shown = true
}

// clear takes the line away, so that something that stays can be printed.
func (l *liveLine) clear() {
	if l.shown {
		fmt.Fprint(l.out, "\r\x1b[K")
		l.shown = false
	}
}
