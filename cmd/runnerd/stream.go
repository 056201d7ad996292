package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// How a broken stream is taken up again.
const (
	firstRetry = 200 * time.Millisecond
	lastRetry  = 5 * time.Second
	// giveUp is how long a daemon may be gone. A restart takes seconds.
	giveUp = 2 * time.Minute
)

// stream reads events until the stream ends, ctx ends, or receive returns an
// error. A stream that broke, or that the daemon ended because it drains or
// because this reader was slow, is taken up after the last event: no event is
// missed or seen twice. broken is told of each interruption.
func (c *client) stream(
	ctx context.Context, req *runnerdv1.StreamEventsRequest,
	receive func(*runnerdv1.StreamEventsResponse) error, broken func(error),
) error {
	req = proto.CloneOf(req)
	wait, since := firstRetry, time.Time{}
	for {
		err := c.streamOnce(ctx, req, func(msg *runnerdv1.StreamEventsResponse) error {
			wait, since = firstRetry, time.Time{}
			if err := receive(msg); err != nil {
				return &receiverError{err}
			}
			if msg.GetEvent() != nil {
				req.AfterCursor, req.AfterSequence = msg.GetCursor(), nil
			}
			return nil
		})
		if failed, ok := errors.AsType[*receiverError](err); ok {
			return failed.err
		}
		if err == nil || ctx.Err() != nil || !req.GetFollow() || !goesOn(err) {
			return err
		}
		if since.IsZero() {
			since = time.Now()
		} else if time.Since(since) > giveUp {
			return fmt.Errorf("the stream broke and the daemon did not come back: %w", err)
		}
		if wait == firstRetry {
			broken(err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// receiverError marks an error of the receiver, which is no error of the stream.
type receiverError struct{ err error }

func (e *receiverError) Error() string { return e.err.Error() }

func (c *client) streamOnce(
	ctx context.Context, req *runnerdv1.StreamEventsRequest, receive func(*runnerdv1.StreamEventsResponse) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the stream when receive returns an error
	events, err := c.StreamEvents(ctx, req)
	if err != nil {
		return err
	}
	for {
		msg, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := receive(msg); err != nil {
			return err
		}
	}
}

// goesOn reports whether a stream that ended so can be taken up again.
func goesOn(err error) bool {
	switch reasonOf(err) { //nolint:exhaustive // the rest is told by its code
	case runnerdv1.ErrorReason_ERROR_REASON_SLOW_READER, runnerdv1.ErrorReason_ERROR_REASON_DRAINING,
		runnerdv1.ErrorReason_ERROR_REASON_OVERLOADED:
		return true
	}
	return status.Code(err) == codes.Unavailable
}
