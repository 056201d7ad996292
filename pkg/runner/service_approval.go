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
	vote, err := s.voteOf(ctx, req, openApproval(row.GetRun(), req.GetApprovalId()))
	if err != nil {
		return nil, err
	}
	reply, err := s.runner.Deliver(ctx, req.GetRunId(), vote)
	if errors.Is(err, runstate.ErrNotOpen) {
		return s.closedAnswer(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	closed, err := s.approvalFromLog(ctx, row, req.GetApprovalId(), reply.Sequence)
	if err != nil {
		return nil, err
	}
	return s.answered(ctx, closed)
}

func (s *runService) answered(ctx context.Context, closed *loggedApproval) (*runnerdv1.SubmitApprovalResponse, error) {
	if err := s.showArguments(ctx, closed, maxShownArguments); err != nil {
		return nil, err
	}
	return &runnerdv1.SubmitApprovalResponse{Approval: closed.Approval}, nil
}

// validateVerdict checks what belongs to which verdict.
func validateVerdict(req *runnerdv1.SubmitApprovalRequest) error {
	settle := req.GetVerdict() == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
	approve := req.GetVerdict() == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	switch {
	case settle && req.GetResult() == nil:
		return invalidField("result", "is required to settle")
	case !settle && req.GetResult() != nil:
		return invalidField("result", "belongs to SETTLE only")
	case !approve && req.EditedArgumentsJson != nil:
		return invalidField("edited_arguments_json", "belongs to APPROVE only")
	case !approve && req.GetGrant() != runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED:
		return invalidField("grant", "belongs to APPROVE only")
	}
	return invalidRequest(checkJSON(nil, "result.structured_json", req.GetResult().GetStructuredJson(), false))
}

// voteOf is the fact that a request brings. What is big in it is stored before, but only for an approval that it can
// close; nil asked: it is not open.
func (s *runService) voteOf(ctx context.Context, req *runnerdv1.SubmitApprovalRequest, asked *runnerdv1.Approval) (vote runstate.Vote, err error) {
	vote = runstate.Vote{
		Principal:  PrincipalFrom(ctx).Name,
		ApprovalID: req.GetApprovalId(),
		Verdict:    req.GetVerdict(),
		Digest:     req.GetApprovalDigest(),
		Reason:     req.GetReason(),
		Grant:      req.GetGrant(),
	}
	kind := asked.GetKind()
	if asked.GetApprovalDigest() != req.GetApprovalDigest() {
		kind = runnerdv1.ApprovalKind_APPROVAL_KIND_UNSPECIFIED
	}
	if req.GetVerdict() == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE && kind != runnerdv1.ApprovalKind_APPROVAL_KIND_UNSPECIFIED {
		if vote.Found.Changed, err = s.runner.changedSince(ctx, asked); err != nil {
			return vote, err
		}
	}
	if req.EditedArgumentsJson != nil {
		vote.Edited = &runstate.Edit{Text: req.GetEditedArgumentsJson()}
		if kind == runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL {
			vote.Edited, err = s.runner.Edited(ctx, req.GetRunId(), req.GetApprovalId(), req.GetEditedArgumentsJson())
		}
	}
	if req.GetResult() != nil && kind == runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT {
		vote.Result, err = s.runner.Settled(ctx, req.GetRunId(), req.GetApprovalId(), req.GetResult())
	}
	return vote, err
}

// closedAnswer answers a verdict on an approval that is not open: the same verdict on the same digest is answered the
// same, anything else is told how the approval was closed.
func (s *runService) closedAnswer(ctx context.Context, req *runnerdv1.SubmitApprovalRequest) (*runnerdv1.SubmitApprovalResponse, error) {
	// The row is read again: it was changed in the commit that closed the approval, or the run.
	row, err := s.runner.Row(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	closed, err := s.approvalFromLog(ctx, row, req.GetApprovalId(), 0)
	if err != nil {
		return nil, err
	}
	if reason := closedReason(req, closed, row.GetRun().GetState()); reason != nil {
		return nil, reason
	}
	return s.answered(ctx, closed)
}

// closedReason says why a verdict on a closed approval is refused; nil: it is the verdict that closed it.
func closedReason(req *runnerdv1.SubmitApprovalRequest, closed *loggedApproval, state runnerdv1.RunState) *Error {
	settle := runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
	sameVerdict := closed.GetVia() == runnerdv1.Via_VIA_HUMAN && closed.GetVerdict() == req.GetVerdict()
	sameDigest := closed.GetApprovalDigest() == req.GetApprovalDigest()
	switch {
	case req.GetVerdict() == settle && closed.GetKind() != runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE, "only a call in doubt can be settled")
	case sameVerdict && sameDigest && closed.editedTo(req.EditedArgumentsJson) && closed.GetGrant().GetScope() == req.GetGrant():
		return nil
	case state == runnerdv1.RunState_RUN_STATE_DONE:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED, "the run has ended")
	case sameVerdict && !sameDigest:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH, "the approval was about something else")
	case closed.GetVia() == runnerdv1.Via_VIA_TIMEOUT:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_TIMED_OUT, "the approval timed out before the verdict")
	case closed.GetVia() == runnerdv1.Via_VIA_CANCEL:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_CANCELLED, "the approval was closed because its call will not run any more: the run was cancelled, or an earlier call has an unknown outcome")
	case closed.GetVia() == runnerdv1.Via_VIA_GRANT:
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_ALREADY_RESOLVED, "a grant of the run has let the call pass")
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
		open := openApproval(run, approvalOfKey(stored.Key))
		if open == nil {
			return false, nil
		}
		row, err := decodeRow(&stored)
		if err != nil {
			return false, err
		}
		approval, err := s.openFromLog(ctx, row.Row, open)
		if err == nil {
			err = s.show(ctx, row.Row, approval, maxShownArguments)
		}
		if err != nil {
			return false, err
		}
		resp.Approvals = append(resp.Approvals, approval.Approval)
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
	var approval *loggedApproval
	if open := openApproval(row.GetRun(), req.GetApprovalId()); open != nil {
		approval, err = s.openFromLog(ctx, row, open)
	} else {
		approval, err = s.approvalFromLog(ctx, row, req.GetApprovalId(), 0)
	}
	if err == nil {
		err = s.show(ctx, row, approval, maxWholeArguments)
	}
	if err != nil {
		return nil, err
	}
	return &runnerdv1.GetApprovalResponse{Approval: approval.Approval}, nil
}
