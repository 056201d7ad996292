package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Limits of the server.
const (
	maxReceive        = 4 << 20          // bytes of any request; most methods take less, see sizeLimits
	maxSend           = 4 << 20          // bytes of any response, what clients take unless told otherwise
	maxConnStreams    = 250              // calls in progress on one connection
	maxHeaderList     = 16 << 10         // bytes of the headers of a call
	handshakeTimeout  = 10 * time.Second // from accepting a connection to its first call
	connIdle          = 15 * time.Minute // then a connection without calls is closed
	connGrace         = time.Minute      // see connAge
	defaultConnAge    = 30 * time.Minute
	defaultMaxStreams = 10_000
	defaultRequests   = 4096
	maxHealthWatches  = 256 // anybody may watch the health, so that has a bound of its own
	stopShare         = 5   // of the time to drain one part in so many is kept to stop the server
)

// ServerConfig is what a [Server] is made of.
type ServerConfig struct {
	// Runner executes the runs. Required.
	Runner *Runner
	// Auth tells who calls. Nil: [LocalAuth] without an owner.
	Auth Authenticator
	// Creds secures the transport. Nil: plain text.
	Creds credentials.TransportCredentials
	// Logger gets a line a call, without what it carries. Nil: slog.Default().
	Logger *slog.Logger
	// Metrics is where counters and latencies of calls are registered. Nil: nowhere.
	Metrics prometheus.Registerer
	// MaxStreams bounds the streams and waits in progress over all connections. 0: 10000.
	MaxStreams int
	// MaxRequests bounds all other calls in progress over all connections. 0: 4096.
	MaxRequests int
	// ConnectionAge is when clients are asked to come back on a new connection; streams over the old one end a
	// while later with the cursor to go on after. 0: 30 minutes.
	ConnectionAge time.Duration
}

// validate fills defaults and rejects what cannot work.
func (c *ServerConfig) validate() error {
	if c.Runner == nil {
		return errors.New("server config: no runner")
	}
	if c.MaxStreams < 0 || c.MaxRequests < 0 || c.ConnectionAge < 0 {
		return errors.New("server config: a limit is negative")
	}
	if c.Auth == nil {
		c.Auth = LocalAuth{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = slog.New(RedactLog(c.Logger.Handler()))
	if c.MaxStreams == 0 {
		c.MaxStreams = defaultMaxStreams
	}
	if c.MaxRequests == 0 {
		c.MaxRequests = defaultRequests
	}
	if c.ConnectionAge == 0 {
		c.ConnectionAge = defaultConnAge
	}
	return nil
}

// Server is the gRPC face of a [Runner]: RunService, AuditService, health and reflection. It translates and guards;
// what happens to runs is the runner's.
type Server struct {
	cfg     ServerConfig
	log     *slog.Logger
	grpc    *grpc.Server
	health  *health.Server
	metrics *grpcprom.ServerMetrics
	age     connAge

	streams, requests, watches gauge

	draining, stopping context.Context //nolint:containedctx // states of the server that calls end with
	drain, stop        context.CancelFunc
}

// NewServer assembles a server. Its health is NOT_SERVING until [Server.SetServing].
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	codec, err := newCodec()
	if err != nil {
		return nil, err
	}
	pages, err := newPageTokens(cfg.Runner.cfg.Key.Secret)
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg:     cfg,
		log:     cfg.Logger,
		health:  health.NewServer(),
		metrics: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram()),
		age:     newConnAge(cfg.ConnectionAge, connGrace),
	}
	s.streams.max, s.requests.max, s.watches.max = int64(cfg.MaxStreams), int64(cfg.MaxRequests), maxHealthWatches
	s.draining, s.drain = newPhase()
	s.stopping, s.stop = newPhase()
	s.SetServing(false)
	s.grpc = grpc.NewServer(s.options(codec)...)

	runnerdv1.RegisterRunServiceServer(s.grpc, &runService{server: s, runner: cfg.Runner, pages: pages})
	runnerdv1.RegisterAuditServiceServer(s.grpc, &auditService{runner: cfg.Runner, verifying: gauge{max: maxVerifications}})
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)

	s.metrics.InitializeMetrics(s.grpc)
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(s.metrics); err != nil {
			return nil, fmt.Errorf("register the metrics of calls: %w", err)
		}
	}
	return s, nil
}

func (s *Server) options(codec codec) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(maxSend),
		grpc.MaxConcurrentStreams(maxConnStreams),
		grpc.MaxHeaderListSize(maxHeaderList),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle:     connIdle,
			MaxConnectionAge:      s.age.leave,
			MaxConnectionAgeGrace: s.age.grace,
			Time:                  30 * time.Second,
			Timeout:               10 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime:             20 * time.Second,
			PermitWithoutStream: true,
		}),
		grpc.StatsHandler(connClock{}),
		grpc.WaitForHandlers(true), // no handler touches a store that is closed
		grpc.ChainUnaryInterceptor(s.unary()...),
		grpc.ChainStreamInterceptor(s.stream()...),
		// An unknown method meets the same interceptors, and is refused there.
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return permissionDenied("no such method") }),
	}
	if s.cfg.Creds != nil {
		options = append(options, grpc.Creds(s.cfg.Creds))
	}
	return options
}

// healthNames are the services whose health can be asked for; the empty name is the whole daemon.
var healthNames = []string{
	"",
	runnerdv1.RunService_ServiceDesc.ServiceName,
	runnerdv1.AuditService_ServiceDesc.ServiceName,
}

// SetServing tells health checks whether the daemon does its work: true once all runs are recovered, false when the
// store cannot be trusted to take anything. After [Server.Drain] it has no effect.
func (s *Server) SetServing(serving bool) {
	state := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if serving {
		state = grpc_health_v1.HealthCheckResponse_SERVING
	}
	for _, name := range healthNames {
		s.health.SetServingStatus(name, state)
	}
}

// Serve takes connections from l and serves them until the server is stopped; it then returns nil.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

// Drain ends the server in the order that loses nothing: health says NOT_SERVING, new runs are refused, watchers are
// told where to resume, the runner starts no effect any more and records the outcomes that come, and at last the
// server stops, by force when ctx ends. All handlers have returned when Drain returns. The error is the runner's.
func (s *Server) Drain(ctx context.Context) error {
	s.health.Shutdown()
	s.drain()
	runnerCtx, cancel := shorten(ctx)
	err := s.cfg.Runner.Drain(runnerCtx)
	cancel()

	s.stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s.grpc.GracefulStop()
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
		s.grpc.Stop()
		<-stopped
	}
	if err != nil {
		return fmt.Errorf("drain the runner: %w", err)
	}
	return nil
}

// shorten returns a context that leaves some of the time of ctx to what comes after.
func shorten(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/stopShare))
}

// checkRunToken returns the run of a token that is valid now.
func (s *Server) checkRunToken(token string) (run string, ok bool) {
	return s.cfg.Runner.CheckRunToken(token)
}
