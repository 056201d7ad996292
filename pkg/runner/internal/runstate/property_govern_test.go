package runstate

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestAnyAskingRun is TestAnyRun for runs that have room, ask for nearly everything, and are answered: what comes with
// answers, as grants, edits and revocations, needs luck to happen among all else.
func TestAnyAskingRun(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := newSpec()
		spec.Policy = askFor(rapid.SampledFrom([]string{"*", "charge", "tool:o*"}).Draw(t, "approval_for"))
		spec.Policy = append(spec.Policy, randomPolicy(t)[1:]...)
		spec.Approval.Mode = rapid.SampledFrom([]runnerdv1.ApprovalMode{
			runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE,
		}).Draw(t, "mode")
		spec.InDoubt = runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK
		r := newRandomRun(t, spec)
		r.asking = true
		r.play()
	})
}

// answer is what a person does about what is asked or granted; nil: there is nothing to do.
func (r *randomRun) answer() Fact {
	granted := len(r.w.st.Grants()) > 0
	switch {
	case granted && rapid.IntRange(0, 5).Draw(r.t, "revoke") == 5:
		return r.revoke()
	case len(r.w.st.Approvals()) > 0:
		return r.vote()
	}
	return nil
}

// askedFor is a decision with calls that must be asked for, some of them of one command.
func (r *randomRun) askedFor() *runnerdv1.Decision {
	calls := &runnerdv1.ToolCalls{}
	for range rapid.IntRange(1, 4).Draw(r.t, "calls") {
		calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{
			Name: rapid.SampledFrom(r.called).Draw(r.t, "tool"),
			ArgumentsJson: rapid.SampledFrom([]string{
				`{"command":"make all"}`, `{"command":"make x"}`, `{"command":"ls"}`, `{"command":"make x; y"}`, `{"n":1}`,
			}).Draw(r.t, "arguments"),
		})
	}
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: calls}}
}

// randomPolicy draws layers, each with a mode, or globs of what must be approved, or both.
func randomPolicy(t *rapid.T) []*runnerdv1.PolicyLayer {
	modes := []runnerdv1.PermissionMode{runnerdv1.PermissionMode_PERMISSION_MODE_UNSPECIFIED}
	for mode := range modeCells {
		modes = append(modes, mode)
	}
	slices.Sort(modes)
	layers := askFor(rapid.SampledFrom([][]string{{"charge"}, nil, {"read", "notify"}, {"*"}}).Draw(t, "approval_for")...)
	for i := range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "layers") {
		layers = append(layers, &runnerdv1.PolicyLayer{
			Name: fmt.Sprint("layer", i), Mode: rapid.SampledFrom(modes).Draw(t, "mode of the layer"),
			ApprovalFor: rapid.SampledFrom([][]string{nil, {"tool:o*"}}).Draw(t, "approval_for of the layer"),
			Plan:        runnerdv1.PlanRule(rapid.Int32Range(0, 2).Draw(t, "plan")),
		})
	}
	return layers
}

// ballot adds to a verdict what may come with it: a grant, edited arguments, a tool that has changed.
func (r *randomRun) ballot(v Vote) Vote {
	t := r.t
	v.Grant = rapid.SampledFrom([]runnerdv1.GrantScope{
		runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED, runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED,
		runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL, runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX,
	}).Draw(t, "grant")
	switch rapid.IntRange(0, 7).Draw(t, "edit") {
	case 7:
		v.Edited = &Edit{Text: rapid.SampledFrom([]string{`{"n":7}`, "", `{"n":"x"}`, "{", `{"command":"make test"}`}).Draw(t, "edited")}
	case 6:
		v.Edited = &Edit{Text: `{"n":8}`, Ref: &runnerdv1.ArtifactRef{ArtifactId: "edited", Size: 7}}
	}
	v.Found.Changed = rapid.IntRange(0, 9).Draw(t, "changed") == 9
	return v
}

// found is what the world finds out about the calls of a decision; mostly nothing.
func (r *randomRun) found(calls int) []Found {
	if rapid.IntRange(0, 3).Draw(r.t, "found") < 3 {
		return nil
	}
	found := make([]Found, calls)
	for i := range found {
		found[i].Changed = rapid.IntRange(0, 3).Draw(r.t, "changed") == 3
	}
	return found
}

// revoke takes back a grant that holds, or one that does not.
func (r *randomRun) revoke() Fact {
	id := rapid.Uint64Range(1, 30).Draw(r.t, "grant")
	if held := r.w.st.Grants(); len(held) > 0 && rapid.IntRange(0, 3).Draw(r.t, "held") > 0 {
		id = held[rapid.IntRange(0, len(held)-1).Draw(r.t, "which")].GetGrantId()
	}
	return Revoke{Principal: "approver", GrantID: id}
}
