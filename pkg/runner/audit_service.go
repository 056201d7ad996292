package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// maxVerifications bounds the verifications in progress: each reads the whole log.
const maxVerifications = 2

// auditService is AuditService.
type auditService struct {
	runnerdv1.UnimplementedAuditServiceServer
	runner    *Runner
	verifying gauge
}

// allowed says whether the caller may call the method on a run, or on all of them if it is empty.
func (s *auditService) allowed(ctx context.Context, method, run string) error {
	if run == "" {
		return accessTable[method].checkAll(PrincipalFrom(ctx))
	}
	row, err := s.runner.Row(ctx, run)
	if err != nil {
		return err
	}
	return accessTable[method].checkRun(PrincipalFrom(ctx), row.GetRun())
}

// viewOf is how much the caller sees of a run, or of all of them if it is empty.
func (s *auditService) viewOf(ctx context.Context, run string) View {
	p := PrincipalFrom(ctx)
	if run == "" {
		return p.viewOf(nil)
	}
	row, err := s.runner.Row(ctx, run)
	if err != nil {
		return ViewTypes
	}
	return p.viewOf(row.GetRun())
}

// VerifyAudit implements AuditService.
func (s *auditService) VerifyAudit(req *runnerdv1.VerifyAuditRequest, stream grpc.ServerStreamingServer[runnerdv1.VerifyAuditResponse]) error {
	ctx := stream.Context()
	if err := s.allowed(ctx, runnerdv1.AuditService_VerifyAudit_FullMethodName, req.GetRunId()); err != nil {
		return err
	}
	if err := s.verifying.enter(); err != nil {
		return err
	}
	defer s.verifying.leave()
	view := s.viewOf(ctx, req.GetRunId())
	v := &verification{store: &s.runner.store, send: func(m *runnerdv1.VerifyAuditResponse) error {
		return stream.Send(show(m, view))
	}}
	if err := v.verify(ctx, req.GetRunId()); err != nil {
		return err
	}
	return v.summary()
}

// exportBatch is how many bytes of lines one message of an export has at most, unless one line is longer.
const exportBatch = 1 << 20

// exportLine is one event of an export. Bytes are base64, digests lower-case hex.
type exportLine struct {
	RunID    string `json:"run_id"`
	Sequence uint64 `json:"sequence"`
	Position uint64 `json:"position"`
	PrevHash string `json:"prev_hash"`
	Hash     string `json:"hash"`
	Stored   []byte `json:"stored"`
	Private  []byte `json:"private,omitempty"`
	Salt     []byte `json:"salt,omitempty"`
}

// ExportAudit implements AuditService.
func (s *auditService) ExportAudit(req *runnerdv1.ExportAuditRequest, stream grpc.ServerStreamingServer[runnerdv1.ExportAuditResponse]) error {
	ctx := stream.Context()
	if err := s.allowed(ctx, runnerdv1.AuditService_ExportAudit_FullMethodName, req.GetRunId()); err != nil {
		return err
	}
	var lines []byte
	flush := func() error {
		if len(lines) == 0 {
			return nil
		}
		err := stream.Send(&runnerdv1.ExportAuditResponse{Lines: lines})
		lines = lines[:0]
		return err
	}
	for at := (auditstore.Cursor{}); ; {
		page, next, err := s.runner.cfg.Log.Read(ctx, auditstore.Scope{Run: req.GetRunId()}, at, pageSize)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return flush()
		}
		for i := range page {
			line, err := exported(&page[i], req.GetIncludePrivate())
			if err != nil {
				return err
			}
			if len(lines)+len(line) > exportBatch {
				if err := flush(); err != nil {
					return err
				}
			}
			lines = append(lines, line...)
		}
		at = next
	}
}

func exported(rec *auditstore.Record, private bool) ([]byte, error) {
	line := exportLine{
		RunID:    rec.Run,
		Sequence: rec.Sequence,
		Position: uint64(rec.Position),
		PrevHash: fmt.Sprintf("%x", rec.PrevHash),
		Hash:     fmt.Sprintf("%x", rec.Hash),
		Stored:   rec.Public,
	}
	if private {
		line.Private, line.Salt = rec.Private, rec.Salt
	}
	text, err := json.Marshal(line)
	if err != nil {
		return nil, fmt.Errorf("export run %s sequence %d: %w", rec.Run, rec.Sequence, err)
	}
	return append(text, '\n'), nil
}

// GetHead implements AuditService.
func (s *auditService) GetHead(ctx context.Context, req *runnerdv1.GetHeadRequest) (*runnerdv1.GetHeadResponse, error) {
	// The head of the whole log tells nothing of any run.
	if req.GetRunId() != "" {
		if err := s.allowed(ctx, runnerdv1.AuditService_GetHead_FullMethodName, req.GetRunId()); err != nil {
			return nil, err
		}
	}
	position, err := s.runner.cfg.Log.Head(ctx)
	if err != nil {
		return nil, err
	}
	resp := &runnerdv1.GetHeadResponse{LogId: s.runner.cfg.LogID, Position: uint64(position)}
	if req.GetRunId() == "" {
		return resp, nil
	}
	if err := s.runner.Inspect(ctx, req.GetRunId(), func(st *runstate.State) { resp.Sequence = st.Sequence() }); err != nil {
		return nil, err
	}
	rec, ok, err := s.runner.store.recordAt(ctx, req.GetRunId(), resp.GetSequence())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, internal(errors.New("the head of a run is not in its log"))
	}
	resp.Hash = rec.Hash[:]
	return resp, nil
}
