package runner

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

func TestServerConfig(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]ServerConfig{
		"no runner":        {},
		"negative streams": {Runner: new(Runner), MaxStreams: -1},
		"negative age":     {Runner: new(Runner), ConnectionAge: -1},
	} {
		if _, err := NewServer(cfg); err == nil {
			t.Errorf("%s: made a server", name)
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		const up, down = grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING
		check := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
			t.Helper()
			for _, service := range []string{"", "runnerd.v1.RunService", "runnerd.v1.AuditService"} {
				resp, err := f.health.Check(f.anonymous(), &grpc_health_v1.HealthCheckRequest{Service: service})
				if err != nil || resp.GetStatus() != want {
					t.Errorf("%q is %v, %v, want %v", service, resp.GetStatus(), err, want)
				}
			}
		}
		check(up)
		f.server.SetServing(false)
		check(down)
		f.server.SetServing(true)
		check(up)
		_, err := f.health.Check(f.anonymous(), &grpc_health_v1.HealthCheckRequest{Service: "other"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("another service: %v", err)
		}
	})
}

// TestHealthWatches: nobody needs a credential to watch the health, so only so many may, and others lose nothing.
func TestHealthWatches(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		conns := []*grpc.ClientConn{f.dial(), f.dial()}
		for i := range maxHealthWatches {
			watch, err := grpc_health_v1.NewHealthClient(conns[i%2]).Watch(f.anonymous(), &grpc_health_v1.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := watch.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		_, err := mustStream(f.health.Watch(f.anonymous(), &grpc_health_v1.HealthCheckRequest{})).Recv()
		wantReason(t, err, codes.ResourceExhausted, "OVERLOADED")
		f.start(f.owner(), "r1", "answer:done")
		if got := f.events(f.anonymous(), "r1", following); len(got) == 0 {
			t.Error("no stream beside them")
		}
	})
}

// TestNotServingAtFirst: health says NOT_SERVING until it is told otherwise.
func TestNotServingAtFirst(t *testing.T) {
	t.Parallel()
	r := &Runner{}
	s, err := NewServer(ServerConfig{Runner: r})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil || resp.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("a new server is %v, %v", resp.GetStatus(), err)
	}
}

func TestReflection(t *testing.T) {
	t.Parallel()
	services := func(ctx context.Context, f *face) ([]string, error) {
		stream, err := reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(ctx)
		if err != nil {
			return nil, err
		}
		if err := stream.Send(&reflectionv1.ServerReflectionRequest{
			MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
		}); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if err := stream.CloseSend(); err != nil {
			return nil, err
		}
		var names []string
		for _, s := range resp.GetListServicesResponse().GetService() {
			names = append(names, s.GetName())
		}
		return names, nil
	}
	inFace(t, func(f *face) {
		t := f.t
		for _, ctx := range []context.Context{f.anonymous(), f.owner()} {
			names, err := services(ctx, f)
			if err != nil || !slices.Contains(names, "runnerd.v1.RunService") || !slices.Contains(names, "runnerd.v1.AuditService") {
				t.Errorf("services %v, %v", names, err)
			}
		}
		f.listen.addr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}
		f.conn = f.dial()
		_, err := services(f.anonymous(), f)
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
		if names, err := services(f.owner(), f); err != nil || len(names) == 0 {
			t.Errorf("with a credential: %v, %v", names, err)
		}
	})
}

func TestUnknownMethod(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		for _, method := range []string{
			"/runnerd.v1.RunService/Erase", "/runnerd.v1.Nothing/Do", "/runnerd.v1.DecideService/Decide", "/grpc.channelz.v1.Channelz/GetServers",
		} {
			err := f.conn.Invoke(f.owner(), method, &emptypb.Empty{}, &emptypb.Empty{})
			wantReason(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
		}
		err := f.conn.Invoke(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer nonsense"),
			"/runnerd.v1.Nothing/Do", &emptypb.Empty{}, &emptypb.Empty{})
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
	})
}

func TestRemoteCallers(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.listen.addr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}
		runs := runnerdv1.NewRunServiceClient(f.dial())
		_, err := runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{})
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
		if _, err := runs.ListRuns(f.owner(), &runnerdv1.ListRunsRequest{}); err != nil {
			t.Error(err)
		}
		if strings.Contains(f.logged.String(), testToken) {
			t.Error("the token stands in the log")
		}
	})
}

// panicking is a log that panics, or waits, when the rows of calls are read.
type panicking struct {
	auditstore.Log
	panics, waits atomic.Bool
	arrived       chan time.Duration // until the deadline of a call that waits
	leave         chan struct{}
}

func (p *panicking) Rows(ctx context.Context, prefix, after []byte, limit int) ([]auditstore.Row, error) {
	if string(prefix) == prefixWake { // the runner's own clock
		return p.Log.Rows(ctx, prefix, after, limit)
	}
	if p.panics.Load() {
		panic("the rows are on fire")
	}
	if p.waits.Load() {
		var left time.Duration
		if deadline, ok := ctx.Deadline(); ok {
			left = time.Until(deadline)
		}
		p.arrived <- left
		select {
		case <-p.leave:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.Log.Rows(ctx, prefix, after, limit)
}

func inPanicking(t *testing.T, test func(f *face, p *panicking), options ...func(*Config, *ServerConfig)) {
	t.Helper()
	var p *panicking
	inFace(t, func(f *face) { test(f, p) }, append(options, func(c *Config, _ *ServerConfig) {
		p = &panicking{Log: c.Log, arrived: make(chan time.Duration, 100), leave: make(chan struct{})}
		c.Log = p
	})...)
}

func TestPanicIsInternal(t *testing.T) {
	t.Parallel()
	inPanicking(t, func(f *face, p *panicking) {
		t := f.t
		p.panics.Store(true)
		_, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{Agent: "payload"})
		wantReason(t, err, codes.Internal, "INTERNAL")
		if strings.Contains(err.Error(), "fire") {
			t.Errorf("the caller is told %v", err)
		}
		_, err = collect(f.runs.StreamEvents(f.anonymous(), ofRun("r1")))
		wantReason(t, err, codes.Internal, "INTERNAL")
		p.panics.Store(false)
		if _, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		logged := f.logged.String()
		if !strings.Contains(logged, "the rows are on fire") || !strings.Contains(logged, "server_test.go") {
			t.Errorf("the log has no stack: %s", logged)
		}
		if strings.Contains(logged, "payload") {
			t.Errorf("the log has the payload: %s", logged)
		}
	})
}

func TestOverload(t *testing.T) {
	t.Parallel()
	inPanicking(t, func(f *face, p *panicking) {
		t := f.t
		f.start(f.owner(), "r1", "block")
		// Requests.
		p.waits.Store(true)
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{})
				done <- err
			}()
			<-p.arrived
		}
		_, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{})
		wantReason(t, err, codes.ResourceExhausted, "OVERLOADED")
		if retry := detail[*errdetails.RetryInfo](status.Convert(err)); retry.GetRetryDelay().AsDuration() <= 0 {
			t.Error("no RetryInfo")
		}
		if _, err := f.health.Check(f.anonymous(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("health under load: %v", err)
		}
		p.waits.Store(false)
		close(p.leave)
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if _, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
		// Streams, and waits count as streams.
		ctx, cancel := context.WithCancel(f.anonymous())
		for range 2 {
			if _, err := mustStream(f.runs.StreamEvents(ctx, ofRun("r1", following))).Recv(); err != nil {
				t.Fatal(err)
			}
		}
		waited := make(chan error, 1)
		go func() {
			_, err := f.runs.WaitRun(ctx, &runnerdv1.WaitRunRequest{RunId: "r1"})
			waited <- err
		}()
		synctest.Wait()
		_, err = collect(f.runs.StreamEvents(f.anonymous(), ofRun("r1")))
		wantReason(t, err, codes.ResourceExhausted, "OVERLOADED")
		_, err = f.runs.WaitRun(f.anonymous(), &runnerdv1.WaitRunRequest{RunId: "r1"})
		wantReason(t, err, codes.ResourceExhausted, "OVERLOADED")
		cancel()
		if err := <-waited; status.Code(err) != codes.Canceled {
			t.Errorf("the wait ended with %v", err)
		}
		synctest.Wait()
		if _, err := collect(f.runs.StreamEvents(f.anonymous(), ofRun("r1"))); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	}, func(_ *Config, s *ServerConfig) { s.MaxRequests, s.MaxStreams = 2, 3 })
}

// TestDeadlines: a call that brings no deadline gets one.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	inPanicking(t, func(f *face, p *panicking) {
		t := f.t
		p.waits.Store(true)
		began := time.Now()
		_, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{})
		if status.Code(err) != codes.DeadlineExceeded || time.Since(began) != 30*time.Second || <-p.arrived != 30*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(f.anonymous(), 5*time.Second)
		defer cancel()
		began = time.Now()
		_, err = f.runs.ListRuns(ctx, &runnerdv1.ListRunsRequest{})
		if status.Code(err) != codes.DeadlineExceeded || time.Since(began) != 5*time.Second {
			t.Errorf("with its own, after %v: %v", time.Since(began), err)
		}
		p.waits.Store(false)
	})
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	inFace(t, func(f *face) {
		t := f.t
		if _, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{}); err != nil {
			t.Fatal(err)
		}
		_, err := f.runs.GetRun(f.anonymous(), &runnerdv1.GetRunRequest{RunId: "none"})
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		handled := make(map[string]float64)
		for _, family := range families {
			if family.GetName() != "grpc_server_handled_total" {
				continue
			}
			for _, m := range family.GetMetric() {
				labels := make(map[string]string)
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				handled[labels["grpc_method"]+" "+labels["grpc_code"]] = m.GetCounter().GetValue()
			}
		}
		if handled["ListRuns OK"] != 1 || handled["GetRun NotFound"] != 1 {
			t.Errorf("handled %v", handled)
		}
	}, func(_ *Config, s *ServerConfig) { s.Metrics = registry })
}

// TestServerDrain: whoever lasts learns where to go on, new runs are refused, and nothing is left in progress.
func TestServerDrain(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "block")
		head := f.events(f.owner(), "r1")
		watch, err := f.runs.StreamEvents(f.anonymous(), ofRun("r1", following))
		if err != nil {
			t.Fatal(err)
		}
		var last *runnerdv1.StreamEventsResponse
		for range head {
			if last, err = watch.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		silent, err := f.runs.StreamEvents(f.anonymous(), ofRun("r1", following, after(uint64(len(head)))))
		if err != nil {
			t.Fatal(err)
		}
		waited := make(chan error, 1)
		go func() {
			_, err := f.runs.WaitRun(f.anonymous(), &runnerdv1.WaitRunRequest{RunId: "r1"})
			waited <- err
		}()
		healthy, err := f.health.Watch(f.anonymous(), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if state, err := healthy.Recv(); err != nil || state.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Fatalf("health %v, %v", state, err)
		}
		synctest.Wait()

		drained := make(chan error, 1)
		began := time.Now()
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			drained <- f.server.Drain(ctx)
		}()
		if state, err := healthy.Recv(); err != nil || state.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health %v, %v", state, err)
		}
		_, err = watch.Recv()
		if info := wantReason(t, err, codes.Unavailable, "DRAINING"); info.GetMetadata()["resume_after"] != last.GetCursor() {
			t.Errorf("resume %v, the last event was at %v", info, last.GetCursor())
		}
		_, err = silent.Recv()
		if info := wantReason(t, err, codes.Unavailable, "DRAINING"); info.GetMetadata()["resume_after"] != "" {
			t.Errorf("nothing was sent, resume %v", info)
		}
		wantReason(t, <-waited, codes.Unavailable, "DRAINING")
		_, err = f.runs.StartRun(f.owner(), &runnerdv1.StartRunRequest{Agent: "demo", Task: "answer:x"})
		wantReason(t, err, codes.Unavailable, "DRAINING")
		// What is recorded can be read meanwhile.
		if _, err := f.runs.GetRun(f.owner(), &runnerdv1.GetRunRequest{RunId: "r1"}); err != nil {
			t.Errorf("reading while it drains: %v", err)
		}
		err = <-drained
		if took := time.Since(began); took < 7*time.Second || took > 10*time.Second {
			t.Errorf("drained in %v: %v", took, err)
		}
		_, err = healthy.Recv()
		wantReason(t, err, codes.Unavailable, "DRAINING")
		if _, err := f.runs.GetRun(f.owner(), &runnerdv1.GetRunRequest{RunId: "r1"}); status.Code(err) != codes.Unavailable {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// TestServerDrainIsQuickWhenIdle: only what is in progress is waited for.
func TestServerDrainIsQuickWhenIdle(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.asked("r1", "deploy:{}")
		stream, err := f.runs.StreamEvents(f.anonymous(), ofAll(following))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := f.server.Drain(ctx); err != nil || time.Since(began) > time.Second {
			t.Errorf("drained in %v: %v", time.Since(began), err)
		}
	})
}

// TestBigRequest: what is over the bound of all methods is refused by the transport.
func TestBigRequest(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		_, err := f.runs.StartRun(f.owner(), &runnerdv1.StartRunRequest{Agent: "demo", Task: strings.Repeat("x", 5<<20)},
			grpc.MaxCallSendMsgSize(10<<20))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("5 MiB: %v", err)
		}
		ctx := metadata.AppendToOutgoingContext(f.owner(), "x-long", strings.Repeat("h", 20<<10))
		if _, err := f.runs.ListRuns(ctx, &runnerdv1.ListRunsRequest{}); err == nil {
			t.Error("20 KiB of headers were taken")
		}
	})
}
