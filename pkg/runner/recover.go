package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// maxRecoveries is how many runs are recovered at a time.
const maxRecoveries = 64

// errStopped is why engines and effects end when a drain is over.
var errStopped = errors.New("the daemon is stopping")

// Run recovers the runs that were open when the last process ended, and then drives all runs until ctx ends. It then
// drains for at most Config.DrainTimeout and returns once nothing is in progress any more. It is called once.
//
// An error is one of the store: nothing can be driven.
func (r *Runner) Run(ctx context.Context) error {
	begun := false
	r.begun.Do(func() { begun = true })
	if !begun {
		return errors.New("runner: Run is called once")
	}
	defer r.stop() // whatever happens: nothing stays behind
	began := r.now()
	var err error
	if r.inherited, err = r.cfg.Log.Head(ctx); err != nil {
		return fmt.Errorf("find the head of the log: %w", err)
	}
	queued, running, err := r.findOpen(ctx)
	if err != nil {
		return fmt.Errorf("find open runs: %w", err)
	}
	r.mu.Lock()
	for _, run := range slices.Concat(queued, running) {
		r.open[run] = true
	}
	for _, run := range queued {
		r.slots.enqueue(run)
	}
	r.mu.Unlock()
	close(r.loaded)

	serving, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, 2)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() { r.report(failed, r.hub.run(serving)) })
	tasks.Go(func() { r.heartbeats(serving) })

	recovered := r.recoverRuns(ctx, running)
	r.dispatch()
	if waiting, err := r.countWaiting(ctx); err == nil && ctx.Err() == nil {
		r.log.Info("recovered", "open", len(queued)+len(running), "recovered", recovered, "queued", len(queued),
			"waiting", waiting, "took", r.now().Sub(began).Round(time.Millisecond))
		close(r.ready)
	}
	tasks.Go(func() { r.report(failed, r.tick(serving)) })
	tasks.Go(func() { r.wakeAhead(serving) })
	select {
	case <-ctx.Done():
	case <-r.draining:
	case err := <-failed:
		return err
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.DrainTimeout)
	defer cancel()
	if err := r.Drain(drain); err != nil {
		r.log.Info("calls in progress are abandoned and recovered at the next start")
	}
	return nil
}

// report passes on why a task ended.
func (r *Runner) report(failed chan<- error, err error) {
	if err != nil {
		failed <- err
	}
}

// findOpen returns the runs that go on by themselves: those that wait for a slot, in the order in which they were
// started, and those that were driven.
func (r *Runner) findOpen(ctx context.Context) (queued, running []string, err error) {
	type waiting struct {
		run string
		at  time.Time
	}
	var line []waiting
	err = r.eachRow(ctx, prefixOpen, func(raw *auditstore.Row) error {
		known, err := decodeRow(raw)
		if err != nil {
			r.log.Error("an open run cannot be read and is left alone", "run", raw.Run, "error", err)
			return nil
		}
		if known.GetRun().GetState() == runnerdv1.RunState_RUN_STATE_QUEUED {
			line = append(line, waiting{raw.Run, known.GetRun().GetCreatedAt().AsTime()})
		} else {
			running = append(running, raw.Run)
		}
		return nil
	})
	slices.SortStableFunc(line, func(a, b waiting) int { return a.at.Compare(b.at) })
	for _, w := range line {
		queued = append(queued, w.run)
	}
	return queued, running, err
}

// countWaiting counts the runs at rest that have a deadline.
func (r *Runner) countWaiting(ctx context.Context) (n int, err error) {
	err = r.eachRow(ctx, prefixWake, func(*auditstore.Row) error {
		n++
		return nil
	})
	return n, err
}

// eachRow calls do for each key that begins with the prefix.
func (r *Runner) eachRow(ctx context.Context, prefix string, do func(*auditstore.Row) error) error {
	var after []byte
	for {
		rows, err := r.cfg.Log.Rows(ctx, []byte(prefix), after, auditstore.MaxPage)
		if err != nil || len(rows) == 0 {
			return err
		}
		for i := range rows {
			if err := do(&rows[i]); err != nil {
				return err
			}
		}
		after = rows[len(rows)-1].Key
	}
}

// recoverRuns makes every run that was driven go on, and returns how many do.
func (r *Runner) recoverRuns(ctx context.Context, runs []string) (recovered int) {
	room := make(chan struct{}, maxRecoveries)
	results := make(chan bool, len(runs))
	var wg sync.WaitGroup
	for _, run := range runs {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			_, err := r.post(ctx, run, item{}) // its driver finds out that the process is another one
			if err != nil && ctx.Err() == nil {
				r.log.Error("an open run cannot go on", "run", run, "error", err)
			}
			results <- err == nil
		})
	}
	wg.Wait()
	close(results)
	for ok := range results {
		if ok {
			recovered++
		}
	}
	return recovered
}

// takeOpen reports, once, whether a run was open when this process began or when its last driver failed. Its driver
// counts among the active from then on.
func (e *engine) takeOpen() bool {
	r := e.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open[e.run] {
		return false
	}
	delete(r.open, e.run)
	if e.state == runnerdv1.RunState_RUN_STATE_RUNNING && !e.slot {
		e.slot = true
		r.slots.free-- // perhaps below zero: it was active before
	}
	return true
}

// Drain stops the runner: watchers are ended, nothing new begins, what is in progress may finish until ctx ends and is
// then abandoned as a crash would, and recovered at the next start. It returns once everything has ended and may be
// called more than once, also before or without [Runner.Run].
func (r *Runner) Drain(ctx context.Context) error {
	r.drained.Do(func() { close(r.draining) })
	var err error
	for err == nil {
		e := r.anyActive()
		if e == nil {
			break
		}
		select {
		case <-e.done:
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	r.stop()
	return err
}

// stop abandons whatever is in progress and waits for its goroutines.
func (r *Runner) stop() {
	r.drained.Do(func() { close(r.draining) })
	r.mu.Lock()
	r.abandon(errStopped) // no engine begins after this, see put
	r.mu.Unlock()
	r.work.Wait()
	r.effects.Wait()
}

func (r *Runner) anyActive() *engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.engines {
		return e
	}
	return nil
}
