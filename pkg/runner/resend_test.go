package runner

import (
	"context"
	"testing"
	"testing/synctest"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// refusingLog refuses the next append.
type refusingLog struct {
	auditstore.Log
	refuse error
}

func (l *refusingLog) Append(ctx context.Context, c *auditstore.Claim, a auditstore.Append) (auditstore.Position, error) {
	if err := l.refuse; err != nil {
		l.refuse = nil
		return 0, err
	}
	return l.Log.Append(ctx, c, a)
}

// TestStoppedDriverSendsNothingTwice: what a driver had in progress when it failed is lost, for the next driver as for
// the next process.
func TestStoppedDriverSendsNothingTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		disk := memory(nil)
		log := &refusingLog{Log: disk.log}
		disk.log = log
		w := &world{}
		w.decide = func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("charge"), nil
			}
			return answers("done"), nil
		}
		w.call = func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return &runnerdv1.ToolResult{Text: "charged"}, gate.wait(ctx, "")
		}
		d := boot(t, disk, w)
		d.begin(t, "run")
		<-gate.reached
		log.refuse = auditstore.ErrTooLarge
		input := runstate.Input{Principal: "alice", Text: "go on"}
		if _, err := d.Deliver(t.Context(), "run", input); err == nil {
			t.Fatal("the append was refused and the input was not")
		}
		synctest.Wait()
		_, _ = d.Deliver(t.Context(), "run", input)
		close(gate.open)
		synctest.Wait()
		if n := w.attempts()["run/1.1"]; n != 1 {
			t.Errorf("a call that must not be repeated was sent %d times", n)
		}
		d.rest(t, "run")
		d.verify(t)
	})
}
