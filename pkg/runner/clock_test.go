package runner

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// TestClockSetBack lets a process go on with runs that were written while the clock of the machine was two hours ahead.
// Within it time runs as it does, and of an approval's deadline the rest is held that was left at the last event.
func TestClockSetBack(t *testing.T) {
	const ahead, timeout = 2 * time.Hour, time.Hour
	dir := t.TempDir()
	first := true // the process whose clock is ahead
	w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
		switch {
		case req.GetIteration() > 1:
			return answers("done"), nil
		case req.GetRunId() == "later" && first:
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return calls("ask"), nil
	}}
	var before []string // events of a run that waits
	processAt(t, dir, w, ahead, nil, func(t *testing.T, d *daemon) {
		d.begin(t, "asked")
		d.rest(t, "asked")
		d.begin(t, "unanswered")
		d.rest(t, "unanswered")
		d.begin(t, "later")
		synctest.Wait() // for its Decide
		before = types(t, d, "asked")
	})
	first = false
	processAt(t, dir, w, 0, nil, func(t *testing.T, d *daemon) {
		d.rest(t, "later") // the process opens this approval itself
		synctest.Wait()
		due := time.Now().Add(timeout)
		for _, run := range []string{"asked", "unanswered", "later"} {
			if at := d.wakesAt(t, run); !at.Equal(due) {
				t.Errorf("run %s is woken at %s, want %s", run, at, due)
			}
		}
		if got := types(t, d, "asked"); !slices.Equal(got, before) {
			t.Errorf("a run that waits got events: %v, before %v", got, before)
		}
		time.Sleep(timeout / 2) // loading the runs once more moves nothing
		for _, run := range []string{"asked", "later"} {
			if _, err := d.Deliver(t.Context(), run, runstate.Input{Principal: "alice", Text: "hurry"}); err != nil {
				t.Fatal(err)
			}
			if at := d.wakesAt(t, run); !at.Equal(due) {
				t.Errorf("after an input run %s is woken at %s, want %s", run, at, due)
			}
		}
		time.Sleep(timeout/2 - time.Second)
		synctest.Wait()
		for _, run := range []string{"asked", "later"} {
			if got := d.snapshot(t, run); got.GetState() != runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL {
				t.Errorf("a second before its deadline run %s is %s", run, got.GetState())
			}
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		for _, run := range []string{"asked", "unanswered", "later"} {
			if got := types(t, d, run); !slices.Contains(got, "tool_call_denied") {
				t.Errorf("a second after its deadline run %s has %v", run, got)
			}
		}
		d.verify(t)
	})
}

// asking calls a tool that needs an approval, and then answers.
func asking() *world {
	return &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
		if req.GetIteration() > 1 {
			return answers("done"), nil
		}
		return calls("ask"), nil
	}}
}

// TestClockSetRight lets a process go on with a run whose deadline was written by a clock that was behind.
func TestClockSetRight(t *testing.T) {
	dir, w := t.TempDir(), asking()
	processAt(t, dir, w, 2*time.Hour, nil, func(t *testing.T, d *daemon) {
		d.begin(t, "run")
		d.rest(t, "run")
	})
	processAt(t, dir, w, 0, nil, func(t *testing.T, d *daemon) {
		synctest.Wait()
		if at, want := d.wakesAt(t, "run"), time.Now().Add(time.Hour); !at.Equal(want) {
			t.Errorf("with the clock behind it is woken at %s, want %s", at, want)
		}
	})
	processAt(t, dir, w, 2*time.Hour+10*time.Minute, nil, func(t *testing.T, d *daemon) {
		synctest.Wait()
		due := time.Now().Add(50 * time.Minute) // ten minutes of the hour have passed
		if at := d.wakesAt(t, "run"); !at.Equal(due) {
			t.Errorf("with the clock set right it is woken at %s, want %s", at, due)
		}
		time.Sleep(50*time.Minute - time.Second)
		synctest.Wait()
		if got := d.snapshot(t, "run"); got.GetState() != runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL {
			t.Errorf("a second before its deadline it is %s", got.GetState())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := d.snapshot(t, "run"); got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("a second after its deadline it is %s", got.GetState())
		}
		d.verify(t)
	})
}

// TestClockSetBackOnAFullDisk has no space for the right wake key at first.
func TestClockSetBackOnAFullDisk(t *testing.T) {
	dir, w := t.TempDir(), asking()
	processAt(t, dir, w, 2*time.Hour, nil, func(t *testing.T, d *daemon) {
		d.begin(t, "run")
		d.rest(t, "run")
	})
	full := new(fullLog)
	full.full.Store(true)
	processAt(t, dir, w, 0, full, func(t *testing.T, d *daemon) {
		due := time.Now().Add(time.Hour)
		time.Sleep(10 * time.Minute)
		if at := d.wakesAt(t, "run"); !at.After(due) || !full.refused.Load() {
			t.Fatalf("it is woken at %s", at)
		}
		full.full.Store(false)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if at := d.wakesAt(t, "run"); !at.Equal(due) {
			t.Errorf("once there is space it is woken at %s, want %s", at, due)
		}
		if n := d.drivers(); n != 0 {
			t.Errorf("%d drivers are kept", n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := d.snapshot(t, "run"); got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("after its deadline it is %s", got.GetState())
		}
		d.verify(t)
	})
}

// processAt is a process on the store in dir, and ends it as a crash does. Its clock begins at the time at which that
// of every such process begins, plus some.
func processAt(t *testing.T, dir string, w *world, clock time.Duration, full *fullLog, live func(*testing.T, *daemon)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(clock)
		disk, store := file(t, dir)
		if full != nil {
			full.Log = disk.log
			disk.log = full
		}
		d := boot(t, disk, w)
		live(t, d)
		d.crash(t)
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// fullLog has no space while full is set.
type fullLog struct {
	auditstore.Log
	full, refused atomic.Bool
}

func (l *fullLog) Append(ctx context.Context, c *auditstore.Claim, a auditstore.Append) (auditstore.Position, error) {
	if l.full.Load() {
		l.refused.Store(true)
		return 0, auditstore.ErrFull
	}
	return l.Log.Append(ctx, c, a)
}

// wakesAt returns the time in the one wake key of a run.
func (d *daemon) wakesAt(t *testing.T, run string) (at time.Time) {
	t.Helper()
	n := 0
	for _, key := range d.keysWith(t, prefixWake) {
		if strings.HasSuffix(key, "/"+run) {
			at = wakeTime([]byte(key))
			n++
		}
	}
	if n != 1 {
		t.Errorf("run %s has %d wake keys", run, n)
	}
	return at
}

func (d *daemon) snapshot(t *testing.T, run string) *runnerdv1.Run {
	t.Helper()
	got, err := d.Snapshot(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return got.Run
}
