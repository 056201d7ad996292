package runner

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// world is a decide service and a tool host in memory. Unless a test says otherwise the model calls "read" in
// iterations 1 to rounds and answers then.
type world struct {
	rounds uint32
	decide func(context.Context, *runnerdv1.DecideRequest) (*runnerdv1.Decision, error)
	call   func(context.Context, *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error)
	get    func(context.Context, *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error)
	list   func(context.Context, string) (*runnerdv1.ToolHostServiceListToolsResponse, error)

	mu      sync.Mutex
	lists   int
	decides []*runnerdv1.DecideRequest
	calls   []*runnerdv1.CallToolRequest
}

func (w *world) Decide(ctx context.Context, _ string, req *runnerdv1.DecideRequest, onText func(string)) (*runnerdv1.Decision, error) {
	w.mu.Lock()
	w.decides = append(w.decides, req)
	w.mu.Unlock()
	onText("hm")
	if w.decide != nil {
		return w.decide(ctx, req)
	}
	if req.GetIteration() <= w.rounds {
		return calls("read"), nil
	}
	return answers("done"), nil
}

func (w *world) ListTools(ctx context.Context, host string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	w.mu.Lock()
	w.lists++
	w.mu.Unlock()
	if w.list != nil {
		return w.list(ctx, host)
	}
	yes := true
	return &runnerdv1.ToolHostServiceListToolsResponse{HasGetCall: w.get != nil, Tools: []*runnerdv1.ToolDefinition{
		{Name: "read", Description: "does read", Annotations: &runnerdv1.Annotations{ReadOnly: &yes}},
		{Name: "note", Description: "does note", Annotations: &runnerdv1.Annotations{Idempotent: &yes}},
		{Name: "charge", Description: "does charge"},
		{Name: "ask", Description: "does ask"},
	}}, nil
}

func (w *world) CallTool(ctx context.Context, _ string, req *runnerdv1.CallToolRequest, _ int, onProgress func(*runnerdv1.Progress)) (*runnerdv1.ToolResult, error) {
	w.mu.Lock()
	w.calls = append(w.calls, req)
	w.mu.Unlock()
	onProgress(&runnerdv1.Progress{Message: "half"})
	if w.call != nil {
		return w.call(ctx, req)
	}
	return &runnerdv1.ToolResult{Text: "result of " + req.GetCallId()}, nil
}

func (w *world) GetCall(ctx context.Context, _ string, req *runnerdv1.GetCallRequest, _ int) (*runnerdv1.GetCallResponse, error) {
	if w.get == nil {
		return nil, status.Error(codes.Unimplemented, "no GetCall")
	}
	return w.get(ctx, req)
}

// attempts returns how often each call was sent, by idempotency key.
func (w *world) attempts() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := make(map[string]int)
	for _, c := range w.calls {
		n[c.GetIdempotencyKey()]++
	}
	return n
}

func calls(names ...string) *runnerdv1.Decision {
	out := new(runnerdv1.ToolCalls)
	for _, name := range names {
		out.Calls = append(out.Calls, &runnerdv1.ToolCall{Name: name, ArgumentsJson: `{"n":1}`})
	}
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: out}}
}

func answers(text string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: text}}}
}

// disk is what stays when a process ends.
type disk struct {
	log   auditstore.Log
	blobs auditstore.Blobs
}

func memory(faults auditstoretest.Faults) disk {
	m := auditstoretest.NewMemory(faults)
	return disk{m, m}
}

// daemon is a runner in a process that can end.
type daemon struct {
	*Runner
	t    *testing.T
	disk disk
	stop context.CancelFunc
	done chan error
}

type option func(*Config)

func testAgent() *Agent {
	return &Agent{
		Name: "agent",
		Spec: &runnerdv1.RunSpec{
			DecideService: "brain",
			Budget: &runnerdv1.Budget{
				MaxIterations: new(uint32(200)), MaxToolCalls: new(uint32(1000)), MaxConsecutiveFailures: new(uint32(5)),
			},
			Approval: &runnerdv1.ApprovalSettings{Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, Timeout: durationpb.New(time.Hour)},
			Policy:   []*runnerdv1.PolicyLayer{{Name: "agent", ApprovalFor: []string{"ask"}}}, DecideTimeout: durationpb.New(4 * time.Minute),
			DecidePatience: durationpb.New(time.Minute), MaxParallelTools: 4, MaxResultBytes: 16 << 20,
		},
		Hosts:       []HostConfig{{Name: "hands"}},
		ToolTimeout: 2 * time.Minute,
	}
}

// boot starts a process on a disk. It ends, gracefully, with the test.
func boot(t *testing.T, d disk, w *world, options ...option) *daemon {
	t.Helper()
	agent := testAgent()
	cfg := Config{
		Log: d.log, Blobs: d.blobs, LogID: "log", Key: Key{ID: "k", Secret: []byte("secret")},
		Agents: map[string]*Agent{agent.Name: agent}, Decider: w, Tools: w,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Fatal:  func(err error) { t.Errorf("fatal: %v", err) },
	}
	for _, o := range options {
		o(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p := &daemon{Runner: r, t: t, disk: d, stop: stop, done: make(chan error, 1)}
	go func() { p.done <- r.Run(ctx) }()
	t.Cleanup(p.end)
	select {
	case <-r.Ready():
	case err := <-p.done:
		t.Fatalf("the daemon did not start: %v", err)
	}
	return p
}

// end stops the process gracefully.
func (d *daemon) end() {
	d.stop()
	if d.done == nil {
		return
	}
	if err := <-d.done; err != nil {
		d.t.Error(err)
	}
	d.done = nil
}

// crash ends the process as kill -9 would, as far as the log is concerned: nothing more is recorded.
func (d *daemon) crash(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	d.abandon(errStopped)
	d.mu.Unlock()
	d.end()
	if m, ok := d.disk.log.(*auditstoretest.Memory); ok {
		m.Reopen()
	}
}

func (d *daemon) begin(t *testing.T, run string) *runnerdv1.Run {
	t.Helper()
	started, _, err := d.Start(t.Context(), "alice", &runnerdv1.StartRunRequest{RunId: run, Agent: "agent", Task: "a task"})
	if err != nil {
		t.Fatal(err)
	}
	return started
}

// rest waits until nothing is in progress.
func (d *daemon) rest(t *testing.T, run string) *runnerdv1.Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	got, timedOut, err := d.WaitRun(ctx, run, true)
	if err != nil || timedOut {
		t.Fatalf("run %s does not come to rest: %v, timed out %v; events %v", run, err, timedOut, types(t, d, run))
	}
	return got
}

// await returns once the run has an event of a type.
func (d *daemon) await(t *testing.T, run, kind string) *runnerdv1.Event {
	t.Helper()
	var found *runnerdv1.Event
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := d.Watch(ctx, WatchOptions{Run: run, Follow: true, Types: []string{kind}}, func(items []WatchItem) error {
		if items[0].Event == nil {
			return nil
		}
		var err error
		if found, err = d.Event(ctx, run, items[0].Sequence); err != nil {
			return err
		}
		return io.EOF
	})
	if found == nil {
		t.Fatalf("run %s has no %s: %v", run, kind, err)
	}
	return found
}

func events(t *testing.T, d *daemon, run string) []*runnerdv1.Event {
	t.Helper()
	var out []*runnerdv1.Event
	for ev, err := range d.Events(context.Background(), run, 0) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, ev)
	}
	return out
}

func types(t *testing.T, d *daemon, run string) []string {
	t.Helper()
	var out []string
	for _, ev := range events(t, d, run) {
		out = append(out, ev.GetType())
	}
	return out
}

// commits returns the number of appends that brought the events of a run.
func commits(t *testing.T, d *daemon, run string) int {
	t.Helper()
	positions := make(map[uint64]bool)
	for _, ev := range events(t, d, run) {
		positions[ev.GetPosition()] = true
	}
	return len(positions)
}

func wantTypes(t *testing.T, d *daemon, run string, want ...string) {
	t.Helper()
	if got := types(t, d, run); !slices.Equal(got, want) {
		t.Errorf("events of %s:\n got %v\nwant %v", run, got, want)
	}
}

// keys returns the index keys with a prefix.
func (d *daemon) keysWith(t *testing.T, prefix string) []string {
	t.Helper()
	var out []string
	err := d.eachRow(context.Background(), prefix, func(row *auditstore.Row) error {
		out = append(out, string(row.Key))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (d *daemon) drivers() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.engines)
}

func (d *daemon) freeSlots() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.slots.free
}

// verify checks everything that can be checked about a log: chain, invariants, replay.
func (d *daemon) verify(t *testing.T) {
	t.Helper()
	err := VerifyLog(context.Background(), d.disk.log, d.disk.blobs, d.cfg.Key, "", func(resp *runnerdv1.VerifyAuditResponse) error {
		if f := resp.GetFinding(); f != nil {
			t.Errorf("verify: run %s event %d: %s: %s", f.GetRunId(), f.GetSequence(), f.GetCode(), f.GetMessage())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// hold is a gate that effects wait at.
type hold struct {
	reached chan string
	open    chan struct{}
}

func newHold() *hold { return &hold{reached: make(chan string, 100), open: make(chan struct{})} }

func (h *hold) wait(ctx context.Context, name string) error {
	h.reached <- name
	select {
	case <-h.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func vote(a *runnerdv1.Approval, verdict runnerdv1.ApprovalVerdict) runstate.Vote {
	return runstate.Vote{Principal: "bob", ApprovalID: a.GetApprovalId(), Verdict: verdict, Digest: a.GetApprovalDigest()}
}

const (
	approve = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	deny    = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
)

func names(m map[string]int) string { return fmt.Sprint(slices.Sorted(maps.Keys(m)), m) }
