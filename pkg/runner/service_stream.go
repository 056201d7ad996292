package runner

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// sendPatience is how long a reader may take none of what is sent to it before its stream is ended.
const sendPatience = 30 * time.Second

// StreamEvents implements RunService.
func (s *runService) StreamEvents(req *runnerdv1.StreamEventsRequest, stream grpc.ServerStreamingServer[runnerdv1.StreamEventsResponse]) error {
	ctx := stream.Context()
	if err := validateStream(req); err != nil {
		return err
	}
	view, err := s.mayWatch(ctx, req)
	if err != nil {
		return err
	}
	out := newEventSender(ctx, stream, view)
	defer out.close()
	out.resume = req.GetAfterCursor()
	opt := WatchOptions{
		Run:           req.GetRunId(),
		AfterSequence: req.AfterSequence,
		AfterCursor:   req.GetAfterCursor(),
		Types:         req.GetTypes(),
		Follow:        req.GetFollow(),
		Signals:       req.GetIncludeSignals(),
		Raw:           req.GetIncludeRaw(),
	}
	if req.GetAll() {
		opt.Shows = s.viewer(PrincipalFrom(ctx))
	} else if view < ViewRedacted {
		opt.Shows = func(context.Context, string) (View, bool, error) { return view, true, nil }
	}
	err = s.runner.Watch(ctx, opt, out.send)
	return out.ended(endedBy(ctx, err))
}

// streamTypes are the names that a stream can be filtered by: of all events and of all signals.
var streamTypes = payloadNames(
	(*runnerdv1.Event)(nil).ProtoReflect().Descriptor(),
	(*runnerdv1.Signal)(nil).ProtoReflect().Descriptor(),
)

// payloadNames are the names of the fields of the oneof "payload" of messages.
func payloadNames(messages ...protoreflect.MessageDescriptor) []string {
	var names []string
	for _, message := range messages {
		fields := message.Oneofs().ByName("payload").Fields()
		for i := range fields.Len() {
			names = append(names, string(fields.Get(i).Name()))
		}
	}
	return names
}

// validateStream checks what belongs to which scope.
func validateStream(req *runnerdv1.StreamEventsRequest) error {
	for _, name := range req.GetTypes() {
		if !slices.Contains(streamTypes, name) {
			e := errorf(runnerdv1.ErrorReason_ERROR_REASON_UNKNOWN_EVENT_TYPE, "no event or signal has the type %q", name)
			e.Violations = []Violation{{Field: "types", Description: e.Message}}
			return e.with("type", cutText(name))
		}
	}
	switch {
	case req.GetAll() && req.AfterSequence != nil:
		return invalidField("after_sequence", "belongs to the scope of a run, use after_cursor")
	case req.GetAll() && req.GetIncludeSignals():
		return invalidField("include_signals", "belongs to the scope of a run")
	case req.AfterSequence != nil && req.GetAfterCursor() != "":
		return invalidField("after_cursor", "cannot be given together with after_sequence")
	}
	return nil
}

// mayWatch says whether the caller may watch what it asks for, and how much it may see of it: of a run, or of what is
// the same for all runs.
func (s *runService) mayWatch(ctx context.Context, req *runnerdv1.StreamEventsRequest) (View, error) {
	p, run := PrincipalFrom(ctx), new(runnerdv1.Run)
	if !req.GetAll() {
		row, err := s.row(ctx, runnerdv1.RunService_StreamEvents_FullMethodName, req.GetRunId())
		if err != nil {
			return 0, err
		}
		run = row.GetRun()
	}
	view := p.viewOf(run)
	switch {
	case !req.GetIncludeRaw() || view >= viewRaw:
		return view, nil
	case !p.Credential:
		return 0, credentialRequired("raw events need a credential")
	default:
		return 0, permissionDenied("raw events are for the owner of the run and for admins")
	}
}

// eventSender sends what a watcher gets. A Send blocks for as long as the reader does not read, so it happens beside
// the goroutine of the handler, which watches the time. When the handler returns, grpc ends a Send that blocks.
type eventSender struct {
	ctx    context.Context //nolint:containedctx // that of the stream
	stream grpc.ServerStream
	view   View // of signals

	batches chan []WatchItem // to the goroutine that sends
	done    chan error       // from it, with room for the outcome that nobody waits for any more

	began    time.Time
	patience *time.Timer  // set when it rings only: most batches need none
	sending  atomic.Int64 // when the message began that is being sent, since began
	sent     atomic.Int64 // messages of the batch that are handed to the transport
	resume   string       // cursor up to which everything was sent
}

func newEventSender(ctx context.Context, stream grpc.ServerStream, view View) *eventSender {
	s := &eventSender{
		ctx: ctx, stream: stream, view: view, batches: make(chan []WatchItem), done: make(chan error, 1),
		began: time.Now(), patience: time.NewTimer(sendPatience),
	}
	go func() {
		for items := range s.batches {
			s.done <- s.sendAll(items)
		}
	}()
	return s
}

// close lets the goroutine end once it has nothing to send. Nothing is sent after that.
func (s *eventSender) close() {
	close(s.batches)
	s.patience.Stop()
}

// send sends a batch, in order, and returns when all of it is handed to the transport. After an error it must not be
// called again.
func (s *eventSender) send(items []WatchItem) error {
	s.sent.Store(0)
	s.sending.Store(int64(time.Since(s.began)))
	s.batches <- items
	err := s.wait()
	// When the wait was given up, what is sent after this is sent again to whoever resumes.
	for i := s.sent.Load() - 1; i >= 0; i-- {
		if place := placeOf(&items[i]); place != "" {
			s.resume = place
			break
		}
	}
	return err
}

// wait returns when a batch is sent, or why it is given up.
func (s *eventSender) wait() error {
	for {
		select {
		case err := <-s.done:
			return err
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		case <-s.patience.C:
			blocked := time.Since(s.began) - time.Duration(s.sending.Load())
			if blocked >= sendPatience {
				return errorf(runnerdv1.ErrorReason_ERROR_REASON_SLOW_READER, "the reader took nothing for %s", sendPatience)
			}
			s.patience.Reset(sendPatience - blocked)
		}
	}
}

func (s *eventSender) sendAll(items []WatchItem) error {
	for i := range items {
		item := &items[i]
		var message any = &eventFrame{event: item.Event, cursor: item.Cursor}
		if item.Signal != nil {
			signal := visible(item.Signal, s.view)
			if signal == nil {
				s.sent.Add(1)
				continue
			}
			message = &runnerdv1.StreamEventsResponse{Signal: signal}
		}
		s.sending.Store(int64(time.Since(s.began)))
		if err := s.stream.SendMsg(message); err != nil {
			return err
		}
		s.sent.Add(1)
	}
	return nil
}

// placeOf is the place in the log up to which everything was sent with an item; empty: it tells nothing.
func placeOf(item *WatchItem) string {
	if item.Signal != nil {
		return item.Signal.GetStreamProgress().GetHeadCursor()
	}
	return item.Cursor
}

// ended adds where to go on to the end of a stream that another stream can take up.
func (s *eventSender) ended(err error) error {
	var told *Error
	if !errors.As(err, &told) {
		return err
	}
	switch told.Kind() {
	case KindExhausted, KindUnavailable, KindUnauthenticated:
		if s.resume == "" {
			return err // nothing was sent: the same request goes on
		}
		return (&Error{Reason: told.Reason, Message: told.Message, Err: told.Err}).with("resume_after", s.resume)
	default:
		return err
	}
}
