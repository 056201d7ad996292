package toolhost_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// connect serves a host in memory and returns a client of it.
func connect(t *testing.T, h *toolhost.Server) *toolhost.Client {
	t.Helper()
	s := grpctest.Serve(t, h.Register)
	return newClient(t, toolhost.Endpoint{Address: s.Target(), DialOptions: []grpc.DialOption{s.DialOption()}})
}

func request(tool, arguments string) *runnerdv1.CallToolRequest {
	return &runnerdv1.CallToolRequest{
		RunId: "r", CallId: "1.0", Attempt: 1, IdempotencyKey: "r/1.0", Name: tool, ArgumentsJson: arguments,
	}
}

func TestServerResults(t *testing.T) {
	t.Parallel()
	var logged strings.Builder
	h := toolhost.NewServer(toolhost.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	add := func(name string, handler toolhost.Handler) {
		h.Tool(toolhost.Definition{Name: name}, handler)
	}
	add("error", func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		return nil, status.Error(codes.NotFound, "upstream has no such page")
	})
	add("panic", func(context.Context, *toolhost.Call) (*toolhost.Result, error) { panic("secret") })
	add("refuse", func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		return nil, toolhost.Refuse(codes.PermissionDenied, "not %s", "you")
	})
	add("refuse without a fit code", func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		return nil, toolhost.Refuse(codes.Unavailable, "closed")
	})
	add("nothing", func(context.Context, *toolhost.Call) (*toolhost.Result, error) { return nil, nil }) //nolint:nilnil // what is tested
	add("bytes", func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		return toolhost.Text("\xff\xfeA"), nil
	})
	add("bad JSON", func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		return &toolhost.Result{StructuredJson: "{"}, nil
	})
	c := connect(t, h)

	for _, tt := range []struct {
		tool string
		want *toolhost.Result
		code codes.Code
	}{
		{tool: "error", want: &toolhost.Result{Text: "rpc error: code = NotFound desc = upstream has no such page", IsError: true}},
		{tool: "panic", want: &toolhost.Result{Text: "the tool panicked", IsError: true}},
		{tool: "refuse", code: codes.PermissionDenied},
		{tool: "refuse without a fit code", code: codes.FailedPrecondition},
		{tool: "nothing", want: &toolhost.Result{}},
		{tool: "bytes", want: &toolhost.Result{Text: "\uFFFDA", Blobs: []*runnerdv1.Blob{
			{MimeType: "application/octet-stream", Name: "text", Data: []byte("\xff\xfeA")},
		}}},
		{tool: "bad JSON", want: &toolhost.Result{Text: "the structured result of the tool is not JSON", IsError: true}},
		{tool: "missing", code: codes.NotFound},
	} {
		t.Run(tt.tool, func(t *testing.T) {
			t.Parallel()
			got, err := c.CallTool(t.Context(), "host", request(tt.tool, "{}"), maxResult, nil)
			if status.Code(err) != tt.code {
				t.Fatalf("error %v, want code %s", err, tt.code)
			}
			if diff := cmp.Diff(tt.want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
			if tt.tool == "panic" && !strings.Contains(logged.String(), "secret") {
				t.Errorf("the panic is not in the log: %s", logged.String())
			}
		})
	}
}

func TestTyped(t *testing.T) {
	t.Parallel()
	type addition struct {
		A int64 `json:"a" jsonschema:"the first number"`
		B int64 `json:"b,omitempty"`
	}
	h := toolhost.NewServer()
	h.Tool(toolhost.Typed(
		toolhost.Definition{Name: "add", Description: "Adds.", ReadOnly: toolhost.Yes, Destructive: toolhost.No},
		func(_ context.Context, in addition) (string, error) {
			if in.B == 13 {
				return "", errors.New("unlucky")
			}
			sum, err := json.Marshal(in.A + in.B)
			return string(sum), err
		}))
	c := connect(t, h)

	list, err := c.ListTools(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	def := list.GetTools()[0]
	var schema struct {
		Type       string
		Required   []string
		Properties map[string]struct{ Type, Description string }
	}
	if err := json.Unmarshal([]byte(def.GetInputSchemaJson()), &schema); err != nil {
		t.Fatal(err)
	}
	if schema.Type != "object" || !cmp.Equal(schema.Required, []string{"a"}) || schema.Properties["a"].Description != "the first number" {
		t.Errorf("schema %s", def.GetInputSchemaJson())
	}
	if a := def.GetAnnotations(); !a.GetReadOnly() || a.Destructive == nil || a.GetDestructive() || a.Idempotent != nil {
		t.Errorf("annotations %v", a)
	}
	if list.GetHasGetCall() {
		t.Error("a host without ledger claims to answer GetCall")
	}

	t.Run("CASE-06 integers above 2^53", func(t *testing.T) {
		t.Parallel()
		got, err := c.CallTool(t.Context(), "host", request("add", `{"a":9007199254740993}`), maxResult, nil)
		if err != nil || got.GetText() != "9007199254740993" {
			t.Errorf("got %v, %v", got, err)
		}
	})
	t.Run("wrong arguments are refused", func(t *testing.T) {
		t.Parallel()
		_, err := c.CallTool(t.Context(), "host", request("add", `{"a":"x"}`), maxResult, nil)
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v", err)
		}
	})
	t.Run("an error is a result", func(t *testing.T) {
		t.Parallel()
		got, err := c.CallTool(t.Context(), "host", request("add", `{"a":1,"b":13}`), maxResult, nil)
		if err != nil || !got.GetIsError() || got.GetText() != "unlucky" {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

func TestProgressOfAHandler(t *testing.T) {
	t.Parallel()
	h := toolhost.NewServer()
	h.Tool(toolhost.Definition{Name: "work"}, func(_ context.Context, call *toolhost.Call) (*toolhost.Result, error) {
		call.Progress("begun", -1)
		call.Progress("half", 0.5)
		call.Progress("more than all", 2)
		return toolhost.Text("done"), nil
	})
	var got []*runnerdv1.Progress
	_, err := connect(t, h).CallTool(t.Context(), "host", request("work", "{}"), maxResult, func(p *runnerdv1.Progress) { got = append(got, p) })
	want := []*runnerdv1.Progress{
		{Message: "begun"}, {Message: "half", Fraction: new(0.5)}, {Message: "more than all", Fraction: new(1.0)},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" || err != nil {
		t.Errorf("error %v, progress %s", err, diff)
	}
}

func TestBadDefinitionsPanic(t *testing.T) {
	t.Parallel()
	for name, defs := range map[string][]toolhost.Definition{
		"no name":            {{}},
		"name is taken":      {{Name: "a"}, {Name: "a"}},
		"schema is not JSON": {{Name: "a", InputSchema: "{"}},
		"is none":            {{Name: "a", SecurityTier: "severe"}},
		"not valid UTF-8":    {{Name: "a", Description: "\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if v, ok := recover().(string); !ok || !strings.Contains(v, name) {
					t.Errorf("panic %v", v)
				}
			}()
			h := toolhost.NewServer()
			for _, def := range defs {
				h.Tool(def, nil)
			}
		})
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	release, begun := make(chan struct{}), make(chan struct{})
	h := toolhost.NewServer()
	h.Tool(toolhost.Definition{Name: "slow"}, func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		close(begun)
		<-release
		return toolhost.Text("done"), nil
	})
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, lis) }()

	conn, err := grpc.NewClient(lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	healthy, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: "runnerd.v1.ToolHostService"})
	if err != nil || healthy.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health %v, %v", healthy, err)
	}
	if names := reflected(t, conn); !strings.Contains(names, "runnerd.v1.ToolHostService") {
		t.Errorf("reflection shows %s", names)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}

	// A call in progress is let finish when the host is told to stop.
	type answer struct {
		r   *toolhost.Result
		err error
	}
	answered := make(chan answer, 1)
	c := newClient(t, toolhost.Endpoint{Address: lis.Addr().String()})
	go func() {
		r, err := c.CallTool(t.Context(), "host", request("slow", "{}"), maxResult, nil)
		answered <- answer{r, err}
	}()
	<-begun
	stop()
	close(release)
	if a := <-answered; a.err != nil || a.r.GetText() != "done" {
		t.Errorf("the call in progress ended with %v, %v", a.r, a.err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func reflected(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{
		MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{},
	})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return strings.Join(names, " ")
}

func TestListenAndServeTakenAddress(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	if err := toolhost.ListenAndServe(t.Context(), lis.Addr().String(), toolhost.NewServer()); err == nil {
		t.Error("two listen on one address")
	}
}
