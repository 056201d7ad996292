package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// recorder makes a step of a run durable. It returns when it is.
type recorder interface {
	put(run string, sequence uint64, value []byte) error
}

// nothing is the recorder of floor-go.
type nothing struct{}

func (nothing) put(string, uint64, []byte) error { return nil }

// floor is the plain loop that everyone writes first: ask, record, call, record.
type floor struct {
	decide runnerdv1.DecideServiceClient
	tools  runnerdv1.ToolHostServiceClient
	store  recorder
}

// run executes one run.
func (f *floor) run(ctx context.Context, id string, w work) error {
	sequence := uint64(0)
	record := func(m proto.Message) error {
		b, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		sequence++
		return f.store.put(id, sequence, b)
	}
	req := &runnerdv1.DecideRequest{
		RunId: id, Agent: agentName, Attempt: 1, Task: w.task(),
		Tools: []*runnerdv1.OfferedTool{{Name: toolName, Description: "Works for a while and says so.", InputSchemaJson: inputSchema}},
	}
	if err := record(&runnerdv1.StartRunRequest{RunId: id, Agent: agentName, Task: req.GetTask()}); err != nil {
		return err
	}
	for {
		req.Iteration++
		req.IdempotencyKey = fmt.Sprintf("%s/%d", id, req.GetIteration())
		decision, err := f.ask(ctx, req)
		if err != nil {
			return err
		}
		if err := record(decision); err != nil {
			return err
		}
		if decision.GetAnswer() != nil {
			return nil
		}
		entry := &runnerdv1.DecisionEntry{}
		req.History = append(req.History, &runnerdv1.HistoryEntry{
			Sequence: sequence, Iteration: req.GetIteration(), Entry: &runnerdv1.HistoryEntry_Decision{Decision: entry},
		})
		for i, c := range decision.GetToolCalls().GetCalls() {
			call := &runnerdv1.CallEntry{
				CallId: fmt.Sprintf("%d.%d", req.GetIteration(), i+1), ProviderCallId: c.GetId(),
				ToolName: c.GetName(), ArgumentsRaw: c.GetArgumentsJson(),
			}
			entry.Calls = append(entry.Calls, call)
			result, err := f.call(ctx, id, call)
			if err != nil {
				return err
			}
			if err := record(result); err != nil {
				return err
			}
			req.History = append(req.History, &runnerdv1.HistoryEntry{
				Sequence: sequence, Iteration: req.GetIteration(),
				Entry: &runnerdv1.HistoryEntry_Observation{Observation: &runnerdv1.Observation{
					Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, CallId: call.GetCallId(),
					ProviderCallId: call.GetProviderCallId(), ToolName: call.GetToolName(), Text: result.GetText(),
				}},
			})
		}
	}
}

func (f *floor) ask(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
	stream, err := f.decide.Decide(ctx, req)
	if err != nil {
		return nil, err
	}
	var decision *runnerdv1.Decision
	err = drain(stream, func(r *runnerdv1.DecideResponse) {
		if d := r.GetDecision(); d != nil {
			decision = d
		}
	})
	if err == nil && decision == nil {
		err = errors.New("no decision")
	}
	return decision, err
}

func (f *floor) call(ctx context.Context, run string, c *runnerdv1.CallEntry) (*runnerdv1.ToolResult, error) {
	stream, err := f.tools.CallTool(ctx, &runnerdv1.CallToolRequest{
		RunId: run, CallId: c.GetCallId(), Attempt: 1, IdempotencyKey: run + "/" + c.GetCallId(),
		Name: c.GetToolName(), ArgumentsJson: c.GetArgumentsRaw(), Agent: agentName,
	})
	if err != nil {
		return nil, err
	}
	var result *runnerdv1.ToolResult
	err = drain(stream, func(r *runnerdv1.CallToolResponse) {
		if t := r.GetResult(); t != nil {
			result = t
		}
	})
	if err == nil && result == nil {
		err = errors.New("no result")
	}
	return result, err
}

// drain reads a stream to its end.
func drain[M any](stream grpc.ServerStreamingClient[M], each func(*M)) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		each(m)
	}
}

// load is a number of runs to execute, so many at a time.
type load struct {
	Prefix   string `json:"prefix"` // of the run ids
	Runs     int    `json:"runs"`
	InFlight int    `json:"in_flight"`
	Work     work   `json:"work"`
	Agent    string `json:"agent,omitempty"` // whose runs; empty: of agentName
}

// execute calls run for every run of the load, InFlight at a time.
func (l load) execute(ctx context.Context, run func(ctx context.Context, worker int, id string) error) error {
	var next atomic.Int64
	return parallel(ctx, l.InFlight, func(ctx context.Context, worker int) error {
		for i := next.Add(1) - 1; i < int64(l.Runs) && ctx.Err() == nil; i = next.Add(1) - 1 {
			id := fmt.Sprintf("%s-%d", l.Prefix, i)
			if err := run(ctx, worker, id); err != nil {
				return fmt.Errorf("run %s: %w", id, err)
			}
		}
		return nil
	})
}

// parallel calls do n times at once and waits for all. The first error cancels the others and is returned.
func parallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			if err := do(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// serveFloor runs floor-go or, with a directory, floor-bbolt as a process.
func serveFloor(ctx context.Context, decide, tools, dir string, in io.Reader, out io.Writer) (err error) {
	f := &floor{store: nothing{}}
	do := orders{
		"load": func(ctx context.Context, args json.RawMessage) (any, error) {
			var l load
			if err := json.Unmarshal(args, &l); err != nil {
				return nil, err
			}
			return nil, l.execute(ctx, func(ctx context.Context, _ int, id string) error { return f.run(ctx, id, l.Work) })
		},
	}
	if dir != "" {
		store, err := openFloorStore(filepath.Join(dir, "floor.db"))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.close()) }()
		f.store = store
		do["commits"] = func(context.Context, json.RawMessage) (any, error) { return store.commitTimes(), nil }
	}
	for target, use := range map[string]func(*grpc.ClientConn){
		decide: func(c *grpc.ClientConn) { f.decide = runnerdv1.NewDecideServiceClient(c) },
		tools:  func(c *grpc.ClientConn) { f.tools = runnerdv1.NewToolHostServiceClient(c) },
	} {
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		use(conn)
	}
	return do.obey(ctx, "", in, out)
}
