package runstate

import (
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// rateStarted judges the start of a call by the rate limit of its tool, and remembers it.
func (c *checker) rateStarted(r *runnerdv1.ToolCallRequested) {
	limit := r.GetRateLimit()
	if limit == nil {
		return
	}
	of, now := ownName{r.GetHost(), r.GetTool()}, c.ev.GetTime().AsTime()
	at, limited := nextStart(c.starts[of], limit, now)
	c.hold(!limited, 4, "call %s starts at %s, and its rate limit lets it start at %s", r.GetCallId(), now, at)
	if c.starts == nil {
		c.starts = make(map[ownName][]time.Time)
	}
	c.starts[of] = within(append(c.starts[of], now), limit, now)
}

// neverStarted judges the failure of a call that was never started: it failed its checks, or its turn came when its
// tool had been called as often as it may.
func (c *checker) neverStarted(call *callCheck, f *runnerdv1.ToolCallFailed) {
	r := call.requested
	id := r.GetCallId()
	c.hold(f.GetAttempt() == 0, 0, "attempt %d of a call that was never started", f.GetAttempt())
	if f.GetReason() == runnerdv1.CallReason_CALL_REASON_RATE_LIMITED {
		_, limited := nextStart(c.starts[ownName{r.GetHost(), r.GetTool()}], r.GetRateLimit(), c.ev.GetTime().AsTime())
		c.hold(limited, 0, "call %s fails by a rate limit that is not reached", id)
		c.hold(call.approved != nil || r.GetVerdict() == runnerdv1.Verdict_VERDICT_ALLOW, 0, "call %s fails before it may start", id)
	} else {
		c.hold(r.GetVerdict() == runnerdv1.Verdict_VERDICT_FAILED, 3, "call %s fails and was never started", id)
	}
	c.hold(!call.approval.open(), 9, "approval %d is not closed", call.approval.id)
	call.done, call.approval, call.approved = true, approvalCheck{}, nil
}
