package runstate

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// MaxCalls is the largest number of calls of a decision.
const MaxCalls = 128

// maxMetadata is the largest metadata of an answer in bytes.
const maxMetadata = 16 << 10

// deciding reports whether that attempt of a Decide is in progress.
func (t *advance) deciding(iteration, attempt uint32) bool {
	c := &t.st.ctl
	return !t.st.Closed() && c.Phase == phaseDecide && c.Iteration == iteration && c.Decide.Attempt == attempt
}

// decided records a decision, and of its calls what checks and gates say.
func (t *advance) decided(f Decided) {
	if !t.deciding(f.Iteration, f.Attempt) {
		return
	}
	d := f.Decision
	cost, totals, err := t.st.ctl.Usage.add(d.GetUsage())
	if err != nil {
		t.invalid(f.Attempt, "bad_usage", err.Error(), "", nil)
		return
	}
	bill := &bill{usage: d.GetUsage(), cost: cost, totals: totals}
	if d.GetTruncated() {
		t.invalid(f.Attempt, "truncated", "it was cut off at the output limit, so nothing of it was run; send less at a time",
			d.GetText(), bill)
		return
	}
	made, calls := decisionOf(d)
	switch {
	case made == nil:
		t.invalid(f.Attempt, "empty", "it holds neither text nor calls", "", bill)
		return
	case len(calls) > MaxCalls:
		t.invalid(f.Attempt, "too_many_calls", fmt.Sprintf("it holds %d calls; at most %d can be made at once", len(calls), MaxCalls),
			d.GetText(), bill)
		return
	case len(made.GetMetadataJson()) > maxMetadata:
		t.invalid(f.Attempt, "too_large", fmt.Sprintf("the metadata of the answer has %d bytes; at most %d are taken",
			len(made.GetMetadataJson()), maxMetadata), d.GetText(), bill)
		return
	}
	made.Attempt, made.Transport, made.Duration = f.Attempt, cutText(d.GetTransport(), 64), durationpb.New(f.Duration)
	made.Usage, made.CostNanocents, made.Totals = bill.usage, bill.cost, bill.totals
	made.AnsweredBy = f.AnsweredBy
	f.Refs.apply(made)
	for i := range calls {
		made.CallIds = append(made.CallIds, callID(f.Iteration, i))
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_DecisionMade{DecisionMade: made}})
	t.warn(made.GetUsage(), cost)
	t.gate(calls, f.Refs.Arguments, f.Found)
}

// bill is what a Decide cost.
type bill struct {
	usage  *runnerdv1.Usage
	cost   *int64
	totals *runnerdv1.UsageTotals
}

// decisionOf brings a decision into the form of its event; nil if it says nothing.
func decisionOf(d *runnerdv1.Decision) (*runnerdv1.DecisionMade, []*runnerdv1.ToolCall) {
	made := &runnerdv1.DecisionMade{Text: d.GetText(), Reasoning: d.GetReasoning(), ProviderState: d.GetProviderState()}
	switch next := d.GetNext().(type) {
	case *runnerdv1.Decision_ToolCalls:
		if calls := next.ToolCalls.GetCalls(); len(calls) > 0 {
			made.Kind = runnerdv1.DecisionKind_DECISION_KIND_CALLS
			return made, calls
		}
	case *runnerdv1.Decision_Question:
		if next.Question.GetText() != "" {
			made.Text = next.Question.GetText()
		}
		if strings.TrimSpace(made.Text) == "" {
			return nil, nil
		}
		made.Kind = runnerdv1.DecisionKind_DECISION_KIND_QUESTION
		return made, nil
	case *runnerdv1.Decision_Answer:
		if next.Answer.GetContent() != "" {
			made.Text = next.Answer.GetContent()
		}
		made.MetadataJson = next.Answer.GetMetadataJson()
	}
	if strings.TrimSpace(made.Text) == "" {
		return nil, nil
	}
	made.Kind = runnerdv1.DecisionKind_DECISION_KIND_ANSWER // text and nothing else is an answer
	return made, nil
}

func (r DecisionRefs) apply(d *runnerdv1.DecisionMade) {
	if r.Text != nil {
		d.Text, d.TextRef = "", r.Text
	}
	if r.Reasoning != nil {
		d.Reasoning, d.ReasoningRef = "", r.Reasoning
	}
	if r.ProviderState != nil {
		d.ProviderState, d.ProviderStateRef = nil, r.ProviderState
	}
}

// invalid records an answer of the decide service that cannot be used. What it cost is charged all the same.
func (t *advance) invalid(attempt uint32, code, message, preview string, b *bill) {
	// A secret that is cut in two is not seen as one, so it is replaced before.
	preview = cutText(RedactText(preview), maxPreview)
	inv := &runnerdv1.DecisionInvalid{Code: code, Message: message, Preview: preview, Attempt: attempt}
	if b == nil {
		_, totals, err := t.st.ctl.Usage.add(nil)
		if err != nil {
			t.err = err
			return
		}
		b = &bill{totals: totals}
	}
	inv.Usage, inv.CostNanocents, inv.Totals = b.usage, b.cost, b.totals
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_DecisionInvalid{DecisionInvalid: inv}})
	if code != "bad_usage" {
		t.warn(inv.GetUsage(), inv.CostNanocents)
	}
}

// warn records what people, and the model, should know of the budget after a Decide.
func (t *advance) warn(used *runnerdv1.Usage, cost *int64) {
	t.warnBudget()
	t.warnCostUnknown(cost)
	t.warnContext(used)
}

// warnCostUnknown tells once that the cost cap cannot be enforced.
func (t *advance) warnCostUnknown(cost *int64) {
	if _, capped := t.st.costCap(); !capped || cost != nil || t.st.ctl.CostWarned {
		return
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_BudgetWarning{BudgetWarning: &runnerdv1.BudgetWarning{
		Kind:         runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_COST_UNKNOWN,
		MaxCostCents: t.st.ctl.Budget.GetMaxCostCents(),
	}}})
}

// maxCostCents is the largest cost of one Decide.
const maxCostCents = 1e9

// add returns the totals after one more Decide. What is not reported is unknown, not 0.
func (u usage) add(one *runnerdv1.Usage) (cost *int64, totals *runnerdv1.UsageTotals, err error) {
	u.Decisions++
	if one == nil || one.CostCents == nil && one.InputTokens == nil && one.OutputTokens == nil && one.CachedInputTokens == nil {
		u.WithoutUsage++
	}
	if one == nil || one.CostCents == nil {
		u.WithoutCost++
	} else {
		cents := one.GetCostCents()
		if math.IsNaN(cents) || cents < 0 || cents > maxCostCents {
			return nil, nil, fmt.Errorf("usage.cost_cents is %v; it must lie between 0 and 1e9", cents)
		}
		nano := nanocentsOf(cents)
		cost = &nano
		if u.CostNano > math.MaxInt64-nano {
			return nil, nil, errors.New("usage.cost_cents is more than can be summed")
		}
		u.CostNano += nano
	}
	for _, count := range []struct {
		name string
		sum  *int64
		more int64
	}{
		{"input_tokens", &u.In, one.GetInputTokens()},
		{"output_tokens", &u.Out, one.GetOutputTokens()},
		{"cached_input_tokens", &u.Cached, one.GetCachedInputTokens()},
	} {
		if count.more < 0 {
			return nil, nil, fmt.Errorf("usage.%s is %d; it must not be negative", count.name, count.more)
		}
		if *count.sum > math.MaxInt64-count.more {
			return nil, nil, fmt.Errorf("usage.%s is more than can be summed", count.name)
		}
		*count.sum += count.more
	}
	return cost, u.totals(), nil
}

func (u usage) totals() *runnerdv1.UsageTotals {
	return &runnerdv1.UsageTotals{
		CostNanocents: u.CostNano, CostCents: float64(u.CostNano) / 1e9,
		InputTokens: u.In, OutputTokens: u.Out, CachedInputTokens: u.Cached,
		Decisions: u.Decisions, DecisionsWithoutUsage: u.WithoutUsage, DecisionsWithoutCost: u.WithoutCost,
	}
}

// minDecideRetries is how often an unreachable decide service is asked again, however impatient the agent.
const minDecideRetries = 2

// decideFailed asks again, or ends the run when that is of no use.
func (t *advance) decideFailed(f DecideFailed) {
	if !t.deciding(f.Iteration, f.Attempt) {
		return
	}
	c := &t.st.ctl
	if c.Cancel.Mode != runnerdv1.CancelMode_CANCEL_MODE_UNSPECIFIED { // nothing new starts
		t.close(t.ending())
		return
	}
	patience := t.st.env.Spec.GetDecidePatience().AsDuration()
	spent := c.Decide.Failed >= minDecideRetries && t.now.Sub(c.Decide.FirstFailure) >= patience
	if f.Permanent || spent {
		t.closeTransport(f)
		return
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_DecideRetried{DecideRetried: &runnerdv1.DecideRetried{
		Attempt: c.Decide.Attempt + 1, Code: f.Code, Message: f.Message,
		RetryAt: timestamppb.New(t.now.Add(backoff(c.RunID+"/"+callID(c.Iteration, 0), c.Decide.Failed+1))),
	}}})
}

func (t *advance) closeTransport(f DecideFailed) {
	const reason = runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR
	t.fail(reason, fmt.Sprintf("%s: %s: %s", t.st.endMessage(reason), f.Code, f.Message), endHints[reason])
}
