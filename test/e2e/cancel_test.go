package e2e

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

const (
	stop  = runnerdv1.CancelMode_CANCEL_MODE_STOP
	abort = runnerdv1.CancelMode_CANCEL_MODE_ABORT
)

func TestCancel(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-11 E-24 STOP lets a call finish and starts nothing more", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}", "put", "{}"), harness.Answer("never")), calls(g.slow("paid")))
		g.await(t)
		got := w.Cancel(t, run, stop)
		equal(t, "state while the call runs", got.GetState(), runnerdv1.RunState_RUN_STATE_RUNNING)
		w.UntilType(t, run, "cancel_requested")
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
		events := w.Events(t, run)
		order(t, events, "tool_call_started", "cancel_requested", "tool_call_completed", "run_failed")
		equal(t, "Decides", len(w.brain.Requests(run)), 1)
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 1)
		blocked := harness.Only(events, "tool_call_blocked")
		equal(t, "what became of the second call", blocked[0].GetToolCallBlocked().GetReason(), runnerdv1.CallReason_CALL_REASON_RUN_ENDING)
		by := harness.Only(events, "cancel_requested")[0]
		if by.GetPrincipal() != "local:owner" || by.GetCancelRequested().GetReason() != "the test says so" {
			t.Errorf("cancel_requested is by %q: %v", by.GetPrincipal(), by.GetCancelRequested())
		}
		// What was done before stays to be looked at.
		if _, err := w.Runs.GetCheckpoint(harness.Context(t), &runnerdv1.GetCheckpointRequest{RunId: run}); err != nil {
			t.Errorf("no checkpoint is kept: %v", err)
		}
	})

	t.Run("E-24 STOP lets a Decide finish and follows nothing of it", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
			g.pass(s.Context())
			return harness.Send(s, harness.Costing(harness.Calls("charge", "{}"), 3, 1, 1))
		})
		g.await(t)
		w.Cancel(t, run, stop)
		equal(t, "Decides still in progress", w.brain.InFlight(run), 1)
		g.open()
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
		equal(t, "cents", got.GetUsage().GetCostCents(), 3)
		equal(t, "calls that reached the host", len(w.hands.Calls(run)), 0)
	})

	t.Run("A-29 ABORT cuts a Decide in progress", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Hang)
		harness.Eventually(t, "the Decide is in progress", func() bool { return w.brain.InFlight(run) == 1 })
		before := time.Now()
		w.Cancel(t, run, abort)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_CANCELLED, "failed:system")
		if took := time.Since(before); took > 5*time.Second {
			t.Errorf("it took %s", took)
		}
		harness.Eventually(t, "the stream of the Decide is cancelled", func() bool { return w.brain.InFlight(run) == 0 })
	})

	t.Run("A-29 a cancel beats what comes with it, and ABORT may follow STOP", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Hang)
		harness.Eventually(t, "the Decide is in progress", func() bool { return w.brain.InFlight(run) == 1 })
		w.Cancel(t, run, stop)
		w.Cancel(t, run, stop) // the same again changes nothing
		w.Cancel(t, run, abort)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_CANCELLED, "failed:system")
		equal(t, "cancel_requested events", harness.Count(w.Events(t, run), "cancel_requested"), 2)
		again := w.Cancel(t, run, abort)
		equal(t, "head after a cancel of a run that is DONE", again.GetHeadSequence(), got.GetHeadSequence())
		_, err := w.Runs.SubmitInput(harness.Context(t), &runnerdv1.SubmitInputRequest{RunId: run, Text: "wait"})
		harness.Code(t, err, codes.FailedPrecondition, "RUN_ENDED")
	})

	t.Run("T-11 a run that waits for people ends at once", func(t *testing.T) {
		t.Parallel()
		for _, m := range []runnerdv1.CancelMode{stop, abort} {
			asked := w.play(t, "std", harness.Steps(harness.Ask("well?")))
			w.Idle(t, asked)
			w.Cancel(t, asked, m)
			equal(t, "state", w.Done(t, asked).GetState(), runnerdv1.RunState_RUN_STATE_DONE)

			approval := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}")))
			w.Idle(t, approval)
			w.Cancel(t, approval, m)
			w.Done(t, approval)
			denied := harness.Only(w.Events(t, approval), "tool_call_denied")
			equal(t, "via", denied[0].GetToolCallDenied().GetResolution().GetVia(), runnerdv1.Via_VIA_CANCEL)
		}
	})

	t.Run("T-11 E-24 a run that is paused opens a leg to end in", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}")), mode(pauseMode))
		w.Idle(t, run)
		w.Cancel(t, run, stop)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
		order(t, w.Events(t, run), "run_paused", "run_resumed", "cancel_requested", "tool_call_denied", "run_failed")
	})

	t.Run("CASE-16 cancel while a tool is running", func(t *testing.T) {
		t.Parallel()
		for _, tool := range []string{"charge", "put", "look"} { // of each recovery class that has no GetCall
			t.Run(tool, func(t *testing.T) {
				t.Parallel()
				late := newGate()
				answered := make(chan struct{})
				run := w.play(t, "std", harness.Steps(harness.Calls(tool, "{}", "charge", "{}")), calls(
					func(_ *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
						defer close(answered)
						progress := &runnerdv1.CallToolResponse_Progress{Progress: &runnerdv1.Progress{Message: "working"}}
						if err := s.Send(&runnerdv1.CallToolResponse{Event: progress}); err != nil {
							return nil, err
						}
						late.pass(harness.Context(t)) // the host does not look at the cancelled stream
						return &runnerdv1.ToolResult{Text: "too late"}, nil
					}))
				late.await(t)
				before := time.Now()
				w.Cancel(t, run, abort)
				got := w.Done(t, run)
				if took := time.Since(before); took > 8*time.Second {
					t.Errorf("it took %s; 5 s are promised", took)
				}
				ended(t, got, runnerdv1.StopReason_STOP_REASON_CANCELLED, "failed:system")
				failed := w.UntilType(t, run, "tool_call_failed").GetToolCallFailed()
				want := runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME
				if tool == "look" {
					want = runnerdv1.CallReason_CALL_REASON_CANCELLED
				}
				equal(t, "outcome", failed.GetReason(), want)
				late.open()
				<-answered
				events := w.Events(t, run)
				equal(t, "events after the late answer", uint64(len(events)), got.GetHeadSequence())
				equal(t, "retries", harness.Count(events, "tool_call_retried"), 0)
				for _, e := range w.History(t, run)[1:] { // each call is paired with what became of it
					if e.GetObservation().GetCallId() == "" {
						t.Errorf("an entry belongs to no call: %v", e)
					}
				}
				equal(t, "entries", len(w.History(t, run)), 3)
			})
		}
	})

	t.Run("CASE-16 the result comes just before the cancel", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}"), harness.Step(harness.Hang)))
		w.UntilType(t, run, "tool_call_completed")
		w.Cancel(t, run, abort)
		w.Done(t, run)
		events := w.Events(t, run)
		equal(t, "completed", harness.Count(events, "tool_call_completed"), 1)
		equal(t, "failed", harness.Count(events, "tool_call_failed"), 0)
	})
}

// TestUnreachable is about decide services and hosts that give no answer.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("A-33 a Decide that cannot be reached is retried, then ends the run, and the model is never told", func(t *testing.T) {
		t.Parallel()
		var back atomic.Bool
		run := w.play(t, "brief", func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
			if !back.Load() {
				return harness.Fail(codes.Unavailable)(nil, s)
			}
			return harness.Send(s, harness.Answer("back"))
		})
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR, "failed:transient")
		equal(t, "resumable", got.GetResumable(), true)
		retried := harness.Only(w.Events(t, run), "decide_retried")
		equal(t, "retries", len(retried), 2)
		for i, ev := range retried {
			r := ev.GetDecideRetried()
			equal(t, "attempt", r.GetAttempt(), uint32(i+2))
			equal(t, "code", r.GetCode(), "UNAVAILABLE")
			if wait := r.GetRetryAt().AsTime().Sub(ev.GetTime().AsTime()); wait < 500*time.Millisecond || wait > 21*time.Second {
				t.Errorf("backoff is %s", wait)
			}
		}
		var keys []string
		for _, req := range w.brain.Requests(run) {
			keys = append(keys, req.GetIdempotencyKey())
			equal(t, "entries shown", len(req.GetHistory()), 0)
		}
		if want := []string{run + "/1", run + "/1", run + "/1"}; !slices.Equal(keys, want) {
			t.Errorf("keys are %q, want %q", keys, want)
		}
		back.Store(true)
		if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run}); err != nil {
			t.Fatal(err)
		}
		got = w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "history", len(w.History(t, run)), 1) // the answer alone
	})

	t.Run("A-33 a Decide that answers no more is given up after decide_timeout", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "brief", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
			if req.GetAttempt() == 1 {
				return harness.Hang(req, s)
			}
			return harness.Send(s, harness.Answer("done"))
		})
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "code", w.UntilType(t, run, "decide_retried").GetDecideRetried().GetCode(), "DEADLINE_EXCEEDED")
	})

	t.Run("A-33 an address where nobody listens", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "lost", harness.Hang)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR, "failed:transient")
	})
}

func TestStopDaemon(t *testing.T) {
	t.Parallel()
	t.Run("A-32 stopping the daemon ends no run", func(t *testing.T) {
		t.Parallel()
		w := own(t)
		g := newGate()
		slow := w.play(t, "std", harness.Steps(harness.Calls("put", "{}"), harness.Answer("done")), calls(
			func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				if req.GetAttempt() == 1 {
					return harness.HangCall(req, s)
				}
				return &runnerdv1.ToolResult{Text: "ok"}, nil
			}))
		thinking := w.play(t, "std", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
			if req.GetAttempt() == 1 {
				g.pass(s.Context())
			}
			return harness.Send(s, harness.Answer("done"))
		})
		asked := w.play(t, "std", harness.Steps(harness.Ask("well?"), harness.Answer("done")))
		w.Idle(t, asked)
		g.await(t)
		harness.Eventually(t, "the call is in progress", func() bool { return len(w.hands.Calls(slow)) == 1 })

		watched, watching := make(chan error, 1), newGate()
		watching.open()
		go func() {
			watched <- w.Each(harness.Context(t), &runnerdv1.StreamEventsRequest{
				Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: asked}, Follow: true,
			}, func(*runnerdv1.StreamEventsResponse) bool {
				watching.pass(t.Context())
				return true
			})
		}()
		watching.await(t)
		before := time.Now()
		if err := w.Stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(before); took > 15*time.Second {
			t.Errorf("the daemon took %s to stop; 10 s are promised", took)
		}
		harness.Code(t, <-watched, codes.Unavailable, "DRAINING")
		w.Restart(t)

		for _, run := range []string{slow, thinking} {
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			order(t, w.Events(t, run), "run_recovered", "run_completed")
		}
		equal(t, "recoveries of a run that waits for people", harness.Count(w.Events(t, asked), "run_recovered"), 0)
		w.Input(t, asked, "fine")
		ended(t, w.Done(t, asked), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})
}
