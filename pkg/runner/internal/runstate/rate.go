package runstate

import (
	"fmt"
	"slices"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// toolStarts are the starts of calls of one tool that its rate limit still looks at, oldest first: at most as many as
// the limit allows.
type toolStarts struct {
	Host, Tool string
	At         []time.Time
}

// startsOf returns the starts of a tool; nil: none is remembered.
func (st *State) startsOf(host, tool string) *toolStarts {
	for _, s := range st.ctl.Starts {
		if s.Host == host && s.Tool == tool {
			return s
		}
	}
	return nil
}

// rememberStart keeps the start of a call whose tool has a rate limit.
func (st *State) rememberStart(c *call, now time.Time) {
	if c.RateLimit == nil {
		return
	}
	s := st.startsOf(c.Host, c.Tool)
	if s == nil {
		s = &toolStarts{Host: c.Host, Tool: c.Tool}
		st.ctl.Starts = append(st.ctl.Starts, s)
	}
	s.At = within(append(s.At, now), c.RateLimit, now)
}

// within drops the starts that a limit does not look at any more.
func within(starts []time.Time, limit *runnerdv1.RateLimit, now time.Time) []time.Time {
	per := limit.GetPer().AsDuration()
	starts = slices.DeleteFunc(starts, func(at time.Time) bool { return now.Sub(at) >= per })
	return starts[max(0, len(starts)-int(limit.GetMaxCalls())):]
}

// nextStart returns when the rate limit of a tool, of which calls were started at these times, lets another start;
// limited is false if that is now.
func nextStart(starts []time.Time, limit *runnerdv1.RateLimit, now time.Time) (at time.Time, limited bool) {
	most := int(limit.GetMaxCalls())
	if limit == nil || len(starts) < most {
		return time.Time{}, false
	}
	at = starts[len(starts)-most].Add(limit.GetPer().AsDuration())
	return at, now.Before(at)
}

// rateLimited closes a call whose turn it is and whose tool has been called as often as it may for now. It reports
// whether it did. Nothing was sent, so that no tool call is counted; it is a failure like that of a check.
func (t *advance) rateLimited(c *call) bool {
	if c.RateLimit == nil {
		return false
	}
	s := t.st.startsOf(c.Host, c.Tool)
	if s == nil {
		return false
	}
	at, limited := nextStart(s.At, c.RateLimit, t.now)
	if !limited {
		return false
	}
	wait := (at.Sub(t.now) + time.Second - 1).Truncate(time.Second)
	calls := "calls"
	if c.RateLimit.GetMaxCalls() == 1 {
		calls = "call"
	}
	t.outcome(c, Result{
		Reason: runnerdv1.CallReason_CALL_REASON_RATE_LIMITED,
		Text: fmt.Sprintf("not run: at most %d %s of %q may start within %s; it may be called again in %s, at %s",
			c.RateLimit.GetMaxCalls(), calls, c.ToolName, c.RateLimit.GetPer().AsDuration(), wait, at.UTC().Format(time.RFC3339)),
	}, outcomeOf{})
	return true
}

// mayBeRateLimited reports whether a call that was not started can fail by the rate limit of its tool.
func (c *call) mayBeRateLimited(reason runnerdv1.CallReason) bool {
	ready := c.Status == callApproved || c.Status == callRequested && c.Verdict == runnerdv1.Verdict_VERDICT_ALLOW
	return reason == runnerdv1.CallReason_CALL_REASON_RATE_LIMITED && c.RateLimit != nil && ready
}
