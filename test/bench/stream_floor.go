package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"

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

// streamFloor is the least a server of events can do: it sends messages that were encoded once.
type streamFloor struct {
	runnerdv1.UnimplementedRunServiceServer
	messages atomic.Pointer[[]rawMessage]
}

// StreamEvents implements RunService.
func (s *streamFloor) StreamEvents(_ *runnerdv1.StreamEventsRequest, stream grpc.ServerStreamingServer[runnerdv1.StreamEventsResponse]) error {
	messages := s.messages.Load()
	if messages == nil {
		return errors.New("no messages to send")
	}
	for i := range *messages {
		if err := stream.SendMsg(&(*messages)[i]); err != nil {
			return err
		}
	}
	return nil
}

// serveStream runs the floor of streams as a process.
func serveStream(ctx context.Context, in io.Reader, out io.Writer) error {
	s := new(streamFloor)
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
			s.messages.Store(&messages)
			return nil, nil
		},
	}.obey(ctx, address, in, out)
}
