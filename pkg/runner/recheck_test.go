package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/tooldigest"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// hosts are tool hosts whose listings a test changes. Each has the tools read, charge and ask.
type hosts struct {
	mu     sync.Mutex
	text   map[string]string // description of read, by host
	err    error
	hang   bool
	listed int
}

func newHosts() *hosts { return &hosts{text: make(map[string]string)} }

func (h *hosts) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// count is how often they were asked.
func (h *hosts) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listed
}

func (h *hosts) definition(host, name string) *runnerdv1.ToolDefinition {
	return &runnerdv1.ToolDefinition{Name: name, Description: name + h.text[host], Annotations: &runnerdv1.Annotations{ReadOnly: new(name == "read")}}
}

func (h *hosts) list(ctx context.Context, host string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed++
	if h.hang {
		h.mu.Unlock()
		<-ctx.Done()
		h.mu.Lock()
		return nil, ctx.Err()
	}
	if h.err != nil {
		return nil, h.err
	}
	read := h.definition(host, "read")
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: []*runnerdv1.ToolDefinition{
		read, {Name: "charge", Description: "charges"}, {Name: "ask", Description: "asks"},
	}}, nil
}

// decides makes each iteration wait for a decision of the test.
func decides(w *world) chan<- *runnerdv1.Decision {
	next := make(chan *runnerdv1.Decision)
	w.decide = func(ctx context.Context, _ *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
		select {
		case d := <-next:
			return d, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return next
}

// outcomes lists how each call of a run ended.
func outcomes(t *testing.T, d *daemon, run string) (list []string) {
	t.Helper()
	for _, ev := range events(t, d, run) {
		switch p := ev.GetPayload().(type) {
		case *runnerdv1.Event_ToolCallCompleted:
			list = append(list, p.ToolCallCompleted.GetCallId()+" completed")
		case *runnerdv1.Event_ToolCallFailed:
			list = append(list, fmt.Sprintf("%s failed %s", p.ToolCallFailed.GetCallId(), p.ToolCallFailed.GetReason()))
		case *runnerdv1.Event_ToolCallBlocked:
			list = append(list, fmt.Sprintf("%s blocked %s by %s/%s", p.ToolCallBlocked.GetCallId(), p.ToolCallBlocked.GetReason(),
				p.ToolCallBlocked.GetGate(), p.ToolCallBlocked.GetRule()))
		}
	}
	return list
}

func wantOutcomes(t *testing.T, d *daemon, run string, want ...string) {
	t.Helper()
	if got := outcomes(t, d, run); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("calls of %s ended\n got %q\nwant %q", run, got, want)
	}
}

func TestToolsThatChange(t *testing.T) {
	t.Parallel()
	t.Run("A8 a changed tool is blocked, the others are not, and a new run has the new one", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			w := &world{list: h.list}
			next := decides(w)
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			next <- calls("read")
			synctest.Wait()
			h.set(func() { h.text["hands"] = " and mails it" })
			next <- calls("read") // for ten seconds nobody asks
			time.Sleep(10 * time.Second)
			next <- calls("read", "charge")
			next <- calls("read")
			next <- answers("done")
			d.rest(t, "run")
			wantOutcomes(t, d, "run", "1.1 completed", "2.1 completed",
				"3.1 blocked CALL_REASON_TOOL_CHANGED by catalogue/tool_changed", "3.2 completed",
				"4.1 blocked CALL_REASON_TOOL_CHANGED by catalogue/tool_changed")
			if n := h.count(); n != 2 {
				t.Errorf("the host was asked %d times, want twice", n)
			}
			d.begin(t, "new")
			next <- calls("read")
			next <- answers("done")
			d.rest(t, "new")
			wantOutcomes(t, d, "new", "1.1 completed")
			if got := w.decides[len(w.decides)-1].GetTools()[0].GetDescription(); got != "read and mails it" {
				t.Errorf("a new run is shown %q", got)
			}
			d.verify(t)
		})
	})

	t.Run("A8 a host that does not answer says nothing new", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			w := &world{list: h.list}
			next := decides(w)
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			time.Sleep(time.Minute)
			h.set(func() { h.err = status.Error(codes.Unavailable, "gone") })
			next <- calls("read")
			next <- calls("read") // not asked again at once
			time.Sleep(11 * time.Second)
			h.set(func() { h.hang = true })
			begin := time.Now()
			next <- calls("read")
			next <- answers("done")
			d.rest(t, "run")
			if took := time.Since(begin); took != recheckTimeout {
				t.Errorf("the run was held up for %s", took)
			}
			wantOutcomes(t, d, "run", "1.1 completed", "2.1 completed", "3.1 completed")
			if n := h.count(); n != 3 {
				t.Errorf("the host was asked %d times, want 3", n)
			}
		})
	})

	t.Run("A8 one look serves all runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			w := &world{list: h.list}
			next := decides(w)
			d := boot(t, memory(nil), w)
			for i := range 20 {
				d.begin(t, fmt.Sprint("run", i))
			}
			time.Sleep(time.Minute)
			before := h.count()
			for range 20 {
				next <- calls("read")
			}
			for range 20 {
				next <- answers("done")
			}
			for i := range 20 {
				d.rest(t, fmt.Sprint("run", i))
			}
			if n := h.count() - before; n != 1 {
				t.Errorf("the host was asked %d times", n)
			}
		})
	})

	t.Run("A8 a recheck of 0 asks before the calls of every decision", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			w := &world{list: h.list, rounds: 3}
			d := boot(t, memory(nil), w, func(c *Config) { c.Agents["agent"].Hosts[0].Recheck = new(time.Duration(0)) })
			d.begin(t, "run")
			d.rest(t, "run")
			if n := h.count(); n != 4 { // at the start, and for three decisions with calls
				t.Errorf("the host was asked %d times", n)
			}
		})
	})

	t.Run("A8 what was asked of a changed tool cannot be approved, only denied", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			w := &world{list: h.list}
			next := decides(w)
			d := boot(t, memory(nil), w, func(c *Config) { c.Agents["agent"].Spec.Policy[0].ApprovalFor = []string{"read"} })
			d.begin(t, "run")
			next <- calls("read")
			open := d.rest(t, "run").GetApprovals()[0]
			changed := func() bool {
				t.Helper()
				changed, err := d.changedSince(t.Context(), open)
				if err != nil {
					t.Fatal(err)
				}
				return changed
			}
			if changed() {
				t.Error("it has not changed yet")
			}
			h.set(func() { h.text["hands"] = " and mails it" })
			time.Sleep(time.Minute)
			v := vote(open, approve)
			if v.Found.Changed = changed(); !v.Found.Changed {
				t.Error("the change is not seen")
			}
			_, err := d.Deliver(t.Context(), "run", v)
			if refusal, ok := errors.AsType[*runstate.Refusal](err); !ok || refusal.Reason != runnerdv1.ErrorReason_ERROR_REASON_TOOL_CHANGED {
				t.Errorf("approving gives %v", err)
			}
			if _, err := d.Deliver(t.Context(), "run", vote(open, deny)); err != nil {
				t.Error(err)
			}
			next <- answers("done")
			d.rest(t, "run")
			d.verify(t)
		})
	})

	t.Run("A8 a host that refuses the pinned tool", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			w := &world{list: h.list, rounds: 2}
			var refused atomic.Bool
			w.call = func(_ context.Context, req *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
				h.mu.Lock()
				defer h.mu.Unlock()
				if req.GetSchemaDigest() != tooldigest.Of(h.definition("hands", "read")) {
					t.Errorf("the call names the digest %q", req.GetSchemaDigest())
				}
				h.text["hands"] = " and mails it"
				refused.Store(true)
				return nil, refusal(t, ErrorDomain)
			}
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			d.rest(t, "run")
			// The host is asked at once, however fresh its listing is.
			wantOutcomes(t, d, "run", "1.1 failed CALL_REASON_TOOL_CHANGED", "2.1 blocked CALL_REASON_TOOL_CHANGED by catalogue/tool_changed")
			if !refused.Load() || len(w.calls) != 1 {
				t.Errorf("%d calls reached the host", len(w.calls))
			}
			d.verify(t)
		})
	})

	t.Run("A8 another's refusal is not ours", func(t *testing.T) {
		t.Parallel()
		if result, ok := outcomeOf(refusal(t, "example.org")); !ok || result.Reason != runnerdv1.CallReason_CALL_REASON_HOST_REFUSED {
			t.Errorf("got %v, %t", result, ok)
		}
	})
}

// refusal is the error of a host whose tool is another now.
func refusal(t *testing.T, domain string) error {
	t.Helper()
	st, err := status.New(codes.FailedPrecondition, "the tool is another now").WithDetails(&errdetails.ErrorInfo{Domain: domain, Reason: "TOOL_CHANGED"})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestRequiredHosts(t *testing.T) {
	t.Parallel()
	required := func(c *Config) { c.Agents["agent"].Spec.RequiredHosts = []string{"hands"} }
	t.Run("a run begins once its host is there", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			h.err = status.Error(codes.Unavailable, "gone")
			w := &world{list: h.list}
			disk := memory(nil)
			d := boot(t, disk, w, required)
			begin := time.Now()
			d.begin(t, "waits")
			run := d.rest(t, "waits")
			if run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR || run.GetErrorMessage() == "" {
				t.Errorf("the run ended %s: %q", run.GetStopReason(), run.GetErrorMessage())
			}
			wantTypes(t, d, "waits", "run_started", "tool_host_unavailable", "run_failed")
			if n, took := h.count(), time.Since(begin); n != maxListAttempts || took > listTimeout {
				t.Errorf("the host was asked %d times in %s", n, took)
			}
			d.crash(t)
			d = boot(t, disk, w, required)
			wantTypes(t, d, "waits", "run_started", "tool_host_unavailable", "run_failed")
			if free := d.freeSlots(); free != defaultMaxActive {
				t.Errorf("%d slots are free", free)
			}
			h.set(func() { h.err = nil })
			if _, err := d.Deliver(t.Context(), "waits", runstate.Resume{Principal: "alice"}); err != nil {
				t.Fatal(err)
			}
			if run := d.rest(t, "waits"); run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_COMPLETED {
				t.Errorf("the run ended %s", run.GetStopReason())
			}
			d.verify(t)
		})
	})
	t.Run("a host that refuses is asked once, one that comes back is waited for", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			h.err = status.Error(codes.PermissionDenied, "not you")
			w := &world{list: h.list}
			d := boot(t, memory(nil), w, required)
			d.begin(t, "refused")
			d.rest(t, "refused")
			if n := h.count(); n != 1 {
				t.Errorf("the host was asked %d times", n)
			}
			h.set(func() { h.err = status.Error(codes.Unavailable, "gone") })
			d.begin(t, "run")
			time.Sleep(firstLook / 2)
			h.set(func() { h.err = nil })
			if run := d.rest(t, "run"); run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_COMPLETED {
				t.Errorf("the run ended %s", run.GetStopReason())
			}
			d.verify(t)
		})
	})
	t.Run("ListTools says it as an error", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := newHosts()
			h.err = status.Error(codes.Unavailable, "gone")
			d := boot(t, memory(nil), &world{list: h.list}, required)
			_, found, err := d.ListTools(t.Context(), "agent")
			if err != nil || len(found) != 1 || found[0].GetSeverity() != runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR {
				t.Errorf("found %v, %v", found, err)
			}
		})
	})
}
