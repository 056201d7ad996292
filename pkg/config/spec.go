package config

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Defaults of an agent.
const (
	DefaultMaxIterations          = 25
	DefaultMaxToolCalls           = 25
	DefaultMaxCostCents           = 100.0
	DefaultMaxConsecutiveFailures = 5
	DefaultMaxConsecutiveRefusals = 10
	DefaultMaxContextTokens       = 200_000
	DefaultContextWarningPercent  = 60
	DefaultApprovalTimeout        = time.Hour
	DefaultDecideTimeout          = 240 * time.Second
	DefaultToolTimeout            = 120 * time.Second
	DefaultDecidePatience         = 5 * time.Minute
	DefaultMaxParallelTools       = 4
	DefaultMaxResultBytes         = 16 << 20
)

var (
	approvalModes = map[string]runnerdv1.ApprovalMode{
		"wait":  runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT,
		"pause": runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE,
		"deny":  runnerdv1.ApprovalMode_APPROVAL_MODE_DENY,
	}
	onRefusal = map[string]runnerdv1.OnRefusal{
		"":         runnerdv1.OnRefusal_ON_REFUSAL_FEEDBACK,
		"feedback": runnerdv1.OnRefusal_ON_REFUSAL_FEEDBACK,
		"fail":     runnerdv1.OnRefusal_ON_REFUSAL_FAIL,
	}
	onQuestion = map[string]runnerdv1.OnQuestion{
		"":      runnerdv1.OnQuestion_ON_QUESTION_WAIT,
		"wait":  runnerdv1.OnQuestion_ON_QUESTION_WAIT,
		"block": runnerdv1.OnQuestion_ON_QUESTION_BLOCK,
	}
	inDoubt = map[string]runnerdv1.InDoubtPolicy{
		"":      runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_FAIL,
		"fail":  runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_FAIL,
		"ask":   runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK,
		"retry": runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_RETRY,
	}
)

// Spec is what a run of an agent is resolved to when its request names
// nothing; rules_version is left to the engine. The configuration must have
// been loaded by [Load].
func Spec(cfg *configv1.Config, name string) *runnerdv1.RunSpec {
	agent := cfg.GetAgents()[name]
	budget, widest := budgetsOf(agent)
	spec := &runnerdv1.RunSpec{
		Agent:         name,
		DecideService: agent.GetDecideService(),
		ToolHosts:     agent.GetToolHosts(),
		Budget:        budget,
		BudgetMax:     widest,
		Approval: &runnerdv1.ApprovalSettings{
			Mode:         ApprovalModes(agent)[0],
			Timeout:      orDuration(agent.GetApproval().GetTimeout(), DefaultApprovalTimeout),
			ExcludeOwner: agent.GetApproval().GetExcludeOwner(),
		},
		Policy:           layersOf(cfg, agent),
		OnDenial:         onRefusal[agent.GetOnDenial()],
		OnBlock:          onRefusal[agent.GetOnBlock()],
		OnQuestion:       onQuestion[agent.GetOnQuestion()],
		InDoubt:          inDoubt[agent.GetInDoubt()],
		DecideTimeout:    orDuration(agent.GetDecideTimeout(), DefaultDecideTimeout),
		DecidePatience:   orDuration(agent.GetDecidePatience(), DefaultDecidePatience),
		ConfirmAt_90:     agent.GetConfirmAt_90(),
		MaxParallelTools: DefaultMaxParallelTools,
		MaxResultBytes:   DefaultMaxResultBytes,
	}
	if agent.GetAutoMode().GetEnabled() {
		spec.AutoMode = autoMode(agent.GetAutoMode())
	}
	spec.ContextWarningPercent = DefaultContextWarningPercent
	if agent.ContextWarningPercent != nil {
		spec.ContextWarningPercent = agent.GetContextWarningPercent()
	}
	if agent.GetMaxParallelTools() > 0 {
		spec.MaxParallelTools = agent.GetMaxParallelTools()
	}
	if agent.GetMaxResultBytes() > 0 {
		spec.MaxResultBytes = agent.GetMaxResultBytes()
	}
	return spec
}

// ApprovalModes are the modes a request may choose from; the first is the
// default.
func ApprovalModes(agent *configv1.Agent) []runnerdv1.ApprovalMode {
	if len(agent.GetApproval().GetModes()) == 0 {
		return []runnerdv1.ApprovalMode{runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT}
	}
	var modes []runnerdv1.ApprovalMode
	for _, mode := range agent.GetApproval().GetModes() {
		modes = append(modes, approvalModes[mode])
	}
	return modes
}

// ToolTimeout is the longest time for one attempt of a call where neither the
// host nor the tool names one.
func ToolTimeout(agent *configv1.Agent) time.Duration {
	return orDuration(agent.GetToolTimeout(), DefaultToolTimeout).AsDuration()
}

// budgetsOf resolves the budget of an agent and the widest one a request may
// name: absent fields of the first have their defaults, those of the second
// are those of the first.
func budgetsOf(agent *configv1.Agent) (budget, widest *runnerdv1.Budget) {
	budget = &runnerdv1.Budget{
		MaxIterations:          proto.Uint32(DefaultMaxIterations),
		MaxToolCalls:           proto.Uint32(DefaultMaxToolCalls),
		MaxCostCents:           new(DefaultMaxCostCents),
		MaxContextTokens:       proto.Uint32(DefaultMaxContextTokens),
		MaxConsecutiveFailures: proto.Uint32(DefaultMaxConsecutiveFailures),
		MaxConsecutiveRefusals: proto.Uint32(DefaultMaxConsecutiveRefusals),
	}
	overlay(budget, agent.GetBudget())
	widest = proto.CloneOf(budget)
	overlay(widest, agent.GetBudgetMax())
	return budget, widest
}

// overlay puts the fields that over has into budget. A max_duration of 0 is
// spelled as its absence, the one way in which a resolved budget says no limit.
func overlay(budget, over *runnerdv1.Budget) {
	if over.GetMaxDuration() != nil {
		budget.MaxDuration = nil // proto.Merge would merge seconds and nanos
	}
	proto.Merge(budget, over)
	if budget.GetMaxDuration().AsDuration() == 0 {
		budget.MaxDuration = nil
	}
}

// width is one limit that is wider than its maximum.
type width struct {
	field      string
	have, most string
}

func (w width) isSet(b *runnerdv1.Budget) bool {
	if b == nil {
		return false
	}
	m := b.ProtoReflect()
	return m.Has(m.Descriptor().Fields().ByName(protoreflect.Name(w.field)))
}

// wider lists the limits of a resolved budget that are wider than those of
// another. No limit is the widest: 0 for what is counted in a row, absence for
// time.
func wider(budget, widest *runnerdv1.Budget) []width {
	var all []width
	add := func(over bool, field string, have, most any) {
		if over {
			all = append(all, width{field: field, have: fmt.Sprint(have), most: fmt.Sprint(most)})
		}
	}
	add(budget.GetMaxIterations() > widest.GetMaxIterations(),
		"max_iterations", budget.GetMaxIterations(), widest.GetMaxIterations())
	add(budget.GetMaxToolCalls() > widest.GetMaxToolCalls(),
		"max_tool_calls", budget.GetMaxToolCalls(), widest.GetMaxToolCalls())
	add(budget.GetMaxCostCents() > widest.GetMaxCostCents(),
		"max_cost_cents", budget.GetMaxCostCents(), widest.GetMaxCostCents())
	have, most := budget.GetMaxDuration().AsDuration(), widest.GetMaxDuration().AsDuration()
	add(most > 0 && (have == 0 || have > most), "max_duration", orNone(have), most)
	add(budget.GetMaxContextTokens() > widest.GetMaxContextTokens(),
		"max_context_tokens", budget.GetMaxContextTokens(), widest.GetMaxContextTokens())
	f, fMost := budget.GetMaxConsecutiveFailures(), widest.GetMaxConsecutiveFailures()
	add(fMost > 0 && (f == 0 || f > fMost), "max_consecutive_failures", f, fMost)
	r, rMost := budget.GetMaxConsecutiveRefusals(), widest.GetMaxConsecutiveRefusals()
	add(rMost > 0 && (r == 0 || r > rMost), "max_consecutive_refusals", r, rMost)
	return all
}

func orNone(d time.Duration) string {
	if d == 0 {
		return "no limit"
	}
	return d.String()
}

func orDuration(d *durationpb.Duration, otherwise time.Duration) *durationpb.Duration {
	if d == nil {
		return durationpb.New(otherwise)
	}
	return d
}
