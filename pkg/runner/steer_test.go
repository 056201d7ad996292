package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

func TestApprovalOverRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("ask"), nil
			}
			return answers("done"), nil
		}}
		disk := memory(nil)
		d := boot(t, disk, w)
		d.begin(t, "run")
		waiting := d.rest(t, "run")
		if waiting.GetState() != runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL || len(waiting.GetApprovals()) != 1 {
			t.Fatalf("got %v", waiting)
		}
		if len(d.keysWith(t, prefixAsk)) != 1 || len(d.keysWith(t, prefixWake)) != 1 || len(d.keysWith(t, prefixOpen)) != 0 {
			t.Errorf("keys: ask %v, wake %v, open %v", d.keysWith(t, prefixAsk), d.keysWith(t, prefixWake), d.keysWith(t, prefixOpen))
		}
		before := types(t, d, "run")
		d.crash(t)

		d = boot(t, disk, w)
		wantTypes(t, d, "run", before...)
		if d.active("run") != nil {
			t.Error("a run that waits for people has a driver after the restart")
		}
		ask := waiting.GetApprovals()[0]
		bad := vote(ask, approve)
		bad.Digest = "k:0"
		var refusal *runstate.Refusal
		if _, err := d.Deliver(t.Context(), "run", bad); !errors.As(err, &refusal) ||
			refusal.Reason != runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH {
			t.Errorf("a verdict about something else: %v", err)
		}
		reply, err := d.Deliver(t.Context(), "run", vote(ask, approve))
		if err != nil || reply.Sequence != uint64(len(before))+1 {
			t.Fatalf("reply %v, %v", reply, err)
		}
		if _, err := d.Deliver(t.Context(), "run", vote(ask, deny)); !errors.Is(err, runstate.ErrNotOpen) {
			t.Errorf("a second verdict: %v", err)
		}
		if got := d.rest(t, "run"); got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("got %v", got)
		}
		if n := len(d.keysWith(t, prefixAsk)) + len(d.keysWith(t, prefixWake)); n != 0 {
			t.Errorf("%d keys are left", n)
		}
		d.verify(t)
	})
}

func TestApprovalTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("ask"), nil
			}
			return answers("done"), nil
		}}
		d := boot(t, memory(nil), w, func(c *Config) {
			c.Agents["agent"].Spec.Approval.Timeout = durationpb.New(10 * time.Minute)
		})
		began := time.Now()
		for i := range 3 {
			d.begin(t, fmt.Sprint("run", i))
			d.rest(t, fmt.Sprint("run", i))
			time.Sleep(time.Minute)
		}
		for i := range 3 {
			denied := d.await(t, fmt.Sprint("run", i), "tool_call_denied")
			if via := denied.GetToolCallDenied().GetResolution().GetVia(); via != runnerdv1.Via_VIA_TIMEOUT {
				t.Errorf("denied via %v", via)
			}
			if late := denied.GetTime().AsTime().Sub(began.Add(10*time.Minute + time.Duration(i)*time.Minute)); late.Abs() > time.Second {
				t.Errorf("denied %v after its deadline", late)
			}
			d.rest(t, fmt.Sprint("run", i))
		}
		d.verify(t)
	})
}

func TestAbort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{rounds: 1, call: func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return nil, gate.wait(ctx, "call")
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		<-gate.reached
		before := time.Now()
		_, err := d.Deliver(t.Context(), "run", runstate.Cancel{Principal: "alice", Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT})
		if err != nil {
			t.Fatal(err)
		}
		got := d.rest(t, "run")
		if got.GetStopReason() != runnerdv1.StopReason_STOP_REASON_CANCELLED || time.Since(before) > 5*time.Second {
			t.Errorf("%v after %v", got.GetStopReason(), time.Since(before))
		}
		failed := d.await(t, "run", "tool_call_failed").GetToolCallFailed()
		if failed.GetReason() != runnerdv1.CallReason_CALL_REASON_CANCELLED {
			t.Errorf("a read-only call that was cut: %v", failed)
		}
		d.verify(t)
	})
}

// TestAbortInDoubt cuts a call of which nobody can know whether it took effect.
func TestAbortInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{decide: func(context.Context, *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			return calls("charge"), nil
		}, call: func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return nil, gate.wait(ctx, "call")
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		<-gate.reached
		if _, err := d.Deliver(t.Context(), "run", runstate.Cancel{Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT}); err != nil {
			t.Fatal(err)
		}
		d.rest(t, "run")
		failed := d.await(t, "run", "tool_call_failed").GetToolCallFailed()
		if failed.GetReason() != runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME || !strings.Contains(failed.GetMessage(), "cut off") {
			t.Errorf("got %v", failed)
		}
		d.verify(t)
	})
}

// TestApprovalWhileACallRuns is in the inbox although the run does not wait yet.
func TestApprovalWhileACallRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("charge", "ask"), nil
			}
			return answers("done"), nil
		}, call: func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return &runnerdv1.ToolResult{}, gate.wait(ctx, "call")
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		<-gate.reached
		row, err := d.Row(t.Context(), "run")
		if err != nil || len(row.GetRun().GetApprovals()) != 1 || len(d.keysWith(t, prefixAsk)) != 1 {
			t.Fatalf("row %v, %v, keys %v", row, err, d.keysWith(t, prefixAsk))
		}
		if _, err := d.Deliver(t.Context(), "run", vote(row.GetRun().GetApprovals()[0], deny)); err != nil {
			t.Fatal(err)
		}
		if keys := d.keysWith(t, prefixAsk); len(keys) != 0 {
			t.Errorf("keys after the verdict: %v", keys)
		}
		close(gate.open)
		d.rest(t, "run")
		d.verify(t)
	})
}

func TestDeadlineOfACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{rounds: 1, call: func(ctx context.Context, req *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			if req.GetAttempt() == 1 {
				<-ctx.Done()
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			return &runnerdv1.ToolResult{Text: "second"}, nil
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		d.rest(t, "run")
		retried := d.await(t, "run", "tool_call_retried").GetToolCallRetried()
		if retried.GetCause() != runnerdv1.LostCause_LOST_CAUSE_TIMEOUT {
			t.Errorf("retried %v", retried)
		}
		d.verify(t)
	})
}
