package script

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/rpcserver"
	"github.com/runnerd/runnerd/pkg/internal/scriptfile"
)

// Service is a decide service that follows a script.
type Service struct {
	runnerdv1.UnimplementedDecideServiceServer
	script  *Script
	journal *Journal
}

// New makes a service of a script. Each request is written to the journal before it is answered, unless that is nil.
func New(s *Script, journal *Journal) *Service {
	return &Service{script: s, journal: journal}
}

// Serve serves s, with health and reflection, until ctx ends, and then cuts what is in progress: it may hang
// for ever. It closes the listener.
func (s *Service) Serve(ctx context.Context, lis net.Listener) error {
	return rpcserver.Serve(ctx, lis, 0, s.Register, ServerOption())
}

// Register adds s to a gRPC server of the caller's, which needs ServerOption for raw faults.
func (s *Service) Register(r grpc.ServiceRegistrar) { runnerdv1.RegisterDecideServiceServer(r, s) }

// ServerOption lets a server send bytes that are no message.
func ServerOption() grpc.ServerOption { return grpc.ForceServerCodecV2(scriptfile.RawCodec{}) }

// Decide implements runnerdv1.DecideServiceServer.
func (s *Service) Decide(req *runnerdv1.DecideRequest, stream grpc.ServerStreamingServer[runnerdv1.DecideResponse]) error {
	if err := s.journal.write(req); err != nil {
		return status.Errorf(codes.Internal, "journal: %v", err)
	}
	step, ok := s.script.find(req)
	if !ok {
		return status.Errorf(codes.FailedPrecondition, "the script has no decision for iteration %d of run %s",
			req.GetIteration(), req.GetRunId())
	}
	step, err := step.fill(req)
	if err != nil {
		return status.Errorf(codes.FailedPrecondition, "iteration %d of run %s: %v", req.GetIteration(), req.GetRunId(), err)
	}
	select {
	case <-time.After(time.Duration(step.Delay)):
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
	for _, piece := range step.Deltas {
		err := stream.Send(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_TextDelta{TextDelta: &runnerdv1.TextDelta{Text: piece}}})
		if err != nil {
			return err
		}
	}
	answer := &runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_Decision{Decision: step.decision()}}
	if f := step.fault(req.GetAttempt()); f != nil {
		return f.happen(stream, answer)
	}
	return stream.Send(answer)
}

func (f *fault) happen(stream grpc.ServerStreamingServer[runnerdv1.DecideResponse], answer *runnerdv1.DecideResponse) error {
	switch {
	case f.Hang:
		<-stream.Context().Done()
		return status.FromContextError(stream.Context().Err()).Err()
	case f.NoDecision:
		return nil
	case f.TwoDecisions:
		if err := stream.Send(answer); err != nil {
			return err
		}
		return stream.Send(answer)
	case f.Raw != nil:
		return stream.SendMsg(scriptfile.Raw(f.Raw))
	default:
		return scriptfile.Err(f.Code, f.Message)
	}
}

// decision is the decision of a step without templates.
func (s *step) decision() *runnerdv1.Decision {
	d := &runnerdv1.Decision{
		Text: scriptfile.Pad(s.Text, s.Size), Reasoning: s.Reasoning, Truncated: s.Truncated,
		Transport: s.Transport, ProviderState: []byte(s.ProviderState),
	}
	if u := s.Usage; u != nil {
		d.Usage = &runnerdv1.Usage{
			CostCents: u.CostCents, InputTokens: u.InputTokens, OutputTokens: u.OutputTokens,
			CachedInputTokens: u.CachedInputTokens,
		}
	}
	switch {
	case s.Answer != nil:
		d.Next = &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: *s.Answer, MetadataJson: s.Metadata}}
	case s.Question != nil:
		d.Next = &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: *s.Question}}
	case s.Calls != nil:
		calls := new(runnerdv1.ToolCalls)
		for _, c := range s.Calls {
			calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{Id: c.ID, Name: c.Tool, ArgumentsJson: c.Arguments})
		}
		d.Next = &runnerdv1.Decision_ToolCalls{ToolCalls: calls}
	}
	return d
}

// fill is the step with its templates filled in.
func (s *step) fill(req *runnerdv1.DecideRequest) (*step, error) {
	if !s.Template {
		return s, nil
	}
	filled := s.clone()
	data := map[string]any{"Request": req, "Last": lastObservation(req).GetText(), "Iteration": req.GetIteration()}
	for _, text := range filled.strings() {
		t, err := parse(*text)
		if err != nil {
			return nil, err
		}
		var out strings.Builder
		if err := t.Execute(&out, data); err != nil {
			return nil, err
		}
		*text = out.String()
	}
	return filled, nil
}

// clone copies what strings points into.
func (s *step) clone() *step {
	c := *s
	c.Deltas = append([]string(nil), s.Deltas...)
	c.Calls = append([]call(nil), s.Calls...)
	if s.Answer != nil {
		c.Answer = new(*s.Answer)
	}
	if s.Question != nil {
		c.Question = new(*s.Question)
	}
	return &c
}

func jsonString(text any) (string, error) {
	out, err := json.Marshal(fmt.Sprint(text))
	return string(out), err
}
