package runner

import (
	"context"
	"errors"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// Inspect calls read with the state of a run as it is now: between two turns if the run is driven, else as folded from
// the log. read must be quick and must neither change nor keep anything of the state. Errors have the reason
// RUN_NOT_FOUND and those of the store.
func (r *Runner) Inspect(ctx context.Context, runID string, read func(*runstate.State)) error {
	if e := r.active(runID); e != nil {
		reply := make(chan answer, 1)
		if e.mail.put(item{read: read, reply: reply}) {
			select {
			case a := <-reply:
				return a.err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	st, err := r.At(ctx, runID, 0)
	if err != nil {
		return err
	}
	read(st)
	return nil
}

// Snapshot is a run at one moment.
type Snapshot struct {
	Run *runnerdv1.Run // with nothing redacted; the receiver owns it, but not what its spec refers to
}

// Snapshot returns a run as it is now. Errors are those of [Runner.Inspect].
func (r *Runner) Snapshot(ctx context.Context, runID string) (*Snapshot, error) {
	var run *runnerdv1.Run
	err := r.Inspect(ctx, runID, func(st *runstate.State) { run = st.Snapshot() })
	if err != nil {
		return nil, err
	}
	return &Snapshot{Run: run}, nil
}

// WaitRun returns a run when it is DONE or, with idle, when nothing is in progress; with timedOut true as it is when
// ctx reaches its deadline. Errors have the reasons RUN_NOT_FOUND and DRAINING.
func (r *Runner) WaitRun(ctx context.Context, runID string, idle bool) (run *runnerdv1.Run, timedOut bool, err error) {
	enough := func(run *runnerdv1.Run) bool {
		return run.GetState() == runnerdv1.RunState_RUN_STATE_DONE || idle && !goesOn(run.GetState())
	}
	var w *watcher // only while the run has no driver: what a driver does costs the waiter nothing
	for {
		if e := r.active(runID); e != nil {
			select {
			case <-e.done:
				if e.last != nil {
					if run := e.last.Snapshot(); enough(run) {
						return run, false, nil
					}
				}
				continue
			case <-r.draining:
				return nil, false, errDraining()
			case <-ctx.Done():
			}
		}
		if w == nil {
			w = r.hub.watch(runID)
			defer r.hub.forget(w)
		}
		snapshot, err := r.lastSnapshot(ctx, runID)
		if err != nil {
			return nil, false, err
		}
		if enough(snapshot.Run) {
			return snapshot.Run, false, nil
		}
		select {
		case <-w.wake:
		case <-r.draining:
			return nil, false, errDraining()
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return snapshot.Run, true, nil
			}
			return nil, false, ctx.Err()
		}
	}
}

// lastSnapshot returns a run as it is, even just after ctx has reached its deadline.
func (r *Runner) lastSnapshot(ctx context.Context, runID string) (*Snapshot, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return r.Snapshot(ctx, runID)
}
