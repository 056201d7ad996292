package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

func TestPlainRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{rounds: 1}
		d := boot(t, memory(nil), w)
		d.begin(t, "cold")
		d.rest(t, "cold")
		if n := commits(t, d, "cold"); n != 5 {
			t.Errorf("a run whose tools must be listed first takes %d commits, want 5", n)
		}
		d.begin(t, "run")
		got := d.rest(t, "run")
		wantTypes(t, d, "run", "run_started", "tools_pinned", "iteration_started", "decision_made", "tool_call_requested",
			"tool_call_started", "tool_call_completed", "iteration_started", "decision_made", "run_completed")
		if n := commits(t, d, "run"); n != 4 {
			t.Errorf("%d commits, want 4", n)
		}
		if got.GetState() != runnerdv1.RunState_RUN_STATE_DONE || got.GetFinalAnswer().GetContent() != "done" || got.GetOwner() != "alice" {
			t.Errorf("got %v", got)
		}
		if w.lists != 1 {
			t.Errorf("the host was asked %d times for its tools, want once for both runs", w.lists)
		}
		if open := d.keysWith(t, prefixOpen); len(open) != 0 {
			t.Errorf("open keys of runs that are done: %v", open)
		}
		if d.active("run") != nil {
			t.Error("a run that is done has a driver")
		}
		d.verify(t)
	})
}

func TestCrashDuringCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{}
		w.decide = func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("read", "read", "charge", "note"), nil
			}
			return answers("done"), nil
		}
		w.call = func(ctx context.Context, req *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			if req.GetCallId() != "1.1" && req.GetAttempt() == 1 {
				if err := gate.wait(ctx, req.GetCallId()); err != nil {
					return nil, err
				}
			}
			return &runnerdv1.ToolResult{Text: "ok"}, nil
		}
		disk := memory(nil)
		d := boot(t, disk, w)
		d.begin(t, "run")
		d.await(t, "run", "tool_call_completed") // 1.1; 1.2 runs
		d.crash(t)

		d = boot(t, disk, w)
		retried := d.await(t, "run", "tool_call_retried").GetToolCallRetried()
		if retried.GetCallId() != "1.2" || retried.GetAttempt() != 2 || retried.GetCause() != runnerdv1.LostCause_LOST_CAUSE_RESTART {
			t.Errorf("retried %v", retried)
		}
		for call := range gate.reached {
			if call == "1.3" {
				break
			}
		}
		d.crash(t) // 1.3 was sent, and nobody can know what became of it

		d = boot(t, disk, w)
		got := d.rest(t, "run")
		if got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Fatalf("got %v", got)
		}
		sent := w.attempts()
		if sent["run/1.1"] != 1 || sent["run/1.2"] != 2 || sent["run/1.3"] != 1 || sent["run/1.4"] != 0 {
			t.Errorf("sent %v", names(sent))
		}
		var recovered []uint64
		for _, ev := range events(t, d, "run") {
			if r := ev.GetRunRecovered(); r != nil {
				recovered = append(recovered, r.GetEpoch())
			}
		}
		if len(recovered) != 2 {
			t.Errorf("recovered %v", recovered)
		}
		d.verify(t)
	})
}

func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{}
		w.decide = func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("charge", "charge"), nil
			}
			return answers("done"), nil
		}
		w.call = func(ctx context.Context, req *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			if err := gate.wait(ctx, req.GetCallId()); err != nil {
				return nil, err
			}
			return &runnerdv1.ToolResult{Text: "charged"}, nil
		}
		disk := memory(nil)
		d := boot(t, disk, w)
		d.begin(t, "run")
		<-gate.reached
		drained := make(chan error)
		go func() { drained <- d.Drain(t.Context()) }()
		synctest.Wait()
		if _, _, err := d.Start(t.Context(), "alice", &runnerdv1.StartRunRequest{Agent: "agent"}); toError(err).Reason !=
			runnerdv1.ErrorReason_ERROR_REASON_DRAINING {
			t.Errorf("a new run while draining: %v", err)
		}
		close(gate.open)
		if err := <-drained; err != nil {
			t.Fatal(err)
		}
		got := types(t, d, "run")
		if last := got[len(got)-1]; last != "tool_call_completed" {
			t.Errorf("the outcome that came is recorded and nothing begins; got %v", got)
		}
		d.end()

		d = boot(t, disk, w)
		if got := d.rest(t, "run"); got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Fatalf("got %v", got)
		}
		if sent := w.attempts(); sent["run/1.1"] != 1 || sent["run/1.2"] != 1 {
			t.Errorf("sent %v", names(sent))
		}
		for _, kind := range types(t, d, "run") {
			if kind == "tool_call_in_doubt" {
				t.Error("a call is in doubt that was not sent")
			}
		}
		d.verify(t)
	})
}

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			return answers("done"), gate.wait(ctx, req.GetRunId())
		}}
		disk := memory(nil)
		one := func(c *Config) { c.MaxActive = 1 }
		d := boot(t, disk, w, one)
		for _, run := range []string{"d", "c", "b", "a"} {
			d.begin(t, run)
			time.Sleep(time.Second)
		}
		if first := <-gate.reached; first != "d" {
			t.Fatalf("%s began first", first)
		}
		synctest.Wait()
		if n := d.drivers(); n != 1 {
			t.Errorf("%d drivers for one slot", n)
		}
		if _, err := d.Deliver(t.Context(), "b", runstate.Cancel{Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP}); err != nil {
			t.Fatal(err)
		}
		if got := d.rest(t, "b"); got.GetStopReason() != runnerdv1.StopReason_STOP_REASON_STOPPED {
			t.Errorf("a queued run that is cancelled: %v", got)
		}
		d.crash(t)

		d = boot(t, disk, w, one)
		close(gate.open)
		for _, run := range []string{"d", "c", "a"} {
			d.rest(t, run)
		}
		var order []string
		for range 3 {
			order = append(order, <-gate.reached)
		}
		if fmt.Sprint(order) != "[d c a]" {
			t.Errorf("order %v", order)
		}
		synctest.Wait()
		if free := d.freeSlots(); free != 1 {
			t.Errorf("%d slots are free in the end, want 1", free)
		}
		d.verify(t)
	})
}

func TestStartIsSafeToRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), &world{})
		req := &runnerdv1.StartRunRequest{RunId: "run", Agent: "agent", Task: "a task"}
		var wg sync.WaitGroup
		fresh := make(chan bool, 20)
		for range 20 {
			wg.Go(func() {
				run, existed, err := d.Start(t.Context(), "alice", req)
				if err != nil || run.GetRunId() != "run" {
					t.Errorf("got %v, %v", run, err)
				}
				fresh <- !existed
			})
		}
		wg.Wait()
		close(fresh)
		n := 0
		for f := range fresh {
			if f {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d of 20 equal requests started the run", n)
		}
		exists := runnerdv1.ErrorReason_ERROR_REASON_RUN_EXISTS
		if _, _, err := d.Start(t.Context(), "bob", req); toError(err).Reason != exists {
			t.Errorf("another principal: %v", err)
		}
		if _, _, err := d.Start(t.Context(), "alice", &runnerdv1.StartRunRequest{RunId: "run", Agent: "agent", Task: "other"}); toError(err).Reason != exists {
			t.Errorf("another request: %v", err)
		}
		d.rest(t, "run")
		if _, existed, err := d.Start(t.Context(), "alice", req); err != nil || !existed {
			t.Errorf("after its end: %v, %v", existed, err)
		}
		d.verify(t)
	})
}

// TestFactsWhileDriversEnd brings facts just when a driver may be ending: none may be lost, and none recorded twice.
func TestFactsWhileDriversEnd(t *testing.T) {
	t.Parallel()
	w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
		if req.GetIteration() == 1 {
			return calls("ask"), nil
		}
		return answers("done"), nil
	}}
	d := boot(t, memory(nil), w)
	d.begin(t, "run")
	waiting := d.rest(t, "run")
	var wg sync.WaitGroup
	const inputs = 200
	for i := range inputs {
		wg.Go(func() {
			if _, err := d.Deliver(t.Context(), "run", runstate.Input{Principal: "alice", Text: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
			if i%10 == 0 {
				if _, err := d.Snapshot(t.Context(), "run"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if _, err := d.Deliver(t.Context(), "run", vote(waiting.GetApprovals()[0], approve)); err != nil {
		t.Fatal(err)
	}
	d.rest(t, "run")
	n := 0
	for _, kind := range types(t, d, "run") {
		if kind == "input_received" {
			n++
		}
	}
	if n != inputs {
		t.Errorf("%d inputs are recorded, want %d", n, inputs)
	}
	d.verify(t)
}

func TestUnknownRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), &world{})
		_, err := d.Deliver(t.Context(), "nobody", runstate.Input{Text: "x"})
		if toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND {
			t.Errorf("got %v", err)
		}
		if _, err := d.Snapshot(t.Context(), "nobody"); toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND {
			t.Errorf("got %v", err)
		}
	})
}

func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{decide: func(ctx context.Context, _ *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			return answers("done"), gate.wait(ctx, "decide")
		}}
		m := auditstoretest.NewMemory(nil)
		d := boot(t, disk{m, m}, w)
		d.begin(t, "run")
		<-gate.reached
		m.Steal("run", "somebody")
		before := types(t, d, "run")
		_, err := d.Deliver(t.Context(), "run", runstate.Input{Text: "x"})
		if toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_NOT_OWNER || toError(err).Kind().Code() != codes.Unavailable {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		if d.active("run") != nil {
			t.Error("a run that another owner has is still driven")
		}
		wantTypes(t, d, "run", before...)
		if _, err := m.Claim(t.Context(), "run", "x", 1); !errors.Is(err, auditstore.ErrFenced) {
			t.Errorf("the claim was taken back: %v", err)
		}
	})
}

// damagedLog gives other bytes than were written for one run.
type damagedLog struct {
	auditstore.Log
	run string
}

func (l *damagedLog) Read(ctx context.Context, s auditstore.Scope, after auditstore.Cursor, limit int) ([]auditstore.Record, auditstore.Cursor, error) {
	page, next, err := l.Log.Read(ctx, s, after, limit)
	for i := range page {
		if page[i].Run == l.run && page[i].Private != nil {
			page[i].Private = append([]byte("x"), page[i].Private...)
		}
	}
	return page, next, err
}

// TestDamagedRun stops that run, and nothing else.
func TestDamagedRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				asking := calls("ask")
				asking.Text = "with secret=x" // so that there is a private part
				return asking, nil
			}
			return answers("done"), nil
		}}
		good := memory(nil)
		d := boot(t, good, w)
		asks := make(map[string]*runnerdv1.Approval)
		for _, run := range []string{"good", "bad"} {
			d.begin(t, run)
			asks[run] = d.rest(t, run).GetApprovals()[0]
		}
		d.crash(t)

		d = boot(t, disk{&damagedLog{good.log, "bad"}, good.blobs}, w)
		if _, err := d.Deliver(t.Context(), "bad", vote(asks["bad"], approve)); toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_CORRUPT {
			t.Errorf("got %v", err)
		}
		time.Sleep(2 * time.Hour) // its deadline comes, and does nothing
		if _, err := d.Deliver(t.Context(), "good", runstate.Cancel{Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP}); err != nil {
			t.Error(err)
		}
		if got := d.rest(t, "good"); got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("got %v", got)
		}
		d.crash(t)

		d = boot(t, good, w)
		if got := d.rest(t, "bad"); got.GetState() == runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL {
			time.Sleep(time.Second) // the deadline that passed meanwhile
		}
		d.await(t, "bad", "run_completed")
		d.verify(t)
	})
}
