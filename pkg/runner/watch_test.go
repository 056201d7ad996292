package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// read watches until the watch ends and returns the sequences it got.
func read(t *testing.T, d *daemon, opt WatchOptions) (sequences []uint64, cursors []string, err error) {
	t.Helper()
	err = d.Watch(t.Context(), opt, func(items []WatchItem) error {
		for _, it := range items {
			if it.Event == nil {
				continue
			}
			ev := new(runnerdv1.Event)
			if err := proto.Unmarshal(it.Event, ev); err != nil {
				return err
			}
			if ev.GetSequence() != it.Sequence || ev.GetType() != it.Type || ev.GetRunId() != it.Run || len(ev.GetHash()) != 32 {
				t.Errorf("item %v has event %v", it, ev)
			}
			sequences, cursors = append(sequences, it.Sequence), append(cursors, it.Cursor)
		}
		return nil
	})
	return sequences, cursors, err
}

func upTo(n int) []uint64 {
	var out []uint64
	for i := range n {
		out = append(out, uint64(i+1))
	}
	return out
}

func TestWatchFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{rounds: 30, call: func(ctx context.Context, req *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			if req.GetCallId() == "1.1" {
				return &runnerdv1.ToolResult{}, gate.wait(ctx, "")
			}
			return &runnerdv1.ToolResult{}, nil
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		var wg sync.WaitGroup
		results := make([][]uint64, 20)
		for i := range results {
			wg.Go(func() {
				var err error
				if results[i], _, err = read(t, d, WatchOptions{Run: "run", Follow: true}); err != nil {
					t.Error(err)
				}
			})
		}
		<-gate.reached
		synctest.Wait()
		close(gate.open)
		wg.Wait() // each ends by itself, with the run
		n := len(events(t, d, "run"))
		for _, got := range results {
			if !slices.Equal(got, upTo(n)) {
				t.Errorf("got %v, want 1 to %d", got, n)
			}
		}
	})
}

func TestWatchFromAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{rounds: 5}
		d := boot(t, memory(nil), w)
		for _, run := range []string{"a", "b"} {
			d.begin(t, run)
		}
		d.rest(t, "a")
		d.rest(t, "b")
		n := len(events(t, d, "a"))
		all, cursors, err := read(t, d, WatchOptions{Run: "a"})
		if err != nil || !slices.Equal(all, upTo(n)) {
			t.Fatalf("got %v, %v", all, err)
		}
		for i, cursor := range cursors {
			after := uint64(i + 1)
			for _, opt := range []WatchOptions{{Run: "a", AfterCursor: cursor}, {Run: "a", AfterSequence: &after}} {
				got, _, err := read(t, d, opt)
				if err != nil || !slices.Equal(got, all[i+1:]) {
					t.Errorf("after %d: %v, %v", after, got, err)
				}
			}
		}
		// Every cursor of the scope of all runs, also in the middle of an append, leaves exactly the rest; for a single
		// run too, whosever event it came with.
		_, cursors, err = read(t, d, WatchOptions{})
		if err != nil || len(cursors) != 2*n {
			t.Fatalf("%d events of all runs, %v", len(cursors), err)
		}
		for i, cursor := range cursors {
			_, rest, err := read(t, d, WatchOptions{AfterCursor: cursor})
			if err != nil || !slices.Equal(rest, cursors[i+1:]) {
				t.Fatalf("after %s: %v, %v", cursor, rest, err)
			}
			left := 0
			for _, run := range []string{"a", "b"} {
				got, _, err := read(t, d, WatchOptions{Run: run, AfterCursor: cursor})
				if err != nil {
					t.Fatal(err)
				}
				left += len(got)
			}
			if left != len(rest) {
				t.Errorf("after %s: %d events of the runs, %d of all", cursor, left, len(rest))
			}
		}
	})
}

func TestWatchRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), &world{})
		d.begin(t, "run")
		d.rest(t, "run")
		n := uint64(len(events(t, d, "run")))
		for _, tt := range []struct {
			name string
			opt  WatchOptions
			want runnerdv1.ErrorReason
			head string
		}{
			{"no such run", WatchOptions{Run: "x"}, runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, ""},
			{"past the head", WatchOptions{Run: "run", AfterSequence: new(n + 1)}, runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD, fmt.Sprint(n)},
			{"another log", WatchOptions{AfterCursor: "other.1.1"}, runnerdv1.ErrorReason_ERROR_REASON_BAD_CURSOR, ""},
			{"no cursor", WatchOptions{AfterCursor: "log.1"}, runnerdv1.ErrorReason_ERROR_REASON_BAD_CURSOR, ""},
			{"not canonical", WatchOptions{AfterCursor: "log.01.1"}, runnerdv1.ErrorReason_ERROR_REASON_BAD_CURSOR, ""},
			{"future", WatchOptions{AfterCursor: "log.999.1"}, runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD, "4"},
		} {
			_, _, err := read(t, d, tt.opt)
			e := toError(err)
			if e == nil || e.Reason != tt.want || (tt.head != "" && e.Metadata["head"] == "") {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		// At the head of a run that is done there is nothing, and nothing to wait for.
		if got, _, err := read(t, d, WatchOptions{Run: "run", AfterSequence: &n, Follow: true}); len(got) != 0 || err != nil {
			t.Errorf("at the head: %v, %v", got, err)
		}
	})
}

func TestWatchGoesThroughPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("ask"), nil
			}
			return answers("done"), nil
		}}
		d := boot(t, memory(nil), w, func(c *Config) {
			c.Agents["agent"].Spec.Approval.Mode = runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE
		})
		d.begin(t, "run")
		paused := d.rest(t, "run")
		if paused.GetState() != runnerdv1.RunState_RUN_STATE_PAUSED {
			t.Fatalf("got %v", paused)
		}
		done := make(chan []uint64)
		var progress *runnerdv1.StreamProgressSignal
		go func() {
			var got []uint64
			err := d.Watch(t.Context(), WatchOptions{Run: "run", Follow: true}, func(items []WatchItem) error {
				for _, it := range items {
					if it.Event != nil {
						got = append(got, it.Sequence)
					} else {
						progress = it.Signal.GetStreamProgress()
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		time.Sleep(16 * time.Second)
		synctest.Wait()
		if progress.GetHeadSequence() != paused.GetHeadSequence() {
			t.Errorf("after 15 idle seconds: %v, want the head %d", progress, paused.GetHeadSequence())
		}
		if _, err := d.Deliver(t.Context(), "run", vote(paused.GetApprovals()[0], approve)); err != nil {
			t.Fatal(err)
		}
		if got := <-done; !slices.Equal(got, upTo(len(events(t, d, "run")))) {
			t.Errorf("got %v", got)
		}
	})
}

func TestWatchSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, call, last := newHold(), newHold(), newHold()
		w := &world{call: func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return &runnerdv1.ToolResult{}, call.wait(ctx, "")
		}}
		w.decide = func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("read"), gate.wait(ctx, "")
			}
			return answers("done"), last.wait(ctx, "")
		}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		<-gate.reached
		kinds := make(map[string]*runnerdv1.Signal)
		done := make(chan error)
		go func() {
			done <- d.Watch(t.Context(), WatchOptions{Run: "run", Follow: true, Signals: true}, func(items []WatchItem) error {
				for _, it := range items {
					if it.Signal != nil {
						kinds[it.Type] = it.Signal
					}
				}
				return nil
			})
		}()
		time.Sleep(6 * time.Second) // a heartbeat of the Decide
		synctest.Wait()
		if beat := kinds["heartbeat"]; beat.GetHeartbeat().GetEffect() != "decide" || beat.GetIteration() != 1 || beat.GetAfterSequence() != 3 {
			t.Errorf("heartbeat %v", beat)
		}
		for _, h := range []*hold{gate, call, last} { // each has been told before the next thing happens
			close(h.open)
			synctest.Wait()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if p := kinds["tool_progress"]; p.GetToolProgress().GetCallId() != "1.1" || p.GetToolProgress().GetMessage() != "half" {
			t.Errorf("progress %v", p)
		}
		if text := kinds["text_delta"]; text.GetTextDelta().GetText() != "hm" || text.GetIteration() != 2 {
			t.Errorf("text %v", text)
		}
	})
}

// TestWatchRaw gives the private part to those who ask for it, and the stored bytes to the others.
func TestWatchRaw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const arguments = `{"n":1,"password":"x"}`
		d := boot(t, memory(nil), &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() > 1 {
				return answers("done"), nil
			}
			asking := calls("read")
			asking.GetToolCalls().GetCalls()[0].ArgumentsJson = arguments
			return asking, nil
		}})
		d.begin(t, "run")
		d.rest(t, "run")
		for _, raw := range []bool{false, true} {
			err := d.Watch(t.Context(), WatchOptions{Run: "run", Raw: raw, Types: []string{"tool_call_requested"}}, func(items []WatchItem) error {
				ev := new(runnerdv1.Event)
				if err := proto.Unmarshal(items[0].Event, ev); err != nil {
					return err
				}
				if shown := ev.GetToolCallRequested().GetArgumentsRaw() == arguments; shown != raw || len(items) != 1 {
					t.Errorf("raw %v: %v", raw, ev)
				}
				if len(ev.GetPrivateDigest()) != 32 || ev.GetPosition() == 0 {
					t.Errorf("raw %v: %v", raw, ev)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSlowWatcher holds up nobody and misses nothing.
func TestSlowWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), &world{rounds: 50})
		d.begin(t, "run")
		open := make(chan struct{})
		var got []uint64
		done := make(chan error)
		go func() {
			done <- d.Watch(t.Context(), WatchOptions{Run: "run", Follow: true}, func(items []WatchItem) error {
				<-open
				for _, it := range items {
					got = append(got, it.Sequence)
				}
				return nil
			})
		}()
		d.rest(t, "run")
		close(open)
		if err := <-done; err != nil || !slices.Equal(got, upTo(len(events(t, d, "run")))) {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestWatchEndsWithADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), &world{})
		done := make(chan error)
		go func() {
			done <- d.Watch(t.Context(), WatchOptions{Follow: true}, func([]WatchItem) error { return nil })
		}()
		synctest.Wait()
		if err := d.Drain(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-done; toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("got %v", err)
		}
	})
}

func TestWatchReturnsWhatSendReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), &world{})
		d.begin(t, "run")
		err := d.Watch(t.Context(), WatchOptions{Run: "run", Follow: true}, func([]WatchItem) error { return io.ErrClosedPipe })
		if !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
	})
}

func TestWaitForARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("ask"), gate.wait(ctx, "")
			}
			return answers("done"), nil
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, timedOut, err := d.WaitRun(ctx, "run", true)
		if err != nil || !timedOut || got.GetState() != runnerdv1.RunState_RUN_STATE_RUNNING {
			t.Errorf("while it runs: %v, %v, %v", got, timedOut, err)
		}
		close(gate.open)
		waiting := d.rest(t, "run")
		done := make(chan *runnerdv1.Run)
		go func() {
			got, _, err := d.WaitRun(t.Context(), "run", false)
			if err != nil {
				t.Error(err)
			}
			done <- got
		}()
		time.Sleep(time.Minute)
		if _, err := d.Deliver(t.Context(), "run", runstate.Input{Text: "hurry"}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Deliver(t.Context(), "run", vote(waiting.GetApprovals()[0], approve)); err != nil {
			t.Fatal(err)
		}
		if got := <-done; got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("got %v", got)
		}
	})
}
