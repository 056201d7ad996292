package runner

import (
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/runnerd/runnerd/gen/runnerd/storage/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// runService is RunService: handlers that only translate. A call has been authenticated, its method allowed and its
// request checked against the proto before a handler sees it.
type runService struct {
	runnerdv1.UnimplementedRunServiceServer
	server *Server
	runner *Runner
	pages  pageTokens
}

// row returns the row of a run that the caller may call the method on.
func (s *runService) row(ctx context.Context, method, run string) (*storagev1.Row, error) {
	row, err := s.runner.Row(ctx, run)
	if err != nil {
		return nil, err
	}
	if err := accessTable[method].checkRun(PrincipalFrom(ctx), row.GetRun()); err != nil {
		return nil, err
	}
	return row, nil
}

// now returns a run as it is now, as the caller may see it.
func (s *runService) now(ctx context.Context, run string) (*runnerdv1.Run, error) {
	snapshot, err := s.runner.Snapshot(ctx, run)
	if err != nil {
		return nil, err
	}
	return view(ctx, withoutPolicy(snapshot.Run)), nil
}

// withoutPolicy leaves out what only GetRun shows: a policy may be long, and most callers know it.
func withoutPolicy(run *runnerdv1.Run) *runnerdv1.Run {
	if run.GetSpec() != nil {
		run.Spec.Policy = nil
	}
	return run
}

// withTask fills in the task of a run when it is too big to stand in the log.
func (s *runService) withTask(ctx context.Context, run *runnerdv1.Run) error {
	if run.GetTask() != "" {
		return nil
	}
	var task runstate.Part
	if err := s.runner.Inspect(ctx, run.GetRunId(), func(st *runstate.State) { task = st.Task() }); err != nil {
		return err
	}
	if task.Ref == nil {
		return nil // blank
	}
	text, err := s.runner.ReadPart(ctx, run.GetRunId(), task.Ref)
	if err != nil {
		return err
	}
	run.Task = string(text)
	return nil
}

// StartRun implements RunService.
func (s *runService) StartRun(ctx context.Context, req *runnerdv1.StartRunRequest) (*runnerdv1.StartRunResponse, error) {
	if s.server.draining.Err() != nil { // before any watcher hears of it
		return nil, errDraining()
	}
	if err := accessTable[runnerdv1.RunService_StartRun_FullMethodName].checkAgent(PrincipalFrom(ctx), req.GetAgent()); err != nil {
		return nil, err
	}
	if err := validateStart(req); err != nil {
		return nil, err
	}
	run, existed, err := s.runner.Start(ctx, PrincipalFrom(ctx).Name, req)
	if err != nil {
		return nil, err
	}
	return &runnerdv1.StartRunResponse{Run: view(ctx, withoutPolicy(run)), AlreadyStarted: existed}, nil
}

// GetRun implements RunService.
func (s *runService) GetRun(ctx context.Context, req *runnerdv1.GetRunRequest) (*runnerdv1.GetRunResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_GetRun_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	snapshot, err := s.runner.Snapshot(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	if err := s.withTask(ctx, snapshot.Run); err != nil {
		return nil, err
	}
	return &runnerdv1.GetRunResponse{Run: view(ctx, snapshot.Run)}, nil
}

// SubmitInput implements RunService.
func (s *runService) SubmitInput(ctx context.Context, req *runnerdv1.SubmitInputRequest) (*runnerdv1.SubmitInputResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_SubmitInput_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	reply, err := s.runner.Deliver(ctx, req.GetRunId(), runstate.Input{
		Principal: PrincipalFrom(ctx).Name,
		Text:      req.GetText(),
		RequestID: req.GetRequestId(),
	})
	if err != nil {
		return nil, err
	}
	return &runnerdv1.SubmitInputResponse{Sequence: reply.Sequence}, nil
}

// CancelRun implements RunService.
func (s *runService) CancelRun(ctx context.Context, req *runnerdv1.CancelRunRequest) (*runnerdv1.CancelRunResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_CancelRun_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	if _, err := s.runner.Deliver(ctx, req.GetRunId(), runstate.Cancel{
		Principal: PrincipalFrom(ctx).Name,
		Mode:      req.GetMode(),
		Reason:    req.GetReason(),
	}); err != nil {
		return nil, err
	}
	run, err := s.now(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	return &runnerdv1.CancelRunResponse{Run: run}, nil
}

// ResumeRun implements RunService.
func (s *runService) ResumeRun(ctx context.Context, req *runnerdv1.ResumeRunRequest) (*runnerdv1.ResumeRunResponse, error) {
	row, err := s.row(ctx, runnerdv1.RunService_ResumeRun_FullMethodName, req.GetRunId())
	if err != nil {
		return nil, err
	}
	p := PrincipalFrom(ctx)
	budget := req.GetBudget()
	if proto.Size(budget) == 0 {
		budget = nil // a budget without fields changes nothing
	}
	auto := req.GetAutoModeLimits()
	if proto.Size(auto) == 0 {
		auto = nil
	}
	if budget != nil || auto != nil {
		if !p.Has(row.GetRun().GetAgent(), RoleOperator) {
			return nil, permissionDenied("only operators raise limits")
		}
		before, err := s.runner.Snapshot(ctx, req.GetRunId())
		if err != nil {
			return nil, err
		}
		if err := checkBudget(budget, before.Run.GetSpec().GetBudgetMax()); err != nil {
			return nil, err
		}
		if err := checkAutoLimits(auto, before.Run.GetSpec().GetAutoMode()); err != nil {
			return nil, err
		}
	}
	resume := runstate.Resume{Principal: p.Name, Budget: budget, AutoLimits: auto}
	if _, err := s.runner.Deliver(ctx, req.GetRunId(), resume); err != nil {
		return nil, err
	}
	run, err := s.now(ctx, req.GetRunId())
	if err != nil {
		return nil, err
	}
	return &runnerdv1.ResumeRunResponse{Run: run}, nil
}

const (
	defaultWait = 30 * time.Second
	// waitMargin is how long before the deadline of a call WaitRun answers, so that the answer is there in time.
	waitMargin = 250 * time.Millisecond
)

// WaitRun implements RunService.
func (s *runService) WaitRun(ctx context.Context, req *runnerdv1.WaitRunRequest) (*runnerdv1.WaitRunResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_WaitRun_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	life, end := s.server.lifetime(ctx, false)
	defer end()
	wait, cancel := context.WithTimeout(life, waitTimeout(ctx, req))
	defer cancel()
	idle := req.GetUntil() == runnerdv1.WaitUntil_WAIT_UNTIL_IDLE
	run, timedOut, err := s.runner.WaitRun(wait, req.GetRunId(), idle)
	if err != nil {
		return nil, endedBy(life, err)
	}
	if timedOut && life.Err() != nil {
		return nil, endedBy(life, life.Err())
	}
	return &runnerdv1.WaitRunResponse{Run: view(ctx, withoutPolicy(run)), TimedOut: timedOut}, nil
}

// waitTimeout is how long to wait: what is asked for, and never past the deadline of the call.
func waitTimeout(ctx context.Context, req *runnerdv1.WaitRunRequest) time.Duration {
	timeout := defaultWait
	if req.GetTimeout() != nil {
		timeout = req.GetTimeout().AsDuration()
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		timeout = min(timeout, left-min(waitMargin, left/4))
	}
	return timeout
}

// ListTools implements RunService.
func (s *runService) ListTools(ctx context.Context, req *runnerdv1.ListToolsRequest) (*runnerdv1.ListToolsResponse, error) {
	if err := accessTable[runnerdv1.RunService_ListTools_FullMethodName].checkAgent(PrincipalFrom(ctx), req.GetAgent()); err != nil {
		return nil, err
	}
	catalogue, findings, err := s.runner.ListTools(ctx, req.GetAgent())
	if err != nil {
		return nil, err
	}
	digest, p := catalogue.Digest(), PrincipalFrom(ctx)
	resp := &runnerdv1.ListToolsResponse{
		Tools:           catalogue.Proto().GetTools(),
		Findings:        findings,
		CatalogueDigest: hex.EncodeToString(digest[:]),
	}
	if p.Credential && p.Has(req.GetAgent(), RoleAdmin) {
		return resp, nil
	}
	return show(resp, p.View(req.GetAgent())), nil
}
