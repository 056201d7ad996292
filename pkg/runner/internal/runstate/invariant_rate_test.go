package runstate

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// limitedHistory is a run that a required host let begin only the second time, and whose third call of a tool with a
// rate limit of two failed by that.
func limitedHistory(t *testing.T) *world {
	t.Helper()
	spec := newSpec()
	spec.RequiredHosts, spec.Policy = []string{"bank"}, askFor("list")
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue(), Unavailable: []*runnerdv1.ToolHostUnavailable{{Host: "bank", Message: "refused"}}})
	w.do(Resume{Principal: "owner"})
	w.do(Pinned{Catalogue: newCatalogue(), Unavailable: []*runnerdv1.ToolHostUnavailable{{Host: "shop", Message: "refused"}}})
	w.do(w.decided("list", "list", "list"))
	for range 3 {
		w.do(w.vote(w.open(), approve))
	}
	w.finish("1.1", 1)
	w.finish("1.2", 1)
	w.now = w.now.Add(30 * time.Second)
	w.do(w.decided("list"))
	w.do(w.vote(w.open(), approve))
	w.finish("2.1", 1)
	w.do(w.decision(answerDecision("done")))
	if !w.st.Final() {
		t.Fatalf("the run is not at its end\n%s", w)
	}
	return w
}

func TestCheckRateAndRequiredHosts(t *testing.T) {
	t.Parallel()
	w := limitedHistory(t)
	for name, tc := range map[string]struct {
		invariant int // -1: none
		folded    bool
		breaks    func(h *history)
	}{
		"good": {-1, false, func(*history) {}},
		"a call starts over its limit": {4, false, func(h *history) {
			i, _ := h.nth("tool_call_started", 3)
			for _, ev := range h.events[:i] { // all starts at about the same time
				ev.Time = h.events[i].GetTime()
			}
		}},
		"a limit that is not reached": {0, false, func(h *history) {
			for _, ev := range h.events {
				if r := ev.GetToolCallRequested(); r != nil {
					r.RateLimit.MaxCalls = 3
				}
			}
		}},
		"a tool that has no limit": {0, false, func(h *history) {
			for _, ev := range h.events {
				if r := ev.GetToolCallRequested(); r != nil {
					r.RateLimit = nil
				}
			}
		}},
		"before it may start": {9, false, func(h *history) {
			i, _ := h.nth("tool_call_approved", 3)
			h.drop(i)
		}},
		"for another reason": {3, false, func(h *history) {
			h.first("tool_call_failed").GetToolCallFailed().Reason = runnerdv1.CallReason_CALL_REASON_TOOL_ERROR
		}},
		"an attempt of what was not started": {0, false, func(h *history) {
			h.first("tool_call_failed").GetToolCallFailed().Attempt = 1
		}},
		"a required host is missed and the run begins": {0, true, func(h *history) {
			i, _ := h.nth("tools_pinned", 1)
			h.events[i-1].GetToolHostUnavailable().Host = "bank"
		}},
		"a host is missed later": {0, false, func(h *history) {
			i, _ := h.nth("tools_pinned", 1)
			h.insert(i, h.first("tool_host_unavailable"))
		}},
		"an iteration without tools": {0, false, func(h *history) {
			i, _ := h.nth("tools_pinned", 1)
			h.drop(i)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &history{t: t}
			for _, ev := range w.events {
				h.events = append(h.events, proto.CloneOf(ev))
			}
			tc.breaks(h)
			for folded, opt := range map[bool]CheckOptions{true: {Env: w.env}, false: {}} {
				found := Check(slices.Values(h.events), opt)
				seen := slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == tc.invariant })
				switch {
				case tc.invariant < 0 && len(found) > 0:
					t.Errorf("folded %t: found %v\n%s", folded, found, w)
				case tc.invariant >= 0 && !seen && (folded || !tc.folded):
					t.Errorf("folded %t: not seen; found %v", folded, found)
				}
			}
		})
	}
}

func TestNextStart(t *testing.T) {
	t.Parallel()
	limit := &runnerdv1.RateLimit{MaxCalls: 2}
	at := func(seconds ...int) (list []time.Time) {
		for _, s := range seconds {
			list = append(list, timeZero.Add(time.Duration(s)*time.Second))
		}
		return list
	}
	limit.Per = newCatalogue().Lookup("list").GetRateLimit().GetPer()
	for name, tc := range map[string]struct {
		starts  []time.Time
		now     int
		limited bool
		next    int
	}{
		"none":                         {nil, 0, false, 0},
		"one":                          {at(0), 0, false, 0},
		"two":                          {at(0, 5), 6, true, 30},
		"just before the first is out": {at(0, 5), 29, true, 30},
		"the first is out":             {at(0, 5), 30, false, 0},
		"more than the limit keeps":    {at(0, 5, 10), 30, true, 35},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := timeZero.Add(time.Duration(tc.now) * time.Second)
			next, limited := nextStart(tc.starts, limit, now)
			if limited != tc.limited || limited && next.Sub(timeZero) != time.Duration(tc.next)*time.Second {
				t.Errorf("limited %t until %s", limited, next)
			}
			if kept := within(slices.Clone(tc.starts), limit, now); len(kept) > 2 {
				t.Errorf("%d starts are kept", len(kept))
			}
		})
	}
}
