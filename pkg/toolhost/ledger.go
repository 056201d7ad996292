package toolhost

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// recordTime bounds how long a ledger may take to note the end of a call whose caller may be gone.
const recordTime = 10 * time.Second

// CallState is what a ledger knows of a key.
type CallState int

// What a ledger knows of a key.
const (
	// CallOpen: nobody knows. A call began and its end is not known, or the ledger does not reach back far enough.
	CallOpen CallState = iota
	// CallUnseen: no call with the key was executed so far.
	CallUnseen
	// CallRunning: a call with the key is being executed.
	CallRunning
	// CallFinished: there is a result.
	CallFinished
	// CallRefused: no call with the key was or will be executed up to the attempt in question.
	CallRefused
)

// Entry is what a ledger says of a key.
type Entry struct {
	State CallState
	// Result is set if the state is CallFinished. It must not be changed.
	Result *Result
}

// Ledger remembers what became of calls, by idempotency key. It is safe for concurrent use.
type Ledger interface {
	// Begin claims the key of a call for its execution. It waits while a call with the key is being executed. If it
	// returns CallUnseen or CallOpen, it has noted durably that the call began, and End MUST follow. If it returns
	// CallFinished or CallRefused, or an error, the call is not executed.
	Begin(ctx context.Context, call *runnerdv1.CallToolRequest) (Entry, error)
	// End notes what became of a call that began: CallFinished; CallUnseen if nothing was executed; CallOpen if that
	// cannot be known.
	End(ctx context.Context, call *runnerdv1.CallToolRequest, entry Entry) error
	// Get tells what became of a key. It never returns CallUnseen: if no call with the key was executed, it promises
	// durably that none will be up to the attempt asked for and returns CallRefused, or CallOpen if it cannot promise.
	Get(ctx context.Context, req *runnerdv1.GetCallRequest) (Entry, error)
}

// once executes a call unless its key has an outcome already.
func (s *Server) once(ctx context.Context, req *runnerdv1.CallToolRequest, execute func() (*Result, error)) (*Result, error) {
	entry, err := s.ledger.Begin(ctx, req)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, status.FromContextError(ctx.Err()).Err()
	case err != nil:
		return nil, status.Errorf(codes.FailedPrecondition, "not executed, the ledger failed: %v", err)
	case entry.State == CallFinished:
		return entry.Result, nil
	case entry.State == CallRefused:
		return nil, status.Errorf(codes.FailedPrecondition, "attempt %d was given up", req.GetAttempt())
	}

	result, err := execute()
	after := Entry{State: CallFinished, Result: result}
	if err != nil {
		// Only a refusal carries another code than that of an ended context.
		after = Entry{State: CallUnseen}
		if c := status.Code(err); c == codes.Canceled || c == codes.DeadlineExceeded {
			after.State = CallOpen
		}
	}
	// What was done has to be noted whether or not the caller still waits for it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if err := s.ledger.End(ctx, req, after); err != nil {
		s.log.ErrorContext(ctx, "outcome of a call is not in the ledger", "tool", req.GetName(),
			"idempotency_key", req.GetIdempotencyKey(), "err", err)
	}
	return result, err
}

// GetCall implements runnerdv1.ToolHostServiceServer.
func (s *Server) GetCall(ctx context.Context, req *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
	if s.ledger == nil {
		return nil, status.Error(codes.Unimplemented, "this host keeps no ledger")
	}
	return GetCall(ctx, s.ledger, req)
}

// GetCall answers a GetCall from a ledger, for hosts that do not use Server.
func GetCall(ctx context.Context, l Ledger, req *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
	entry, err := l.Get(ctx, req)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "ledger: %v", err)
	}
	switch entry.State {
	case CallFinished:
		return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Finished{Finished: entry.Result}}, nil
	case CallRunning:
		return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Running{Running: &runnerdv1.CallRunning{}}}, nil
	case CallRefused:
		return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_NotSeen{NotSeen: &runnerdv1.CallNotSeen{}}}, nil
	default:
		return &runnerdv1.GetCallResponse{}, nil
	}
}
