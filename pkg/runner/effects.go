package runner

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/internal/answerer"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// errNotWanted is why an effect is cancelled that the run does not want any more.
var errNotWanted = errors.New("not wanted any more")

// work does one effect in the world and returns the one fact that it ends with; an error becomes a fact by failed.
//
// What do asks of the world ends with ctx. What came of it is stored under wanted, which knows no deadline: it ends
// with the daemon, or when nobody wants the effect any more.
type work struct {
	deadline time.Time // zero: none
	flight   flight
	do       func(ctx, wanted context.Context, token string) (runstate.Fact, error)
	failed   func(ctx context.Context, err error) runstate.Fact
}

// start begins an effect. Its goroutine ends with exactly one fact, or none if the daemon stops before.
func (e *engine) start(effect runstate.Effect) {
	var w work
	switch f := effect.(type) {
	case runstate.ListTools:
		w = e.listTools()
	case runstate.Decide:
		w = e.decide(f)
	case runstate.CallTool:
		w = e.callTool(f)
	case runstate.GetCall:
		w = e.getCall(f)
	default:
		panic(fmt.Sprintf("unknown effect %T", effect))
	}
	key := effect.Key()
	ctx, cancel := context.WithCancelCause(e.r.ctx)
	e.effects[key] = cancel
	w.flight.since = e.r.now()
	token := e.r.tokens.begin(e.run, key, w.flight)
	e.r.effects.Go(func() {
		defer cancel(nil)
		fact := e.r.perform(ctx, w, token)
		e.r.tokens.end(e.run, key)
		if e.r.ctx.Err() == nil {
			e.mail.put(item{fact: fact, effect: key})
		}
	})
}

// perform does an effect within its deadline. A panic is an error of that effect only.
func (r *Runner) perform(ctx context.Context, w work, token string) (fact runstate.Fact) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("an effect panicked", "effect", w.flight.name, "panic", p, "stack", string(debug.Stack()))
			fact = w.failed(ctx, fmt.Errorf("panic: %v", p))
		}
	}()
	call := ctx
	if !w.deadline.IsZero() {
		var cancel context.CancelFunc
		// A span of time, not a time: the deadline is on the runner's clock.
		call, cancel = context.WithTimeout(ctx, w.deadline.Sub(r.now()))
		defer cancel()
	}
	call, who := answerer.Listen(call)
	fact, err := w.do(call, ctx, token)
	if err != nil {
		fact = w.failed(call, err)
	}
	return answeredBy(fact, who())
}

// answeredBy puts the name of who answered into a fact that is an answer.
func answeredBy(fact runstate.Fact, name string) runstate.Fact {
	name = cutBytes(name, maxAnswerer)
	switch f := fact.(type) {
	case runstate.Decided:
		f.AnsweredBy = name
		return f
	case runstate.CallFinished:
		f.AnsweredBy = name
		return f
	}
	return fact
}

// maxAnswerer bounds the name of who answered in bytes: a SPIFFE id has at most so many.
const maxAnswerer = 2048

// listTools gets the tools of the run's agent.
func (e *engine) listTools() work {
	spec := e.spec
	return work{
		flight: flight{name: "tools"},
		do: func(ctx, _ context.Context, _ string) (runstate.Fact, error) {
			return e.r.pin(ctx, spec), nil
		},
		failed: func(_ context.Context, err error) runstate.Fact { return e.r.pinNothing(spec, err) },
	}
}

// callTool makes one attempt of a call.
func (e *engine) callTool(f runstate.CallTool) work {
	run, r, most := e.static(), e.r, int(e.spec.GetMaxResultBytes())
	req := &runnerdv1.CallToolRequest{
		RunId: e.run, CallId: f.CallID, Attempt: f.Attempt, IdempotencyKey: f.IdempotencyKey, Name: f.Tool,
		ArgumentsJson: f.Arguments.Text, Deadline: timestamp(f.Deadline), Agent: run.GetAgent(), Identity: run.GetIdentity(),
		SchemaDigest: f.SchemaDigest,
	}
	at := flight{name: f.CallID, iteration: e.st.Iteration(), attempt: f.Attempt}
	return work{
		deadline: f.Deadline,
		flight:   at,
		do: func(ctx, wanted context.Context, token string) (runstate.Fact, error) {
			begin := r.now()
			if f.Arguments.Ref != nil {
				arguments, err := r.ReadPart(ctx, e.run, f.Arguments.Ref)
				if err != nil {
					return nil, notSentError{fmt.Errorf("arguments: %w", err)}
				}
				req.ArgumentsJson = string(arguments)
			}
			req.RunToken = token
			res, err := r.cfg.Tools.CallTool(ctx, f.Host, req, most, func(p *runnerdv1.Progress) {
				e.signal(at, "tool_progress", func(s *runnerdv1.Signal) {
					s.Payload = &runnerdv1.Signal_ToolProgress{ToolProgress: &runnerdv1.ToolProgressSignal{
						CallId: f.CallID, Message: p.GetMessage(), Fraction: p.Fraction,
					}}
				})
			})
			if err != nil {
				return nil, err
			}
			return e.finished(wanted, runstate.CallFinished{CallID: f.CallID, Attempt: f.Attempt, Duration: r.now().Sub(begin)}, res, most)
		},
		failed: func(ctx context.Context, err error) runstate.Fact {
			if result, ok := outcomeOf(err); ok {
				if result.Reason == runnerdv1.CallReason_CALL_REASON_TOOL_CHANGED {
					r.listings.doubt(f.Host)
				}
				return runstate.CallFinished{CallID: f.CallID, Attempt: f.Attempt, Result: result}
			}
			lost := runstate.CallLost{CallID: f.CallID, Attempt: f.Attempt, Message: messageOf(err)}
			switch {
			case notSent(err):
				lost.Cause = runnerdv1.LostCause_LOST_CAUSE_NOT_SENT
			case errors.Is(context.Cause(ctx), errNotWanted):
				lost.Cause, lost.Message = runnerdv1.LostCause_LOST_CAUSE_CANCEL, "the run was cancelled and the call cut off"
			case pastDeadline(ctx):
				lost.Cause, lost.Message = runnerdv1.LostCause_LOST_CAUSE_TIMEOUT, "no result came before the deadline"
			default:
				lost.Cause = runnerdv1.LostCause_LOST_CAUSE_STREAM
			}
			return lost
		},
	}
}

// deadlineSlack is how much sooner than ours a host's copy of a deadline may pass.
const deadlineSlack = 50 * time.Millisecond

// pastDeadline reports whether a call ended at its deadline, be it by us or by the host, which ends it by its own copy.
func pastDeadline(ctx context.Context) bool {
	at, ok := ctx.Deadline()
	return ok && time.Until(at) < deadlineSlack
}

// static returns what does not change of the run: its agent and identity.
func (e *engine) static() *runnerdv1.Run {
	if e.about == nil {
		e.about = e.st.View()
	}
	return e.about
}

// Pauses between two looks at a call that is still being executed.
const (
	firstLook = time.Second
	lastLook  = 10 * time.Second
)

// maxLooksAway is how often a host that is not there, as after a restart of everything, is asked in a row.
const maxLooksAway = 3

// notThere reports whether a host could not be reached at all.
func notThere(err error) bool { return notSent(err) || status.Code(err) == codes.Unavailable }

// getCall asks a host what became of a call, again and again while it is being executed.
func (e *engine) getCall(f runstate.GetCall) work {
	r, most := e.r, int(e.spec.GetMaxResultBytes())
	req := &runnerdv1.GetCallRequest{
		IdempotencyKey: f.IdempotencyKey, Attempt: f.Attempt, RunId: e.run, CallId: f.CallID, Name: f.Tool,
	}
	finished := runstate.CallFinished{CallID: f.CallID, Attempt: f.Attempt, Reconciled: true}
	return work{
		deadline: f.Deadline,
		flight:   flight{name: f.CallID, iteration: e.st.Iteration(), attempt: f.Attempt},
		do: func(ctx, wanted context.Context, _ string) (runstate.Fact, error) {
			failures := 0
			for look := firstLook; ; look = min(2*look, lastLook) {
				resp, err := r.cfg.Tools.GetCall(ctx, f.Host, req, most)
				if failures++; err != nil && notThere(err) && failures < maxLooksAway {
					if pause(ctx, look) == nil {
						continue
					}
				}
				if err != nil {
					return nil, err
				}
				failures = 0
				switch state := resp.GetState().(type) {
				case *runnerdv1.GetCallResponse_Finished:
					return e.finished(wanted, finished, state.Finished, most)
				case *runnerdv1.GetCallResponse_NotSeen:
					return runstate.CallLost{
						CallID: f.CallID, Attempt: f.Attempt, Cause: runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN,
						Message: "the host has not seen the call and will refuse it",
					}, nil
				case *runnerdv1.GetCallResponse_Running:
					if err := pause(ctx, look); err != nil {
						return nil, fmt.Errorf("the host says that the call is still running: %w", err)
					}
				default:
					return nil, errors.New("the host does not know the call")
				}
			}
		},
		failed: func(_ context.Context, err error) runstate.Fact {
			switch {
			case undecodable(err):
				finished.Result.Reason = runnerdv1.CallReason_CALL_REASON_RESULT_UNDECODABLE
			case tooLarge(err):
				finished.Result.Reason = runnerdv1.CallReason_CALL_REASON_RESULT_TOO_LARGE
			default: // a status is about the look-up, not about the call
				return runstate.LookupFailed{CallID: f.CallID, Attempt: f.Attempt, Message: messageOf(err)}
			}
			finished.Result.Text = messageOf(err)
			return finished
		},
	}
}

// finished stores what is big of a result and returns the fact. A result that is there does not get lost to its
// deadline or a full disk any more, only to a cancel.
func (e *engine) finished(wanted context.Context, f runstate.CallFinished, res *runnerdv1.ToolResult, most int) (runstate.Fact, error) {
	prefix := fmt.Sprintf("%s.%d", f.CallID, f.Attempt)
	var err error
	err = e.untilSpace(wanted, func() error {
		p := e.r.parts(e.run)
		if f.Reconciled { // the attempt itself may have stored something too, and so may an earlier look
			p = p.namedByContents()
		}
		f.Result, err = p.result(wanted, prefix, res, most)
		return err
	})
	return f, err
}

// untilSpace repeats what a full disk refused, and tells the operator once.
func (e *engine) untilSpace(ctx context.Context, do func() error) error {
	for retry, told := (backoff{}), false; ; told = true {
		err := do()
		if !errors.Is(err, auditstore.ErrFull) {
			return err
		}
		if !told {
			e.r.log.Warn("a run waits for space on the disk", "run", e.run, "error", err)
		}
		if err := pause(ctx, retry.next()); err != nil {
			return err
		}
	}
}

// notSentError says that a request was not even made.
type notSentError struct{ error }

// NotSent implements what notSent asks for.
func (notSentError) NotSent() bool { return true }

func (e notSentError) Unwrap() error { return e.error }

// refusing are the statuses by which a host or a decide service says that it did not do what it was asked, and will
// not: an outcome and no accident.
var refusing = map[codes.Code]bool{
	codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.FailedPrecondition: true,
	codes.OutOfRange: true, codes.PermissionDenied: true, codes.Unauthenticated: true, codes.Unimplemented: true,
}

// outcomeOf returns the result of a call that an error stands for, if it stands for one.
func outcomeOf(err error) (runstate.Result, bool) {
	result := runstate.Result{Text: messageOf(err)}
	st, isStatus := status.FromError(err)
	switch {
	case notSent(err):
		return runstate.Result{}, false
	case undecodable(err):
		result.Reason = runnerdv1.CallReason_CALL_REASON_RESULT_UNDECODABLE
	case tooLarge(err):
		result.Reason = runnerdv1.CallReason_CALL_REASON_RESULT_TOO_LARGE
	case isStatus && saysChanged(st):
		result.Reason, result.Code = runnerdv1.CallReason_CALL_REASON_TOOL_CHANGED, codeName(st.Code())
	case isStatus && refusing[st.Code()]:
		result.Reason, result.Code = runnerdv1.CallReason_CALL_REASON_HOST_REFUSED, codeName(st.Code())
	default:
		return runstate.Result{}, false
	}
	return result, true
}

// saysChanged reports whether a host refused a call because its tool is not what the run has pinned.
func saysChanged(st *status.Status) bool {
	if st.Code() != codes.FailedPrecondition {
		return false
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetDomain() == ErrorDomain && info.GetReason() == ReasonName(runnerdv1.ErrorReason_ERROR_REASON_TOOL_CHANGED)
		}
	}
	return false
}

// codeName is a status code as it stands in events, for example INVALID_ARGUMENT.
func codeName(c codes.Code) string {
	if name, ok := code.Code_name[int32(c)]; ok {
		return name
	}
	return code.Code_UNKNOWN.String()
}

// maxMessage is how much of somebody's error message is kept, in bytes.
const maxMessage = 2 << 10

// messageOf returns an error as it is shown: of a status only the message.
func messageOf(err error) string {
	text := err.Error()
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > maxMessage {
		text = cutBytes(runstate.RedactText(text), maxMessage) // a secret that is cut in two is not seen as one
	}
	return text
}
