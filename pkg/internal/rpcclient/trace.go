package rpcclient

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"
)

// trace is what happened to one call on the wire.
type trace struct {
	sent  atomic.Bool // the headers were handed to a connection: the other side may have seen the call
	ended atomic.Bool // the other side sent a status
}

type traceKey struct{}

// traceHandler fills in the trace that the context of a call carries.
type traceHandler struct{}

// HandleRPC implements stats.Handler.
func (traceHandler) HandleRPC(ctx context.Context, s stats.RPCStats) {
	tr, ok := ctx.Value(traceKey{}).(*trace)
	if !ok {
		return
	}
	switch s.(type) {
	case *stats.OutHeader:
		tr.sent.Store(true)
	case *stats.InTrailer:
		tr.ended.Store(true)
	}
}

// TagRPC implements stats.Handler.
func (traceHandler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (traceHandler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (traceHandler) HandleConn(context.Context, stats.ConnStats) {}

// frame is one message and whether it could be encoded or decoded.
type frame struct {
	msg proto.Message
	err error
}

// frameCodec is the protobuf codec, except that it keeps its errors in the frame: gRPC would report a message that
// cannot be decoded like any broken stream.
type frameCodec struct{}

// Name implements encoding.CodecV2.
func (frameCodec) Name() string { return protocodec.Name }

// Marshal implements encoding.CodecV2.
func (frameCodec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("rpcclient: cannot encode %T", v)
	}
	var out mem.BufferSlice
	out, f.err = encoding.GetCodecV2(protocodec.Name).Marshal(f.msg)
	return out, f.err
}

// Unmarshal implements encoding.CodecV2.
func (frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("rpcclient: cannot decode into %T", v)
	}
	f.err = encoding.GetCodecV2(protocodec.Name).Unmarshal(data, f.msg)
	return nil
}
