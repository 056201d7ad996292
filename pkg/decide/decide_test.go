package decide_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
)

// raw is a decide service that answers with a function of the test.
type raw struct {
	runnerdv1.UnimplementedDecideServiceServer
	decide func(grpc.ServerStreamingServer[runnerdv1.DecideResponse]) error
}

func (r *raw) Decide(_ *runnerdv1.DecideRequest, stream grpc.ServerStreamingServer[runnerdv1.DecideResponse]) error {
	return r.decide(stream)
}

func (r *raw) register(s grpc.ServiceRegistrar) { runnerdv1.RegisterDecideServiceServer(s, r) }

func newClient(t *testing.T, e decide.Endpoint) *decide.Client {
	t.Helper()
	c, err := decide.NewClient(map[string]decide.Endpoint{"brain": e})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// connect serves a service in memory and returns a client of it.
func connect(t *testing.T, register func(grpc.ServiceRegistrar)) *decide.Client {
	t.Helper()
	s := grpctest.Serve(t, register)
	return newClient(t, decide.Endpoint{Address: s.Target(), DialOptions: []grpc.DialOption{s.DialOption()}})
}

// outcome says in a word what a caller may conclude of an error.
func outcome(err error) string {
	var e interface {
		NotSent() bool
		Undecodable() bool
		TooLarge() bool
		BadStream() string
	}
	switch {
	case err == nil:
		return "ok"
	case !errors.As(err, &e):
		return status.Code(err).String()
	case e.NotSent():
		return "not sent"
	case e.Undecodable():
		return "undecodable"
	case e.TooLarge():
		return "too large"
	default:
		return e.BadStream()
	}
}

func TestDecideOutcomes(t *testing.T) {
	t.Parallel()
	decision := func(d *runnerdv1.Decision) *runnerdv1.DecideResponse {
		return &runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_Decision{Decision: d}}
	}
	text := func(s string) *runnerdv1.DecideResponse {
		return &runnerdv1.DecideResponse{Event: &runnerdv1.DecideResponse_TextDelta{TextDelta: &runnerdv1.TextDelta{Text: s}}}
	}
	for _, tt := range []struct {
		name string
		send []*runnerdv1.DecideResponse
		end  error
		want string
	}{
		{"a decision", []*runnerdv1.DecideResponse{decision(decide.Answer("a"))}, nil, "ok"},
		{"text and a decision", []*runnerdv1.DecideResponse{text("t"), decision(decide.Answer("a"))}, nil, "ok"},
		{"CASE-09 an empty decision is one", []*runnerdv1.DecideResponse{decision(&runnerdv1.Decision{})}, nil, "ok"},
		{"no decision", []*runnerdv1.DecideResponse{text("t")}, nil, "no_decision"},
		{"two decisions", []*runnerdv1.DecideResponse{decision(decide.Answer("a")), decision(decide.Answer("b"))}, nil, "several_decisions"},
		{"decision of 1 MiB", []*runnerdv1.DecideResponse{decision(&runnerdv1.Decision{Text: strings.Repeat("x", decide.MaxDecision-4)})}, nil, "ok"},
		{"decision over 1 MiB", []*runnerdv1.DecideResponse{decision(&runnerdv1.Decision{Text: strings.Repeat("x", decide.MaxDecision)})}, nil, "too large"},
		{"message over 4 MiB", []*runnerdv1.DecideResponse{decision(&runnerdv1.Decision{Text: strings.Repeat("x", 5<<20)})}, nil, "too large"},
		{"refused", nil, status.Error(codes.Unauthenticated, "no key"), "Unauthenticated"},
		{"overloaded", nil, status.Error(codes.ResourceExhausted, "slow down"), "ResourceExhausted"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := connect(t, (&raw{decide: func(stream grpc.ServerStreamingServer[runnerdv1.DecideResponse]) error {
				for _, m := range tt.send {
					if err := stream.Send(m); err != nil {
						return err
					}
				}
				return tt.end
			}}).register)
			d, err := c.Decide(t.Context(), "brain", &runnerdv1.DecideRequest{}, nil)
			if outcome(err) != tt.want || (err == nil) != (d != nil) {
				t.Errorf("outcome %q (%v), want %q", outcome(err), err, tt.want)
			}
		})
	}
	t.Run("dial refused", func(t *testing.T) {
		t.Parallel()
		lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = newClient(t, decide.Endpoint{Address: lis.Addr().String()}).Decide(t.Context(), "brain", &runnerdv1.DecideRequest{}, nil)
		if outcome(err) != "not sent" {
			t.Errorf("outcome %q (%v)", outcome(err), err)
		}
	})
	t.Run("deadline reaches the service", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			told := make(chan struct{})
			c := connect(t, func(r grpc.ServiceRegistrar) {
				decide.Register(r, decide.Func(func(ctx context.Context, _ *runnerdv1.DecideRequest, _ decide.TextSink) (*runnerdv1.Decision, error) {
					<-ctx.Done()
					close(told)
					return nil, ctx.Err()
				}))
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := c.Decide(ctx, "brain", &runnerdv1.DecideRequest{}, nil); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
			<-told
		})
	})
}

func TestService(t *testing.T) {
	t.Parallel()
	brains := map[string]decide.Func{
		"calls": func(_ context.Context, _ *runnerdv1.DecideRequest, _ decide.TextSink) (*runnerdv1.Decision, error) {
			return decide.Calls(decide.Call("add", map[string]int{"a": 1}), decide.Call("list", struct{}{})), nil
		},
		"question": func(_ context.Context, _ *runnerdv1.DecideRequest, _ decide.TextSink) (*runnerdv1.Decision, error) {
			return decide.Question("which?"), nil
		},
		"text": func(_ context.Context, _ *runnerdv1.DecideRequest, text decide.TextSink) (*runnerdv1.Decision, error) {
			for piece := range slices.Chunk([]byte("a😀\xffé"), 1) {
				text(string(piece))
			}
			return decide.Answer("\xff"), nil
		},
		"error": func(context.Context, *runnerdv1.DecideRequest, decide.TextSink) (*runnerdv1.Decision, error) {
			return nil, errors.New("x")
		},
		"status": func(context.Context, *runnerdv1.DecideRequest, decide.TextSink) (*runnerdv1.Decision, error) {
			return nil, status.Error(codes.PermissionDenied, "x")
		},
		"panic": func(context.Context, *runnerdv1.DecideRequest, decide.TextSink) (*runnerdv1.Decision, error) {
			panic("x")
		},
		"nil": func(context.Context, *runnerdv1.DecideRequest, decide.TextSink) (*runnerdv1.Decision, error) {
			return nil, nil
		}, //nolint:nilnil // what is tested
	}
	for _, tt := range []struct {
		brain string
		want  *runnerdv1.Decision
		text  string
		code  codes.Code
	}{
		{brain: "calls", want: decide.Calls(
			&runnerdv1.ToolCall{Name: "add", ArgumentsJson: `{"a":1}`}, &runnerdv1.ToolCall{Name: "list", ArgumentsJson: `{}`})},
		{brain: "question", want: decide.Question("which?")},
		{brain: "text", want: decide.Answer("\uFFFD"), text: "a|😀|\uFFFD|é"},
		{brain: "error", code: codes.Unknown},
		{brain: "status", code: codes.PermissionDenied},
		{brain: "panic", code: codes.Internal},
		{brain: "nil", code: codes.Internal},
	} {
		t.Run(tt.brain, func(t *testing.T) {
			t.Parallel()
			c := connect(t, func(r grpc.ServiceRegistrar) { decide.Register(r, brains[tt.brain]) })
			var text []string
			d, err := c.Decide(t.Context(), "brain", &runnerdv1.DecideRequest{}, func(s string) { text = append(text, s) })
			if status.Code(err) != tt.code {
				t.Fatalf("error %v, want code %s", err, tt.code)
			}
			if diff := cmp.Diff(tt.want, d, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if got := strings.Join(text, "|"); got != tt.text {
				t.Errorf("text %q, want %q", got, tt.text)
			}
		})
	}
}

func TestServeStops(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- decide.Serve(ctx, lis, decide.Func(func(context.Context, *runnerdv1.DecideRequest, decide.TextSink) (*runnerdv1.Decision, error) {
			return decide.Answer("42"), nil
		}))
	}()
	d, err := newClient(t, decide.Endpoint{Address: lis.Addr().String()}).Decide(t.Context(), "brain", &runnerdv1.DecideRequest{}, nil)
	if err != nil || d.GetAnswer().GetContent() != "42" {
		t.Errorf("got %v, %v", d, err)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
