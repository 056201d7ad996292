package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// toolWorld makes ten calls of all recovery classes, some of them together.
func toolWorld() *world {
	w := &world{}
	w.decide = func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
		switch i := req.GetIteration(); {
		case i == 1:
			return calls("read", "read", "charge"), nil
		case i <= 8:
			return calls([]string{"read", "note", "charge"}[i%3]), nil
		default:
			return answers("done"), nil
		}
	}
	return w
}

// TestStoreFaults drives runs on a store that behaves as badly as the port allows. What comes out must be what a good
// store gives, and no call may be sent twice.
func TestStoreFaults(t *testing.T) {
	single := map[auditstoretest.Op][]auditstoretest.Fault{
		auditstoretest.OpAppend: {
			auditstoretest.UnknownWritten, auditstoretest.UnknownLost, auditstoretest.LateWritten, auditstoretest.LateRefused,
			auditstoretest.Unavailable, auditstoretest.Full,
		},
		auditstoretest.OpClaim: {auditstoretest.UnknownWritten, auditstoretest.UnknownLost, auditstoretest.Unavailable},
		auditstoretest.OpRead:  {auditstoretest.Unavailable}, auditstoretest.OpBody: {auditstoretest.Unavailable},
		auditstoretest.OpShared: {auditstoretest.Unavailable}, auditstoretest.OpHead: {auditstoretest.Unavailable},
		auditstoretest.OpWait: {auditstoretest.Unavailable, auditstoretest.EarlyWake},
	}
	rates := func(f ...auditstoretest.Fault) map[auditstoretest.Fault]float64 {
		out := make(map[auditstoretest.Fault]float64)
		for _, fault := range f {
			out[fault] = 0.2
		}
		return out
	}
	all := rates(auditstoretest.UnknownWritten, auditstoretest.UnknownLost, auditstoretest.LateWritten,
		auditstoretest.LateRefused, auditstoretest.Unavailable, auditstoretest.Full, auditstoretest.EarlyWake)
	var want []string
	run := func(t *testing.T, faults auditstoretest.Faults) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			w := toolWorld()
			var on sync.Mutex
			broken := false
			d := boot(t, memory(func(op auditstoretest.Op, run string) auditstoretest.Fault {
				on.Lock()
				defer on.Unlock()
				if !broken || faults == nil {
					return auditstoretest.None
				}
				return faults(op, run)
			}), w)
			d.begin(t, "run")
			on.Lock()
			broken = true
			on.Unlock()
			for {
				got, timedOut, err := d.WaitRun(t.Context(), "run", true)
				if errors.Is(err, auditstore.ErrUnavailable) {
					time.Sleep(10 * time.Millisecond)
					continue
				}
				if err != nil || timedOut || got.GetFinalAnswer().GetContent() != "done" {
					t.Fatalf("got %v, %v, %v", got, timedOut, err)
				}
				break
			}
			on.Lock()
			broken = false
			on.Unlock()
			got := types(t, d, "run")
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("events differ from those on a good store:\n got %v\nwant %v", got, want)
			}
			for key, n := range w.attempts() {
				if n != 1 {
					t.Errorf("%s was sent %d times", key, n)
				}
			}
			d.verify(t)
		})
	}
	t.Run("none", func(t *testing.T) { run(t, nil) })
	for op, faults := range single {
		for _, fault := range faults {
			t.Run(fmt.Sprintf("%s %d, again and again", op, fault), func(t *testing.T) {
				n := 0
				run(t, func(got auditstoretest.Op, _ string) auditstoretest.Fault {
					if got != op {
						return auditstoretest.None
					}
					if n++; n%4 != 1 { // folding a run takes several reads, none of which may fail
						return auditstoretest.None
					}
					return fault
				})
			})
		}
	}
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { run(t, auditstoretest.Seeded(seed, all)) })
	}
}

// TestStoreFaultsWithPeople answers approvals on a bad store: a verdict that was acknowledged is there once.
func TestStoreFaultsWithPeople(t *testing.T) {
	all := map[auditstoretest.Fault]float64{
		auditstoretest.UnknownWritten: 0.2, auditstoretest.UnknownLost: 0.2, auditstoretest.LateWritten: 0.1,
		auditstoretest.LateRefused: 0.1, auditstoretest.Unavailable: 0.1,
	}
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
					if req.GetIteration() <= 3 {
						return calls("ask"), nil
					}
					return answers("done"), nil
				}}
				seeded := auditstoretest.Seeded(seed, all)
				var mu sync.Mutex
				d := boot(t, memory(func(op auditstoretest.Op, run string) auditstoretest.Fault {
					mu.Lock()
					defer mu.Unlock()
					if op != auditstoretest.OpAppend && op != auditstoretest.OpClaim {
						return auditstoretest.None // what people read is not what this is about
					}
					return seeded(op, run)
				}), w)
				d.begin(t, "run")
				for range 3 {
					waiting := d.rest(t, "run")
					if _, err := d.Deliver(t.Context(), "run", runstate.Input{Text: "go on"}); err != nil {
						t.Fatal(err)
					}
					if _, err := d.Deliver(t.Context(), "run", vote(waiting.GetApprovals()[0], approve)); err != nil {
						t.Fatal(err)
					}
				}
				if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
					t.Errorf("got %v", got)
				}
				count := make(map[string]int)
				for _, kind := range types(t, d, "run") {
					count[kind]++
				}
				if count["input_received"] != 3 || count["tool_call_approved"] != 3 {
					t.Errorf("%d inputs and %d verdicts are recorded, want 3 and 3", count["input_received"], count["tool_call_approved"])
				}
				d.verify(t)
			})
		})
	}
}

// fullDisk refuses every append while it is full, but for what may use the reserve.
type fullDisk struct {
	mu   sync.Mutex
	full bool
}

func (f *fullDisk) set(full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.full = full
}

func (f *fullDisk) fault(op auditstoretest.Op, _ string) auditstoretest.Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.full && (op == auditstoretest.OpAppend || op == auditstoretest.OpPut) {
		return auditstoretest.Full
	}
	return auditstoretest.None
}

func TestDiskFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(fullDisk)
		gate := newHold()
		w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() > 1 {
				return answers("done"), nil
			}
			return calls("charge"), gate.wait(ctx, req.GetRunId())
		}}
		d := boot(t, memory(space.fault), w)
		for _, run := range []string{"goes-on", "cancelled"} {
			d.begin(t, run)
			<-gate.reached
		}
		space.set(true)
		close(gate.open)
		time.Sleep(time.Minute)
		if sent := w.attempts(); len(sent) != 0 {
			t.Errorf("a call was sent whose start is not recorded: %v", names(sent))
		}
		full := runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL
		if _, err := d.Deliver(t.Context(), "goes-on", runstate.Input{Text: "x"}); toError(err).Reason != full {
			t.Errorf("an input: %v", err)
		}
		if _, _, err := d.Start(t.Context(), "alice", &runnerdv1.StartRunRequest{RunId: "new", Agent: "agent"}); toError(err).Reason != full {
			t.Errorf("a new run: %v", err)
		}
		if _, err := d.Deliver(t.Context(), "cancelled", runstate.Cancel{Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT}); err != nil {
			t.Errorf("a cancel uses the reserve: %v", err)
		}
		if got := d.rest(t, "cancelled"); got.GetStopReason() != runnerdv1.StopReason_STOP_REASON_CANCELLED {
			t.Errorf("got %v", got.GetStopReason())
		}
		space.set(false)
		if got := d.rest(t, "goes-on"); got.GetFinalAnswer().GetContent() != "done" {
			t.Errorf("got %v", got)
		}
		if sent := w.attempts(); sent["goes-on/1.1"] != 1 || len(sent) != 1 {
			t.Errorf("sent %v", names(sent))
		}
		if _, err := d.Snapshot(t.Context(), "new"); toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND {
			t.Errorf("the run that was refused: %v", err)
		}
		d.verify(t)
	})
}

// TestResultOnAFullDisk keeps a result that is too big for an event until there is space for it.
func TestResultOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		space := new(fullDisk)
		w := &world{rounds: 1, call: func(context.Context, *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			space.set(true)
			return &runnerdv1.ToolResult{Blobs: []*runnerdv1.Blob{{MimeType: "image/png", Data: []byte("pixels")}}}, nil
		}}
		var told bytes.Buffer
		d := boot(t, memory(space.fault), w, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&told, nil)) })
		d.begin(t, "run")
		time.Sleep(10 * time.Minute) // past the deadline of the call
		space.set(false)
		d.rest(t, "run")
		done := d.await(t, "run", "tool_call_completed").GetToolCallCompleted()
		if len(done.GetArtifacts()) != 1 || done.GetAttempt() != 1 || len(w.calls) != 1 {
			t.Errorf("got %v after %d calls", done, len(w.calls))
		}
		if n := strings.Count(told.String(), "a run waits for space on the disk"); n != 1 {
			t.Errorf("the operator is told %d times:\n%s", n, &told)
		}
		d.verify(t)
	})
}

func TestClaimThatCannotBeSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		broken := false
		fatal := make(chan error, 1)
		gate := newHold()
		w := &world{decide: func(ctx context.Context, _ *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			return answers("done"), gate.wait(ctx, "decide")
		}}
		d := boot(t, memory(func(op auditstoretest.Op, _ string) auditstoretest.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case broken && op == auditstoretest.OpAppend:
				return auditstoretest.UnknownLost
			case broken && op == auditstoretest.OpClaim:
				return auditstoretest.Unavailable
			}
			return auditstoretest.None
		}), w, func(c *Config) {
			c.Fatal = func(err error) { fatal <- err }
		})
		d.begin(t, "run")
		<-gate.reached
		mu.Lock()
		broken = true
		mu.Unlock()
		close(gate.open)
		if err := <-fatal; err == nil {
			t.Error("no reason is given")
		}
		mu.Lock()
		broken = false
		mu.Unlock()
		d.verify(t)
	})
}
