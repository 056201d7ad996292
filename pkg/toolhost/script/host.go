package script

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/rpcserver"
	"github.com/runnerd/runnerd/pkg/internal/scriptfile"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// Config is what a host needs beside its script.
type Config struct {
	// Ledger is the file that witnesses what was executed, see toolhost.ReadLedger. Empty: no witness, and what was
	// executed is forgotten with the host.
	Ledger string
	// Crash ends the process at once. A script with crash faults needs it.
	Crash func()
}

// Host is a tool host that follows a script.
type Host struct {
	runnerdv1.UnimplementedToolHostServiceServer
	script *Script
	crash  func()
	ledger *toolhost.LocalLedger

	mu      sync.Mutex
	calls   map[toolOfRun][]string // keys in the order in which they came
	effects map[string]bool        // keys whose effect happened
	asked   map[string]int         // how often GetCall asked for a key
}

type toolOfRun struct{ run, tool string }

// New makes a host of a script, which goes on where the ledger ends.
func New(s *Script, cfg Config) (*Host, error) {
	if s.crashes && cfg.Crash == nil {
		return nil, errors.New("the script has crash faults, and this host cannot crash")
	}
	asksLedger := slices.ContainsFunc(s.getCall, func(a answer) bool { return a.word == answerLedger })
	if asksLedger && cfg.Ledger == "" {
		return nil, errors.New("get_call answers from the ledger, and there is none")
	}
	h := &Host{
		script: s, crash: cfg.Crash, ledger: toolhost.NewMemoryLedger(),
		calls: make(map[toolOfRun][]string), effects: make(map[string]bool), asked: make(map[string]int),
	}
	if cfg.Ledger == "" {
		return h, nil
	}
	var err error
	if h.ledger, err = toolhost.OpenLedger(cfg.Ledger); err != nil {
		return nil, err
	}
	records, err := toolhost.ReadLedger(cfg.Ledger)
	if err != nil {
		return nil, errors.Join(err, h.ledger.Close())
	}
	for _, r := range records {
		switch r.Phase {
		case toolhost.PhaseBegin:
			h.count(toolOfRun{r.RunID, r.Tool}, r.Key)
		case toolhost.PhaseEffect:
			h.effects[r.Key] = true
		}
	}
	return h, nil
}

// Close closes the ledger. The host must have stopped serving.
func (h *Host) Close() error { return h.ledger.Close() }

// Serve serves h, with health and reflection, until ctx ends, and then cuts what is in progress: it may hang
// for ever. It closes the listener.
func (h *Host) Serve(ctx context.Context, lis net.Listener) error {
	return rpcserver.Serve(ctx, lis, 0, h.Register, ServerOption())
}

// Register adds h to a gRPC server of the caller's, which needs ServerOption for raw faults.
func (h *Host) Register(r grpc.ServiceRegistrar) { runnerdv1.RegisterToolHostServiceServer(r, h) }

// ServerOption lets a server send bytes that are no message.
func ServerOption() grpc.ServerOption { return grpc.ForceServerCodecV2(scriptfile.RawCodec{}) }

// ListTools implements runnerdv1.ToolHostServiceServer.
func (h *Host) ListTools(
	context.Context, *runnerdv1.ToolHostServiceListToolsRequest,
) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: h.script.list, HasGetCall: h.script.getCall != nil}, nil
}

// count returns how many other calls of the tool came before in the run.
func (h *Host) count(t toolOfRun, key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := slices.Index(h.calls[t], key)
	if n < 0 {
		n = len(h.calls[t])
		h.calls[t] = append(h.calls[t], key)
	}
	return n
}

// CallTool implements runnerdv1.ToolHostServiceServer.
func (h *Host) CallTool(req *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
	t, ok := h.script.tools[req.GetName()]
	if !ok {
		return status.Errorf(codes.NotFound, "no tool %q", req.GetName())
	}
	entry, err := h.ledger.Begin(stream.Context(), req)
	switch {
	case err != nil:
		return status.FromContextError(err).Err()
	case entry.State == toolhost.CallRefused:
		return status.Errorf(codes.FailedPrecondition, "attempt %d was given up", req.GetAttempt())
	}
	r, ok := t.result(h.count(toolOfRun{req.GetRunId(), req.GetName()}, req.GetIdempotencyKey()), req)
	if !ok {
		r = &result{Faults: []fault{{Code: scriptfile.Code(codes.FailedPrecondition), Message: "no case of the script holds"}}}
	}
	f := r.fault(req.GetAttempt())
	if entry.State == toolhost.CallFinished {
		if !t.idempotent() {
			if err := h.effect(t, req); err != nil {
				return err
			}
		}
		return f.send(stream, entry.Result)
	}

	ctx := stream.Context()
	if r.IgnoreCancel {
		ctx = context.WithoutCancel(ctx)
	}
	after, err := h.execute(ctx, t, r, f, req, stream)
	if err := h.ledger.End(ctx, req, after); err != nil {
		return status.Errorf(codes.Internal, "ledger: %v", err)
	}
	if err != nil {
		return err
	}
	if err := h.fail(ctx, f, afterEnd); err != nil {
		return err
	}
	return f.send(stream, after.Result)
}

// execute does what a call does up to its end, and says what became of it.
func (h *Host) execute(
	ctx context.Context, t *tool, r *result, f *fault, req *runnerdv1.CallToolRequest,
	stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse],
) (toolhost.Entry, error) {
	unseen, open := toolhost.Entry{State: toolhost.CallUnseen}, toolhost.Entry{State: toolhost.CallOpen}
	for _, p := range r.Progress {
		if err := sleep(ctx, p.Delay); err != nil {
			return unseen, err
		}
		err := stream.Send(&runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Progress{
			Progress: &runnerdv1.Progress{Message: p.Message, Fraction: p.Fraction},
		}})
		if err != nil && !r.IgnoreCancel {
			return unseen, err
		}
	}
	if err := sleep(ctx, r.Delay); err != nil {
		return unseen, err
	}
	if err := h.fail(ctx, f, beforeEffect); err != nil {
		return unseen, err
	}
	if err := h.effect(t, req); err != nil {
		return open, err
	}
	if err := h.fail(ctx, f, afterEffect); err != nil {
		return open, err
	}
	return toolhost.Entry{State: toolhost.CallFinished, Result: r.proto(req)}, nil
}

// effect notes the effect of a call, which an idempotent tool has once.
func (h *Host) effect(t *tool, req *runnerdv1.CallToolRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.idempotent() && h.effects[req.GetIdempotencyKey()] {
		return nil
	}
	if err := h.ledger.Effect(req); err != nil {
		return status.Errorf(codes.Internal, "ledger: %v", err)
	}
	h.effects[req.GetIdempotencyKey()] = true
	return nil
}

// fail makes a fault happen if its point in the call has come.
func (h *Host) fail(ctx context.Context, f *fault, at point) error {
	if f.At != at {
		return nil
	}
	switch {
	case f.Crash:
		h.crash()
		return status.Error(codes.Internal, "the host should have crashed")
	case f.Hang:
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	case f.Code != 0:
		return scriptfile.Err(f.Code, f.Message)
	default:
		return nil
	}
}

// send answers a call with its result, or as the fault says.
func (f *fault) send(stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse], r *runnerdv1.ToolResult) error {
	msg := &runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Result{Result: r}}
	switch {
	case f.NoResult:
		return nil
	case f.Raw != nil:
		return stream.SendMsg(scriptfile.Raw(f.Raw))
	case f.TwoResults:
		if err := stream.Send(msg); err != nil {
			return err
		}
	}
	return stream.Send(msg)
}

func sleep(ctx context.Context, d scriptfile.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(time.Duration(d)):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// GetCall implements runnerdv1.ToolHostServiceServer.
func (h *Host) GetCall(ctx context.Context, req *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
	if h.script.getCall == nil {
		return nil, status.Error(codes.Unimplemented, "this host does not answer GetCall")
	}
	h.mu.Lock()
	n := h.asked[req.GetIdempotencyKey()]
	h.asked[req.GetIdempotencyKey()]++
	h.mu.Unlock()
	a := h.script.getCall[min(n, len(h.script.getCall)-1)]
	switch {
	case a.code != 0:
		return nil, scriptfile.Err(a.code, "")
	case a.word == answerLedger:
		return toolhost.GetCall(ctx, h.ledger, req)
	case a.word == answerRunning:
		return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Running{Running: &runnerdv1.CallRunning{}}}, nil
	case a.word == answerNotSeen:
		return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_NotSeen{NotSeen: &runnerdv1.CallNotSeen{}}}, nil
	default:
		return &runnerdv1.GetCallResponse{}, nil
	}
}
