package main

import (
	"context"
	"encoding/json"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that rawCodec wraps
	"google.golang.org/grpc/mem"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// rawMessage is a message of a stream as bytes.
type rawMessage []byte

// rawCodec passes encoded messages through, so that neither a floor nor the watchers of a measure spend their time on
// encoding.
type rawCodec struct{ encoding.CodecV2 }

func newRawCodec() rawCodec { return rawCodec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(*rawMessage); ok {
		return mem.BufferSlice{mem.SliceBuffer(*raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if raw, ok := v.(*rawMessage); ok {
		*raw = append((*raw)[:0], data.Materialize()...)
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// streamFloor is the least a server of events can do: it sends messages that were encoded once. Who follows gets them
// as they are published.
type streamFloor struct {
	runnerdv1.UnimplementedRunServiceServer

	mu        sync.Mutex
	messages  []rawMessage
	published int           // of messages
	more      chan struct{} // closed when more are published
}

// StreamEvents implements RunService.
func (s *streamFloor) StreamEvents(req *runnerdv1.StreamEventsRequest, stream grpc.ServerStreamingServer[runnerdv1.StreamEventsResponse]) error {
	for sent := 0; ; {
		s.mu.Lock()
		messages, more := s.messages, s.more
		if req.GetFollow() {
			messages = messages[:s.published]
		}
		all := len(messages) == len(s.messages)
		s.mu.Unlock()
		for ; sent < len(messages); sent++ {
			if err := stream.SendMsg(&messages[sent]); err != nil {
				return err
			}
		}
		if all {
			return nil
		}
		select {
		case <-more:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// publish lets those who follow have a number of messages more.
func (s *streamFloor) publish(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.published = min(s.published+n, len(s.messages))
	close(s.more)
	s.more = make(chan struct{})
}

// schedule says when the floor publishes: the size of each group, and the time between two.
type schedule struct {
	Groups []int         `json:"groups"`
	Every  time.Duration `json:"every"`
}

// play publishes by a schedule and returns at its end.
func (s *streamFloor) play(ctx context.Context, plan schedule) error {
	ticker := time.NewTicker(plan.Every)
	defer ticker.Stop()
	for _, n := range plan.Groups {
		select {
		case <-ticker.C:
			s.publish(n)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// serveStream runs the floor of streams as a process.
func serveStream(ctx context.Context, in io.Reader, out io.Writer) error {
	s := &streamFloor{more: make(chan struct{})}
	address, err := serveGRPC(ctx, func(g *grpc.Server) { runnerdv1.RegisterRunServiceServer(g, s) }, grpc.ForceServerCodecV2(newRawCodec()))
	if err != nil {
		return err
	}
	return orders{
		"messages": func(_ context.Context, args json.RawMessage) (any, error) {
			var messages []rawMessage
			if err := json.Unmarshal(args, &messages); err != nil {
				return nil, err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.messages, s.published = messages, 0
			return nil, nil
		},
		"play": func(ctx context.Context, args json.RawMessage) (any, error) {
			var plan schedule
			if err := json.Unmarshal(args, &plan); err != nil {
				return nil, err
			}
			return nil, s.play(ctx, plan)
		},
	}.obey(ctx, address, in, out)
}
