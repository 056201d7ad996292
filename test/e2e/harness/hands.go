package harness

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// CallStream is where a handler sends progress.
type CallStream = grpc.ServerStreamingServer[runnerdv1.CallToolResponse]

// Handler executes one call. Without result and error the stream ends, and the outcome is lost.
type Handler func(req *runnerdv1.CallToolRequest, s CallStream) (*runnerdv1.ToolResult, error)

// Hands is a tool host whose runs are scripted. It has a ledger of all that it was asked to do.
type Hands struct {
	Addr string

	mu      sync.Mutex
	tools   []*runnerdv1.ToolDefinition
	getCall func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error)
	listErr error
	listed  int           // how often ListTools was answered
	held    chan struct{} // ListTools waits until it is closed; nil: it does not
	scripts map[string]Handler
	calls   map[string][]Call
}

// Call is one attempt that reached the host.
type Call struct {
	Request  *runnerdv1.CallToolRequest
	Finished bool // the handler returned
}

// NewHands serves a tool host on a free port of the loopback interface until the process ends.
func NewHands(tools ...*runnerdv1.ToolDefinition) (*Hands, error) { return NewHandsWith(nil, tools...) }

// NewHandsWith is NewHands with options of its server.
func NewHandsWith(opts []grpc.ServerOption, tools ...*runnerdv1.ToolDefinition) (*Hands, error) {
	h := &Hands{tools: tools, scripts: map[string]Handler{}, calls: map[string][]Call{}}
	addr, err := serve(func(s *grpc.Server) { runnerdv1.RegisterToolHostServiceServer(s, &hostServer{hands: h}) }, opts...)
	h.Addr = addr
	return h, err
}

// Script tells how the calls of a run are executed. Without a script each call returns "ok".
func (h *Hands) Script(run string, handler Handler) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scripts[run] = handler
}

// Offer changes what ListTools lists from now on.
func (h *Hands) Offer(tools ...*runnerdv1.ToolDefinition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tools = tools
}

// Unlisted makes ListTools fail.
func (h *Hands) Unlisted(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listErr = err
}

// Hold keeps ListTools from answering until release is called.
func (h *Hands) Hold() (release func()) {
	held := make(chan struct{})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held = held
	return sync.OnceFunc(func() { close(held) })
}

// Listed is how often ListTools was answered.
func (h *Hands) Listed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.listed
}

// Lookup makes the host one that answers GetCall. It must be given before the first ListTools.
func (h *Hands) Lookup(get func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.getCall = get
}

// Calls is every attempt of a run that reached the host, in the order in which they came.
func (h *Hands) Calls(run string) []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Call(nil), h.calls[run]...)
}

// Attempts counts the attempts by idempotency key over all runs.
func (h *Hands) Attempts() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]int{}
	for _, calls := range h.calls {
		for _, c := range calls {
			out[c.Request.GetIdempotencyKey()]++
		}
	}
	return out
}

type hostServer struct {
	runnerdv1.UnimplementedToolHostServiceServer
	hands *Hands
}

// ListTools implements ToolHostServiceServer.
func (s *hostServer) ListTools(ctx context.Context, _ *runnerdv1.ToolHostServiceListToolsRequest) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	h := s.hands
	h.mu.Lock()
	held := h.held
	h.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed++
	if h.listErr != nil {
		return nil, h.listErr
	}
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: h.tools, HasGetCall: h.getCall != nil}, nil
}

// CallTool implements ToolHostServiceServer.
func (s *hostServer) CallTool(req *runnerdv1.CallToolRequest, stream CallStream) error {
	h, run := s.hands, req.GetRunId()
	h.mu.Lock()
	handler := h.scripts[run]
	n := len(h.calls[run])
	h.calls[run] = append(h.calls[run], Call{Request: req})
	h.mu.Unlock()

	result, err := &runnerdv1.ToolResult{Text: "ok"}, error(nil)
	if handler != nil {
		result, err = handler(req, stream)
	}
	h.mu.Lock()
	h.calls[run][n].Finished = true
	h.mu.Unlock()
	if result == nil || err != nil {
		return err
	}
	return stream.Send(&runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Result{Result: result}})
}

// GetCall implements ToolHostServiceServer.
func (s *hostServer) GetCall(_ context.Context, req *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
	s.hands.mu.Lock()
	get := s.hands.getCall
	s.hands.mu.Unlock()
	if get == nil {
		return nil, status.Error(codes.Unimplemented, "this host has no GetCall")
	}
	return get(req)
}

// Tool is a tool of a host: its name, what it declares, and its schema, JSON text.
func Tool(name, schema string, declare ...func(*runnerdv1.Annotations)) *runnerdv1.ToolDefinition {
	d := &runnerdv1.ToolDefinition{Name: name, Description: "the tool " + name, InputSchemaJson: schema}
	for _, f := range declare {
		if d.Annotations == nil {
			d.Annotations = &runnerdv1.Annotations{}
		}
		f(d.Annotations)
	}
	return d
}

// ReadOnly declares that a tool changes nothing.
func ReadOnly(a *runnerdv1.Annotations) { a.ReadOnly = new(true) }

// Idempotent declares that two calls with one key have the effect of one.
func Idempotent(a *runnerdv1.Annotations) { a.Idempotent = new(true) }

// Harmless declares that a tool destroys nothing, so that it is of tier 2.
func Harmless(a *runnerdv1.Annotations) { a.Destructive = new(false) }

// HangCall waits until the call is cancelled.
func HangCall(_ *runnerdv1.CallToolRequest, s CallStream) (*runnerdv1.ToolResult, error) {
	<-s.Context().Done()
	return nil, status.FromContextError(s.Context().Err()).Err()
}

// Result answers every call with the same text.
func Result(text string) Handler {
	return func(*runnerdv1.CallToolRequest, CallStream) (*runnerdv1.ToolResult, error) {
		return &runnerdv1.ToolResult{Text: text}, nil
	}
}

// ToolError answers every call with an error of the tool.
func ToolError(text string) Handler {
	return func(*runnerdv1.CallToolRequest, CallStream) (*runnerdv1.ToolResult, error) {
		return &runnerdv1.ToolResult{Text: text, IsError: true}, nil
	}
}
