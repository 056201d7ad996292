package runner

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// testKey is the digest key of the data folder.
var testKey = Key{ID: "k1", Secret: []byte("0123456789abcdef")}

// face is a daemon without a process: a runner over a store in memory behind its gRPC server, in a bubble.
type face struct {
	t       *testing.T
	log     *auditstoretest.Memory
	runner  *Runner
	server  *Server
	conn    *grpc.ClientConn
	listen  *addressed
	logged  *logBuffer
	brain   *brain
	hands   *hands
	runs    runnerdv1.RunServiceClient
	audit   runnerdv1.AuditServiceClient
	health  grpc_health_v1.HealthClient
	stopped chan error
}

// inFace runs a test in a bubble with a daemon in it. The options may change how it is made.
func inFace(t *testing.T, test func(f *face), options ...func(*Config, *ServerConfig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFace(t, options...)
		test(f)
	})
}

// rowFace is inFace as a subtest named for what it shows.
func rowFace(t *testing.T, name string, test func(f *face), options ...func(*Config, *ServerConfig)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		inFace(t, test, options...)
	})
}

func newFace(t *testing.T, options ...func(*Config, *ServerConfig)) *face {
	t.Helper()
	f := &face{
		t: t, log: auditstoretest.NewMemory(nil), logged: new(logBuffer), brain: new(brain), hands: new(hands),
		listen:  &addressed{Listener: bufconn.Listen(64 << 10), addr: loopback},
		stopped: make(chan error, 2),
	}
	logger := slog.New(slog.NewTextHandler(f.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	cfg := Config{
		Log: f.log, Blobs: f.log, LogID: "log1", Key: testKey,
		Agents: map[string]*Agent{"demo": demoAgent("demo"), "other": demoAgent("other")}, Decider: f.brain, Tools: f.hands,
		Logger: logger,
	}
	serve := ServerConfig{Auth: LocalAuth{ApproverToken: testToken}, Logger: logger}
	for _, option := range options {
		option(&cfg, &serve)
	}
	var err error
	if f.runner, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	serve.Runner = f.runner
	if f.server, err = NewServer(serve); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { f.stopped <- f.runner.Run(ctx) }()
	go func() { f.stopped <- f.server.Serve(f.listen) }()
	<-f.runner.Ready()
	f.server.SetServing(true)
	f.conn = f.dial()
	f.runs = runnerdv1.NewRunServiceClient(f.conn)
	f.audit = runnerdv1.NewAuditServiceClient(f.conn)
	f.health = grpc_health_v1.NewHealthClient(f.conn)
	t.Cleanup(func() {
		f.brain.release()
		drain, stop := context.WithTimeout(context.Background(), 10*time.Second)
		defer stop()
		if err := f.server.Drain(drain); err != nil {
			t.Errorf("drain: %v", err)
		}
		cancel()
		for range 2 {
			if err := <-f.stopped; err != nil {
				t.Errorf("stopped with %v", err)
			}
		}
	})
	return f
}

// dial returns a new connection to the daemon.
func (f *face) dial() *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:///face",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return f.listen.DialContext(ctx) }),
		grpc.WithDisableRetry(),
	)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

// addressed is a listener whose connections come from an address.
type addressed struct {
	*bufconn.Listener
	addr net.Addr
}

func (l *addressed) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &addressedConn{conn, l.addr}, nil
}

type addressedConn struct {
	net.Conn
	addr net.Addr
}

func (c *addressedConn) RemoteAddr() net.Addr { return c.addr }

// logBuffer is what the daemon has logged.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// demoAgent asks people before it deploys and has room to ask for less.
func demoAgent(name string) *Agent {
	return &Agent{
		Name: name,
		Spec: &runnerdv1.RunSpec{
			Agent: name, DecideService: "brain", ToolHosts: []string{"hands"},
			Budget: &runnerdv1.Budget{
				MaxIterations: proto.Uint32(5), MaxToolCalls: proto.Uint32(10), MaxCostCents: proto.Float64(100),
				MaxConsecutiveFailures: proto.Uint32(3),
			},
			BudgetMax: &runnerdv1.Budget{
				MaxIterations: proto.Uint32(10), MaxToolCalls: proto.Uint32(20), MaxCostCents: proto.Float64(200),
				MaxConsecutiveFailures: proto.Uint32(3),
			},
			Approval: &runnerdv1.ApprovalSettings{
				Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, Timeout: durationpb.New(time.Hour),
			},
			Policy: []*runnerdv1.PolicyLayer{{Name: "agent", ApprovalFor: []string{"deploy"}}}, InDoubt: runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK,
			DecideTimeout: durationpb.New(4 * time.Minute), DecidePatience: durationpb.New(5 * time.Minute),
			MaxParallelTools: 4, MaxResultBytes: 16 << 20,
		},
		ApprovalModes: []runnerdv1.ApprovalMode{runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT},
		Hosts:         []HostConfig{{Name: "hands"}},
		ToolTimeout:   time.Minute,
	}
}

// brain is a decide service that follows the task: "answer:<text>", "ask:<text>", "read:<arguments>" and so on for
// each tool, one step a line. "block" waits until the test ends or the Decide is cancelled. "say:<text>" is live text.
type brain struct {
	mu     sync.Mutex
	gate   chan struct{}
	tokens []string // run tokens that came
}

func (b *brain) opened() chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gate == nil {
		b.gate = make(chan struct{})
	}
	return b.gate
}

// release lets everything go on that is blocked, now and later.
func (b *brain) release() {
	gate := b.opened()
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-gate:
	default:
		close(gate)
	}
}

func (b *brain) lastToken() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.tokens) == 0 {
		return ""
	}
	return b.tokens[len(b.tokens)-1]
}

func (b *brain) Decide(ctx context.Context, _ string, req *runnerdv1.DecideRequest, onText func(string)) (*runnerdv1.Decision, error) {
	b.mu.Lock()
	b.tokens = append(b.tokens, req.GetRunToken())
	b.mu.Unlock()
	steps := strings.Split(req.GetTask(), "\n")
	at := int(req.GetIteration()) - 1
	if at >= len(steps) {
		return answering("done"), nil
	}
	verb, text, _ := strings.Cut(steps[at], ":")
	if verb == "say" {
		onText(text)
		verb = "block"
	}
	switch verb {
	case "block":
		select {
		case <-b.opened():
			return answering("released"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "answer":
		return answering(text), nil
	case "big":
		return answering(strings.Repeat("big ", 50_000)), nil
	case "ask":
		return &runnerdv1.Decision{Usage: cheap(), Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: text}}}, nil
	default:
		return &runnerdv1.Decision{Usage: cheap(), Next: &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{
			Calls: []*runnerdv1.ToolCall{{Id: "c", Name: verb, ArgumentsJson: text}},
		}}}, nil
	}
}

func cheap() *runnerdv1.Usage { return &runnerdv1.Usage{CostCents: new(0.5)} }

func answering(text string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Usage: cheap(), Next: &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: text}}}
}

// hands is a tool host: read gives text, blob gives a megabyte, charge loses its outcome, deploy has to be approved.
type hands struct{}

func (*hands) ListTools(context.Context, string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	const schema = `{"type":"object"}`
	resp := new(runnerdv1.ToolHostServiceListToolsResponse)
	for _, name := range []string{"read", "blob", "charge", "deploy", "fail"} {
		tool := &runnerdv1.ToolDefinition{Name: name, Description: name, InputSchemaJson: schema, OutputSchemaJson: schema}
		if name == "read" || name == "blob" {
			tool.Annotations = &runnerdv1.Annotations{ReadOnly: new(true)}
		}
		resp.Tools = append(resp.Tools, tool)
	}
	return resp, nil
}

const toolSecret = "password=hunter2hunter2"

func (*hands) CallTool(_ context.Context, _ string, req *runnerdv1.CallToolRequest, _ int, onProgress func(*runnerdv1.Progress)) (*runnerdv1.ToolResult, error) {
	onProgress(&runnerdv1.Progress{Message: "working", Fraction: new(0.5)})
	switch req.GetName() {
	case "blob":
		return &runnerdv1.ToolResult{Text: "a picture", Blobs: []*runnerdv1.Blob{{MimeType: "image/png", Data: megabyte()}}}, nil
	case "charge":
		return nil, status.Error(codes.Unavailable, "the connection broke")
	case "fail":
		return &runnerdv1.ToolResult{Text: "it failed", IsError: true}, nil
	default:
		return &runnerdv1.ToolResult{Text: "result with " + toolSecret}, nil
	}
}

func (*hands) GetCall(context.Context, string, *runnerdv1.GetCallRequest, int) (*runnerdv1.GetCallResponse, error) {
	return nil, status.Error(codes.Unimplemented, "no")
}

func megabyte() []byte {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	return data
}

// as returns a context of a caller: the owner with a credential, or nobody in particular on this machine.
func (f *face) owner() context.Context {
	return metadata.AppendToOutgoingContext(f.t.Context(), "authorization", "Bearer "+testToken)
}

func (f *face) anonymous() context.Context { return f.t.Context() }

// start starts a run of the demo agent and returns when it has gone as far as it can without time passing.
func (f *face) start(ctx context.Context, run, task string) {
	f.t.Helper()
	if _, err := f.runs.StartRun(ctx, &runnerdv1.StartRunRequest{RunId: run, Agent: "demo", Task: task}); err != nil {
		f.t.Fatal(err)
	}
	synctest.Wait()
}

// settle waits until nothing is in progress in a run and returns it as the owner sees it.
func (f *face) settle(run string) *runnerdv1.Run {
	f.t.Helper()
	resp, err := f.runs.WaitRun(f.owner(), &runnerdv1.WaitRunRequest{RunId: run, Until: runnerdv1.WaitUntil_WAIT_UNTIL_IDLE})
	if err != nil {
		f.t.Fatal(err)
	}
	if resp.GetTimedOut() {
		f.t.Fatalf("run %s is still %v", run, resp.GetRun().GetState())
	}
	return resp.GetRun()
}

// collect reads a stream to its end.
func collect(stream grpc.ServerStreamingClient[runnerdv1.StreamEventsResponse], err error) ([]*runnerdv1.StreamEventsResponse, error) {
	if err != nil {
		return nil, err
	}
	var all []*runnerdv1.StreamEventsResponse
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, resp)
	}
}

// events reads all events of a run as the caller sees them.
func (f *face) events(ctx context.Context, run string, change ...func(*runnerdv1.StreamEventsRequest)) []*runnerdv1.StreamEventsResponse {
	f.t.Helper()
	all, err := collect(f.runs.StreamEvents(ctx, ofRun(run, change...)))
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

func ofRun(run string, change ...func(*runnerdv1.StreamEventsRequest)) *runnerdv1.StreamEventsRequest {
	req := &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}}
	for _, c := range change {
		c(req)
	}
	return req
}

// wantReason fails unless err has the code and the reason, and returns its ErrorInfo.
func wantReason(t *testing.T, err error, code codes.Code, reason string) *errdetails.ErrorInfo {
	t.Helper()
	st := status.Convert(err)
	info := detail[*errdetails.ErrorInfo](st)
	if st.Code() != code || info.GetReason() != reason {
		t.Fatalf("got %v with reason %q (%v), want %v with %q", st.Code(), info.GetReason(), err, code, reason)
	}
	return info
}

// fields are the names of the fields in the BadRequest of an error.
func fields(err error) string {
	var names []string
	for _, v := range detail[*errdetails.BadRequest](status.Convert(err)).GetFieldViolations() {
		names = append(names, v.GetField())
	}
	return strings.Join(names, " ")
}
