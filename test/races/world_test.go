package races

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner"
)

const (
	token = "the-token-of-the-owner-of-this-test"
	// briefly is how long the approvals of the brief agent stay open.
	briefly = 30 * time.Millisecond
	// slowly is how long a slow call takes.
	slowly = 5 * time.Millisecond
	// limit is how long anything may take.
	limit = 60 * time.Second
)

// world is an engine with its store and its gRPC server, and clients of it.
type world struct {
	hands *hands
	conns []*grpc.ClientConn
	runs  []runnerdv1.RunServiceClient
	audit runnerdv1.AuditServiceClient
	end   func() error // stops all, once
}

func newWorld(t *testing.T) *world {
	t.Helper()
	logger := slog.New(&loud{t: t})
	store, err := auditstore.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{hands: &hands{ledger: make(map[string][]string)}}
	engine, err := runner.New(runner.Config{
		Log: store, Blobs: store, LogID: "races", Key: runner.Key{ID: "k", Secret: []byte("0123456789abcdef0123456789abcdef")},
		Agents:  map[string]*runner.Agent{"patient": agent("patient", time.Hour), "brief": agent("brief", briefly)},
		Decider: brain{}, Tools: w.hands, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	server, err := runner.NewServer(runner.ServerConfig{Runner: engine, Auth: runner.LocalAuth{ApproverToken: token}, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error, 2)
	go func() { stopped <- engine.Run(ctx) }()
	go func() { stopped <- server.Serve(listener) }()
	<-engine.Ready()
	server.SetServing(true)
	for range 4 {
		conn, err := grpc.NewClient(listener.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(withToken), grpc.WithStreamInterceptor(streamWithToken))
		if err != nil {
			t.Fatal(err)
		}
		w.conns = append(w.conns, conn)
		w.runs = append(w.runs, runnerdv1.NewRunServiceClient(conn))
	}
	w.audit = runnerdv1.NewAuditServiceClient(w.conns[0])
	w.end = sync.OnceValue(func() error {
		var errs []error
		for _, conn := range w.conns {
			errs = append(errs, conn.Close())
		}
		drain, done := context.WithTimeout(context.Background(), limit)
		defer done()
		errs = append(errs, server.Drain(drain))
		cancel()
		errs = append(errs, <-stopped, <-stopped, store.Close())
		return errors.Join(errs...)
	})
	t.Cleanup(func() {
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func withToken(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), method, req, reply, cc, opts...)
}

func streamWithToken(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token), desc, cc, method, opts...)
}

// client is one of the connections.
func (w *world) client(n int) runnerdv1.RunServiceClient { return w.runs[n%len(w.runs)] }

// stop verifies the whole log and stops everything.
func (w *world) stop(t *testing.T) {
	t.Helper()
	stream, err := w.audit.VerifyAudit(t.Context(), &runnerdv1.VerifyAuditRequest{})
	if err != nil {
		t.Fatalf("VerifyAudit: %v", err)
	}
	var summary *runnerdv1.AuditSummary
	for summary == nil {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("VerifyAudit: %v", err)
		}
		if f := m.GetFinding(); f != nil {
			t.Errorf("run %s, event %d: %s: %s", f.GetRunId(), f.GetSequence(), f.GetCode(), f.GetMessage())
		}
		summary = m.GetSummary()
	}
	if !summary.GetOk() {
		t.Error("the log does not verify")
	}
	if err := w.end(); err != nil {
		t.Error(err)
	}
}

func agent(name string, patience time.Duration) *runner.Agent {
	budget := &runnerdv1.Budget{
		MaxIterations: proto.Uint32(5), MaxToolCalls: proto.Uint32(100), MaxCostCents: proto.Float64(100),
		MaxConsecutiveFailures: proto.Uint32(0), MaxConsecutiveRefusals: proto.Uint32(0),
	}
	return &runner.Agent{
		Name: name,
		Spec: &runnerdv1.RunSpec{
			Agent: name, DecideService: "brain", ToolHosts: []string{"hands"}, Budget: budget, BudgetMax: budget,
			Approval: &runnerdv1.ApprovalSettings{Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, Timeout: durationpb.New(patience)},
			Policy:   []*runnerdv1.PolicyLayer{{Name: "agent", ApprovalFor: []string{"pay"}}},
			InDoubt:  runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_FAIL, DecideTimeout: durationpb.New(limit), DecidePatience: durationpb.New(limit),
			MaxParallelTools: 4, MaxResultBytes: 1 << 20,
		},
		Hosts:       []runner.HostConfig{{Name: "hands"}},
		ToolTimeout: limit,
	}
}

// brain asks for as many payments as the task says, then answers.
type brain struct{}

func (brain) Decide(_ context.Context, _ string, req *runnerdv1.DecideRequest, _ func(string)) (*runnerdv1.Decision, error) {
	d := &runnerdv1.Decision{Usage: &runnerdv1.Usage{CostCents: proto.Float64(0)}}
	if req.GetIteration() > 1 {
		d.Next = &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: "done"}}
		return d, nil
	}
	n, err := strconv.Atoi(req.GetTask())
	if err != nil {
		return nil, err
	}
	calls := new(runnerdv1.ToolCalls)
	for i := range n {
		calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{Id: "same", Name: "pay", ArgumentsJson: argumentsOf(i)})
	}
	d.Next = &runnerdv1.Decision_ToolCalls{ToolCalls: calls}
	return d, nil
}

// hands pay, and keep a ledger of what they were asked to do, by idempotency key.
type hands struct {
	mu     sync.Mutex
	ledger map[string][]string
}

func (*hands) ListTools(context.Context, string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: []*runnerdv1.ToolDefinition{{
		Name: "pay", Description: "pays", OutputSchemaJson: `{"type":"object"}`,
		InputSchemaJson: `{"type":"object","properties":{"n":{"type":"integer"},"command":{"type":"string"}},"required":["n"]}`,
	}}}, nil
}

func (h *hands) CallTool(ctx context.Context, _ string, req *runnerdv1.CallToolRequest, _ int, _ func(*runnerdv1.Progress)) (*runnerdv1.ToolResult, error) {
	h.enter(req)
	if id := req.GetRunId(); strings.ContainsAny(id[len(id)-1:], "147") { // time for what happens while a call runs
		select {
		case <-time.After(slowly):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &runnerdv1.ToolResult{Text: "paid"}, nil
}

func (h *hands) enter(req *runnerdv1.CallToolRequest) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ledger[req.GetIdempotencyKey()] = append(h.ledger[req.GetIdempotencyKey()], req.GetArgumentsJson())
}

func (*hands) GetCall(context.Context, string, *runnerdv1.GetCallRequest, int) (*runnerdv1.GetCallResponse, error) {
	return nil, status.Error(codes.Unimplemented, "no")
}

// paid is what came to the host under a key.
func (h *hands) paid(key string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ledger[key]
}

// twice is the keys that came more than once.
func (h *hands) twice() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := make(map[string]int)
	for key, calls := range h.ledger {
		if len(calls) > 1 {
			out[key] = len(calls)
		}
	}
	return out
}

// loud fails the test where the engine logs an error.
type loud struct{ t *testing.T }

func (*loud) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelError }
func (l *loud) WithAttrs([]slog.Attr) slog.Handler             { return l }
func (l *loud) WithGroup(string) slog.Handler                  { return l }

func (l *loud) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	l.t.Error(text)
	return nil
}
