package runner

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that this one wraps
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of StreamEventsResponse; a test holds them against the descriptor.
const (
	responseEvent  protowire.Number = 1
	responseCursor protowire.Number = 3
)

// eventFrame is a StreamEventsResponse whose event is encoded already. The bytes of an event are made once, when it
// is stored, and shared by all who read it: what it costs to send one to a watcher does not depend on its size.
type eventFrame struct {
	event  []byte // an encoded Event, never changed
	cursor string
}

// buffers returns the frame on the wire: a few bytes of its own around the shared ones.
func (f *eventFrame) buffers() mem.BufferSlice {
	head := protowire.AppendTag(make([]byte, 0, 1+protowire.SizeVarint(uint64(len(f.event)))), responseEvent, protowire.BytesType)
	head = protowire.AppendVarint(head, uint64(len(f.event)))
	tail := protowire.AppendTag(make([]byte, 0, 4+len(f.cursor)), responseCursor, protowire.BytesType)
	tail = protowire.AppendString(tail, f.cursor)
	return mem.BufferSlice{mem.SliceBuffer(head), mem.SliceBuffer(f.event), mem.SliceBuffer(tail)}
}

// codec is the proto codec, which also takes frames that are encoded already.
type codec struct{ encoding.CodecV2 }

func newCodec() (codec, error) {
	proto := encoding.GetCodecV2("proto")
	if proto == nil {
		return codec{}, fmt.Errorf("no proto codec is registered")
	}
	return codec{proto}, nil
}

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if frame, ok := v.(*eventFrame); ok {
		return frame.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}
