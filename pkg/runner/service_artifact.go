package runner

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// ReadArtifact implements RunService.
func (s *runService) ReadArtifact(req *runnerdv1.ReadArtifactRequest, stream grpc.ServerStreamingServer[runnerdv1.ReadArtifactResponse]) error {
	ctx := stream.Context()
	if _, err := s.row(ctx, runnerdv1.RunService_ReadArtifact_FullMethodName, req.GetRunId()); err != nil {
		return err
	}
	if part, ok := runstate.ParseInlinePart(req.GetArtifactId()); ok {
		return s.sendInline(req, part, stream)
	}
	return s.sendBlob(ctx, req, stream)
}

// sendBlob streams a stored artifact.
func (s *runService) sendBlob(ctx context.Context, req *runnerdv1.ReadArtifactRequest, stream grpc.ServerStreamingServer[runnerdv1.ReadArtifactResponse]) error {
	for offset := int64(req.GetOffset()); ; {
		if offset < 0 { // past what any artifact can be, if there is one
			if _, err := s.runner.ReadBlob(ctx, req.GetRunId(), req.GetArtifactId(), 0); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			return pastArtifact(req)
		}
		chunk, err := s.runner.ReadBlob(ctx, req.GetRunId(), req.GetArtifactId(), offset)
		if errors.Is(err, io.EOF) {
			if offset > 0 && uint64(offset) == req.GetOffset() {
				return s.checkEnd(ctx, req)
			}
			return nil
		}
		if err != nil {
			return err
		}
		if err := stream.Send(&runnerdv1.ReadArtifactResponse{Data: chunk, Offset: uint64(offset)}); err != nil {
			return err
		}
		offset += int64(len(chunk))
	}
}

// checkEnd tells an artifact that ends at the offset, of which there is nothing more, from one that ends before it.
func (s *runService) checkEnd(ctx context.Context, req *runnerdv1.ReadArtifactRequest) error {
	_, err := s.runner.ReadBlob(ctx, req.GetRunId(), req.GetArtifactId(), int64(req.GetOffset())-1)
	if errors.Is(err, io.EOF) {
		return pastArtifact(req)
	}
	return err
}

func pastArtifact(req *runnerdv1.ReadArtifactRequest) *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD, "the artifact ends before byte %d", req.GetOffset())
}

// sendInline streams a part that stands in an event.
func (s *runService) sendInline(req *runnerdv1.ReadArtifactRequest, part runstate.InlinePart, stream grpc.ServerStreamingServer[runnerdv1.ReadArtifactResponse]) error {
	text, err := s.inlinePart(stream.Context(), req, part)
	if err != nil {
		return err
	}
	if req.GetOffset() > uint64(len(text)) {
		return pastArtifact(req)
	}
	for offset := int(req.GetOffset()); offset < len(text); {
		end := min(offset+artifactChunk, len(text))
		if err := stream.Send(&runnerdv1.ReadArtifactResponse{Data: []byte(text[offset:end]), Offset: uint64(offset)}); err != nil {
			return err
		}
		offset = end
	}
	return nil
}

func (s *runService) inlinePart(ctx context.Context, req *runnerdv1.ReadArtifactRequest, part runstate.InlinePart) (string, error) {
	missing := errorf(runnerdv1.ErrorReason_ERROR_REASON_ARTIFACT_NOT_FOUND, "run %q has no artifact %q", req.GetRunId(), req.GetArtifactId())
	rec, ok, err := s.runner.store.recordAt(ctx, req.GetRunId(), part.Sequence)
	if err != nil {
		return "", err
	}
	if !ok || rec.Erased {
		return "", missing
	}
	ev, err := decode(rec)
	if err != nil {
		return "", err
	}
	text, ok := part.In(ev) // a preview is not the result: the event names the artifact that is
	if !ok {
		return "", missing
	}
	return text, nil
}
