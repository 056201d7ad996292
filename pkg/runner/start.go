package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// start is a StartRun on its way to the driver of the run.
type start struct {
	principal string
	agent     *Agent
	spec      *resolved
	request   *runnerdv1.StartRunRequest
	digest    string // of the request
}

// Start starts a run and returns once run_started is durable. If the run exists, was started by the same principal and
// with an equal request, it is returned as it is now and existed is true. Errors have the reasons AGENT_NOT_FOUND,
// INVALID_REQUEST, BUDGET_TOO_WIDE, POLICY_NOT_ALLOWED, APPROVAL_NOT_ALLOWED, RUN_EXISTS, DISK_FULL, DRAINING and those
// of the store.
//
// The request must have passed its proto rules. It must not be changed any more.
func (r *Runner) Start(ctx context.Context, principal string, req *runnerdv1.StartRunRequest) (run *runnerdv1.Run, existed bool, err error) {
	agent := r.cfg.Agents[req.GetAgent()]
	if agent == nil {
		return nil, false, agentNotFound(req.GetAgent())
	}
	spec, err := r.plain.resolve(agent, req)
	if err != nil {
		return nil, false, err
	}
	digest, err := requestDigest(req)
	if err != nil {
		return nil, false, err
	}
	id := req.GetRunId()
	if id == "" {
		id = randomID()
	}
	got, err := r.post(ctx, id, item{start: &start{
		principal: principal, agent: agent, spec: spec, request: req, digest: digest,
	}})
	return got.run, got.existed, err
}

func agentNotFound(agent string) *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_AGENT_NOT_FOUND, "no agent %q", agent)
}

// requestDigest is by which a repeated request is known again.
func requestDigest(req *runnerdv1.StartRunRequest) (string, error) {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
	if err != nil {
		return "", invalidField("request", "cannot be encoded: %v", err)
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:]), nil
}

// resolve returns the spec of a run of the agent: what the agent gives, within its bounds as the request wants it.
func resolve(agent *Agent, req *runnerdv1.StartRunRequest) (*runnerdv1.RunSpec, error) {
	spec := runstate.CloneSpec(agent.Spec)
	spec.Agent, spec.ToolHosts, spec.RulesVersion = agent.Name, hostNames(agent), runstate.RulesVersion
	if spec.GetBudget() == nil {
		spec.Budget = new(runnerdv1.Budget)
	}
	if spec.GetBudgetMax() == nil {
		spec.BudgetMax = proto.CloneOf(spec.GetBudget())
	}
	if err := checkBudget(req.GetBudget(), spec.GetBudgetMax()); err != nil {
		return nil, err
	}
	runstate.ChangeBudget(spec.GetBudget(), req.GetBudget())
	if spec.GetApproval() == nil {
		spec.Approval = new(runnerdv1.ApprovalSettings)
	}
	if err := resolvePolicy(spec, agent, req); err != nil {
		return nil, err
	}
	if err := resolveAutoMode(spec, agent, req); err != nil {
		return nil, err
	}
	return spec, resolveApproval(spec.GetApproval(), agent.ApprovalModes, req.GetApproval())
}

func resolveApproval(have *runnerdv1.ApprovalSettings, allowed []runnerdv1.ApprovalMode, want *runnerdv1.ApprovalSettings) error {
	if len(allowed) > 0 {
		have.Mode = allowed[0]
	}
	if mode := want.GetMode(); mode != runnerdv1.ApprovalMode_APPROVAL_MODE_UNSPECIFIED && mode != have.GetMode() {
		if !slices.Contains(allowed, mode) {
			return approvalNotAllowed("approval.mode", "the agent does not allow this mode")
		}
		have.Mode = mode
	}
	if want.GetTimeout() != nil {
		most := have.GetTimeout()
		if most != nil && want.GetTimeout().AsDuration() > most.AsDuration() {
			return approvalNotAllowed("approval.timeout", fmt.Sprintf("the agent allows at most %v", most.AsDuration()))
		}
		have.Timeout = want.GetTimeout()
	}
	have.ExcludeOwner = have.GetExcludeOwner() || want.GetExcludeOwner()
	return nil
}

func approvalNotAllowed(field, problem string) *Error {
	e := errorf(runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_ALLOWED, "%s: %s", field, problem)
	e.Violations = []Violation{{Field: field, Description: problem, Rule: "approval"}}
	return e
}

// existing answers a StartRun for a run that is there already.
func (e *engine) existing(s *start) answer {
	if e.requestDigest != s.digest || e.owner != s.principal {
		return answer{err: errorf(runnerdv1.ErrorReason_ERROR_REASON_RUN_EXISTS,
			"a run %q was started by another request", e.run)}
	}
	return answer{run: e.st.Snapshot(), existed: true}
}

// begin records the first events of a run that has none, if somebody wants to start it, and drives it.
func (e *engine) begin(ctx context.Context) error {
	items := batch(e.mail.take(1)) // what comes behind finds the run, or learns that there is none
	for len(items) > 0 && items[0].start == nil {
		e.slot = e.slot || items[0].slot
		items.fail(runNotFound(e.run))
		items = e.mail.take(1)
	}
	if e.taken = items; len(items) == 0 {
		return errNoRun
	}
	if e.draining() {
		return errDraining()
	}
	if e.r.cfg.Full() {
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL, "no space on the disk, no new run is started")
	}
	s := items[0].start
	if err := e.own(ctx, 0); err != nil {
		return err
	}
	if e.claim.Head != 0 {
		return fmt.Errorf("run %s has events and no row", e.run)
	}
	st := runstate.New(runstate.Env{Key: e.r.cfg.Key, Spec: s.spec.spec, SpecDigest: s.spec.hex()}, e.run)
	started, err := e.firstEvent(ctx, s)
	if err != nil {
		return err
	}
	e.st, e.spec, e.resolved, e.requestDigest, e.owner = st, s.spec.spec, s.spec, s.digest, s.principal
	e.r.store.shared.put(s.spec.hex(), s.spec.spec)

	items[0].fact = runstate.Start{Principal: s.principal, Started: started}
	// With a fresh catalogue and a free slot the first Decide needs no further commit.
	if pinned, ok := e.r.lists.fresh(s.agent, e.r.now()); ok && e.takeSlot() {
		items = append(items, item{fact: pinned})
	}
	return e.drive(ctx, items)
}

// firstEvent returns the first event of a run. What is too big for it is stored beside it.
func (e *engine) firstEvent(ctx context.Context, s *start) (*runnerdv1.RunStarted, error) {
	req := s.request
	out := &runnerdv1.RunStarted{
		Agent: req.GetAgent(), SpecDigest: s.spec.hex(), RulesVersion: runstate.RulesVersion,
		RequestDigest: s.digest, Kind: req.GetKind(), KindSource: "override", Labels: req.GetLabels(),
		MetadataJson: req.GetMetadataJson(), Identity: req.GetIdentity(), Model: req.GetModel(), Effort: req.GetEffort(),
	}
	if out.GetKind() == runnerdv1.TaskKind_TASK_KIND_UNSPECIFIED {
		out.Kind, out.KindSource = runnerdv1.TaskKind_TASK_KIND_EDIT, "default"
	}
	p := e.r.parts(e.run)
	p.room = maxInlineMany
	var err error
	if out.Task, out.TaskRef, err = p.text(ctx, "start.task", mimeText, req.GetTask()); err != nil {
		return nil, err
	}
	if out.ContextJson, out.ContextRef, err = p.text(ctx, "start.context", mimeJSON, req.GetContextJson()); err != nil {
		return nil, err
	}
	for i, given := range req.GetInitialObservations() {
		o := &runnerdv1.Observation{
			Kind: given.GetKind(), ToolName: given.GetToolName(), ProviderCallId: given.GetProviderCallId(), Imported: true,
		}
		if o.Text, o.TextRef, err = p.text(ctx, fmt.Sprintf("start.%d.text", i), mimeText, given.GetText()); err != nil {
			return nil, err
		}
		id := fmt.Sprintf("start.%d.structured", i)
		if o.StructuredJson, o.StructuredRef, err = p.text(ctx, id, mimeJSON, given.GetStructuredJson()); err != nil {
			return nil, err
		}
		out.Observations = append(out.Observations, o)
	}
	out.ReplayedObservations = uint32(len(out.GetObservations()))
	return out, nil
}

// Deliver brings a fact to a run and returns once what follows from it is durable. It is the only way a fact reaches a
// run, and wakes a run at rest. A refusal is returned as the error too: a *runstate.Refusal, or what says that
// nothing is open or held: runstate.ErrNotOpen, runstate.ErrNoGrant.
// An input that is too big for an event is stored beside it here, and what an approver wants to run instead is looked at.
//
// If ctx ends first, the fact may or may not be recorded. Errors have the reasons RUN_NOT_FOUND, DISK_FULL, NOT_OWNER,
// DRAINING, INTERNAL and those of the store.
func (r *Runner) Deliver(ctx context.Context, runID string, fact runstate.Fact) (runstate.Reply, error) {
	if input, ok := fact.(runstate.Input); ok && len(input.Text) > maxPart {
		if _, err := r.store.row(ctx, runID); err != nil {
			return runstate.Reply{}, notFound(runID, err)
		}
		text, ref, err := r.parts(runID).namedByContents().text(ctx, "input", mimeText, input.Text)
		if err != nil {
			return runstate.Reply{}, err
		}
		input.Text, input.TextRef = text, ref
		fact = input
	}
	if vote, ok := fact.(runstate.Vote); ok && vote.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE {
		if err := r.findOutVote(ctx, runID, &vote); err != nil {
			return runstate.Reply{}, err
		}
		fact = vote
	}
	got, err := r.post(ctx, runID, item{fact: fact})
	return got.reply, err
}
