package rpcclient

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type kind int

const (
	notSent kind = iota + 1
	undecodable
	tooLarge
	badStream
)

// Error tells what a status code alone cannot. A call that ended with a status of the other side, or with the
// caller's own deadline or cancel after the request left, ends with that status and not with an Error.
type Error struct {
	kind   kind
	stream string
	status *status.Status
}

func (e *Error) Error() string { return e.status.Message() }

// GRPCStatus is a status for those who only know codes. It is never one by which a peer refuses a call.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// NotSent tells that the request never left this process: the other side has not seen it.
func (e *Error) NotSent() bool { return e.kind == notSent }

// Undecodable tells that a message came whole and cannot be decoded.
func (e *Error) Undecodable() bool { return e.kind == undecodable }

// TooLarge tells that a message came that is over its bound.
func (e *Error) TooLarge() bool { return e.kind == tooLarge }

// BadStream is "no_<answer>" or "several_<answer>s" if the stream ended well, or went on, without exactly one answer
// ("no_result", "several_decisions"); empty otherwise.
func (e *Error) BadStream() string { return e.stream }

// NewTooLarge is the error for an answer that came and is over a bound of the caller's.
func NewTooLarge(format string, args ...any) *Error {
	return &Error{kind: tooLarge, status: status.Newf(codes.ResourceExhausted, format, args...)}
}

// refusal tells whether a code, sent by the other side, says that the call was not executed.
func refusal(c codes.Code) bool {
	switch c {
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange,
		codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	default:
		return false
	}
}

// classify makes of the error that gRPC gave for a call with this trace and receive bound the error it stands for.
func classify(err error, tr *trace, maxReceive int) error {
	st := status.Convert(err)
	switch {
	case !tr.sent.Load():
		code := st.Code()
		if code != codes.Canceled && code != codes.DeadlineExceeded {
			code = codes.Unavailable
		}
		return &Error{kind: notSent, status: status.Newf(code, "request was not sent: %s", st.Message())}
	case overBound(st, tr, maxReceive):
		return NewTooLarge("answer is over %d bytes", maxReceive)
	case refusal(st.Code()) && !tr.ended.Load():
		// Made by the local transport of an answer that is not gRPC's, such as a 404 of a web server.
		return status.Errorf(codes.Unavailable, "not an answer of gRPC: %s", st.Message())
	default:
		return st.Err()
	}
}

// overBound tells whether gRPC refused a message for its size. It says so by a code and a text only, and a peer may
// hand on the same text about a message of its own. It is ours if the peer sent no status, or else if our bound stands
// in it.
func overBound(st *status.Status, tr *trace, maxReceive int) bool {
	if st.Code() != codes.ResourceExhausted || !strings.HasPrefix(st.Message(), "grpc: ") ||
		!strings.Contains(st.Message(), " larger than max ") {
		return false
	}
	return !tr.ended.Load() || strings.HasSuffix(st.Message(), fmt.Sprintf("vs. %d)", maxReceive))
}
