package runstate

import (
	"cmp"
	"errors"
	"fmt"
	"iter"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// verdict is what checks and gates say about one call.
type verdict struct {
	verdict           runnerdv1.Verdict
	gate, rule, layer string
	reason            runnerdv1.CallReason // of a failed check or a block
	message           string               // what the model is shown of it
	preview           string               // and after it, of arguments that are wrong
	tool              *Tool
	arguments         Arguments
}

// Found is what the shell found out about a call before it is judged: what only I/O can tell. The zero value says that
// there is nothing against the call.
type Found struct {
	Changed bool          // the host says other things about the tool than when it was pinned
	Paths   []PathFinding // what is wrong with paths of the call beneath the workspaces of layers that share it
}

// gate records every call of a decision with what checks and gates say. All are judged before anything starts.
func (t *advance) gate(calls []*runnerdv1.ToolCall, refs []*runnerdv1.ArtifactRef, found []Found) {
	left, autoLeft := int64(t.st.ctl.Budget.GetMaxToolCalls())-int64(t.st.ctl.ToolCalls), t.st.autoCallsLeft()
	verdicts := make([]verdict, len(calls))
	room := maxCheckMessages
	for i, call := range calls {
		var f Found
		if found != nil {
			f = found[i]
		}
		v := t.st.judge(call, f)
		v.message = cutText(v.message, max(room, minCheckMessage))
		room -= len(v.message)
		if v.verdict == runnerdv1.Verdict_VERDICT_ALLOW || v.verdict == runnerdv1.Verdict_VERDICT_ASK {
			if left <= 0 || autoLeft <= 0 {
				v.verdict, v.gate, v.rule, v.layer = block, "limits", "max_tool_calls", ""
				v.reason, v.message = runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET, ""
				if left > 0 {
					v.gate, v.rule = gateAuto, "auto_mode.max_tool_calls"
				}
			} else {
				left--
				autoLeft--
			}
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
			t.outcome(c, Result{Reason: v.reason, Text: v.message, Preview: v.preview}, outcomeOf{})
		case runnerdv1.Verdict_VERDICT_BLOCK:
			t.refuse(c, v)
		}
	}
}

// request is the event of a call as the model made it.
func (st *State) request(id string, call *runnerdv1.ToolCall, ref *runnerdv1.ArtifactRef, v verdict) *runnerdv1.Event {
	r := &runnerdv1.ToolCallRequested{
		CallId: id, ProviderCallId: cutText(call.GetId(), maxProviderID), ToolName: shortName(call.GetName()),
		ArgumentsRaw: call.GetArgumentsJson(),
		Verdict:      v.verdict, Gate: v.gate, Rule: v.rule, Layer: v.layer,
	}
	if ref != nil {
		r.ArgumentsRaw, r.ArgumentsRef = "", ref
	}
	if v.tool != nil {
		r.Host, r.Tool, r.Tier, r.Recovery = v.tool.GetHost(), v.tool.GetName(), v.tool.GetTier(), v.tool.GetRecovery()
		r.Annotations, r.SchemaDigest, r.RateLimit = v.tool.GetAnnotations(), v.tool.GetSchemaDigest(), v.tool.GetRateLimit()
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
func (st *State) judge(call *runnerdv1.ToolCall, found Found) verdict {
	v := st.check(call)
	if v.verdict == runnerdv1.Verdict_VERDICT_FAILED {
		return v
	}
	s := &subject{tool: v.tool, arguments: v.arguments, plan: st.env.Spec.GetPlan(), found: found}
	o := gates(st.env.Spec, s, nil)
	v.verdict, v.gate, v.rule, v.layer, v.reason, v.message = o.verdict, o.gate, o.rule, o.layer, o.reason, o.message
	return v
}

// check looks a call up and checks its arguments; its verdict is FAILED or none yet.
func (st *State) check(call *runnerdv1.ToolCall) verdict {
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
		if bad, ok := errors.AsType[*ArgumentError](err); ok {
			v.preview = bad.Preview
		}
		return v
	}
	if err := st.env.Catalogue.CheckArguments(tool, []byte(arguments.Text)); err != nil {
		v := failed("schema", runnerdv1.CallReason_CALL_REASON_SCHEMA_MISMATCH, "arguments do not match the schema of %q: %v", call.GetName(), err)
		v.tool, v.arguments = tool, arguments
		return v
	}
	return verdict{tool: tool, arguments: arguments}
}

// subject is a call that passed its checks, as gates see it.
type subject struct {
	tool      *Tool
	arguments Arguments
	plan      *runnerdv1.PlanContract // nil: none is bound
	workspace string                  // to which the targets of the plan are relative; empty: none is known
	found     Found

	// What gates found out on the way, so that no other does again.
	values  *node // arguments
	paths   []*pathArgument
	looked  bool // for paths
	planned bool // the targets of the plan were looked at
}

// objection is what a gate has against a call: that a person must be asked, or that it is blocked.
type objection struct {
	verdict           runnerdv1.Verdict
	gate, rule, layer string
	reason            runnerdv1.CallReason
	message           string // of a block: what the model and people are told
}

// gate is one rule that a call has to pass. It looks at each layer of the policy, or at the run as a whole: one of the two
// is set. It gives nil where it has nothing against the call.
type gate struct {
	name  string
	layer func(*runnerdv1.PolicyLayer, *subject) *objection
	run   func(*runnerdv1.RunSpec, *subject) *objection
}

// gateAuto is the gate of auto mode.
const gateAuto = "auto_mode"

// gatesInOrder are all gates, in the order in which calls pass them.
var gatesInOrder = [...]gate{
	{name: "catalogue", run: changedGate},
	{name: "file_policy", layer: denyGate},
	{name: "paths", layer: pathGate},
	{name: "sensitive_paths", layer: sensitiveGate},
	{name: "plan", layer: planGate},
	{name: gateAuto, run: autoListGate},
	{name: "mode", layer: modeGate},
	{name: "approval_for", layer: approvalGlobGate},
}

// says goes through what a gate says to a call, by layer. A gate that looks at the whole run says nothing unless it has
// something against the call.
func (g gate) says(spec *runnerdv1.RunSpec, s *subject) iter.Seq2[string, *objection] {
	return func(yield func(string, *objection) bool) {
		if g.run != nil {
			if o := g.run(spec, s); o != nil {
				yield("", o)
			}
			return
		}
		for _, layer := range spec.GetPolicy() {
			if !yield(layer.GetName(), g.layer(layer, s)) {
				return
			}
		}
	}
}

// gates passes a call through all gates: the first block decides, else the first ask, else it is allowed. What each
// gate says of each layer is told to visit, if there is one; nil: nothing.
func gates(spec *runnerdv1.RunSpec, s *subject, visit func(gate, layer string, o *objection)) objection {
	allowed := &objection{verdict: allow, gate: "policy", rule: "no_objection"}
	var allowing, asking *objection // the first that does
	s.workspace = workspaceOf(spec)
	for _, g := range gatesInOrder {
		for layer, o := range g.says(spec, s) {
			if o != nil {
				o.gate, o.layer = g.name, layer
			}
			if visit != nil {
				visit(g.name, layer, o)
			}
			switch {
			case o == nil:
			case o.verdict == block:
				return *o
			case o.verdict == ask:
				asking = cmp.Or(asking, o)
			default: // allows, and says by which rule
				allowing = cmp.Or(allowing, o)
			}
		}
	}
	return *cmp.Or(asking, allowing, allowed)
}
