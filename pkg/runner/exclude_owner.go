package runner

import (
	"context"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// checkVoter says whether a principal who may answer approvals of a run may answer those that it asked for itself by
// starting the run: not where two persons have to take part.
func (s *runService) checkVoter(ctx context.Context, p Principal, run *runnerdv1.Run) error {
	if !p.owns(run) {
		return nil
	}
	snapshot, err := s.runner.Snapshot(ctx, run.GetRunId())
	if err != nil {
		return err
	}
	if snapshot.Run.GetSpec().GetApproval().GetExcludeOwner() {
		return permissionDenied("the owner of this run may not answer its approvals: another approver has to")
	}
	return nil
}
