package runstate

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// SpecBytes returns the body of a spec, as it is stored, and its digest.
func SpecBytes(spec *runnerdv1.RunSpec) (body []byte, digest [32]byte) {
	body = deterministic(spec)
	return body, sha256.Sum256(body)
}

// CloneSpec copies a spec but for the layers of its policy, which are never changed.
func CloneSpec(spec *runnerdv1.RunSpec) *runnerdv1.RunSpec {
	rest := shallow(spec)
	rest.Policy = nil
	clone := proto.CloneOf(rest)
	clone.Policy = slices.Clone(spec.GetPolicy())
	return clone
}

// View returns the run as its owner sees it, with nothing redacted. The message may be changed, but not what it
// refers to: parts are shared with the state.
func (st *State) View() *runnerdv1.Run {
	c, started := &st.ctl, st.mem.started
	spec := shallow(st.env.Spec) // its policy may be long
	spec.Budget = c.Budget
	if spec.GetAutoMode() != nil {
		spec.AutoMode = shallow(spec.GetAutoMode())
		spec.AutoMode.Limits = c.AutoLimits
	}
	return &runnerdv1.Run{
		RunId: c.RunID, Agent: started.GetAgent(), Owner: st.mem.owner,
		State: st.Status(), StopReason: c.Stop, Outcome: Outcome(c.Stop), Category: Category(c.Stop), Status: Status(c.Stop),
		Resumable: st.Done() && !st.Final(), Leg: c.Leg, Iteration: c.Iteration, ToolCalls: c.ToolCalls,
		ConsecutiveFailures: c.Failures, ConsecutiveRefusals: c.Refusals, WarnedLevels: slices.Sorted(slices.Values(c.Warned)),
		ContextTokens: c.ContextTokens, ContextZone: st.contextZone(), Usage: c.Usage.totals(), RunningTime: durationpb.New(c.Running),
		FinalAnswer: st.finalAnswer(), ErrorMessage: st.mem.message, Hint: st.mem.hint,
		AutoMode: st.autoSummary(), Approvals: st.Approvals(), Grants: st.Grants(), Question: st.question(),
		Kind: started.GetKind(), KindSource: started.GetKindSource(), Identity: started.GetIdentity(),
		Labels: started.GetLabels(), MetadataJson: started.GetMetadataJson(), Spec: spec, Task: started.GetTask(),
		CreatedAt: timestamppb.New(st.mem.created), UpdatedAt: timestamppb.New(c.Time), HeadSequence: c.Sequence,
		ImportedObservations: started.GetReplayedObservations(), Model: started.GetModel(), Effort: started.GetEffort(),
	}
}

// Snapshot returns what View does, and may be kept while the state goes on. Its spec may be changed, but not what that
// refers to: a spec does not change, and its policy may be long.
func (st *State) Snapshot() *runnerdv1.Run {
	run := st.View()
	spec := run.GetSpec()
	run.Spec = nil
	run = proto.CloneOf(run)
	run.Spec = spec
	return run
}

// shallow copies a message and none of what it refers to.
func shallow[T proto.Message](m T) T {
	to := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(field, v)
		return true
	})
	return to.Interface().(T) //nolint:errcheck,forcetypeassert // a message makes messages of its own type
}

// finalAnswer is the answer that a leg was closed with; nil while one is open.
func (st *State) finalAnswer() *runnerdv1.FinalAnswer {
	if !st.Done() {
		return nil
	}
	return st.mem.answer
}

// question is the question that waits for an answer.
func (st *State) question() *runnerdv1.Question {
	if st.ctl.Phase != phaseQuestion || st.ctl.Confirm.open() {
		return nil
	}
	return st.mem.question
}

// Checkpoint returns the state as a checkpoint shows it.
func (st *State) Checkpoint() *runnerdv1.Checkpoint {
	c := &st.ctl
	return &runnerdv1.Checkpoint{
		RunId: c.RunID, Label: fmt.Sprintf("step-%d", c.Iteration), Iteration: c.Iteration, Sequence: c.Sequence,
		CreatedAt: timestamppb.New(c.Time), ToolCalls: c.ToolCalls, Usage: c.Usage.totals(),
		HistoryEntries: uint32(st.historyLen()),
		StopReason:     c.Stop, FinalAnswer: st.mem.answer,
	}
}

// Approvals returns the open approvals, oldest first. Their arguments, and what model and host say, are not filled in:
// they stand in events and in the catalogue.
func (st *State) Approvals() []*runnerdv1.Approval {
	var open []*runnerdv1.Approval
	if st.ctl.Confirm.open() {
		open = append(open, st.budgetApproval())
	}
	for _, c := range st.ctl.Calls {
		if c.asks() {
			open = append(open, st.approval(c))
		}
	}
	return open
}

// Approval returns an open approval and the sequence of the tool_call_requested event with its arguments; 0 for one that
// is about no call.
func (st *State) Approval(id uint64) (a *runnerdv1.Approval, requested uint64, ok bool) {
	if c := &st.ctl.Confirm; c.open() && c.Approval == id {
		return st.budgetApproval(), 0, true
	}
	for _, c := range st.ctl.Calls {
		if c.asks() && c.Approval == id {
			return st.approval(c), c.RequestedSeq, true
		}
	}
	return nil, 0, false
}

// DoubtRule is the rule that asks about a call whose outcome is unknown.
const DoubtRule = "in_doubt"

func (st *State) approval(c *call) *runnerdv1.Approval {
	a := &runnerdv1.Approval{
		RunId: st.ctl.RunID, ApprovalId: c.Approval, Kind: runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL,
		Agent: st.mem.started.GetAgent(), CallId: c.ID, Host: c.Host, Tool: c.Tool,
		ArgumentDigest: c.ArgumentDigest, ApprovalDigest: c.ApprovalDigest, Annotations: c.Annotations, Tier: c.Tier,
		OpenedAt: timestamp(c.ApprovalOpened), ExpiresAt: timestamp(c.ApprovalExpires),
	}
	if c.Status == callDoubt {
		a.Kind, a.Attempt, a.Cause = runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT, c.Attempt, c.Cause
		a.Rule = DoubtRule
		return a
	}
	a.Gate, a.Rule, a.Layer = c.Gate, c.Rule, c.Layer
	a.PossibleGrants, a.Program = st.possibleGrants(c)
	return a
}

// Description returns what a host says that one of its tools does; empty if the tool is not in the catalogue.
func (c *Catalogue) Description(host, tool string) string { return c.find(host, tool).GetDescription() }

// CallName returns the tool name of an open call as the model wrote it, for display.
func (st *State) CallName(callID string) string {
	if c := st.call(callID); c != nil {
		return c.ToolName
	}
	return ""
}

// EventTypes returns the names of all event types, as Event.type has them.
func EventTypes() []string {
	fields := payloadField.Fields()
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = strings.ToLower(string(fields.Get(i).Name()))
	}
	return names
}
