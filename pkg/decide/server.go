package decide

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/rpcserver"
)

// TextSink shows a piece of text while the model still writes it. Pieces may end in the middle of a character. What
// is shown is live only: the decision that is returned has to hold the whole text. It must not be called after the
// decision was returned, nor by two goroutines at a time.
type TextSink func(piece string)

// Service is a decide service.
type Service interface {
	// Decide says what the run does next. It must return soon after ctx ended.
	//
	// A gRPC status error is handed on as it is; INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION,
	// OUT_OF_RANGE, PERMISSION_DENIED, UNAUTHENTICATED and UNIMPLEMENTED end the run. After any other error, and after
	// a panic, runnerd asks again.
	Decide(ctx context.Context, req *runnerdv1.DecideRequest, text TextSink) (*runnerdv1.Decision, error)
}

// Func is a function as a Service.
type Func func(ctx context.Context, req *runnerdv1.DecideRequest, text TextSink) (*runnerdv1.Decision, error)

// Decide calls f.
func (f Func) Decide(ctx context.Context, req *runnerdv1.DecideRequest, text TextSink) (*runnerdv1.Decision, error) {
	return f(ctx, req, text)
}

// ListenAndServe serves s, with health and reflection, on a TCP address such as "127.0.0.1:7791", or a Unix socket such
// as "unix:///run/x.sock", until ctx ends. Decisions in progress then have 10 s to end.
func ListenAndServe(ctx context.Context, addr string, s Service, opts ...grpc.ServerOption) error {
	return rpcserver.ListenAndServe(ctx, addr, registrar(s), opts...)
}

// Serve is ListenAndServe on a listener, which it closes.
func Serve(ctx context.Context, lis net.Listener, s Service, opts ...grpc.ServerOption) error {
	return rpcserver.Serve(ctx, lis, rpcserver.DrainTime, registrar(s), opts...)
}

// Register adds s to a gRPC server of the caller's.
func Register(r grpc.ServiceRegistrar, s Service) {
	runnerdv1.RegisterDecideServiceServer(r, &server{service: s})
}

func registrar(s Service) func(grpc.ServiceRegistrar) {
	return func(r grpc.ServiceRegistrar) { Register(r, s) }
}

// Answer is the decision that the work is done.
func Answer(content string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: content}}}
}

// Question is the decision to ask a person.
func Question(text string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: text}}}
}

// Calls is the decision to call tools, in this order.
func Calls(calls ...*runnerdv1.ToolCall) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{Calls: calls}}}
}

// Call is one call of a tool. The arguments are a struct or map for JSON; it panics if they cannot be encoded. A call
// whose arguments are JSON text already is a plain runnerdv1.ToolCall.
func Call(tool string, arguments any) *runnerdv1.ToolCall {
	text, err := json.Marshal(arguments)
	if err != nil {
		panic("decide: arguments of " + tool + ": " + err.Error())
	}
	return &runnerdv1.ToolCall{Name: tool, ArgumentsJson: string(text)}
}

type server struct {
	runnerdv1.UnimplementedDecideServiceServer
	service Service
}

// Decide implements runnerdv1.DecideServiceServer.
func (s *server) Decide(req *runnerdv1.DecideRequest, stream grpc.ServerStreamingServer[runnerdv1.DecideResponse]) error {
	var pending string
	d, err := s.decide(stream.Context(), req, func(piece string) {
		var whole string
		if whole, pending = splitText(pending + piece); whole != "" {
			// The stream broke: the context says so to the service, and its decision will meet the same error.
			_ = stream.Send(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_TextDelta{TextDelta: &runnerdv1.TextDelta{Text: whole}}})
		}
	})
	if err != nil {
		return err
	}
	if d == nil {
		return status.Error(codes.Internal, "decide service made no decision")
	}
	makeUTF8(d)
	return stream.Send(&runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_Decision{Decision: d}})
}

func (s *server) decide(ctx context.Context, req *runnerdv1.DecideRequest, text TextSink) (d *runnerdv1.Decision, err error) {
	defer func() {
		if v := recover(); v != nil {
			slog.ErrorContext(ctx, "decide service panicked", "run_id", req.GetRunId(), "iteration", req.GetIteration(),
				"panic", v, "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "decide service panicked")
		}
	}()
	return s.service.Decide(ctx, req, text)
}

// splitText splits off a character at the end that is not whole yet, and replaces bytes that will never be one.
func splitText(s string) (whole, rest string) {
	for i := len(s) - 1; i >= max(0, len(s)-utf8.UTFMax+1); i-- {
		if utf8.RuneStart(s[i]) {
			if !utf8.FullRuneInString(s[i:]) {
				s, rest = s[:i], s[i:]
			}
			break
		}
	}
	return strings.ToValidUTF8(s, "\uFFFD"), rest
}

// makeUTF8 replaces bytes that protobuf cannot carry in a string. Without it the decision could not be sent, now or
// ever.
func makeUTF8(d *runnerdv1.Decision) {
	fields := []*string{&d.Text, &d.Reasoning, &d.Transport}
	if a := d.GetAnswer(); a != nil {
		fields = append(fields, &a.Content, &a.MetadataJson)
	}
	if q := d.GetQuestion(); q != nil {
		fields = append(fields, &q.Text)
	}
	for _, c := range d.GetToolCalls().GetCalls() {
		fields = append(fields, &c.Id, &c.Name, &c.ArgumentsJson)
	}
	for _, f := range fields {
		*f = strings.ToValidUTF8(*f, "\uFFFD")
	}
}
