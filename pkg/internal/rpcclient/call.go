package rpcclient

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Call is one call of a named service.
type Call struct {
	// Service is the configured name.
	Service string
	// Method is the full name of the method, such as "/runnerd.v1.DecideService/Decide".
	Method string
	// Request is what is sent.
	Request proto.Message
	// MaxReceive bounds each message that is received, in bytes.
	MaxReceive int
}

// message is a pointer to a generated message.
type message[M any] interface {
	*M
	proto.Message
}

// Unary makes a call that is answered by one message.
func Unary[M any, P message[M]](ctx context.Context, p *Pool, call Call) (P, error) {
	conn, err := p.conn(call.Service)
	if err != nil {
		return nil, err
	}
	tr := new(trace)
	ctx = context.WithValue(ctx, traceKey{}, tr)
	req, resp := &frame{msg: call.Request}, &frame{msg: P(new(M))}
	var from peer.Peer
	err = conn.Invoke(ctx, call.Method, req, resp, call.options(&from)...)
	tellPeer(ctx, &from)
	if err != nil {
		return nil, call.sendError(err, req, tr)
	}
	if resp.err != nil {
		return nil, decodeError(resp.err)
	}
	return resp.msg.(P), nil //nolint:errcheck // it was put in as a P
}

// One makes a call that is answered by a stream of which exactly one message brings the answer. Each message goes to
// pick, which returns the answer if the message brings it, and nil otherwise. The noun
// ("result") names the answer in errors.
//
// An answer that came whole stands even if the connection broke, or the context ended, before the end of the stream:
// nothing about it is lost. A status by which the other side contradicts its own answer takes it away.
func One[M, A any, P message[M]](ctx context.Context, p *Pool, call Call, noun string, pick func(P) *A) (*A, error) {
	conn, err := p.conn(call.Service)
	if err != nil {
		return nil, err
	}
	tr := new(trace)
	// Leaving early has to end the stream, here and at the other side.
	ctx, cancel := context.WithCancel(context.WithValue(ctx, traceKey{}, tr))
	defer cancel()

	var from peer.Peer // known when the stream is over
	defer tellPeer(ctx, &from)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, call.Method, call.options(&from)...)
	if err != nil {
		return nil, classify(err, tr, call.MaxReceive)
	}
	req := &frame{msg: call.Request}
	if err := stream.SendMsg(req); err != nil {
		return nil, call.sendError(err, req, tr)
	}
	if err := stream.CloseSend(); err != nil {
		return nil, classify(err, tr, call.MaxReceive)
	}

	var answer *A
	for {
		in := &frame{msg: P(new(M))}
		err := stream.RecvMsg(in)
		switch {
		case errors.Is(err, io.EOF) && answer == nil:
			return nil, streamError("no_"+noun, "stream ended without a "+noun)
		case errors.Is(err, io.EOF):
			return answer, nil
		case err != nil:
			return ended(classify(err, tr, call.MaxReceive), answer, noun)
		case answer != nil:
			return nil, streamError("several_"+noun+"s", "stream went on after its "+noun)
		case in.err != nil:
			return nil, decodeError(in.err)
		}
		answer = pick(in.msg.(P)) //nolint:errcheck // it was put in as a P
	}
}

// ended is the outcome of a stream that ended with an error, after an answer or before.
func ended[A any](err error, answer *A, noun string) (*A, error) {
	if answer == nil {
		return nil, err
	}
	if e, ok := errors.AsType[*Error](err); ok && e.TooLarge() {
		return nil, streamError("several_"+noun+"s", "stream went on after its "+noun)
	}
	switch code := status.Code(err); code {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return answer, nil
	default:
		return nil, status.Errorf(codes.Unknown, "stream ended with %s after its %s: %s", code, noun,
			status.Convert(err).Message())
	}
}

func (p *Pool) conn(service string) (*grpc.ClientConn, error) {
	conn, ok := p.conns[service]
	if !ok {
		return nil, &Error{kind: notSent, status: status.Newf(codes.Unavailable, "no %s %q is configured", p.noun, service)}
	}
	return conn, nil
}

func (c *Call) options(from *peer.Peer) []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(frameCodec{}), grpc.MaxCallRecvMsgSize(c.MaxReceive), grpc.Peer(from)}
}

// sendError is the error of a call whose request may be at fault. A request that cannot be encoded is the same for
// ever: nothing was executed and sending it again is of no use, which is what INVALID_ARGUMENT says.
func (c *Call) sendError(err error, req *frame, tr *trace) error {
	if req.err != nil {
		return status.Errorf(codes.InvalidArgument, "request cannot be encoded: %v", req.err)
	}
	return classify(err, tr, c.MaxReceive)
}

func decodeError(err error) *Error {
	return &Error{kind: undecodable, status: status.Newf(codes.Internal, "answer cannot be decoded: %v", err)}
}

func streamError(code, message string) *Error {
	return &Error{kind: badStream, stream: code, status: status.New(codes.Internal, message)}
}
