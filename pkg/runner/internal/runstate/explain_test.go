package runstate

import runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"

// explain tells what is explained of the calls of a decision before it is recorded; nil: facts hold more, or none.
func (w *world) explain(facts []Fact) []*runnerdv1.ExplainPolicyResponse {
	if len(facts) != 1 || w.st.env.Catalogue == nil {
		return nil
	}
	d, ok := facts[0].(Decided)
	if !ok {
		return nil
	}
	var explained []*runnerdv1.ExplainPolicyResponse
	for i, call := range d.Decision.GetToolCalls().GetCalls() {
		var found Found
		if d.Found != nil {
			found = d.Found[i]
		}
		explained = append(explained, w.st.Explain(call, found))
	}
	return explained
}

// compare holds what was explained against what is recorded of the same calls: verdict, gate, rule and layer, and what
// lets one pass that would be asked. The limits of the run are no policy.
func (w *world) compare(explained []*runnerdv1.ExplainPolicyResponse, events []*runnerdv1.Event) {
	w.t.Helper()
	requested := 0
	calls := make(map[string]*runnerdv1.ExplainPolicyResponse) // that pass the limits
	for _, ev := range events {
		r := ev.GetToolCallRequested()
		if r == nil || explained == nil {
			continue
		}
		e := explained[requested]
		requested++
		if r.GetGate() == "limits" || r.GetRule() == "auto_mode.max_tool_calls" {
			continue
		}
		calls[r.GetCallId()] = e
		var by *runnerdv1.PolicyStep
		for _, step := range e.GetSteps() {
			if step.GetDecides() {
				if by != nil {
					w.t.Fatalf("two steps decide: %v", e)
				}
				by = step
			}
		}
		lowered := e.GetVerdict() == allow && r.GetVerdict() == ask
		switch {
		case by == nil || by.GetVerdict() != e.GetVerdict():
			w.t.Fatalf("no step gives the verdict: %v", e)
		case lowered:
			if by.GetGate() != "grants" && by.GetGate() != gateAuto {
				w.t.Fatalf("%v is explained as %v\n%s", r, e, w)
			}
		case e.GetVerdict() != r.GetVerdict() || by.GetGate() != r.GetGate() || by.GetRule() != r.GetRule() || by.GetLayer() != r.GetLayer():
			w.t.Fatalf("%v is explained as %v\n%s", r, e, w)
		}
	}
	for _, ev := range events {
		switch {
		case ev.GetToolCallApproved() != nil:
			if e := calls[ev.GetToolCallApproved().GetCallId()]; e != nil && e.GetVerdict() != allow {
				w.t.Fatalf("%v is explained as %v\n%s", ev, e, w)
			}
		case ev.GetToolCallPendingApproval() != nil:
			if e := calls[ev.GetToolCallPendingApproval().GetCallId()]; e != nil && e.GetVerdict() != ask {
				w.t.Fatalf("%v is explained as %v\n%s", ev, e, w)
			}
		case ev.GetToolCallBlocked() != nil:
			e := calls[ev.GetToolCallBlocked().GetCallId()]
			if e.GetVerdict() == block && e.GetReason() != ev.GetToolCallBlocked().GetReason() {
				w.t.Fatalf("%v is explained as %v\n%s", ev, e, w)
			}
		}
	}
}
