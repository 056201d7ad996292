// Package e2e tests the built daemon as its users meet it: as a process, over gRPC. Names of subtests begin with the id
// of what they show in docs/conformance.md, or with the number of the case they play.
package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// world is a daemon with a decide service and tool hosts that the test scripts.
type world struct {
	*harness.Daemon
	brain *harness.Brain
	hands *harness.Hands
	other *harness.Hands // a second host, whose tools have the prefix x_
	cfg   *configv1.Config
}

const bookSchema = `{"type":"object","required":["q"],"properties":{"q":{"type":"integer"}},"additionalProperties":false}`

// tools are those of the first host: of each tier and recovery class one.
var tools = []*runnerdv1.ToolDefinition{
	harness.Tool("look", `{"type":"object"}`, harness.ReadOnly),
	harness.Tool("put", `{"type":"object"}`, harness.Idempotent, harness.Harmless),
	harness.Tool("book", bookSchema, harness.Harmless),
	harness.Tool("charge", `{"type":"object"}`), // nothing declared: never repeated
	harness.Tool("deploy_site", `{"type":"object"}`),
	harness.Tool("wipe", `{"type":"object"}`), // tier 4 by the operator's word
}

// newWorld serves the doubles and makes a configuration with agents of every kind.
func newWorld() (*world, error) {
	w := &world{}
	var err error
	if w.brain, err = harness.NewBrain(); err != nil {
		return nil, err
	}
	if w.hands, err = harness.NewHands(tools...); err != nil {
		return nil, err
	}
	if w.other, err = harness.NewHands(harness.Tool("look", `{"type":"object"}`, harness.ReadOnly)); err != nil {
		return nil, err
	}
	agent := func(change func(*configv1.Agent)) *configv1.Agent {
		a := &configv1.Agent{
			DecideService: "brain", ToolHosts: []string{"hands"}, Policy: &configv1.Policy{Mode: "allow", ApprovalFor: []string{"deploy_*"}},
			Approval: &configv1.Approval{Modes: []string{"wait", "pause", "deny"}},
		}
		if change != nil {
			change(a)
		}
		return a
	}
	second := durationpb.New(time.Second)
	w.cfg = &configv1.Config{
		DecideServices: map[string]*configv1.DecideService{
			"brain":   {Address: w.brain.Addr},
			"nowhere": {Address: "127.0.0.1:1"},
		},
		ToolHosts: map[string]*configv1.ToolHost{
			"hands":   {Address: w.hands.Addr, Tools: map[string]*configv1.Tool{"wipe": {Tier: proto.Uint32(4)}}},
			"other":   {Address: w.other.Addr, Prefix: "x_"},
			"nowhere": {Address: "127.0.0.1:1"},
		},
		Agents: map[string]*configv1.Agent{
			"std": agent(nil),
			"wide": agent(func(a *configv1.Agent) {
				a.BudgetMax = &runnerdv1.Budget{
					MaxIterations: proto.Uint32(1000), MaxToolCalls: proto.Uint32(1000), MaxCostCents: new(1e9),
					MaxConsecutiveFailures: proto.Uint32(0), MaxContextTokens: proto.Uint32(1_000_000),
				}
			}),
			"confirms": agent(func(a *configv1.Agent) { a.ConfirmAt_90 = true }),
			"unwarned": agent(func(a *configv1.Agent) { a.ContextWarningPercent = proto.Uint32(0) }),
			"timed": agent(func(a *configv1.Agent) {
				a.Budget = &runnerdv1.Budget{MaxDuration: second}
				a.BudgetMax = &runnerdv1.Budget{MaxDuration: durationpb.New(time.Hour)}
			}),
			"denyfail":  agent(func(a *configv1.Agent) { a.OnDenial = "fail" }),
			"blockfail": agent(func(a *configv1.Agent) { a.OnBlock = "fail" }),
			"block":     agent(func(a *configv1.Agent) { a.OnQuestion = "block" }),
			"tells":     agent(func(a *configv1.Agent) { a.InDoubt = "fail" }),
			"asks":      agent(func(a *configv1.Agent) { a.InDoubt = "ask" }),
			"repeats":   agent(func(a *configv1.Agent) { a.InDoubt = "retry" }),
			"brief": agent(func(a *configv1.Agent) {
				a.DecideTimeout, a.ToolTimeout, a.DecidePatience = second, second, durationpb.New(0)
			}),
			"lost": agent(func(a *configv1.Agent) {
				a.DecideService, a.DecidePatience = "nowhere", durationpb.New(0)
			}),
			"two":     agent(func(a *configv1.Agent) { a.ToolHosts = []string{"other", "hands"} }),
			"partial": agent(func(a *configv1.Agent) { a.ToolHosts = []string{"nowhere", "hands"} }),
			"prefixed": agent(func(a *configv1.Agent) {
				a.Policy.ApprovalFor = []string{"tool:deploy*", "boo?"}
			}),
			"small": agent(func(a *configv1.Agent) { a.MaxResultBytes = proto.Uint64(1 << 20) }),
		},
	}
	maps.Copy(w.cfg.GetAgents(), autoAgents(agent))
	return w, nil
}

// shared is one daemon for all tests that need none of their own; it starts with the first of them.
func shared(t *testing.T) *world {
	t.Helper()
	w, err := startShared()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var startShared = sync.OnceValues(func() (*world, error) {
	w, err := newWorld()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "runnerd-shared-")
	if err != nil {
		return nil, err
	}
	harness.AtExit(func() error { return os.RemoveAll(dir) })
	if w.Daemon, err = harness.Launch(dir, w.cfg); err != nil {
		return nil, err
	}
	harness.AtExit(w.Close)
	harness.AtExit(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Limit)
		defer cancel()
		_, err := w.CheckAll(ctx)
		return err
	})
	return w, nil
})

// own is a daemon of the test's own, which it may kill.
func own(t *testing.T) *world {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	w.Daemon = harness.Start(t, w.cfg)
	return w
}

// with changes the request of a run before it starts.
type with func(w *world, req *runnerdv1.StartRunRequest)

// play starts a run of an agent with a script.
func (w *world) play(t *testing.T, agent string, step harness.Step, changes ...with) (run string) {
	t.Helper()
	req := &runnerdv1.StartRunRequest{RunId: w.RunID(t), Agent: agent, Task: "a task"}
	for _, change := range changes {
		change(w, req)
	}
	w.brain.Script(req.GetRunId(), step)
	w.Start(t, req)
	return req.GetRunId()
}

// calls scripts the tools of a run.
func calls(h harness.Handler) with {
	return func(w *world, req *runnerdv1.StartRunRequest) { w.hands.Script(req.GetRunId(), h) }
}

// budget sets the limits of a run.
func budget(b *runnerdv1.Budget) with {
	return func(_ *world, req *runnerdv1.StartRunRequest) { req.Budget = b }
}

// mode sets how people are asked.
func mode(m runnerdv1.ApprovalMode) with {
	return func(_ *world, req *runnerdv1.StartRunRequest) {
		if req.Approval == nil {
			req.Approval = &runnerdv1.ApprovalSettings{}
		}
		req.Approval.Mode = m
	}
}

// patient sets how long an approval stays open.
func patient(d time.Duration) with {
	return func(_ *world, req *runnerdv1.StartRunRequest) {
		req.Approval = &runnerdv1.ApprovalSettings{Timeout: durationpb.New(d)}
	}
}

// byTool executes each tool by its own handler; others return "ok".
func byTool(handlers map[string]harness.Handler) harness.Handler {
	return func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
		if h := handlers[req.GetName()]; h != nil {
			return h(req, s)
		}
		return &runnerdv1.ToolResult{Text: "ok"}, nil
	}
}

// refuse answers a call with a gRPC status.
func refuse(code codes.Code) harness.Handler {
	return func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
		return nil, status.Error(code, "as scripted")
	}
}

// gate holds handlers back until it is opened, and tells when they have come to it.
type gate struct {
	once    sync.Once
	arrived chan struct{}
	opened  chan struct{}
}

func newGate() *gate { return &gate{arrived: make(chan struct{}), opened: make(chan struct{})} }

// pass waits until the gate is open, or ctx ends.
func (g *gate) pass(ctx context.Context) {
	g.once.Do(func() { close(g.arrived) })
	select {
	case <-g.opened:
	case <-ctx.Done():
	}
}

func (g *gate) open() { close(g.opened) }

// await waits until a handler has come to the gate.
func (g *gate) await(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-harness.Context(t).Done():
		t.Fatal("nothing came to the gate")
	}
}

// slow passes the gate before a result.
func (g *gate) slow(text string) harness.Handler {
	return func(_ *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
		g.pass(s.Context())
		return &runnerdv1.ToolResult{Text: text}, nil
	}
}

// ended checks how a run ended.
func ended(t *testing.T, run *runnerdv1.Run, reason runnerdv1.StopReason, status string) {
	t.Helper()
	if run.GetState() != runnerdv1.RunState_RUN_STATE_DONE || run.GetStopReason() != reason || run.GetStatus() != status {
		t.Errorf("run is %s, %s, %q (%s); want DONE, %s, %q",
			run.GetState(), run.GetStopReason(), run.GetStatus(), run.GetErrorMessage(), reason, status)
	}
}

// order checks that events of these types come in this order, others between them not looked at.
func order(t *testing.T, events []*runnerdv1.Event, types ...string) {
	t.Helper()
	next := 0
	for _, ev := range events {
		if next < len(types) && ev.GetType() == types[next] {
			next++
		}
	}
	if next < len(types) {
		t.Errorf("%q is missing after %q in %q", types[next], types[:next], harness.Types(events))
	}
}

// shown is the last observation that a Decide of a run was shown.
func shown(t *testing.T, w *world, run string, iteration uint32) *runnerdv1.Observation {
	t.Helper()
	for _, req := range w.brain.Requests(run) {
		if req.GetIteration() == iteration && len(req.GetHistory()) > 0 {
			return req.GetHistory()[len(req.GetHistory())-1].GetObservation()
		}
	}
	t.Fatalf("Decide %d of run %s was not asked, or shown nothing", iteration, run)
	return nil
}

// has checks that a text holds parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in %q", part, text[:min(len(text), 500)])
		}
	}
}

// equal checks a value.
func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, fmt.Sprint(got), fmt.Sprint(want))
	}
}
