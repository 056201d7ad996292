package harness

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// DecideStream is where a step sends its answer.
type DecideStream = grpc.ServerStreamingServer[runnerdv1.DecideResponse]

// Step answers one Decide, well or badly.
type Step func(req *runnerdv1.DecideRequest, s DecideStream) error

// Brain is a decide service whose runs are scripted. It remembers all that it was shown.
type Brain struct {
	Addr string

	mu       sync.Mutex
	scripts  map[string]Step
	requests map[string][]*runnerdv1.DecideRequest
	inFlight map[string]int
}

// NewBrain serves a decide service on a free port of the loopback interface until the process ends.
func NewBrain(opts ...grpc.ServerOption) (*Brain, error) {
	b := &Brain{
		scripts:  map[string]Step{},
		requests: map[string][]*runnerdv1.DecideRequest{},
		inFlight: map[string]int{},
	}
	addr, err := serve(func(s *grpc.Server) { runnerdv1.RegisterDecideServiceServer(s, &decideServer{brain: b}) }, opts...)
	b.Addr = addr
	return b, err
}

// serve serves gRPC on a free port of the loopback interface until the process ends.
func serve(register func(*grpc.Server), opts ...grpc.ServerOption) (addr string, err error) {
	lis, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	server := grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(16<<20), grpc.MaxConcurrentStreams(1<<20))...)
	register(server)
	go func() { _ = server.Serve(lis) }()
	return lis.Addr().String(), nil
}

// Script tells what a run decides. It must be given before the run is started.
func (b *Brain) Script(run string, step Step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.scripts[run] = step
}

// Requests is every Decide of a run so far, in the order in which they came.
func (b *Brain) Requests(run string) []*runnerdv1.DecideRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*runnerdv1.DecideRequest(nil), b.requests[run]...)
}

// InFlight is how many Decides of a run are being answered.
func (b *Brain) InFlight(run string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight[run]
}

type decideServer struct {
	runnerdv1.UnimplementedDecideServiceServer
	brain *Brain
}

// Decide implements DecideServiceServer.
func (s *decideServer) Decide(req *runnerdv1.DecideRequest, stream DecideStream) error {
	b, run := s.brain, req.GetRunId()
	b.mu.Lock()
	step := b.scripts[run]
	b.requests[run] = append(b.requests[run], req)
	b.inFlight[run]++
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.inFlight[run]--
		b.mu.Unlock()
	}()
	if step == nil {
		return status.Errorf(codes.FailedPrecondition, "run %q has no script", run)
	}
	return step(req, stream)
}

// Send sends one decision.
func Send(s DecideStream, d *runnerdv1.Decision) error {
	return s.Send(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_Decision{Decision: d}})
}

// Say sends a piece of text.
func Say(s DecideStream, text string) error {
	return s.Send(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_TextDelta{TextDelta: &runnerdv1.TextDelta{Text: text}}})
}

// Steps answers each iteration by its own step: a *runnerdv1.Decision or a Step. The same iteration asked again gets
// the same answer. A Decide past the last step ends the run with TRANSPORT_ERROR.
func Steps(steps ...any) Step {
	return func(req *runnerdv1.DecideRequest, s DecideStream) error {
		i := int(req.GetIteration())
		if i < 1 || i > len(steps) {
			return status.Errorf(codes.FailedPrecondition, "the script of run %q has no step %d", req.GetRunId(), i)
		}
		switch step := steps[i-1].(type) {
		case *runnerdv1.Decision:
			return Send(s, step)
		case Step:
			return step(req, s)
		case func(*runnerdv1.DecideRequest, DecideStream) error:
			return step(req, s)
		default:
			panic(fmt.Sprintf("step %d of a script is a %T", i, step))
		}
	}
}

// Forever answers every iteration with the same decision.
func Forever(d *runnerdv1.Decision) Step {
	return func(_ *runnerdv1.DecideRequest, s DecideStream) error { return Send(s, d) }
}

// Hang waits until the Decide is cancelled.
func Hang(_ *runnerdv1.DecideRequest, s DecideStream) error {
	<-s.Context().Done()
	return status.FromContextError(s.Context().Err()).Err()
}

// Fail answers with a gRPC status.
func Fail(code codes.Code) Step {
	return func(*runnerdv1.DecideRequest, DecideStream) error { return status.Error(code, "as scripted") }
}

// Answer is the decision that the work is done.
func Answer(content string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: content}}}
}

// Text is a decision of text and nothing else.
func Text(text string) *runnerdv1.Decision { return &runnerdv1.Decision{Text: text} }

// Ask is a question to a person.
func Ask(text string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: text}}}
}

// Calls is a decision to call tools. Names and arguments alternate; the model's ids are c1, c2, …
func Calls(namesAndArguments ...string) *runnerdv1.Decision {
	var calls []*runnerdv1.ToolCall
	for i := 0; i+1 < len(namesAndArguments); i += 2 {
		calls = append(calls, &runnerdv1.ToolCall{
			Id: fmt.Sprintf("c%d", i/2+1), Name: namesAndArguments[i], ArgumentsJson: namesAndArguments[i+1],
		})
	}
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{Calls: calls}}}
}

// Costing adds usage to a decision: cents and tokens.
func Costing(d *runnerdv1.Decision, cents float64, input, output int64) *runnerdv1.Decision {
	d.Usage = &runnerdv1.Usage{CostCents: &cents, InputTokens: &input, OutputTokens: &output}
	return d
}
