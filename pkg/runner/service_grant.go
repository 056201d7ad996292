package runner

import (
	"context"
	"errors"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// ListGrants implements RunService.
func (s *runService) ListGrants(ctx context.Context, req *runnerdv1.ListGrantsRequest) (*runnerdv1.ListGrantsResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_ListGrants_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	resp := new(runnerdv1.ListGrantsResponse)
	if err := s.runner.Inspect(ctx, req.GetRunId(), func(st *runstate.State) { resp.Grants = st.Grants() }); err != nil {
		return nil, err
	}
	return resp, nil
}

// RevokeGrant implements RunService.
func (s *runService) RevokeGrant(ctx context.Context, req *runnerdv1.RevokeGrantRequest) (*runnerdv1.RevokeGrantResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_RevokeGrant_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	reply, err := s.runner.Deliver(ctx, req.GetRunId(), runstate.Revoke{
		Principal: PrincipalFrom(ctx).Name,
		GrantID:   req.GetGrantId(),
		Reason:    req.GetReason(),
	})
	if errors.Is(err, runstate.ErrNoGrant) {
		return s.revokedBefore(ctx, req)
	}
	if err != nil {
		return nil, err
	}
	return &runnerdv1.RevokeGrantResponse{Sequence: reply.Sequence}, nil
}

// revokedBefore answers the revocation of a grant that does not hold: one that ever did was revoked before.
func (s *runService) revokedBefore(ctx context.Context, req *runnerdv1.RevokeGrantRequest) (*runnerdv1.RevokeGrantResponse, error) {
	ev, err := s.runner.Event(ctx, req.GetRunId(), req.GetGrantId())
	if e, ok := errors.AsType[*Error](err); ok && e.Reason == runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD {
		ev, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if grantOf(ev) == nil {
		return nil, errorf(runnerdv1.ErrorReason_ERROR_REASON_GRANT_NOT_FOUND, "run %q never had a grant %d", req.GetRunId(), req.GetGrantId())
	}
	return &runnerdv1.RevokeGrantResponse{}, nil
}
