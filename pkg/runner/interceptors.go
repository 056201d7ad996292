package runner

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// unaryDeadline is what a unary call gets that brings no deadline.
const unaryDeadline = 30 * time.Second

// unary and stream are the interceptors in the order in which a call meets them: what is seen of a call (metrics,
// log) is outside of what may refuse it, and everything is inside of what turns errors and panics into a status.
func (s *Server) unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{
		s.metrics.UnaryServerInterceptor(),
		logging.UnaryServerInterceptor(slogLogger(s.log), callLogging()...),
		s.unaryErrors,
		recovery.UnaryServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered)),
		s.unaryLimits,
		s.unaryAuth,
		s.unaryValidate,
	}
}

func (s *Server) stream() []grpc.StreamServerInterceptor {
	return []grpc.StreamServerInterceptor{
		s.metrics.StreamServerInterceptor(),
		logging.StreamServerInterceptor(slogLogger(s.log), callLogging()...),
		s.streamErrors,
		recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(s.recovered)),
		s.streamLimits,
		s.streamAuth,
		s.streamValidate,
	}
}

// callLogging logs one line when a call is over: method, code, duration, peer, never what it carried.
func callLogging() []logging.Option {
	return []logging.Option{
		logging.WithLogOnEvents(logging.FinishCall),
		logging.WithLevels(callLevel),
		logging.WithDurationField(logging.DurationToDurationField),
	}
}

// callLevel keeps the log quiet about what is ordinary.
func callLevel(code codes.Code) logging.Level {
	switch code {
	case codes.OK:
		return logging.LevelDebug
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return logging.LevelError
	case codes.Unavailable, codes.ResourceExhausted, codes.Unauthenticated, codes.PermissionDenied:
		return logging.LevelWarn
	default:
		return logging.LevelInfo
	}
}

func slogLogger(log *slog.Logger) logging.Logger {
	return logging.LoggerFunc(func(ctx context.Context, level logging.Level, msg string, fields ...any) {
		log.Log(ctx, slog.Level(level), msg, fields...) //nolint:sloglint // the middleware's own message
	})
}

// recovered is the error of a handler that panicked: the daemon lives, the log has the stack.
func (s *Server) recovered(ctx context.Context, panicked any) error {
	s.log.ErrorContext(ctx, "handler panicked", "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	return internal(nil)
}

func (s *Server) unaryErrors(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	if err != nil {
		return nil, s.tell(ctx, info.FullMethod, err)
	}
	return resp, nil
}

func (s *Server) streamErrors(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := next(srv, stream); err != nil {
		return s.tell(stream.Context(), info.FullMethod, err)
	}
	return nil
}

// tell turns the error of a handler into what the caller is told and logs what the caller is not.
func (s *Server) tell(ctx context.Context, method string, err error) error {
	told := statusError(ctx, err)
	switch status.Code(told) {
	case codes.Internal, codes.DataLoss, codes.Unknown:
		s.log.ErrorContext(ctx, "call failed", "method", method, "error", err)
	default:
	}
	return told
}

// A gauge counts what is in progress and refuses more than it holds.
type gauge struct {
	now atomic.Int64
	max int64
}

func (g *gauge) enter() error {
	if g.now.Add(1) > g.max {
		g.now.Add(-1)
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_OVERLOADED, "too much in progress, at most %d", g.max)
	}
	return nil
}

func (g *gauge) leave() { g.now.Add(-1) }

// lasts reports whether a unary call waits for something rather than works, so that it counts as a stream and brings
// a timeout of its own.
func lasts(method string) bool { return method == runnerdv1.RunService_WaitRun_FullMethodName }

func (s *Server) unaryLimits(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if accessTable[info.FullMethod].open { // health is answered however busy the daemon is
		return next(ctx, req)
	}
	count := &s.requests
	if lasts(info.FullMethod) {
		count = &s.streams
	} else if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, unaryDeadline)
		defer cancel()
	}
	if err := count.enter(); err != nil {
		return nil, err
	}
	defer count.leave()
	return next(ctx, req)
}

func (s *Server) streamLimits(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	health := accessTable[info.FullMethod].open
	count := &s.streams
	if health {
		count = &s.watches
	}
	if err := count.enter(); err != nil {
		return err
	}
	defer count.leave()
	ctx, cancel := s.lifetime(stream.Context(), health)
	defer cancel()
	if err := next(srv, &serverStream{ServerStream: stream, ctx: ctx}); err != nil {
		return endedBy(ctx, err)
	}
	return nil
}

func (s *Server) unaryAuth(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	p, err := s.authorize(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	ctx, cancel := p.calls(ctx)
	defer cancel()
	resp, err := next(ctx, req)
	if err != nil {
		return nil, endedBy(ctx, err)
	}
	return resp, nil
}

func (s *Server) streamAuth(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	p, err := s.authorize(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	ctx, cancel := p.calls(stream.Context())
	defer cancel()
	if err := next(srv, &serverStream{ServerStream: stream, ctx: ctx}); err != nil {
		return endedBy(ctx, err)
	}
	return nil
}

func (s *Server) unaryValidate(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := s.validate(info.FullMethod, req); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (s *Server) streamValidate(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, &serverStream{
		ServerStream: stream,
		ctx:          stream.Context(),
		received:     func(req any) error { return s.validate(info.FullMethod, req) },
	})
}

// serverStream is a stream with another context, and a look at what is received.
type serverStream struct {
	grpc.ServerStream
	ctx      context.Context //nolint:containedctx // it is what a ServerStream has
	received func(any) error // may be nil
}

// Context implements [grpc.ServerStream].
func (s *serverStream) Context() context.Context { return s.ctx }

// RecvMsg implements [grpc.ServerStream].
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if s.received != nil {
		return s.received(m)
	}
	return nil
}
