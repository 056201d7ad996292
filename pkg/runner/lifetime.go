package runner

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/stats"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// errOld is what a call that lasts is told when its connection has to be left.
func errOld() *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_DRAINING, "the connection is old, go on over a new one")
}

// grpc spreads the age of connections by a tenth, so that those made together do not end together.
const ageJitter = 10

// connAge is when grpc asks a connection's client to leave it, and how long after that it cuts the connection.
//
// Streams must learn before the cut where to resume, and only after the client was asked to leave, or they would come
// back on the same connection. Since grpc tells no handler when that is, streams end at a time that is surely between
// the two: streamsEnd after the connection began.
type connAge struct {
	leave, grace time.Duration
	streamsEnd   time.Duration
}

func newConnAge(age, grace time.Duration) connAge {
	spread := 2 * age / ageJitter // from the soonest to the latest leave
	return connAge{
		leave:      age,
		grace:      spread + 2*grace,
		streamsEnd: age + age/ageJitter + grace,
	}
}

type connStartKey struct{}

// connClock notes in the context of a connection when it began.
type connClock struct{}

// TagConn implements [stats.Handler].
func (connClock) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connStartKey{}, time.Now())
}

// HandleConn implements [stats.Handler].
func (connClock) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements [stats.Handler].
func (connClock) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements [stats.Handler].
func (connClock) HandleRPC(context.Context, stats.RPCStats) {}

// newPhase returns a state of the server that calls end with, and what begins it.
func newPhase() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// lifetime returns a context for a call that lasts. It ends with the call, when its connection is old, and when the
// daemon drains; watching the health of the daemon goes on until the very end. The cause is what the caller is told.
func (s *Server) lifetime(ctx context.Context, health bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	end := s.draining
	if health {
		end = s.stopping
	}
	undo := context.AfterFunc(end, func() { cancel(errDraining()) })
	old := func() bool { return true }
	if began, ok := ctx.Value(connStartKey{}).(time.Time); ok {
		old = time.AfterFunc(time.Until(began.Add(s.age.streamsEnd)), func() { cancel(errOld()) }).Stop
	}
	return ctx, func() {
		undo()
		old()
		cancel(context.Canceled)
	}
}

// endedBy returns why this side ended a call, or err if it did not.
func endedBy(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	var told *Error
	if errors.As(err, &told) && told.Kind() != KindInternal {
		return err // it is more exact
	}
	if cause := (*Error)(nil); errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}
