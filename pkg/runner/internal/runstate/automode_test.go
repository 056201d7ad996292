package runstate

import (
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestAnyRunInAutoMode lets anything happen to runs in auto mode: no sequence of facts lets a call of tier 4 that
// must be asked for start without a person, or one outside the list at all, or more than the limits that hold, and what auto mode approves is
// one call and nothing after it.
func TestAnyRunInAutoMode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec := newSpec()
		spec.Policy = randomPolicy(t)
		spec.Approval.Mode = rapid.SampledFrom([]runnerdv1.ApprovalMode{
			runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE,
			runnerdv1.ApprovalMode_APPROVAL_MODE_DENY,
		}).Draw(t, "mode")
		spec.AutoMode = randomAutoMode(t)
		r := newRandomRun(t, spec)
		r.asking, r.called, r.w.tools = true, []string{"charge", "order", "read", "write", "wipe"}, withWipe
		r.play()
		checkAutoRun(t, r.w)
	})
}

// withWipe is a catalogue with a tool of tier 4.
var withWipe = sync.OnceValue(func() *Catalogue {
	var hosts []HostTools
	for _, tool := range []string{"charge", "order", "read", "write", "wipe"} {
		def := &runnerdv1.ToolDefinition{Name: tool, Description: tool, InputSchemaJson: `{"type":"object"}`, OutputSchemaJson: `{"type":"object"}`}
		host := HostTools{Host: "host-" + tool, Timeout: 10 * time.Second, Tools: []*runnerdv1.ToolDefinition{def}}
		switch tool {
		case "read":
			def.Annotations = &runnerdv1.Annotations{ReadOnly: new(true)}
		case "write":
			def.Annotations = &runnerdv1.Annotations{Destructive: new(false), Idempotent: new(true)}
		case "wipe":
			host.Override = map[string]ToolOverride{tool: {Tier: new(uint32(4))}}
		}
		hosts = append(hosts, host)
	}
	c, _ := BuildCatalogue(hosts)
	return c
})

func randomAutoMode(t *rapid.T) *runnerdv1.AutoMode {
	auto := &runnerdv1.AutoMode{Limits: &runnerdv1.AutoModeLimits{
		MaxIterations: new(rapid.Uint32Range(1, 5).Draw(t, "auto_iterations")),
		MaxToolCalls:  new(rapid.Uint32Range(0, 8).Draw(t, "auto_calls")),
	}}
	if rapid.Bool().Draw(t, "auto_limited") {
		auto.Limits.MaxCostCents, auto.Limits.MaxDuration = new(2.0), durationpb.New(time.Minute)
	}
	globs := rapid.SampledFrom([][]string{{"charge", "wipe"}, {"w*"}, {"order"}, nil}).Draw(t, "auto_tools")
	if rapid.Bool().Draw(t, "auto_allows") {
		auto.AllowedTools = globs
	} else {
		auto.DeniedTools = globs
	}
	return auto
}

func checkAutoRun(t *rapid.T, w *world) {
	calls := make(map[string]*runnerdv1.ToolCallRequested)
	vias := make(map[string][]runnerdv1.Via)
	var started, iterations, approved uint32
	for _, ev := range w.events {
		switch p := ev.GetPayload().(type) {
		case *runnerdv1.Event_IterationStarted:
			iterations++
		case *runnerdv1.Event_ToolCallRequested:
			calls[p.ToolCallRequested.GetCallId()] = p.ToolCallRequested
		case *runnerdv1.Event_ToolCallApproved:
			id, via := p.ToolCallApproved.GetCallId(), p.ToolCallApproved.GetResolution().GetVia()
			vias[id] = append(vias[id], via)
			if via == runnerdv1.Via_VIA_AUTO {
				approved++
			}
		case *runnerdv1.Event_ToolCallStarted:
			started++
			call := calls[p.ToolCallStarted.GetCallId()]
			last := vias[call.GetCallId()]
			if call.GetTier() >= 4 && call.GetVerdict() == runnerdv1.Verdict_VERDICT_ASK && !slices.Contains(last, runnerdv1.Via_VIA_HUMAN) {
				t.Fatalf("call %s of tier 4 starts without a person\n%s", call.GetCallId(), w)
			}
			if call.GetVerdict() == runnerdv1.Verdict_VERDICT_ASK && len(last) == 0 {
				t.Fatalf("call %s starts on what was approved before it\n%s", call.GetCallId(), w)
			}
			if !listed(w.env.Spec.GetAutoMode(), call.GetTool()) {
				t.Fatalf("call %s of %s, which auto mode must not use, starts\n%s", call.GetCallId(), call.GetTool(), w)
			}
		}
	}
	got := w.st.View().GetAutoMode()
	if limits := got.GetLimits(); started > limits.GetMaxToolCalls() || iterations > limits.GetMaxIterations() {
		t.Fatalf("%d calls in %d iterations, with limits %v\n%s", started, iterations, limits, w)
	}
	if got.GetToolCalls() != started || got.GetIterations() != iterations || got.GetApprovedCalls() != approved {
		t.Fatalf("%d calls in %d iterations, %d approved, and the summary is %v\n%s", started, iterations, approved, got, w)
	}
}

// listed reports whether auto mode lets a tool be called, by the globs of randomAutoMode.
func listed(auto *runnerdv1.AutoMode, tool string) bool {
	matches := func(glob string) bool { return glob == tool || glob == "w*" && tool[0] == 'w' }
	if len(auto.GetAllowedTools()) > 0 {
		return slices.ContainsFunc(auto.GetAllowedTools(), matches)
	}
	return !slices.ContainsFunc(auto.GetDeniedTools(), matches)
}

func TestSeveralLimitsOfAutoModeAtOnce(t *testing.T) {
	t.Parallel()
	st := New(Env{Key: testKey, Spec: newSpec()}, "r")
	st.ctl.Iteration, st.ctl.Phase, st.ctl.Usage.CostNano, st.ctl.Running = 2, phaseBetween, 6e9, time.Minute
	st.ctl.Time = timeZero
	limits := &runnerdv1.AutoModeLimits{
		MaxIterations: new(uint32(2)), MaxCostCents: new(5.0), MaxDuration: durationpb.New(time.Second),
	}
	for _, want := range []string{"max_iterations", "max_cost_cents", "max_duration", ""} {
		if got := st.autoLimit(limits, timeZero, true); got != want {
			t.Errorf("with %v the limit is %q, not %q", limits, got, want)
		}
		switch want {
		case "max_iterations":
			limits.MaxIterations = nil
		case "max_cost_cents":
			limits.MaxCostCents = nil
		case "max_duration":
			limits.MaxDuration = nil
		}
	}
}
