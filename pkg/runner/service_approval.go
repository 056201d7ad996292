package runner

import (
	"context"
	"errors"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// SubmitApproval implements RunService.
func (s *runService) SubmitApproval(ctx context.Context, req *runnerdv1.SubmitApprovalRequest) (*runnerdv1.SubmitApprovalResponse, error) {
	row, err := s.row(ctx, runnerdv1.RunService_SubmitApproval_FullMethodName, req.GetRunId())
	if err != nil {
		return nil, err
	}
	if err := s.checkVoter(ctx, PrincipalFrom(ctx), row.GetRun()); err != nil {
		return nil, err
	}
	if err := validateVerdict(req); err != nil {
		return nil, err
	}
	vote := runstate.Vote{
		Principal:  PrincipalFrom(ctx).Name,
		ApprovalID: req.GetApprovalId(),
		Verdict:    req.GetVerdict(),
		Digest:     req.GetApprovalDigest(),
		Reason:     req.GetReason(),
	}
	if asked := openApproval(row.GetRun(), req.GetApprovalId()); req.GetResult() != nil &&
		asked.GetKind() == runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT {
		// What is big is stored before the verdict is brought, and only for what it can settle.
		if vote.Result, err = s.runner.Settled(ctx, req.GetRunId(), req.GetApprovalId(), req.GetResult()); err != nil {
			return nil, err
		}
	}
	reply, err := s.runner.Deliver(ctx, req.GetRunId(), vote)
	if errors.Is(err, runstate.ErrNotOpen) {
		return s.closedAnswer(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	approval, err := s.approvalFromLog(ctx, row.GetRun().GetAgent(), req.GetRunId(), req.GetApprovalId(), reply.Sequence)
	if err != nil {
		return nil, err
	}
	return &runnerdv1.SubmitApprovalResponse{Approval: approval}, nil
}

// validateVerdict checks what belongs to which verdict.
func validateVerdict(req *runnerdv1.SubmitApprovalRequest) error {
	settle := req.GetVerdict() == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
	switch {
	case settle && req.GetResult() == nil:
		return invalidField("result", "is required to settle")
	case !settle && req.GetResult() != nil:
		return invalidField("result", "belongs to SETTLE only")
	}
	return invalidRequest(checkJSON(nil, "result.structured_json", req.GetResult().GetStructuredJson(), false))
}

// closedAnswer answers a verdict on an approval that is not open: the same verdict on the same digest is answered the
// same, anything else is told how the approval was closed.
func (s *runService) closedAnswer(ctx context.Context, req *runnerdv1.SubmitApprovalRequest) (*runnerdv1.SubmitApprovalResponse, error) {
	// The row is read again: it was changed in the commit that closed the approval, or the run.
	row, err := s.runner.Row(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	run := row.GetRun()
	closed, err := s.approvalFromLog(ctx, run.GetAgent(), req.GetRunId(), req.GetApprovalId(), 0)
	if err != nil {
		return nil, err
	}
	if reason := closedReason(req, closed, run.GetState()); reason != nil {
		return nil, reason
	}
	return &runnerdv1.SubmitApprovalResponse{Approval: closed}, nil
}

// closedReason says why a verdict on a closed approval is refused; nil: it is the verdict that closed it.
func closedReason(req *runnerdv1.SubmitApprovalRequest, closed *runnerdv1.Approval, state runnerdv1.RunState) *Error {
	settle := runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
	sameVerdict := closed.GetVia() == runnerdv1.Via_VIA_HUMAN && closed.GetVerdict() == req.GetVerdict()
	sameDigest := closed.GetApprovalDigest() == req.GetApprovalDigest()
	switch {
	case req.GetVerdict() == settle && closed.GetKind() != runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE, "only a call in doubt can be settled")
	case sameVerdict && sameDigest:
		return nil
	case state == runnerdv1.RunState_RUN_STATE_DONE:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED, "the run has ended")
	case sameVerdict:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH, "the approval was about something else")
	case closed.GetVia() == runnerdv1.Via_VIA_TIMEOUT:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_TIMED_OUT, "the approval timed out before the verdict")
	case closed.GetVia() == runnerdv1.Via_VIA_CANCEL:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_CANCELLED, "the approval was closed because its call will not run any more: the run was cancelled, or an earlier call has an unknown outcome")
	default:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_ALREADY_RESOLVED, "the approval was closed by another verdict")
	}
}

// openApproval returns an open approval of a row, nil if it is not open.
func openApproval(run *runnerdv1.Run, id uint64) *runnerdv1.Approval {
	for _, a := range run.GetApprovals() {
		if a.GetApprovalId() == id {
			return a
		}
	}
	return nil
}

// ListApprovals implements RunService.
func (s *runService) ListApprovals(ctx context.Context, req *runnerdv1.ListApprovalsRequest) (*runnerdv1.ListApprovalsResponse, error) {
	p, resp := PrincipalFrom(ctx), new(runnerdv1.ListApprovalsResponse)
	take := func(stored auditstore.Row, run *runnerdv1.Run) (bool, error) {
		if !p.Has(run.GetAgent(), RoleApprover) || req.GetRunId() != "" && run.GetRunId() != req.GetRunId() {
			return false, nil
		}
		approval := openApproval(run, approvalOfKey(stored.Key))
		if approval == nil {
			return false, nil
		}
		if err := s.showArguments(ctx, approval, false); err != nil {
			return false, err
		}
		resp.Approvals = append(resp.Approvals, approval)
		return true, nil
	}
	next, err := s.page(ctx, req, prefixAsk, req.GetPageToken(), pageLimit(req.GetPageSize()), take)
	if err != nil {
		return nil, err
	}
	resp.NextPageToken = next
	return resp, nil
}

// GetApproval implements RunService.
func (s *runService) GetApproval(ctx context.Context, req *runnerdv1.GetApprovalRequest) (*runnerdv1.GetApprovalResponse, error) {
	row, err := s.row(ctx, runnerdv1.RunService_GetApproval_FullMethodName, req.GetRunId())
	if err != nil {
		return nil, err
	}
	approval := openApproval(row.GetRun(), req.GetApprovalId())
	if approval == nil {
		approval, err = s.approvalFromLog(ctx, row.GetRun().GetAgent(), req.GetRunId(), req.GetApprovalId(), 0)
		if err != nil {
			return nil, err
		}
	}
	if err := s.showArguments(ctx, approval, true); err != nil {
		return nil, err
	}
	return &runnerdv1.GetApprovalResponse{Approval: approval}, nil
}
