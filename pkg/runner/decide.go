package runner

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

const (
	// maxDecision is the largest decision in bytes.
	maxDecision = 1 << 20
	// maxRequest is the largest request to a decide service in bytes, artifacts that ride along included.
	maxRequest = 3 << 20
	// maxRiding bounds the artifacts that ride along together, in bytes.
	maxRiding = 1 << 20
)

// decide makes one attempt of a Decide. The request is made here, while the state stands still; what it refers to is
// fetched on the way.
func (e *engine) decide(f runstate.Decide) work {
	req, fetch := e.st.DecideRequest()
	req.Deadline = timestamp(f.Deadline)
	service, r := e.spec.GetDecideService(), e.r
	spec, catalogue := e.spec, e.st.Catalogue()
	at := flight{name: "decide", iteration: f.Iteration, attempt: f.Attempt}
	broken := runstate.DecideBroken{Iteration: f.Iteration, Attempt: f.Attempt}
	return work{
		deadline: f.Deadline,
		flight:   at,
		do: func(ctx, wanted context.Context, token string) (runstate.Fact, error) {
			begin := r.now()
			if err := r.complete(ctx, req, fetch); err != nil {
				return nil, err
			}
			req.RunToken = token
			decision, err := r.cfg.Decider.Decide(ctx, service, req, func(text string) {
				e.signal(at, "text_delta", func(s *runnerdv1.Signal) {
					s.Payload = &runnerdv1.Signal_TextDelta{TextDelta: &runnerdv1.TextDeltaSignal{Text: text}}
				})
			})
			if err != nil {
				return nil, err
			}
			if size := proto.Size(decision); size > maxDecision {
				broken.Code, broken.Message = "too_large", fmt.Sprintf("it has %d bytes; at most %d are taken", size, maxDecision)
				return broken, nil
			}
			if n := len(decision.GetToolCalls().GetCalls()); n > runstate.MaxCalls {
				broken.Code = "too_many_calls"
				broken.Message = fmt.Sprintf("it holds %d calls; at most %d can be made at once", n, runstate.MaxCalls)
				return broken, nil
			}
			out := runstate.Decided{Iteration: f.Iteration, Attempt: f.Attempt, Decision: decision, Duration: r.now().Sub(begin)}
			out.Found = r.findOut(wanted, spec, catalogue, decision.GetToolCalls().GetCalls())
			err = e.untilSpace(wanted, func() error {
				out.Refs, err = r.parts(e.run).namedByContents().decision(wanted, f.Iteration, f.Attempt, decision)
				return err
			})
			return out, err
		},
		failed: func(ctx context.Context, err error) runstate.Fact {
			switch broken.Message = messageOf(err); {
			case undecodable(err):
				broken.Code = "undecodable"
				return broken
			case tooLarge(err):
				broken.Code = "too_large"
				return broken
			case badStream(err) != "":
				broken.Code = badStream(err)
				return broken
			}
			c := decideCode(ctx, err)
			return runstate.DecideFailed{
				Iteration: f.Iteration, Attempt: f.Attempt, Code: codeName(c), Message: messageOf(err),
				Permanent: refusing[c] && !notSent(err),
			}
		},
	}
}

// decideCode returns the status code of a failed Decide.
func decideCode(ctx context.Context, err error) codes.Code {
	switch st, ok := status.FromError(err); {
	case notSent(err):
		return codes.Unavailable
	case pastDeadline(ctx):
		return codes.DeadlineExceeded
	case ctx.Err() != nil:
		return codes.Canceled
	case ok:
		return st.Code()
	default:
		return codes.Unknown
	}
}

// complete puts into a request what stands in artifacts of the run, and small artifacts of results, newest first.
func (r *Runner) complete(ctx context.Context, req *runnerdv1.DecideRequest, fetch []runstate.Fetch) error {
	for _, f := range fetch {
		part, err := r.ReadPart(ctx, req.GetRunId(), f.Ref)
		if err != nil {
			return fmt.Errorf("part of the request: %w", err)
		}
		f.Set(part)
	}
	room := maxRiding
	history := req.GetHistory()
	for i := len(history) - 1; i >= 0 && room > 0; i-- {
		for n, ref := range history[i].GetObservation().GetArtifacts() {
			if n == 0 && history[i].GetObservation().GetTextTruncated() {
				continue // the whole of what is shown as a preview: it was cut because it is too long
			}
			if int64(ref.GetSize()) > int64(room) {
				continue
			}
			if room == maxRiding { // the first: only now is the size of the request needed
				room = min(room, maxRequest-proto.Size(req)-len(req.GetRunId())-maxTokenRoom)
				if int64(ref.GetSize()) > int64(room) {
					continue
				}
			}
			data, err := r.ReadPart(ctx, req.GetRunId(), ref)
			if err != nil {
				return fmt.Errorf("artifact of the request: %w", err)
			}
			room -= len(data) + len(ref.GetArtifactId()) + ridingOverhead
			req.Blobs = append(req.Blobs, &runnerdv1.InlineBlob{ArtifactId: ref.GetArtifactId(), Data: data})
		}
	}
	return nil
}

const (
	maxTokenRoom   = 512 // of the run token, which comes last
	ridingOverhead = 32  // of an artifact that rides along, beside id and bytes
)

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
