package runstate

import (
	"fmt"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Explain tells what would become of a call that the model made now: each check and gate in its order, what it says, and
// which of them decides. Nothing is changed.
func (st *State) Explain(made *runnerdv1.ToolCall, found Found) *runnerdv1.ExplainPolicyResponse {
	e := &explanation{out: &runnerdv1.ExplainPolicyResponse{}}
	v := st.check(made)
	if v.tool != nil {
		e.out.Definition = v.tool.Tool
	}
	for _, check := range checks {
		if v.gate == check {
			e.say(check, "", &objection{verdict: v.verdict, reason: v.reason, message: v.message})
			return e.decided(e.last(), v.verdict, v.reason)
		}
		e.say(check, "", nil)
	}
	s := &subject{tool: v.tool, arguments: v.arguments, plan: st.env.Spec.GetPlan(), found: found}
	o := gates(st.env.Spec, s, e.say)
	if o.verdict == ask {
		asked := &call{
			ToolName: made.GetName(), Host: v.tool.GetHost(), Tool: v.tool.GetName(), Tier: v.tool.GetTier(),
			arguments: Part{Text: v.arguments.Text}, Status: callRequested, Verdict: ask, Gate: o.gate, Rule: o.rule, Layer: o.layer,
		}
		if lowered := st.lowers(asked); lowered != nil {
			e.say(lowered.gate, "", lowered)
			return e.decided(e.last(), allow, 0)
		}
	}
	step := e.find(o)
	if step == nil { // nobody has anything against it
		e.say(o.gate, o.layer, &o)
		step = e.last()
	}
	return e.decided(step, o.verdict, o.reason)
}

// checks are what a call passes before the gates.
var checks = []string{"lookup", "json", "schema"}

// lowers says what lets a call pass that would be asked; nil: nothing does.
func (st *State) lowers(c *call) *objection {
	if st.autoCovers(c) {
		return &objection{verdict: allow, gate: "auto_mode", rule: "auto_mode", message: "auto mode approves it"}
	}
	if g := st.coveredBy(c); g != nil {
		return &objection{
			verdict: allow, gate: "grants", rule: fmt.Sprintf("grant:%d", g.ID), message: "a grant of " + g.By + " covers it",
		}
	}
	return nil
}

// explanation is an answer in the making.
type explanation struct {
	out *runnerdv1.ExplainPolicyResponse
}

// say takes a step down; nil: the check or gate has nothing against the call.
func (e *explanation) say(gate, layer string, o *objection) {
	step := &runnerdv1.PolicyStep{Gate: gate, Layer: layer, Verdict: allow}
	if o != nil {
		step.Rule, step.Verdict, step.Message = o.rule, o.verdict, o.message
	}
	e.out.Steps = append(e.out.Steps, step)
}

func (e *explanation) last() *runnerdv1.PolicyStep { return e.out.GetSteps()[len(e.out.GetSteps())-1] }

// find returns the step that is an objection; nil: none is.
func (e *explanation) find(o objection) *runnerdv1.PolicyStep {
	for _, step := range e.out.GetSteps() {
		if step.GetGate() == o.gate && step.GetLayer() == o.layer && step.GetRule() == o.rule && step.GetVerdict() == o.verdict {
			return step
		}
	}
	return nil
}

func (e *explanation) decided(by *runnerdv1.PolicyStep, v runnerdv1.Verdict, reason runnerdv1.CallReason) *runnerdv1.ExplainPolicyResponse {
	by.Decides = true
	e.out.Verdict, e.out.Reason = v, reason
	return e.out
}
