package runner

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// file is a disk that can be closed and opened again.
func file(tb testing.TB, dir string) (disk, *auditstore.Store) {
	tb.Helper()
	store, err := auditstore.Open(dir, &auditstore.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	return disk{store, store}, store
}

// TestCrashesOnAFile ends the process again and again while many runs are driven, at whatever moment it is. In the
// end all are done and no call that must not be repeated was.
func TestCrashesOnAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const runs = 32
	w := toolWorld()
	var left atomic.Int32 // calls until the process ends
	moment := make(chan struct{}, 1)
	w.call = func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
		n := left.Add(-1)
		if n == 0 {
			moment <- struct{}{}
		}
		if n <= 0 { // the process is about to end
			<-ctx.Done()
			return nil, ctx.Err()
		}
		select {
		case <-time.After(time.Duration(rand.IntN(3)) * time.Millisecond):
			return &runnerdv1.ToolResult{Text: "ok"}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	key := Key{ID: "k", Secret: []byte("secret")}
	for life := range 8 {
		d, store := file(t, dir)
		left.Store(10 + rand.Int32N(25)) // of about 300
		if life == 7 {
			left.Store(math.MaxInt32)
		}
		p := boot(t, d, w, func(c *Config) { c.MaxActive, c.Key = 8, key })
		if life == 0 {
			for i := range runs {
				p.begin(t, fmt.Sprint("run-", i))
			}
		}
		if life < 7 {
			<-moment
			p.crash(t)
		} else {
			for i := range runs {
				if got := p.rest(t, fmt.Sprint("run-", i)); got.GetFinalAnswer().GetContent() != "done" {
					t.Errorf("got %v", got)
				}
			}
			p.verify(t)
			for _, prefix := range []string{prefixOpen, prefixWake, prefixAsk} {
				if left := p.keysWith(t, prefix); len(left) != 0 {
					t.Errorf("keys are left: %v", left)
				}
			}
			p.end()
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := make(map[string]int)
	for _, c := range w.calls {
		if c.GetName() == "charge" {
			sent[c.GetIdempotencyKey()]++
		}
	}
	for call, n := range sent {
		if n != 1 {
			t.Errorf("%s was sent %d times", call, n)
		}
	}
}

// TestWatchersOfEverything sees each event of many runs once, in the order of the log.
func TestWatchersOfEverything(t *testing.T) {
	t.Parallel()
	d, store := file(t, t.TempDir())
	p := boot(t, d, &world{rounds: 5})
	const runs, watchers = 20, 10
	var wg sync.WaitGroup
	seen := make([]map[string]uint64, watchers)
	var done atomic.Int32
	for i := range watchers {
		seen[i] = make(map[string]uint64)
		wg.Go(func() {
			ends := 0
			err := p.Watch(t.Context(), WatchOptions{Follow: true}, func(items []WatchItem) error {
				for _, it := range items {
					if it.Sequence != seen[i][it.Run]+1 {
						return fmt.Errorf("run %s: %d after %d", it.Run, it.Sequence, seen[i][it.Run])
					}
					seen[i][it.Run] = it.Sequence
					if it.Type == "run_completed" {
						ends++
					}
				}
				if ends == runs {
					done.Add(1)
					return io.EOF
				}
				return nil
			})
			if err != io.EOF { //nolint:errorlint // it comes from above
				t.Error(err)
			}
		})
	}
	for i := range runs {
		p.begin(t, fmt.Sprint("run-", i))
	}
	wg.Wait()
	if done.Load() != watchers {
		t.Errorf("%d of %d watchers saw every end", done.Load(), watchers)
	}
	p.verify(t)
	p.end()
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkIterations drives runs of ten iterations each on a file, with a model and tools that answer at once.
func BenchmarkIterations(b *testing.B) {
	for _, parallel := range []int{1, 64} {
		b.Run(fmt.Sprint(parallel, " at a time"), func(b *testing.B) {
			d, store := file(b, b.TempDir())
			w := &quietWorld{world{rounds: 10}}
			agent := testAgent()
			r, err := New(Config{
				Log: d.log, Blobs: d.blobs, LogID: "log", Key: Key{ID: "k", Secret: []byte("secret")},
				Agents: map[string]*Agent{agent.Name: agent}, Decider: w, Tools: w,
				Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			ended := make(chan error)
			go func() { ended <- r.Run(ctx) }()
			<-r.Ready()
			b.ReportAllocs()
			var n atomic.Int64
			var wg sync.WaitGroup
			for range parallel {
				wg.Go(func() {
					for n.Add(10) <= int64(b.N)+9 {
						run, _, err := r.Start(ctx, "alice", &runnerdv1.StartRunRequest{Agent: "agent"})
						if err != nil {
							b.Error(err)
							return
						}
						if _, _, err := r.WaitRun(ctx, run.GetRunId(), false); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			stop()
			if err := <-ended; err != nil {
				b.Error(err)
			}
			if err := store.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}

// quietWorld does not remember what it was asked.
type quietWorld struct{ world }

func (w *quietWorld) Decide(_ context.Context, _ string, req *runnerdv1.DecideRequest, _ func(string)) (*runnerdv1.Decision, error) {
	if req.GetIteration() <= w.rounds {
		return calls("read"), nil
	}
	return answers("done"), nil
}

func (w *quietWorld) CallTool(context.Context, string, *runnerdv1.CallToolRequest, int, func(*runnerdv1.Progress)) (*runnerdv1.ToolResult, error) {
	return &runnerdv1.ToolResult{Text: "result"}, nil
}
