// Package replay runs recorded runs of real models through the daemon and compares what became of them with what was
// recorded.
package replay

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// Where the contract decides otherwise than the recording, the difference stands in this file, by run.
const differencesFile = "testdata/differences.txt"

var (
	update = flag.Bool("update", false, "write "+differencesFile+" anew")
	seed   = flag.Uint64("seed", 1, "chooses where each run is when the daemon is killed")
)

func TestMain(m *testing.M) {
	harness.Main(m)
}

// rounds is how often the daemon is killed under all runs.
const rounds = 3

func TestReplay(t *testing.T)       { replay(t, 0) }
func TestReplayKilled(t *testing.T) { replay(t, rounds) }

// replay runs all recordings at once through one daemon, kills it so many times with each run at a chosen point, and
// compares.
func replay(t *testing.T, kills int) {
	t.Parallel()
	w := newWorld(t, recordings(t), kills)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	var people sync.WaitGroup
	for _, run := range w.runs {
		w.start(t, run)
		people.Go(func() { run.err = w.watch(ctx, run) })
	}
	for round := range kills {
		w.held(ctx, t, round)
		w.daemon.Kill()
		close(w.killed[round])
		w.daemon.Restart(t)
	}
	people.Wait()

	var differences []string
	var hits, several int
	for _, run := range w.runs {
		t.Run(run.ID, func(t *testing.T) { w.compare(t, run) })
		for _, d := range run.differs {
			differences = append(differences, run.ID+"\t"+d)
		}
		hits += min(run.hits, 1)
		if run.hits > 1 {
			several++
		}
	}
	if n, err := w.daemon.CheckAll(ctx); err != nil || n != len(w.runs) {
		t.Errorf("the log of all runs: %d runs, want %d: %v", n, len(w.runs), err)
	}
	if kills > 0 {
		t.Logf("seed %d: %d kills hit %d of %d runs in their middle, %d of them more than once", *seed, kills, hits, len(w.runs), several)
		if hits != len(w.runs) {
			t.Errorf("only %d of %d runs were hit by a kill in their middle", hits, len(w.runs))
		}
	}
	compareDifferences(t, differences)
}

// compareDifferences checks that the runs differ from their recordings where the table says, and nowhere else.
func compareDifferences(t *testing.T, got []string) {
	t.Helper()
	slices.Sort(got)
	counts := map[string]int{}
	for _, d := range got {
		_, what, _ := strings.Cut(d, "\t")
		kind, _, _ := strings.Cut(what, ":")
		counts[kind]++
	}
	t.Logf("expected differences: %v", counts)
	if *update {
		text := []byte(strings.Join(got, "\n") + "\n")
		if err := os.WriteFile(differencesFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	table := differencesTable(t)
	for _, d := range got {
		if !slices.Contains(table, d) {
			t.Errorf("not in %s: %s", differencesFile, d)
		}
	}
	for _, d := range table {
		if !slices.Contains(got, d) {
			t.Errorf("only in %s: %s", differencesFile, d)
		}
	}
}

// differencesTable reads the table: "run<tab>kind: where" a line.
func differencesTable(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(differencesFile)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// world is a daemon with an agent, and a tool host, for each set of tools.
type world struct {
	brain  *harness.Brain
	daemon *harness.Daemon
	runs   []*run
	killed []chan struct{} // closed when that round's kill was done
}

// run is a play that is being run.
type run struct {
	*play
	agent string
	host  *harness.Hands
	holds []string // point at which it is when the daemon is killed, by round

	mu     sync.Mutex
	round  int             // of the point it waits for next
	hits   int             // kills that found it at its point
	arrive []chan struct{} // by round, closed when the run is at its point

	events []*runnerdv1.Event // as its watcher got them
	err    error              // of its watcher
}

func newWorld(t *testing.T, all []*recording, kills int) *world {
	t.Helper()
	w := &world{}
	var err error
	if w.brain, err = harness.NewBrain(); err != nil {
		t.Fatal(err)
	}
	cfg := &configv1.Config{
		DecideServices: map[string]*configv1.DecideService{"recorded": {Address: w.brain.Addr}},
		ToolHosts:      map[string]*configv1.ToolHost{},
		Agents:         map[string]*configv1.Agent{},
	}
	for range kills {
		w.killed = append(w.killed, make(chan struct{}))
	}
	agents := map[string]*run{}
	table := differencesTable(t)
	for i, r := range all {
		p, err := stage(r)
		if err != nil {
			t.Fatalf("%s: %v", r.ID, err)
		}
		run := &run{play: p, holds: holdPoints(points(p, table), p.ID, kills, *seed)}
		for range kills {
			run.arrive = append(run.arrive, make(chan struct{}))
		}
		tools := offer(p.Tools)
		key := fmt.Sprint(tools)
		if same := agents[key]; same != nil {
			run.agent, run.host = same.agent, same.host
		} else {
			run.agent = fmt.Sprintf("agent-%d", i)
			if run.host, err = harness.NewHands(tools...); err != nil {
				t.Fatal(err)
			}
			cfg.ToolHosts[run.agent] = &configv1.ToolHost{Address: run.host.Addr, Tools: vouched(p.Tools)}
			cfg.Agents[run.agent] = &configv1.Agent{
				DecideService: "recorded", ToolHosts: []string{run.agent},
				Policy: &configv1.Policy{Mode: "danger-full-access", Paths: &configv1.Paths{Off: true}}, // all that ran is to run
				Budget: &runnerdv1.Budget{ // the limits are not what is replayed
					MaxIterations: proto.Uint32(1000), MaxToolCalls: proto.Uint32(1000),
					MaxCostCents: new(1e6), MaxConsecutiveFailures: proto.Uint32(0),
					MaxConsecutiveRefusals: proto.Uint32(0), MaxContextTokens: proto.Uint32(1_000_000),
				},
			}
			agents[key] = run
		}
		w.brain.Script(p.ID, w.decide(run))
		run.host.Script(p.ID, w.call(run))
		w.runs = append(w.runs, run)
	}
	w.daemon = harness.Start(t, cfg)
	return w
}

// offer is the tools as their host lists them. All can be repeated.
func offer(tools []recordTool) []*runnerdv1.ToolDefinition {
	var out []*runnerdv1.ToolDefinition
	for _, tool := range tools {
		d := harness.Tool(tool.Name, string(tool.InputSchema), harness.Idempotent)
		d.Description = tool.Description
		out = append(out, d)
	}
	return out
}

// vouched is what the operator says of tools: those with an even name run together, whatever their name says that they do.
func vouched(tools []recordTool) map[string]*configv1.Tool {
	out := map[string]*configv1.Tool{}
	for _, tool := range tools {
		if len(tool.Name)%2 == 0 {
			out[tool.Name] = &configv1.Tool{Tier: proto.Uint32(0)}
		}
	}
	return out
}

func (w *world) start(t *testing.T, r *run) {
	t.Helper()
	// The log of the run is checked by compare, and with all others.
	_, err := w.daemon.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{RunId: r.ID, Agent: r.agent, Task: r.Task})
	if err != nil {
		t.Fatalf("StartRun %s: %v", r.ID, err)
	}
}

// decide gives the recorded decisions, one an iteration: the same again if it is asked again.
func (w *world) decide(r *run) harness.Step {
	return func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
		i := int(req.GetIteration()) - 1
		if i >= len(r.decisions) {
			return status.Errorf(codes.FailedPrecondition, "the recording has %d decisions", len(r.decisions))
		}
		d := &r.decisions[i]
		w.hold(r, point("decide", i))
		for n, text := range d.meantime {
			if err := w.input(s.Context(), r, fmt.Sprintf("meantime-%d-%d", i, n), text); err != nil {
				return err
			}
		}
		return harness.Send(s, d.decision())
	}
}

// call gives the recorded results.
func (w *world) call(r *run) harness.Handler {
	return func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
		ordinal := r.ordinal(req.GetCallId())
		if ordinal < 0 || ordinal >= len(r.calls) {
			return nil, status.Errorf(codes.InvalidArgument, "the recording has no call %s", req.GetCallId())
		}
		w.hold(r, point("call", ordinal))
		c := &r.calls[ordinal]
		return &runnerdv1.ToolResult{Text: c.result, IsError: c.isError}, nil
	}
}

// input gives what a person said, until the daemon has it; the id makes that safe.
func (w *world) input(ctx context.Context, r *run, id, text string) error {
	for {
		_, err := w.daemon.Runs.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: r.ID, RequestId: id, Text: text})
		if status.Code(err) != codes.Unavailable {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

// pause lets a daemon that is down come up.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(20 * time.Millisecond):
		return nil
	}
}

// watch follows a run to its end over all restarts, and answers its questions.
func (w *world) watch(ctx context.Context, r *run) error {
	for {
		var last uint64
		if n := len(r.events); n > 0 {
			last = r.events[n-1].GetSequence()
		}
		var failed error
		err := w.daemon.Each(ctx, &runnerdv1.StreamEventsRequest{
			Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: r.ID}, AfterSequence: &last, Follow: true, IncludeRaw: true,
		}, func(m *runnerdv1.StreamEventsResponse) bool {
			ev := m.GetEvent()
			if ev == nil {
				return true
			}
			r.events = append(r.events, ev)
			if ev.GetInputRequested() != nil {
				i := int(ev.GetIteration()) - 1
				w.hold(r, point("reply", i))
				failed = w.input(ctx, r, fmt.Sprintf("reply-%d", i), r.decisions[i].reply)
			}
			return failed == nil
		})
		switch {
		case failed != nil:
			return failed
		case status.Code(err) != codes.Unavailable:
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}
