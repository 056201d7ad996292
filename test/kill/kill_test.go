// Package kill kills the daemon with SIGKILL at random instants under load, and checks that all that was promised
// still holds.
package kill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const (
	concurrent   = 64  // runs in progress at a time
	readers      = 3   // of the whole log
	defaultKills = 5   // RUNNERD_KILLS sets another number
	longestLife  = 900 // ms between two kills
)

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func TestKillUnderLoad(t *testing.T) {
	kills := int(number(t, "RUNNERD_KILLS", defaultKills))
	seed := number(t, "RUNNERD_SEED", rand.Uint64())
	t.Logf("RUNNERD_KILLS=%d RUNNERD_SEED=%d", kills, seed)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute+time.Duration(kills)*5*time.Second)
	defer cancel()

	l, cfg, err := newLoad(seed)
	if err != nil {
		t.Fatal(err)
	}
	l.daemon = harness.Start(t, cfg)

	var watchers []*watcher
	var watching sync.WaitGroup
	watchCtx, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	for range readers {
		w := newWatcher(l.daemon)
		watchers = append(watchers, w)
		watching.Go(func() { w.err = w.follow(watchCtx) })
	}

	// Each worker has one run in progress until the kills are over, and then lets its last one end.
	var faults atomic.Bool
	faults.Store(true)
	var workers sync.WaitGroup
	errs := make(chan error, concurrent)
	for n := range concurrent {
		workers.Go(func() {
			for i := 0; faults.Load(); i++ {
				if err := l.one(ctx, fmt.Sprintf("run-%d-%d", n, i)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	starts := l.kill(t, kills)
	faults.Store(false)
	workers.Wait()
	close(errs)
	for err := range errs {
		t.Errorf("a caller was told %v", err)
	}
	t.Logf("%d kills, %d of them while the daemon started; %d runs", kills, starts, len(l.runs))

	l.check(ctx, t, watchers)
	stopWatching()
	watching.Wait()
	for i, w := range watchers {
		if w.err != nil {
			t.Errorf("watcher %d: %v", i, w.err)
		}
	}
}

// kill kills the daemon at random instants. It returns how many of the kills fell into a start.
func (l *load) kill(t *testing.T, kills int) (starts int) {
	t.Helper()
	instants := rand.New(rand.NewPCG(l.seed, 0))
	for done := 0; done < kills; {
		time.Sleep(time.Duration(instants.IntN(longestLife)) * time.Millisecond)
		l.daemon.Kill()
		for done++; done < kills && instants.IntN(4) == 0; done++ {
			if err := l.daemon.Flash(time.Duration(instants.IntN(300)) * time.Millisecond); err != nil {
				t.Error(err)
			}
			starts++
		}
		l.daemon.Restart(t)
	}
	return starts
}
