package toolhost_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

const maxResult = 64 << 10

// fakeHost answers CallTool with a function of the test.
type fakeHost struct {
	runnerdv1.UnimplementedToolHostServiceServer
	call func(*runnerdv1.CallToolRequest, grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error
	get  func() (*runnerdv1.GetCallResponse, error)
}

func (f *fakeHost) CallTool(req *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
	return f.call(req, stream)
}

func (f *fakeHost) GetCall(context.Context, *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
	return f.get()
}

func (f *fakeHost) register(r grpc.ServiceRegistrar) { runnerdv1.RegisterToolHostServiceServer(r, f) }

func result(text string) *runnerdv1.CallToolResponse {
	return &runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Result{Result: &runnerdv1.ToolResult{Text: text}}}
}

func progress(text string) *runnerdv1.CallToolResponse {
	return &runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Progress{Progress: &runnerdv1.Progress{Message: text}}}
}

// outcome says in a word what a caller may conclude of an error.
func outcome(err error) string {
	var notSent interface{ NotSent() bool }
	var undecodable interface{ Undecodable() bool }
	var tooLarge interface{ TooLarge() bool }
	var badStream interface{ BadStream() string }
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &notSent) && notSent.NotSent():
		return "not sent"
	case errors.As(err, &undecodable) && undecodable.Undecodable():
		return "undecodable"
	case errors.As(err, &tooLarge) && tooLarge.TooLarge():
		return "too large"
	case errors.As(err, &badStream) && badStream.BadStream() != "":
		return badStream.BadStream()
	default:
		return status.Code(err).String()
	}
}

func newClient(t *testing.T, e toolhost.Endpoint) *toolhost.Client {
	t.Helper()
	c, err := toolhost.NewClient(map[string]toolhost.Endpoint{"host": e})
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

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("rawCodec: got a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }

// rawHost answers every call with these messages and this end, without looking.
func rawHost(messages [][]byte, end error) grpc.ServerOption {
	return grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(nil); err != nil {
			return err
		}
		for _, m := range messages {
			if err := stream.SendMsg(m); err != nil {
				return err
			}
		}
		return end
	})
}

func TestCallToolOutcomes(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", maxResult+1)
	huge := strings.Repeat("x", maxResult+2<<20)
	notUTF8 := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType),
		protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{0xff, 0xfe, 'A'}))
	type send = func(...*runnerdv1.CallToolResponse)

	for _, tt := range []struct {
		name string
		host func(send) error
		want string
	}{
		{"one result", func(s send) error { s(result("r")); return nil }, "ok"},
		{"progress then a result", func(s send) error { s(progress("a"), progress("b"), result("r")); return nil }, "ok"},
		{"unknown kinds of message", func(s send) error { s(&runnerdv1.CallToolResponse{}, result("r")); return nil }, "ok"},
		{"no message", func(send) error { return nil }, "no_result"},
		{"progress only", func(s send) error { s(progress("a")); return nil }, "no_result"},
		{"two results", func(s send) error { s(result("r"), result("r")); return nil }, "several_results"},
		{"progress after the result", func(s send) error { s(result("r"), progress("a")); return nil }, "several_results"},
		{"huge message after the result", func(s send) error { s(result("r"), result(huge)); return nil }, "several_results"},
		{"refused", func(send) error { return status.Error(codes.PermissionDenied, "no") }, "PermissionDenied"},
		{"unavailable", func(send) error { return status.Error(codes.Unavailable, "later") }, "Unavailable"},
		{"result over the bound", func(s send) error { s(result(big)); return nil }, "too large"},
		{"message over the bound", func(s send) error { s(result(huge)); return nil }, "too large"},
		{"another's size error handed on", func(send) error {
			return status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5000000 vs. 4194304)")
		}, "ResourceExhausted"},
		{"refusal after the result", func(s send) error { s(result("r")); return status.Error(codes.NotFound, "no") }, "Unknown"},
		{"broken after the result", func(s send) error { s(result("r")); return status.Error(codes.Unavailable, "gone") }, "ok"},
	} {
		for transport, endpoint := range map[string]func(*testing.T, *fakeHost) toolhost.Endpoint{
			"bufconn": func(t *testing.T, f *fakeHost) toolhost.Endpoint {
				t.Helper()
				s := grpctest.Serve(t, f.register)
				return toolhost.Endpoint{Address: s.Target(), DialOptions: []grpc.DialOption{s.DialOption()}}
			},
			"tcp": func(t *testing.T, f *fakeHost) toolhost.Endpoint {
				t.Helper()
				addr, _ := grpctest.ServeTCP(t, f.register)
				return toolhost.Endpoint{Address: addr}
			},
		} {
			t.Run(tt.name+" over "+transport, func(t *testing.T) {
				t.Parallel()
				c := newClient(t, endpoint(t, &fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
					return tt.host(func(messages ...*runnerdv1.CallToolResponse) {
						for _, m := range messages {
							if err := stream.Send(m); err != nil {
								return // the client has left
							}
						}
					})
				}}))
				got, err := c.CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{Name: "t"}, maxResult, nil)
				if outcome(err) != tt.want {
					t.Fatalf("outcome %q (%v), want %q", outcome(err), err, tt.want)
				}
				if (err == nil) != (got.GetText() == "r") {
					t.Errorf("result %v with error %v", got, err)
				}
			})
		}
	}

	for _, tt := range []struct {
		name     string
		messages [][]byte
		end      error
		want     string
	}{
		{"bytes that are no message", [][]byte{{0xff, 0xff, 0xff}}, nil, "undecodable"},
		{"CASE-05 text that is not UTF-8", [][]byte{notUTF8}, nil, "undecodable"},
		{"undecodable and then broken", [][]byte{{0xff}}, status.Error(codes.Unavailable, "gone"), "undecodable"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr, _ := grpctest.ServeTCP(t, func(grpc.ServiceRegistrar) {}, rawHost(tt.messages, tt.end), grpc.ForceServerCodecV2(rawCodec{}))
			c := newClient(t, toolhost.Endpoint{Address: addr})
			_, err := c.CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
			if outcome(err) != tt.want {
				t.Errorf("CallTool: outcome %q (%v), want %q", outcome(err), err, tt.want)
			}
		})
	}
}

func TestGetCallUndecodable(t *testing.T) {
	t.Parallel()
	addr, _ := grpctest.ServeTCP(t, func(grpc.ServiceRegistrar) {}, rawHost([][]byte{{0xff}}, nil), grpc.ForceServerCodecV2(rawCodec{}))
	_, err := newClient(t, toolhost.Endpoint{Address: addr}).GetCall(t.Context(), "host", &runnerdv1.GetCallRequest{}, maxResult)
	if outcome(err) != "undecodable" {
		t.Errorf("outcome %q (%v)", outcome(err), err)
	}
}

func TestProgressInOrder(t *testing.T) {
	t.Parallel()
	addr, _ := grpctest.ServeTCP(t, (&fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
		return errors.Join(stream.Send(progress("a")), stream.Send(progress("b")), stream.Send(result("r")))
	}}).register)
	var seen []string
	_, err := newClient(t, toolhost.Endpoint{Address: addr}).CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult,
		func(p *runnerdv1.Progress) { seen = append(seen, p.GetMessage()) })
	if err != nil || strings.Join(seen, "") != "ab" {
		t.Errorf("progress %q, error %v", seen, err)
	}
}

func TestNotSent(t *testing.T) {
	t.Parallel()
	t.Run("dial refused", func(t *testing.T) {
		t.Parallel()
		lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := lis.Addr().String()
		if err := lis.Close(); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, toolhost.Endpoint{Address: addr})
		_, err = c.CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
		if outcome(err) != "not sent" || status.Code(err) != codes.Unavailable {
			t.Errorf("CallTool: %q %v", outcome(err), err)
		}
		if _, err := c.ListTools(t.Context(), "host"); outcome(err) != "not sent" {
			t.Errorf("ListTools: %q %v", outcome(err), err)
		}
	})
	t.Run("name not configured", func(t *testing.T) {
		t.Parallel()
		c := newClient(t, toolhost.Endpoint{Address: "127.0.0.1:1"})
		_, err := c.CallTool(t.Context(), "other", &runnerdv1.CallToolRequest{}, maxResult, nil)
		if outcome(err) != "not sent" || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("%q %v", outcome(err), err)
		}
	})
	t.Run("deadline while dialling", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			c := newClient(t, toolhost.Endpoint{Address: "passthrough:///x", DialOptions: []grpc.DialOption{
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}),
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.CallTool(ctx, "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
			if outcome(err) != "not sent" || status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%q %v", outcome(err), err)
			}
		})
	})
	t.Run("request that cannot be encoded is refused, not retried", func(t *testing.T) {
		t.Parallel()
		addr, _ := grpctest.ServeTCP(t, (&fakeHost{}).register)
		_, err := newClient(t, toolhost.Endpoint{Address: addr}).CallTool(t.Context(), "host",
			&runnerdv1.CallToolRequest{Name: "\xff"}, maxResult, nil)
		if outcome(err) != "InvalidArgument" {
			t.Errorf("%q %v", outcome(err), err)
		}
	})
}

func TestLost(t *testing.T) {
	t.Parallel()
	t.Run("host dies in the middle of a call", func(t *testing.T) {
		t.Parallel()
		begun := make(chan struct{})
		addr, stop := grpctest.ServeTCP(t, (&fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
			close(begun)
			<-stream.Context().Done()
			return nil
		}}).register)
		go func() {
			<-begun
			stop()
		}()
		_, err := newClient(t, toolhost.Endpoint{Address: addr}).CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
		if outcome(err) != "Unavailable" {
			t.Errorf("%q %v", outcome(err), err)
		}
	})
	t.Run("an answer that is not gRPC's is no refusal", func(t *testing.T) {
		t.Parallel()
		// A handler that is not found by gRPC answers with a status; a refusing stream reset does not.
		lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := serveHTTP404(t, lis)
		_, err = newClient(t, toolhost.Endpoint{Address: addr}).CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
		if outcome(err) != "Unavailable" {
			t.Errorf("%q %v", outcome(err), err)
		}
	})
	for name, end := range map[string]struct {
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		want codes.Code
	}{
		"deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Minute)
		}, codes.DeadlineExceeded},
		"cancel": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Minute, cancel)
			return ctx, cancel
		}, codes.Canceled},
	} {
		t.Run(name+" reaches the host", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				told := make(chan error, 1)
				s := grpctest.Serve(t, (&fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
					<-stream.Context().Done()
					told <- stream.Context().Err()
					return stream.Context().Err()
				}}).register)
				c := newClient(t, toolhost.Endpoint{Address: s.Target(), DialOptions: []grpc.DialOption{s.DialOption()}})
				ctx, cancel := end.ctx(t.Context())
				defer cancel()
				begin := time.Now()
				_, err := c.CallTool(ctx, "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
				if outcome(err) != end.want.String() || time.Since(begin) != time.Minute {
					t.Errorf("%q %v after %v", outcome(err), err, time.Since(begin))
				}
				if <-told == nil {
					t.Error("the host was not told")
				}
			})
		})
	}
}

func TestClientSurvivesRestartOfTheHost(t *testing.T) {
	t.Parallel()
	h := &fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
		return stream.Send(result("r"))
	}}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	c := newClient(t, toolhost.Endpoint{Address: addr})
	for range 2 {
		s := grpc.NewServer()
		h.register(s)
		done := make(chan error, 1)
		go func() { done <- s.Serve(lis) }()
		// The first calls may meet the connection that just broke, or wait to dial again.
		for {
			_, err := c.CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
			if err == nil {
				break
			}
			if o := outcome(err); o != "not sent" && o != "Unavailable" {
				t.Fatalf("%q %v", outcome(err), err)
			}
		}
		s.Stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if lis, err = new(net.ListenConfig).Listen(t.Context(), "tcp", addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestGetCall(t *testing.T) {
	t.Parallel()
	big := &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Finished{
		Finished: &runnerdv1.ToolResult{Blobs: []*runnerdv1.Blob{{Data: make([]byte, maxResult+1)}}},
	}}
	for _, tt := range []struct {
		name string
		get  func() (*runnerdv1.GetCallResponse, error)
		want string
	}{
		{"not seen", func() (*runnerdv1.GetCallResponse, error) {
			return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_NotSeen{NotSeen: &runnerdv1.CallNotSeen{}}}, nil
		}, "ok"},
		{"result over the bound", func() (*runnerdv1.GetCallResponse, error) { return big, nil }, "too large"},
		{"failed", func() (*runnerdv1.GetCallResponse, error) { return nil, status.Error(codes.Internal, "no") }, "Internal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr, _ := grpctest.ServeTCP(t, (&fakeHost{get: tt.get}).register)
			_, err := newClient(t, toolhost.Endpoint{Address: addr}).GetCall(t.Context(), "host", &runnerdv1.GetCallRequest{}, maxResult)
			if outcome(err) != tt.want {
				t.Errorf("outcome %q (%v), want %q", outcome(err), err, tt.want)
			}
		})
	}
}

func TestNewClientNamesABadEndpoint(t *testing.T) {
	t.Parallel()
	_, err := toolhost.NewClient(map[string]toolhost.Endpoint{"files": {}})
	if err == nil || err.Error() != `tool host "files": no address` {
		t.Errorf("got %v", err)
	}
}
