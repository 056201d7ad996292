package runstate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// decided is the decision of the Decide in progress with these calls, each by its tool's name.
func (w *world) decided(tools ...string) Decided {
	w.t.Helper()
	calls := &runnerdv1.ToolCalls{}
	for _, tool := range tools {
		calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{Name: tool, ArgumentsJson: `{"n":1}`})
	}
	return w.decision(&runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: calls}})
}

func (w *world) decision(d *runnerdv1.Decision) Decided {
	w.t.Helper()
	effect, ok := w.turn.Effects[0].(Decide)
	if !ok {
		w.t.Fatalf("no Decide is in progress\n%s", w)
	}
	d.Usage = &runnerdv1.Usage{CostCents: new(0.5), InputTokens: proto.Int64(100), OutputTokens: proto.Int64(10)}
	return Decided{Iteration: effect.Iteration, Attempt: effect.Attempt, Decision: d}
}

func (w *world) finish(id string, attempt uint32) {
	w.t.Helper()
	w.do(CallFinished{CallID: id, Attempt: attempt, Result: Result{Text: "result"}})
}

func (w *world) lose(id string, cause runnerdv1.LostCause) {
	w.t.Helper()
	w.do(CallLost{CallID: id, Attempt: 1, Cause: cause, Message: "lost"})
}

func (w *world) open() uint64 {
	w.t.Helper()
	open := w.st.Approvals()
	if len(open) == 0 {
		w.t.Fatalf("no approval is open\n%s", w)
	}
	return open[0].GetApprovalId()
}

const (
	approve = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	deny    = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
	stream  = runnerdv1.LostCause_LOST_CAUSE_STREAM
)

// longHistory is a run with something of everything, that was resumed and ended well.
func longHistory(t *testing.T) *world {
	t.Helper()
	spec := newSpec()
	spec.Policy, spec.InDoubt = askFor("charge"), runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK
	spec.Budget.MaxIterations, spec.MaxParallelTools = proto.Uint32(5), 2
	w := newWorld(t, spec)
	w.start(&runnerdv1.Observation{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Text: "earlier", Imported: true})
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("read", "list", "charge", "order", "write"))
	w.finish("1.1", 1)
	w.finish("1.2", 1)
	w.now = w.now.Add(time.Minute)
	w.do(w.vote(w.open(), approve))
	w.lose("1.3", stream)
	w.do(w.vote(w.open(), approve))
	w.finish("1.3", 2)
	w.lose("1.4", stream)
	w.do(CallFinished{CallID: "1.4", Attempt: 1, Result: Result{Text: "result"}, Reconciled: true})
	w.lose("1.5", stream)
	w.now = w.turn.WakeAt
	w.do()
	w.finish("1.5", 2)
	w.do(DecideFailed{Iteration: 2, Attempt: 1, Code: "UNAVAILABLE", Message: "refused"})
	w.now = w.turn.WakeAt
	w.do()
	w.do(w.decision(&runnerdv1.Decision{Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: "which?"}}}))
	w.do(Input{Principal: "owner", Text: "this"})
	w.restart()
	w.do(DecideBroken{Iteration: 3, Attempt: 2, Code: "no_decision", Message: "nothing came"})
	w.do(w.decided("charge", "nothing", "notify"))
	w.do(w.vote(w.open(), deny))
	w.finish("4.3", 1)
	w.do(w.decided("charge"))
	w.now = w.turn.WakeAt
	w.do()
	w.do(Resume{Principal: "owner", Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(10)}})
	w.do(w.decision(answerDecision("done")))
	return w
}

// pausedHistory is a run that paused and was then cancelled while a call was in progress.
func pausedHistory(t *testing.T) *world {
	t.Helper()
	spec := newSpec()
	spec.Policy, spec.Approval.Mode = askFor("charge"), runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("charge", "charge", "write"))
	w.do(w.vote(w.open(), deny))
	w.do(w.vote(w.open(), approve))
	w.do(Cancel{Principal: "owner", Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT})
	w.lose("1.2", runnerdv1.LostCause_LOST_CAUSE_CANCEL)
	return w
}

// budgetHistory is a run that was warned of everything, and that a person let go on with nearly all spent.
func budgetHistory(t *testing.T) *world {
	t.Helper()
	spec := newSpec()
	spec.ConfirmAt_90, spec.ContextWarningPercent = true, 60
	spec.Budget.MaxCostCents, spec.Budget.MaxContextTokens = proto.Float64(1), proto.Uint32(1000)
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("read"))
	w.finish("1.1", 1)
	last := w.decided("write")
	last.Decision.Usage.InputTokens = proto.Int64(700)
	w.do(last)
	w.now = w.now.Add(time.Minute)
	w.do(w.vote(w.open(), approve))
	w.finish("2.1", 1)
	done := w.decision(answerDecision("done"))
	done.Decision.Usage.CostCents = proto.Float64(0)
	w.do(done)
	return w
}

func histories(t *testing.T) map[string]*world {
	t.Helper()
	return map[string]*world{
		"long": longHistory(t), "paused": pausedHistory(t), "budget": budgetHistory(t), "granted": grantedHistory(t),
		"blocked": blockedHistory(t),
	}
}

func TestCheckAcceptsGoodHistories(t *testing.T) {
	t.Parallel()
	for name, w := range histories(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !w.st.Final() {
				t.Fatalf("the run is not at its end\n%s", w)
			}
			public := make([]*runnerdv1.Event, 0, len(w.events))
			for _, ev := range w.events {
				part := Redact(ev)
				if part != ev {
					part.PrivateDigest = []byte("digest") // as a stored one has
				}
				public = append(public, part)
			}
			for kind, events := range map[string][]*runnerdv1.Event{"whole": w.events, "public": public} {
				for folded, opt := range map[string]CheckOptions{"folded": {Env: w.env}, "not folded": {}} {
					for n := range len(events) + 1 { // a run is looked at while it goes on
						if found := Check(slices.Values(events[:n]), opt); len(found) > 0 {
							t.Fatalf("%s, %s, first %d events: %v\n%s", kind, folded, n, found, w)
						}
					}
				}
			}
		})
	}
}

func TestCheckSeesBrokenHistories(t *testing.T) {
	t.Parallel()
	good := histories(t)
	for _, tc := range slices.Concat(broken, brokenGrants) {
		t.Run(fmt.Sprintf("%d %s", tc.invariant, tc.name), func(t *testing.T) {
			t.Parallel()
			w := good["long"]
			if tc.history != "" {
				w = good[tc.history]
			}
			h := &history{t: t, spec: proto.CloneOf(w.env.Spec)}
			for _, ev := range w.events {
				h.events = append(h.events, proto.CloneOf(ev))
			}
			tc.breaks(h)
			env := Env{Key: w.env.Key, Spec: h.spec, SpecDigest: w.st.SpecDigest()} // digests hold for another spec too
			for folded, opt := range map[bool]CheckOptions{true: {Env: env}, false: {}} {
				found := Check(slices.Values(h.events), opt)
				seen := slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == tc.invariant })
				if !seen && (folded || !tc.folded) {
					t.Errorf("folded %t: not seen; found %v", folded, found)
				}
			}
		})
	}
}

func TestCheckSeesAShrinkingHistory(t *testing.T) {
	t.Parallel()
	w := longHistory(t)
	c := &checker{run: "r", fold: New(w.env, "r"), maxHistory: 7}
	c.event(w.events[0])
	if len(c.violations) != 1 || c.violations[0].Invariant != 5 {
		t.Errorf("got %v", c.violations)
	}
}

func TestCheckGivesUp(t *testing.T) {
	t.Parallel()
	w := longHistory(t)
	if n := len(Check(slices.Values(slices.Repeat(w.events[3:4], 10_000)), CheckOptions{})); n < 1 || n > 2*maxViolations {
		t.Errorf("%d violations", n)
	}
}
