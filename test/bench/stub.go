package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// serveGRPC listens on a free port and serves until the context ends.
func serveGRPC(ctx context.Context, register func(*grpc.Server), opts ...grpc.ServerOption) (address string, err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(8<<20))...)
	register(server)
	context.AfterFunc(ctx, server.Stop)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	return listener.Addr().String(), nil
}

// decideStub is a decide service that answers at once.
type decideStub struct {
	runnerdv1.UnimplementedDecideServiceServer

	mu        sync.Mutex
	recording bool
	last      map[string]time.Time     // newest Decide of each run, while recording
	intervals []int64                  // ns from one Decide of a run to its next: one whole iteration
	gates     map[string]chan struct{} // by run that is held, closed to let it go
}

// Decide implements DecideService.
func (s *decideStub) Decide(req *runnerdv1.DecideRequest, stream grpc.ServerStreamingServer[runnerdv1.DecideResponse]) error {
	now := time.Now()
	w, err := parseTask(req.GetTask())
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.recording {
		if last, ok := s.last[req.GetRunId()]; ok {
			s.intervals = append(s.intervals, int64(now.Sub(last)))
		}
		s.last[req.GetRunId()] = now
	}
	s.mu.Unlock()
	if w.Hold && req.GetIteration() == 1 {
		select {
		case <-s.gate(req.GetRunId()):
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	return stream.Send(&runnerdv1.DecideResponse{
		Event: &runnerdv1.DecideResponse_Decision{Decision: w.decide(int(req.GetIteration()))},
	})
}

// gate returns what holds a run. Whoever comes first makes it.
func (s *decideStub) gate(run string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gates[run] == nil {
		s.gates[run] = make(chan struct{})
	}
	return s.gates[run]
}

// serveDecide runs the decide stub as a process.
func serveDecide(ctx context.Context, in io.Reader, out io.Writer) error {
	s := &decideStub{last: map[string]time.Time{}, gates: map[string]chan struct{}{}}
	address, err := serveGRPC(ctx, func(g *grpc.Server) { runnerdv1.RegisterDecideServiceServer(g, s) })
	if err != nil {
		return err
	}
	return orders{
		"record": func(context.Context, json.RawMessage) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.recording = true
			return nil, nil
		},
		"intervals": func(context.Context, json.RawMessage) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			all := s.intervals
			s.recording, s.intervals = false, nil
			clear(s.last)
			return all, nil
		},
		"release": func(_ context.Context, args json.RawMessage) (any, error) {
			var run string
			if err := json.Unmarshal(args, &run); err != nil {
				return nil, err
			}
			close(s.gate(run))
			return nil, nil
		},
	}.obey(ctx, address, in, out)
}

// toolStub is a tool host with one tool of recovery class NONE that keeps a ledger of what it executed.
type toolStub struct {
	runnerdv1.UnimplementedToolHostServiceServer

	mu     sync.Mutex
	ledger map[string]int // executions by idempotency key; nil: not kept
}

// ListTools implements ToolHostService.
func (s *toolStub) ListTools(context.Context, *runnerdv1.ToolHostServiceListToolsRequest) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: []*runnerdv1.ToolDefinition{{
		Name: toolName, Description: "Works for a while and says so.", InputSchemaJson: inputSchema,
		Annotations: &runnerdv1.Annotations{Destructive: new(false)},
	}}}, nil
}

// CallTool implements ToolHostService.
func (s *toolStub) CallTool(req *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
	pace, err := paceOf(req.GetArgumentsJson())
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.ledger != nil {
		s.ledger[req.GetIdempotencyKey()]++
	}
	s.mu.Unlock()
	if pace > 0 {
		timer := time.NewTimer(pace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-stream.Context().Done():
			return stream.Context().Err() // it was executed all the same: that is what the ledger is for
		}
	}
	return stream.Send(&runnerdv1.CallToolResponse{
		Event: &runnerdv1.CallToolResponse_Result{Result: &runnerdv1.ToolResult{Text: toolResult}},
	})
}

// GetCall implements ToolHostService: the one unary call that the stubs have, measured for what a call costs.
func (s *toolStub) GetCall(context.Context, *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
	return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_NotSeen{NotSeen: &runnerdv1.CallNotSeen{}}}, nil
}

// ledger is what the tool stub executed.
type ledger struct {
	Calls    int `json:"calls"`    // executions
	Repeated int `json:"repeated"` // calls executed more than once
}

// serveTools runs the tool stub as a process.
func serveTools(ctx context.Context, in io.Reader, out io.Writer) error {
	s := new(toolStub)
	address, err := serveGRPC(ctx, func(g *grpc.Server) { runnerdv1.RegisterToolHostServiceServer(g, s) })
	if err != nil {
		return err
	}
	return orders{
		"keep ledger": func(context.Context, json.RawMessage) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ledger = map[string]int{}
			return nil, nil
		},
		"ledger": func(context.Context, json.RawMessage) (any, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.ledger == nil {
				return nil, errors.New("no ledger was kept")
			}
			var l ledger
			for _, n := range s.ledger {
				l.Calls += n
				if n > 1 {
					l.Repeated++
				}
			}
			s.ledger = nil
			return l, nil
		},
	}.obey(ctx, address, in, out)
}
