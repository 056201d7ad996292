package runstate

import (
	"fmt"
	"slices"

	"github.com/bmatcuk/doublestar/v4"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// verdict is what checks and gates say about one call.
type verdict struct {
	verdict    runnerdv1.Verdict
	gate, rule string
	reason     runnerdv1.CallReason // of a failed check or a block
	message    string               // what the model is shown of it
	tool       *Tool
	arguments  Arguments
}

// gate records every call of a decision with what checks and gates say. All are judged before anything starts.
func (t *advance) gate(calls []*runnerdv1.ToolCall, refs []*runnerdv1.ArtifactRef) {
	left := int64(t.st.ctl.Budget.GetMaxToolCalls()) - int64(t.st.ctl.ToolCalls)
	verdicts := make([]verdict, len(calls))
	room := maxCheckMessages
	for i, call := range calls {
		v := t.st.judge(call)
		v.message = cutText(v.message, max(room, minCheckMessage))
		room -= len(v.message)
		if v.verdict != runnerdv1.Verdict_VERDICT_FAILED {
			if left <= 0 {
				v.verdict, v.gate, v.rule = runnerdv1.Verdict_VERDICT_BLOCK, "limits", "max_tool_calls"
				v.reason = runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET
			}
			left--
		}
		verdicts[i] = v
		var ref *runnerdv1.ArtifactRef
		if refs != nil {
			ref = refs[i]
		}
		t.emit(t.st.request(callID(t.st.ctl.Iteration, i), call, ref, v))
	}
	for i, v := range verdicts {
		c := t.st.ctl.Calls[i]
		switch v.verdict {
		case runnerdv1.Verdict_VERDICT_FAILED:
			t.outcome(c, Result{Reason: v.reason, Text: v.message}, outcomeOf{})
		case runnerdv1.Verdict_VERDICT_BLOCK:
			t.block(c, v.reason, v.gate, v.rule)
		}
	}
}

// request is the event of a call as the model made it.
func (st *State) request(id string, call *runnerdv1.ToolCall, ref *runnerdv1.ArtifactRef, v verdict) *runnerdv1.Event {
	r := &runnerdv1.ToolCallRequested{
		CallId: id, ProviderCallId: cutText(call.GetId(), maxProviderID), ToolName: shortName(call.GetName()),
		ArgumentsRaw: call.GetArgumentsJson(),
		Verdict:      v.verdict, Gate: v.gate, Rule: v.rule,
	}
	if ref != nil {
		r.ArgumentsRaw, r.ArgumentsRef = "", ref
	}
	if v.tool != nil {
		r.Host, r.Tool, r.Tier, r.Recovery = v.tool.GetHost(), v.tool.GetName(), v.tool.GetTier(), v.tool.GetRecovery()
		r.Annotations, r.SchemaDigest = v.tool.GetAnnotations(), v.tool.GetSchemaDigest()
	}
	if v.arguments.Text != "" {
		r.ArgumentDigest = st.env.Key.Digest(domainArguments, v.arguments.Canonical)
		r.ArgumentsHash = st.env.Key.Digest(domainExact, []byte(v.arguments.Text))
		if v.arguments.Text != call.GetArgumentsJson() {
			r.ArgumentsJson = &v.arguments.Text
		}
	}
	return &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallRequested{ToolCallRequested: r}}
}

// maxProviderID is how much of the model's own id is kept, in bytes.
const maxProviderID = 1024

// shortName returns the name of a tool as it is recorded. No tool has a name that has to be cut.
func shortName(name string) string {
	if len(name) <= maxToolName {
		return name
	}
	return cutText(name, maxToolName) + "…"
}

// judge checks one call (lookup, JSON, schema) and passes it through the gates.
func (st *State) judge(call *runnerdv1.ToolCall) verdict {
	failed := func(gate string, reason runnerdv1.CallReason, format string, args ...any) verdict {
		return verdict{
			verdict: runnerdv1.Verdict_VERDICT_FAILED, gate: gate, reason: reason,
			message: cutText(fmt.Sprintf(format, args...), maxCheckMessage),
		}
	}
	tool := st.env.Catalogue.Lookup(call.GetName())
	if tool == nil {
		return failed("lookup", runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL, "%s", st.unknownTool(call.GetName()))
	}
	arguments, err := ParseArguments(call.GetArgumentsJson())
	if err != nil {
		v := failed("json", runnerdv1.CallReason_CALL_REASON_ARGUMENTS_INVALID, "%s", argumentsMessage(err, tool))
		v.tool = tool
		return v
	}
	if err := st.env.Catalogue.CheckArguments(tool, []byte(arguments.Text)); err != nil {
		v := failed("schema", runnerdv1.CallReason_CALL_REASON_SCHEMA_MISMATCH, "arguments do not match the schema of %q: %v", call.GetName(), err)
		v.tool, v.arguments = tool, arguments
		return v
	}
	v := verdict{verdict: runnerdv1.Verdict_VERDICT_ALLOW, tool: tool, arguments: arguments}
	for _, glob := range st.env.Spec.GetPolicy()[0].GetApprovalFor() {
		if matchesTool(glob, tool) {
			v.verdict, v.gate, v.rule = runnerdv1.Verdict_VERDICT_ASK, "approval_for", "approval_for:"+glob
			break
		}
	}
	return v
}

// matchesTool reports whether a glob means the tool: by its own name, by the name under which it is offered, or by
// "tool:" and one of them.
func matchesTool(glob string, tool *Tool) bool {
	return slices.ContainsFunc([]string{tool.GetName(), tool.GetOfferedName()}, func(name string) bool {
		return doublestar.MatchUnvalidated(glob, name) || doublestar.MatchUnvalidated(glob, "tool:"+name)
	})
}
