package runner

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// FuzzAnswers lets a decide service and a tool host answer what they like: the run ends or waits for somebody, and its
// log keeps the invariants.
func FuzzAnswers(f *testing.F) {
	list, err := new(hands).ListTools(f.Context(), "")
	if err != nil {
		f.Fatal(err)
	}
	odd := &runnerdv1.ToolHostServiceListToolsResponse{HasGetCall: true, Tools: []*runnerdv1.ToolDefinition{
		{Name: "read", InputSchemaJson: `{"type":"object","properties":{"path":{"type":"string","maxLength":3}}}`},
		{Name: "read"},
		{Name: "a/b", InputSchemaJson: "{", OutputSchemaJson: `{"type":7}`},
	}}
	two := &runnerdv1.ToolCalls{Calls: []*runnerdv1.ToolCall{
		{Id: "1", Name: "read", ArgumentsJson: `{"path":"a"}`}, {Name: "charge", ArgumentsJson: `{"a":1,"a":2}`}, {Name: "deploy"},
	}}
	for _, tools := range []*runnerdv1.ToolHostServiceListToolsResponse{list, odd} {
		for _, decision := range []*runnerdv1.Decision{
			{Text: "text", Reasoning: "because", Usage: cheap(), Next: &runnerdv1.Decision_ToolCalls{ToolCalls: two}},
			{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: two}, Truncated: true},
			answering("ok"),
			{Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: "which?"}}, ProviderState: []byte{1}},
			{Text: "only text", Usage: &runnerdv1.Usage{CostCents: new(-1.0)}},
		} {
			result := &runnerdv1.ToolResult{
				Text: "text\x01 " + toolSecret, StructuredJson: `{"n":1e400}`, IsError: true,
				Blobs: []*runnerdv1.Blob{{MimeType: "text/plain", Data: []byte("\xff")}},
			}
			f.Add(wire(f, decision), wire(f, tools), wire(f, result))
		}
	}
	f.Fuzz(func(t *testing.T, decision, tools, result []byte) {
		host := &fuzzedHost{result: new(runnerdv1.ToolResult), tools: new(runnerdv1.ToolHostServiceListToolsResponse)}
		brain := &fuzzedBrain{decision: new(runnerdv1.Decision)}
		for msg, body := range map[proto.Message][]byte{host.result: result, host.tools: tools, brain.decision: decision} {
			if proto.Unmarshal(body, msg) != nil {
				return // what that gives is decided before it comes here
			}
		}
		d := startFuzzed(t, Config{
			Agents: map[string]*Agent{"demo": demoAgent("demo")}, Decider: brain, Tools: host,
		})
		defer d.end(t)
		started, err := d.runs.StartRun(WithPrincipal(t.Context(), Owner()), &runnerdv1.StartRunRequest{Agent: "demo"})
		if err != nil {
			t.Fatal(err)
		}
		d.settle(t, started.GetRun().GetRunId())
		d.verify(t)
	})
}

// startFuzzed starts a daemon in memory.
func startFuzzed(t *testing.T, cfg Config) *fuzzedDaemon {
	t.Helper()
	d := &fuzzedDaemon{log: auditstoretest.NewMemory(nil), stopped: make(chan error, 1)}
	cfg.Log, cfg.Blobs, cfg.LogID, cfg.Key, cfg.Logger = d.log, d.log, "log1", testKey, slog.New(slog.DiscardHandler)
	var err error
	if d.runner, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if d.server, err = NewServer(ServerConfig{Runner: d.runner, Auth: LocalAuth{ApproverToken: testToken}, Logger: cfg.Logger}); err != nil {
		t.Fatal(err)
	}
	if d.codec, err = newCodec(); err != nil {
		t.Fatal(err)
	}
	pages, err := newPageTokens(testKey.Secret)
	if err != nil {
		t.Fatal(err)
	}
	d.runs = &runService{server: d.server, runner: d.runner, pages: pages}
	d.audit = &auditService{runner: d.runner, verifying: gauge{max: maxVerifications}}
	ctx, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	go func() { d.stopped <- d.runner.Run(ctx) }()
	<-d.runner.Ready()
	d.server.SetServing(true)
	return d
}

// fuzzedBrain decides one thing, and then answers.
type fuzzedBrain struct{ decision *runnerdv1.Decision }

func (b *fuzzedBrain) Decide(_ context.Context, _ string, req *runnerdv1.DecideRequest, _ func(string)) (*runnerdv1.Decision, error) {
	if req.GetIteration() > 1 {
		return answering("done"), nil
	}
	return b.decision, nil
}

// fuzzedHost has some tools, and one result for all calls.
type fuzzedHost struct {
	tools  *runnerdv1.ToolHostServiceListToolsResponse
	result *runnerdv1.ToolResult
}

func (h *fuzzedHost) ListTools(context.Context, string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return h.tools, nil
}

func (h *fuzzedHost) CallTool(context.Context, string, *runnerdv1.CallToolRequest, int, func(*runnerdv1.Progress)) (*runnerdv1.ToolResult, error) {
	return h.result, nil
}

func (h *fuzzedHost) GetCall(context.Context, string, *runnerdv1.GetCallRequest, int) (*runnerdv1.GetCallResponse, error) {
	return &runnerdv1.GetCallResponse{}, nil
}
