package runner

import (
	"context"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// ExplainPolicy implements RunService. What hosts say of their tools is redacted for everyone.
func (s *runService) ExplainPolicy(ctx context.Context, req *runnerdv1.ExplainPolicyRequest) (*runnerdv1.ExplainPolicyResponse, error) {
	explained, err := s.explain(ctx, req)
	return runstate.RedactMessage(explained), err
}

func (s *runService) explain(ctx context.Context, req *runnerdv1.ExplainPolicyRequest) (*runnerdv1.ExplainPolicyResponse, error) {
	call := &runnerdv1.ToolCall{Name: req.GetTool(), ArgumentsJson: req.GetArgumentsJson()}
	if req.GetStart() == nil {
		if _, err := s.row(ctx, runnerdv1.RunService_ExplainPolicy_FullMethodName, req.GetRunId()); err != nil {
			return nil, err
		}
		return s.runner.ExplainRun(ctx, req.GetRunId(), call)
	}
	agent := req.GetStart().GetAgent()
	if err := accessTable[runnerdv1.RunService_ExplainPolicy_FullMethodName].checkAgent(PrincipalFrom(ctx), agent); err != nil {
		return nil, err
	}
	return s.runner.ExplainStart(ctx, req.GetStart(), call)
}

// ExplainStart tells what would become of a call of a run that was started now. Errors have the reasons of
// [Runner.Start] that are about the request.
func (r *Runner) ExplainStart(ctx context.Context, start *runnerdv1.StartRunRequest, call *runnerdv1.ToolCall) (*runnerdv1.ExplainPolicyResponse, error) {
	agent := r.cfg.Agents[start.GetAgent()]
	if agent == nil {
		return nil, agentNotFound(start.GetAgent())
	}
	spec, err := resolve(agent, start)
	if err != nil {
		return nil, err
	}
	catalogue, _, err := r.ListTools(ctx, agent.Name)
	if err != nil {
		return nil, err
	}
	return r.explainNew(ctx, spec, catalogue, call), nil
}

// ExplainRun tells what would become of a call of a run as it is, with the tools pinned for it and the grants that
// hold. Errors have the reason RUN_NOT_FOUND and those of the store.
func (r *Runner) ExplainRun(ctx context.Context, run string, call *runnerdv1.ToolCall) (*runnerdv1.ExplainPolicyResponse, error) {
	var spec *runnerdv1.RunSpec
	var catalogue *runstate.Catalogue
	if err := r.Inspect(ctx, run, func(st *runstate.State) { spec, catalogue = st.Spec(), st.Catalogue() }); err != nil {
		return nil, err
	}
	if catalogue == nil { // it waits for a slot
		return r.explainNew(ctx, spec, r.pin(ctx, spec).Catalogue, call), ctx.Err()
	}
	found := r.foundOf(ctx, spec, catalogue, call)
	var explained *runnerdv1.ExplainPolicyResponse
	err := r.Inspect(ctx, run, func(st *runstate.State) { explained = st.Explain(call, found) })
	return explained, err
}

// explainNew tells what would become of a call of a run that has no past.
func (r *Runner) explainNew(ctx context.Context, spec *runnerdv1.RunSpec, catalogue *runstate.Catalogue, call *runnerdv1.ToolCall) *runnerdv1.ExplainPolicyResponse {
	st := runstate.New(runstate.Env{Key: r.cfg.Key, Spec: spec, Catalogue: catalogue}, "")
	return st.Explain(call, r.foundOf(ctx, spec, catalogue, call))
}

// foundOf finds out about one call.
func (r *Runner) foundOf(ctx context.Context, spec *runnerdv1.RunSpec, catalogue *runstate.Catalogue, call *runnerdv1.ToolCall) runstate.Found {
	if found := r.findOut(ctx, spec, catalogue, []*runnerdv1.ToolCall{call}); found != nil {
		return found[0]
	}
	return runstate.Found{}
}
