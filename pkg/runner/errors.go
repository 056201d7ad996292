package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// ErrorDomain is the domain of every google.rpc.ErrorInfo that runnerd sends.
const ErrorDomain = "runnerd"

// Kind groups the reasons of errors by what a caller can do about them. It decides the status code.
type Kind uint8

// The kinds. KindInternal is the zero value, so that an error nobody classified is a bug of runnerd and never
// something the caller is blamed for.
const (
	KindInternal         Kind = iota // a bug of runnerd
	KindInvalid                      // the request is wrong and stays wrong
	KindNotFound                     // there is no such thing, or the caller may not see it
	KindAlreadyExists                // the id is taken
	KindPrecondition                 // the run is in a state that refuses it
	KindOutOfRange                   // past the end of what there is
	KindExhausted                    // something is used up: space, streams, patience
	KindUnavailable                  // try again, here or elsewhere
	KindPermissionDenied             // the caller may not do that
	KindUnauthenticated              // the caller is unknown
	KindCorrupt                      // stored bytes are not what was written
)

// reasonKinds is the one table from reason to kind. A test walks every reason.
var reasonKinds = map[runnerdv1.ErrorReason]Kind{
	runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST:      KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_BUDGET_TOO_WIDE:      KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_ALLOWED: KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_BAD_PAGE_TOKEN:       KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_BAD_CURSOR:           KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_UNKNOWN_EVENT_TYPE:   KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE: KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_EDIT_REFUSED:         KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_GRANT_NOT_POSSIBLE:   KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_POLICY_NOT_ALLOWED:   KindInvalid,
	runnerdv1.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE:    KindExhausted,
	runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND:        KindNotFound,
	runnerdv1.ErrorReason_ERROR_REASON_AGENT_NOT_FOUND:      KindNotFound,
	runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_FOUND:   KindNotFound,
	runnerdv1.ErrorReason_ERROR_REASON_CHECKPOINT_NOT_FOUND: KindNotFound,
	runnerdv1.ErrorReason_ERROR_REASON_ARTIFACT_NOT_FOUND:   KindNotFound,
	runnerdv1.ErrorReason_ERROR_REASON_GRANT_NOT_FOUND:      KindNotFound,
	runnerdv1.ErrorReason_ERROR_REASON_RUN_EXISTS:           KindAlreadyExists,
	runnerdv1.ErrorReason_ERROR_REASON_ALREADY_RESOLVED:     KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_TIMED_OUT:            KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_CANCELLED:            KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED:            KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH:      KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_TOOL_CHANGED:         KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_PATH_CHANGED:         KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_OTHER_VERSION:        KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_USE_RESUME:           KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_RUN_ACTIVE:           KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_OPEN:        KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_LIMIT_STILL_REACHED:  KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_INPUT_REQUIRED:       KindPrecondition,
	runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD:            KindOutOfRange,
	runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL:            KindExhausted,
	runnerdv1.ErrorReason_ERROR_REASON_OVERLOADED:           KindExhausted,
	runnerdv1.ErrorReason_ERROR_REASON_SLOW_READER:          KindExhausted,
	runnerdv1.ErrorReason_ERROR_REASON_DRAINING:             KindUnavailable,
	runnerdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:    KindUnavailable,
	runnerdv1.ErrorReason_ERROR_REASON_NOT_OWNER:            KindUnavailable,
	runnerdv1.ErrorReason_ERROR_REASON_ISSUER_UNAVAILABLE:   KindUnavailable,
	runnerdv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED:    KindPermissionDenied,
	runnerdv1.ErrorReason_ERROR_REASON_CREDENTIAL_REQUIRED:  KindUnauthenticated,
	runnerdv1.ErrorReason_ERROR_REASON_CORRUPT:              KindCorrupt,
	runnerdv1.ErrorReason_ERROR_REASON_INTERNAL:             KindInternal,
}

// kindCodes is the one table from kind to status code.
var kindCodes = [...]codes.Code{
	KindInternal:         codes.Internal,
	KindInvalid:          codes.InvalidArgument,
	KindNotFound:         codes.NotFound,
	KindAlreadyExists:    codes.AlreadyExists,
	KindPrecondition:     codes.FailedPrecondition,
	KindOutOfRange:       codes.OutOfRange,
	KindExhausted:        codes.ResourceExhausted,
	KindUnavailable:      codes.Unavailable,
	KindPermissionDenied: codes.PermissionDenied,
	KindUnauthenticated:  codes.Unauthenticated,
	KindCorrupt:          codes.DataLoss,
}

// Code returns the status code of the kind.
func (k Kind) Code() codes.Code { return kindCodes[k] }

// retryDelays says for which reasons a client is told when to try again. The others do not get better by waiting, or
// the client knows itself where to go on.
var retryDelays = map[runnerdv1.ErrorReason]time.Duration{
	runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL:          5 * time.Second,
	runnerdv1.ErrorReason_ERROR_REASON_OVERLOADED:         time.Second,
	runnerdv1.ErrorReason_ERROR_REASON_DRAINING:           time.Second,
	runnerdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:  500 * time.Millisecond,
	runnerdv1.ErrorReason_ERROR_REASON_NOT_OWNER:          100 * time.Millisecond,
	runnerdv1.ErrorReason_ERROR_REASON_ISSUER_UNAVAILABLE: 5 * time.Second,
}

// Violation names one field of a request and what is wrong with it.
type Violation struct {
	Field       string // path in the request, for example budget.max_tool_calls
	Description string // for people, without the value
	Rule        string // id of the broken rule, for example string.max_bytes; may be empty
}

// Error is what a caller is told: a stable reason, a short message, and details that a program can read. Err is for
// the daemon's log only and never crosses the wire.
type Error struct {
	Reason     runnerdv1.ErrorReason
	Message    string
	Violations []Violation       // fields of the request that are wrong
	Metadata   map[string]string // of the ErrorInfo, for example resume_after
	Err        error             // cause, may be nil
}

// errorf makes an error with a reason and a message for the caller. The message must hold no payload and no secret.
func errorf(reason runnerdv1.ErrorReason, format string, args ...any) *Error {
	return &Error{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// invalidField is INVALID_REQUEST about one field.
func invalidField(field, format string, args ...any) *Error {
	e := errorf(runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, format, args...)
	e.Violations = []Violation{{Field: field, Description: e.Message}}
	e.Message = field + ": " + e.Message
	return e
}

// internal wraps an error that callers must not see.
func internal(err error) *Error {
	return &Error{Reason: runnerdv1.ErrorReason_ERROR_REASON_INTERNAL, Message: "internal error", Err: err}
}

// runNotFound is the one answer about a run that does not exist and about one that the caller may not see.
func runNotFound(run string) *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND, "no run %q", run)
}

// with adds metadata to the ErrorInfo and returns e.
func (e *Error) with(key, value string) *Error {
	if e.Metadata == nil {
		e.Metadata = make(map[string]string)
	}
	e.Metadata[key] = value
	return e
}

// Kind returns what a caller can do about the error.
func (e *Error) Kind() Kind { return reasonKinds[e.Reason] }

// Error returns the message and the cause, for the daemon's log.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReasonName returns the reason as it stands in ErrorInfo: the name of the enum value without its prefix.
func ReasonName(reason runnerdv1.ErrorReason) string {
	return strings.TrimPrefix(reason.String(), "ERROR_REASON_")
}

// maxErrorText bounds every text in a status: details travel in trailers, which clients take up to 8 KiB.
const maxErrorText = 512

// maxViolations bounds the field violations in a status, for the same reason.
const maxViolations = 16

// GRPCStatus makes status.FromError see what the caller is told: the status with its details, without the cause.
func (e *Error) GRPCStatus() *status.Status {
	st := status.New(e.Kind().Code(), cutText(e.Message))
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{
		Reason:   ReasonName(e.Reason),
		Domain:   ErrorDomain,
		Metadata: e.Metadata,
	}}
	if len(e.Violations) > 0 {
		details = append(details, badRequest(e.Violations))
	}
	if e.Kind() == KindPrecondition {
		details = append(details, &errdetails.PreconditionFailure{
			Violations: []*errdetails.PreconditionFailure_Violation{{
				Type:        ReasonName(e.Reason),
				Description: cutText(e.Message),
			}},
		})
	}
	if delay, ok := retryDelays[e.Reason]; ok {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	}
	detailed, err := st.WithDetails(details...)
	if err != nil {
		return st // a status with code OK, or a message that cannot be encoded: neither can happen
	}
	return detailed
}

func badRequest(violations []Violation) *errdetails.BadRequest {
	out := new(errdetails.BadRequest)
	for _, v := range violations[:min(len(violations), maxViolations)] {
		out.FieldViolations = append(out.FieldViolations, &errdetails.BadRequest_FieldViolation{
			Field:       cutText(v.Field),
			Description: cutText(v.Description),
			Reason:      v.Rule,
		})
	}
	return out
}

// cutText bounds a text on a character and makes it valid UTF-8, which a status must be.
func cutText(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return strings.ToValidUTF8(text, "")
}

// storeReasons says what a caller is told when the store refuses.
var storeReasons = []struct {
	is     error
	reason runnerdv1.ErrorReason
	text   string
}{
	{auditstore.ErrFull, runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL, "no space on the disk, nothing was recorded"},
	{auditstore.ErrTooLarge, runnerdv1.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE, "too large to be recorded"},
	{auditstore.ErrFenced, runnerdv1.ErrorReason_ERROR_REASON_NOT_OWNER, "another owner drives the run"},
	{auditstore.ErrConflict, runnerdv1.ErrorReason_ERROR_REASON_NOT_OWNER, "another owner drives the run"},
	{auditstore.ErrUnavailable, runnerdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, "the store is not available"},
	{auditstore.ErrUnknown, runnerdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, "the store does not answer"},
	{auditstore.ErrClosed, runnerdv1.ErrorReason_ERROR_REASON_DRAINING, "the daemon is stopping"},
	{auditstore.ErrCorrupt, runnerdv1.ErrorReason_ERROR_REASON_CORRUPT, "stored bytes do not verify"},
}

// toError classifies any error of the engine, the core or the store for the caller. It returns nil for nil and for
// the end of the caller's own context, which has its status code already.
func toError(err error) *Error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*Error](err); ok {
		return known
	}
	if refusal, ok := errors.AsType[*runstate.Refusal](err); ok {
		e := &Error{Reason: refusal.Reason, Message: refusal.Message}
		if refusal.Field != "" {
			e.Violations = []Violation{{Field: refusal.Field, Description: refusal.Message}}
		}
		return e
	}
	for _, s := range storeReasons {
		if errors.Is(err, s.is) {
			return &Error{Reason: s.reason, Message: s.text, Err: err}
		}
	}
	return internal(err)
}

// statusError is what a handler's error becomes on the wire.
func statusError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*Error](err); ok {
		return known.GRPCStatus().Err()
	}
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(contextError(ctx, err)).Err()
	}
	// A status that is wrapped is some host's, which is not for our caller.
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return err // grpc's own: a message that cannot be read or sent
	}
	return toError(err).GRPCStatus().Err()
}

// contextError returns the context error that ended a call.
func contextError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}
