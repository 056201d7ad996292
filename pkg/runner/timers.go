package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// timers wakes runs at rest when their deadline has come. There is one loop for all of them, and what it knows stands
// in the store: a run at rest costs a key and nothing in memory.
type timers struct {
	changed chan struct{} // has room for one: next is earlier than before

	mu   sync.Mutex
	next time.Time // earliest deadline announced since the loop looked last; zero: none
}

const (
	// maxTicks is how many runs are woken at a time.
	maxTicks = 64
	// tickAgain is after what time a run is woken again whose key is still there.
	tickAgain = 30 * time.Second
)

func newTimers() *timers { return &timers{changed: make(chan struct{}, 1)} }

// announce tells the loop that a wake key was written.
func (t *timers) announce(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next.IsZero() || at.Before(t.next) {
		t.next = at
		select {
		case t.changed <- struct{}{}:
		default:
		}
	}
}

// announced returns the earliest deadline announced and forgets it.
func (t *timers) announced() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.next
	t.next = time.Time{}
	return next
}

// tick wakes the runs that are due, until ctx ends.
func (r *Runner) tick(ctx context.Context) error {
	ticked := make(map[string]time.Time) // by key: runs that were woken and whose key may still be there
	next := r.now()
	for {
		timer := time.NewTimer(next.Sub(r.now()))
		select {
		case <-timer.C:
		case <-r.timers.changed:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
		if at := r.timers.announced(); !at.IsZero() && at.After(r.now()) {
			if at.Before(next) {
				next = at
			}
			continue // nothing is due; the loop only had to know
		}
		var err error
		if next, err = r.wakeDue(ctx, ticked); err != nil && ctx.Err() == nil {
			r.log.Warn("the deadlines cannot be read and are tried again", "error", err)
			next = r.now().Add(time.Second)
			if errors.Is(err, auditstore.ErrClosed) {
				return err
			}
		}
	}
}

// wakeDue wakes the runs whose deadline has come and returns when the next one comes.
func (r *Runner) wakeDue(ctx context.Context, ticked map[string]time.Time) (next time.Time, err error) {
	now := r.now()
	next = now.Add(time.Hour)
	seen := make(map[string]bool, len(ticked))
	room := make(chan struct{}, maxTicks)
	var wg sync.WaitGroup
	defer wg.Wait()
	var after []byte
	for {
		rows, err := r.cfg.Log.Rows(ctx, []byte(prefixWake), after, auditstore.MaxPage)
		if err != nil {
			return next, err
		}
		for i := range rows {
			at, key := wakeTime(rows[i].Key), string(rows[i].Key)
			if at.After(now) {
				forgetUnseen(ticked, seen)
				return minTime(next, at), nil
			}
			seen[key] = true
			if again := ticked[key].Add(tickAgain); again.After(now) {
				next = minTime(next, again)
				continue
			}
			ticked[key] = now
			next = minTime(next, now.Add(tickAgain))
			room <- struct{}{}
			run := rows[i].Run
			wg.Go(func() {
				defer func() { <-room }()
				r.wake(ctx, run)
			})
		}
		if len(rows) == 0 {
			forgetUnseen(ticked, seen)
			return next, nil
		}
		after = rows[len(rows)-1].Key
	}
}

// wakeAhead wakes the runs at rest that were written by a clock that was ahead of this process's. By their keys they
// would be woken too late; once woken they put them right.
func (r *Runner) wakeAhead(ctx context.Context) {
	room := make(chan struct{}, maxTicks)
	var wg sync.WaitGroup
	defer wg.Wait()
	err := r.eachRow(ctx, prefixWake, func(raw *auditstore.Row) error {
		known, err := decodeRow(raw)
		if err != nil || !known.GetRun().GetUpdatedAt().AsTime().After(r.born) {
			return nil //nolint:nilerr // a row that cannot be read is told of when its deadline comes
		}
		run := raw.Run
		select {
		case room <- struct{}{}:
		case <-r.draining:
			return errStopped
		}
		wg.Go(func() {
			defer func() { <-room }()
			r.wake(ctx, run)
		})
		return nil
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, errStopped) {
		r.log.Warn("runs that wait since the clock was ahead may be woken late", "error", err)
	}
}

// wake makes a run look at the clock.
func (r *Runner) wake(ctx context.Context, run string) {
	r.mu.Lock()
	stopped := r.stopped[run]
	r.mu.Unlock()
	if stopped {
		return
	}
	if _, err := r.post(ctx, run, item{}); err != nil && ctx.Err() == nil {
		r.log.Warn("a run whose deadline has come cannot be driven and is tried again", "run", run, "error", err)
	}
}

func forgetUnseen(ticked map[string]time.Time, seen map[string]bool) {
	for key := range ticked {
		if !seen[key] {
			delete(ticked, key)
		}
	}
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
