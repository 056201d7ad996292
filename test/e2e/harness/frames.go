package harness

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that frames builds on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// Frame is one event exactly as it came over the wire.
type Frame struct {
	Bytes  []byte // of the event
	Event  *runnerdv1.Event
	Cursor string
}

// Frames reads the public events of a stream as bytes until it ends or f returns false.
func (d *Daemon) Frames(ctx context.Context, req *runnerdv1.StreamEventsRequest, f func(Frame) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.conns[0].NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		runnerdv1.RunService_StreamEvents_FullMethodName, grpc.ForceCodecV2(frameCodec{encoding.GetCodecV2("proto")}))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) { // io.EOF: RecvMsg has the reason
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for {
		var wire []byte
		if err := stream.RecvMsg(&wire); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		frame, err := frameOf(wire)
		if err != nil {
			return err
		}
		if frame.Event != nil && !f(frame) {
			return nil
		}
	}
}

// frameCodec hands on received messages as they are.
type frameCodec struct{ encoding.CodecV2 }

// Unmarshal hands on a message as it came, if bytes are asked for.
func (c frameCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if wire, ok := v.(*[]byte); ok {
		*wire = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

func frameOf(wire []byte) (Frame, error) {
	var m runnerdv1.StreamEventsResponse
	if err := proto.Unmarshal(wire, &m); err != nil {
		return Frame{}, err
	}
	frame := Frame{Event: m.GetEvent(), Cursor: m.GetCursor()}
	for len(wire) > 0 {
		number, kind, n := protowire.ConsumeField(wire)
		if n < 0 {
			return Frame{}, protowire.ParseError(n)
		}
		if number == 1 && kind == protowire.BytesType { // StreamEventsResponse.event
			_, _, tag := protowire.ConsumeTag(wire)
			frame.Bytes, _ = protowire.ConsumeBytes(wire[tag:])
		}
		wire = wire[n:]
	}
	return frame, nil
}

// Linked checks that a public event carries the hash of what is stored of it, chained to the event before.
func (f Frame) Linked(before []byte) error {
	stored, err := storedBytes(f.Bytes)
	if err != nil {
		return err
	}
	var prev auditstore.Digest
	copy(prev[:], before)
	if string(f.Event.GetPrevHash()) != string(prev[:]) {
		return fmt.Errorf("event %d has prev_hash %x, want %x", f.Event.GetSequence(), f.Event.GetPrevHash(), prev)
	}
	if want := auditstore.Hash(prev, stored); string(f.Event.GetHash()) != string(want[:]) {
		return fmt.Errorf("event %d has hash %x, want %x", f.Event.GetSequence(), f.Event.GetHash(), want)
	}
	return nil
}

// storedBytes is an event without its trailer, which follows what is stored.
func storedBytes(event []byte) ([]byte, error) {
	rest := event
	for len(rest) > 0 {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		if number >= auditstore.TrailerPosition {
			break
		}
		rest = rest[n:]
	}
	return event[:len(event)-len(rest)], nil
}

// Digest tells whether two frames are the same bytes.
func (f Frame) Digest() [sha256.Size]byte { return sha256.Sum256(f.Bytes) }
