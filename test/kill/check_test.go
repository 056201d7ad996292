package kill

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// watcher follows the whole log from its beginning, by cursors, over all kills.
type watcher struct {
	daemon *harness.Daemon
	err    error

	mu       sync.Mutex
	cursor   string
	position uint64
	seen     map[string][][sha256.Size]byte // by run and sequence
	total    int
}

func newWatcher(d *harness.Daemon) *watcher {
	return &watcher{daemon: d, seen: map[string][][sha256.Size]byte{}}
}

func (w *watcher) follow(ctx context.Context) error {
	err := again(ctx, func() error {
		var failed error
		err := w.daemon.Frames(ctx, &runnerdv1.StreamEventsRequest{
			Scope: &runnerdv1.StreamEventsRequest_All{All: true}, AfterCursor: w.cursor, Follow: true,
		}, func(f harness.Frame) bool {
			failed = w.take(f)
			return failed == nil
		})
		return errors.Join(failed, err)
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	return nil // the test has seen enough
}

func (w *watcher) take(f harness.Frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	run := f.Event.GetRunId()
	if want := uint64(len(w.seen[run]) + 1); f.Event.GetSequence() != want {
		return fmt.Errorf("run %s: event %d came where %d was due", run, f.Event.GetSequence(), want)
	}
	if f.Event.GetPosition() < w.position {
		return fmt.Errorf("run %s: position %d came after %d", run, f.Event.GetPosition(), w.position)
	}
	w.position, w.cursor = f.Event.GetPosition(), f.Cursor
	w.seen[run] = append(w.seen[run], f.Digest())
	w.total++
	return nil
}

// check compares what the daemon has now with what callers, watchers and the tool host were told.
func (l *load) check(ctx context.Context, t *testing.T, watchers []*watcher) {
	t.Helper()
	if n, err := l.daemon.CheckAll(ctx); err != nil || n != len(l.runs) {
		t.Errorf("the log holds %d runs, %d were acknowledged: %v", n, len(l.runs), err)
	}
	total := 0
	ended := map[string]int{}
	for _, r := range l.runs {
		digests := l.checkRun(ctx, t, r, ended)
		total += len(digests)
	}
	t.Logf("%d events; calls ended: %v", total, ended)
	for i, w := range watchers {
		harness.Eventually(t, "a watcher of all runs has seen all events", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.total >= total || w.err != nil
		})
		for id, r := range l.runs {
			if !slices.Equal(w.seen[id], r.seen) {
				t.Errorf("watcher %d saw other events of run %s than its own watcher", i, id)
			}
		}
	}
	for key, n := range l.hands.Attempts() {
		if n > 3 {
			t.Errorf("call %s was attempted %d times, 3 are allowed", key, n)
		}
	}
}

// checkRun reads a run from its beginning once more.
func (l *load) checkRun(ctx context.Context, t *testing.T, r *run, ended map[string]int) (digests [][sha256.Size]byte) {
	t.Helper()
	var before []byte
	var events []*runnerdv1.Event
	err := l.daemon.Frames(ctx, &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: r.id},
	}, func(f harness.Frame) bool {
		if err := f.Linked(before); err != nil {
			t.Errorf("run %s: %v", r.id, err)
		}
		before = f.Event.GetHash()
		digests = append(digests, f.Digest())
		return true
	})
	if err != nil {
		t.Errorf("run %s cannot be read: %v", r.id, err)
	}
	if !slices.Equal(digests, r.seen) {
		t.Errorf("run %s has %d events, its watcher was told %d, or other bytes", r.id, len(digests), len(r.seen))
	}
	events = l.daemon.Events(t, r.id)
	for _, broken := range runner.Verify(slices.Values(events)) {
		t.Errorf("run %s: %v", r.id, broken)
	}
	l.checkCalls(t, r, events, ended)
	for sequence, id := range r.inputs {
		if in := events[sequence-1].GetInputReceived(); in.GetRequestId() != id {
			t.Errorf("run %s: event %d is not the input that was acknowledged", r.id, sequence)
		}
	}
	end := events[len(events)-1].GetRunCompleted()
	if end.GetAnswer().GetContent() != "done "+r.id {
		t.Errorf("run %s did not reach its end; its events:\n%s", r.id, harness.Lines(events))
	}
	return digests
}

// checkCalls compares the log with the ledger of the tool host and with the verdicts that were acknowledged.
func (l *load) checkCalls(t *testing.T, r *run, events []*runnerdv1.Event, ended map[string]int) {
	t.Helper()
	attempts := map[string]int{}
	for _, c := range l.hands.Calls(r.id) {
		key := c.Request.GetIdempotencyKey()
		attempts[key]++
		if strings.HasSuffix(c.Request.GetName(), "charge") && attempts[key] > 1 {
			t.Errorf("call %s, which must not be repeated, was executed %d times", key, attempts[key])
		}
	}
	verdicts := map[uint64]runnerdv1.ApprovalVerdict{}
	via := map[uint64]runnerdv1.Via{}
	for _, ev := range events {
		var resolution *runnerdv1.Resolution
		switch e := ev.GetPayload().(type) {
		case *runnerdv1.Event_ToolCallApproved:
			resolution = e.ToolCallApproved.GetResolution()
		case *runnerdv1.Event_ToolCallDenied:
			resolution = e.ToolCallDenied.GetResolution()
			ended["denied"]++
		case *runnerdv1.Event_ToolCallBlocked:
			ended[e.ToolCallBlocked.GetReason().String()]++
		case *runnerdv1.Event_ToolCallFailed:
			resolution = e.ToolCallFailed.GetResolution()
			ended[e.ToolCallFailed.GetReason().String()]++
		case *runnerdv1.Event_ToolCallCompleted:
			c := e.ToolCallCompleted
			resolution = c.GetResolution()
			key := r.id + "/" + c.GetCallId()
			switch {
			case resolution != nil:
				ended["settled"]++
			case attempts[key] == 0 || c.GetText() != "result of "+key:
				t.Errorf("call %s completed with %q and was executed %d times", key, c.GetText(), attempts[key])
			default:
				ended["completed"]++
			}
		}
		if resolution.GetApprovalId() != 0 {
			verdicts[resolution.GetApprovalId()] = resolution.GetVerdict()
			via[resolution.GetApprovalId()] = resolution.GetVia()
		}
	}
	for approval, verdict := range r.answers {
		if verdicts[approval] != verdict {
			t.Errorf("run %s: approval %d was acknowledged as %s, the log has %s", r.id, approval, verdict, verdicts[approval])
		}
	}
	for _, approval := range r.tooLate {
		if via[approval] != runnerdv1.Via_VIA_CANCEL {
			t.Errorf("run %s: approval %d was refused as closed, the log has it closed via %s", r.id, approval, via[approval])
		}
	}
}
