package runner

import (
	"context"
	"errors"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// Checkpoint returns the checkpoint of an iteration, 0: the latest there is. Errors have the reasons RUN_NOT_FOUND and
// CHECKPOINT_NOT_FOUND.
func (r *Runner) Checkpoint(ctx context.Context, runID string, iteration uint32) (*runnerdv1.Checkpoint, error) {
	if _, err := r.store.row(ctx, runID); err != nil {
		return nil, notFound(runID, err)
	}
	wanted := iteration
	if wanted == 0 {
		last, err := r.lastIteration(ctx, runID)
		if err != nil {
			return nil, err
		}
		wanted = last
	}
	for ; wanted > 0; wanted-- {
		found, err := r.Checkpoints(ctx, runID, wanted-1, 1)
		if err != nil {
			return nil, err
		}
		if len(found) > 0 && (iteration == 0 || found[0].GetIteration() == iteration) {
			return found[0], nil
		}
		if iteration != 0 {
			break
		}
	}
	return nil, errorf(runnerdv1.ErrorReason_ERROR_REASON_CHECKPOINT_NOT_FOUND, "run %q has no such checkpoint", runID)
}

// Checkpoints returns the checkpoints of the iterations after one, oldest first, at most limit. Errors have the reason
// RUN_NOT_FOUND.
func (r *Runner) Checkpoints(ctx context.Context, runID string, after uint32, limit int) ([]*runnerdv1.Checkpoint, error) {
	first, err := r.firstOf(ctx, runID, after+1)
	if err != nil {
		return nil, err
	}
	if first == 0 {
		return nil, nil
	}
	var found []*runnerdv1.Checkpoint
	st, err := r.At(ctx, runID, first)
	if err != nil {
		return nil, err
	}
	collect := func(st *runstate.State) bool {
		if _, ok := st.AtCheckpoint(); ok {
			found = append(found, st.Checkpoint())
		}
		return len(found) < limit
	}
	if !collect(st) {
		return found, nil
	}
	for ev, err := range r.Events(ctx, runID, first) {
		if err == nil {
			err = r.store.apply(ctx, st, ev)
		}
		if err != nil {
			return nil, err
		}
		if !collect(st) {
			break
		}
	}
	return found, nil
}

// firstOf returns the sequence of the first event of an iteration, 0 if the run did not get there. Iterations never
// decrease, so that it is found by halving.
func (r *Runner) firstOf(ctx context.Context, run string, iteration uint32) (uint64, error) {
	if _, err := r.store.row(ctx, run); err != nil {
		return 0, notFound(run, err)
	}
	head, err := r.headOf(ctx, run)
	if err != nil {
		return 0, err
	}
	low, high := uint64(1), head+1
	for low < high {
		middle := low + (high-low)/2
		at, err := r.iterationAt(ctx, run, middle)
		if err != nil {
			return 0, err
		}
		if at >= iteration {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if low > head {
		return 0, nil
	}
	return low, nil
}

func (r *Runner) lastIteration(ctx context.Context, run string) (uint32, error) {
	head, err := r.headOf(ctx, run)
	if err != nil {
		return 0, err
	}
	return r.iterationAt(ctx, run, head)
}

func (r *Runner) iterationAt(ctx context.Context, run string, sequence uint64) (uint32, error) {
	rec, ok, err := r.store.recordAt(ctx, run, sequence)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, errors.New("the log ends before its head")
	}
	ev, err := decodePublic(rec)
	return ev.GetIteration(), err
}
