package runstate

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestAnyRun lets anything happen to runs, in any order, late, twice, and with crashes between, and checks that every
// log keeps the invariants, that a state folded from the log or restored from a body is the state that wrote it (world
// does so after every turn), that no attempt is ever made twice, and that going on from any point gives the same log.
func TestAnyRun(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { newRandomRun(t, randomSpec(t)).play() })
}

// randomRun is a run and what the world around it knows.
type randomRun struct {
	t       *rapid.T
	w       *world
	running map[string]Effect // in progress
	ended   map[string]bool   // attempts that must never be made again
	dropped []CallTool        // cut off, not told yet
	turns   []recordedTurn
	jumped  int      // turns before the clock was first set back; -1: it was not
	asking  bool     // see TestAnyAskingRun
	called  []string // tools that a run that asks calls
}

type recordedTurn struct {
	facts  []Fact
	now    time.Time
	events int               // recorded before it
	before map[string]Effect // in progress before it
}

// play lets things happen, and expects that the run then comes to rest.
func (r *randomRun) play() {
	r.step(func() Turn { return r.w.start() })
	most := 40
	if r.asking {
		most = 20
	}
	for range rapid.IntRange(1, most).Draw(r.t, "steps") {
		r.act()
	}
	r.w.verify()
	r.again()
	r.settle()
	r.w.verify()
}

func newRandomRun(t *rapid.T, spec *runnerdv1.RunSpec) *randomRun {
	return &randomRun{
		t: t, w: newWorld(t, spec), running: make(map[string]Effect), ended: make(map[string]bool), jumped: -1,
		called: []string{"charge", "charge", "order", "read"},
	}
}

func randomSpec(t *rapid.T) *runnerdv1.RunSpec {
	pick := func(label string, values map[int32]string) int32 {
		var numbers []int32
		for n := range values {
			numbers = append(numbers, n)
		}
		slices.Sort(numbers)
		return rapid.SampledFrom(numbers[1:]).Draw(t, label) // the first is UNSPECIFIED
	}
	spec := newSpec()
	spec.Budget.MaxIterations = new(rapid.Uint32Range(1, 6).Draw(t, "max_iterations"))
	spec.Budget.MaxToolCalls = new(rapid.Uint32Range(0, 8).Draw(t, "max_tool_calls"))
	spec.Budget.MaxConsecutiveFailures = new(rapid.Uint32Range(0, 3).Draw(t, "max_failures"))
	if rapid.Bool().Draw(t, "limited") {
		spec.Budget.MaxDuration = durationpb.New(time.Minute)
	}
	if rapid.Bool().Draw(t, "capped") {
		spec.Budget.MaxCostCents = new(3.0)
	} else {
		spec.Budget.MaxCostCents = nil
	}
	spec.Budget.MaxConsecutiveRefusals = new(rapid.Uint32Range(0, 3).Draw(t, "max_refusals"))
	spec.Budget.MaxContextTokens = new(rapid.SampledFrom([]uint32{200_000, 600, 200, 1}).Draw(t, "max_context"))
	spec.ContextWarningPercent = rapid.SampledFrom([]uint32{60, 0, 1}).Draw(t, "context_warning")
	spec.ConfirmAt_90 = rapid.Bool().Draw(t, "confirm")
	spec.Approval.Mode = runnerdv1.ApprovalMode(pick("mode", runnerdv1.ApprovalMode_name))
	spec.InDoubt = runnerdv1.InDoubtPolicy(pick("in_doubt", runnerdv1.InDoubtPolicy_name))
	spec.OnDenial = runnerdv1.OnRefusal(pick("on_denial", runnerdv1.OnRefusal_name))
	spec.OnBlock = runnerdv1.OnRefusal(pick("on_block", runnerdv1.OnRefusal_name))
	if rapid.IntRange(0, 2).Draw(t, "auto") == 2 {
		spec.AutoMode = randomAutoMode(t)
	}
	spec.OnQuestion = runnerdv1.OnQuestion(pick("on_question", runnerdv1.OnQuestion_name))
	if rapid.Bool().Draw(t, "required") {
		spec.RequiredHosts = []string{"shop"}
	}
	spec.MaxParallelTools = rapid.Uint32Range(1, 3).Draw(t, "parallel")
	spec.Policy = randomPolicy(t)
	return spec
}

// step takes a turn, and brings the effects in progress to those wanted.
func (r *randomRun) step(turn func() Turn) {
	wanted := make(map[string]Effect)
	for _, e := range turn().Effects {
		key := e.Key()
		if before, ok := r.running[key]; ok {
			if diff := cmp.Diff(before, e, protocmp.Transform()); diff != "" {
				r.t.Fatalf("%s changes while it is in progress: %s\n%s", key, diff, r.w)
			}
		} else if r.ended[key] {
			r.t.Fatalf("%s is made a second time\n%s", key, r.w)
		}
		wanted[key] = e
	}
	for key, e := range r.running {
		if _, ok := wanted[key]; !ok {
			r.end(key, e)
		}
	}
	r.running = wanted
}

func (r *randomRun) end(key string, e Effect) {
	switch e := e.(type) {
	case CallTool:
		r.ended[key] = true
		r.dropped = append(r.dropped, e)
	case Decide:
		r.ended[key] = true
	default: // lists and look-ups may be asked again
	}
}

// do takes facts into the run and keeps them for again.
func (r *randomRun) do(facts ...Fact) {
	r.turns = append(r.turns, recordedTurn{facts, r.w.now, len(r.w.events), r.running})
	r.step(func() Turn { return r.w.do(facts...) })
}

func (r *randomRun) act() {
	t := r.t
	// The generator prefers small numbers: what makes a run go on comes first.
	switch rapid.IntRange(0, 19).Draw(t, "what") {
	case 19: // the daemon crashed and comes back, perhaps with a clock that was set back
		r.crash()
	case 18, 14: // the last turn was never recorded
		if n := len(r.turns); n > 0 && r.turns[n-1].events > 0 {
			r.w.events = r.w.events[:r.turns[n-1].events]
			r.running = r.turns[n-1].before
			r.turns = r.turns[:n-1]
			r.crash()
		}
	case 17, 13:
		r.w.now = r.w.now.Add(rapid.SampledFrom([]time.Duration{
			time.Millisecond, time.Second, 10 * time.Second, time.Minute, time.Hour, 24 * time.Hour,
		}).Draw(t, "passes"))
		r.do()
	case 16, 12:
		if wake := r.w.turn.WakeAt; !wake.IsZero() {
			if wake.After(r.w.now) {
				r.w.now = wake
			}
			r.do()
		}
	default:
		facts := make([]Fact, 0, 3)
		for range rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "facts") {
			facts = append(facts, r.fact())
		}
		r.do(facts...)
	}
}

func (r *randomRun) crash() {
	for key, e := range r.running {
		r.end(key, e)
	}
	r.running, r.dropped = make(map[string]Effect), nil
	if rapid.IntRange(0, 3).Draw(r.t, "clock") == 3 {
		r.w.now = r.w.now.Add(-time.Hour)
		if r.jumped < 0 {
			r.jumped = len(r.turns)
		}
	}
	r.turns = append(r.turns, recordedTurn{[]Fact{Restart{Epoch: r.w.epoch + 1}}, r.w.now, len(r.w.events), nil})
	r.step(r.w.restart)
}

// fact draws something that may happen now, or a little too late.
func (r *randomRun) fact() Fact {
	t := r.t
	var keys []string
	for key := range r.running {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if r.asking && rapid.IntRange(0, 2).Draw(t, "asked") > 0 {
		if f := r.answer(); f != nil {
			return f
		}
	}
	switch what := rapid.IntRange(0, 19).Draw(t, "fact"); {
	case what >= 19:
		return Input{Principal: "owner", Text: "input", RequestID: rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "request")}
	case what >= 18:
		return Cancel{
			Principal: "owner", Mode: rapid.SampledFrom([]runnerdv1.CancelMode{
				runnerdv1.CancelMode_CANCEL_MODE_STOP, runnerdv1.CancelMode_CANCEL_MODE_ABORT,
			}).Draw(t, "cancel"),
		}
	case what >= 16:
		return r.resume()
	case what >= 15:
		return r.revoke()
	case what >= 14:
		return r.stale()
	case what >= 10 || what >= 4 && len(r.w.st.Approvals()) > 0:
		return r.vote()
	case len(r.dropped) > 0 && what >= 2:
		e := r.dropped[0]
		r.dropped = r.dropped[1:]
		return CallLost{CallID: e.CallID, Attempt: e.Attempt, Cause: runnerdv1.LostCause_LOST_CAUSE_CANCEL, Message: "cut"}
	case len(keys) > 0:
		return r.outcome(r.running[rapid.SampledFrom(keys).Draw(t, "effect")])
	default:
		return r.vote()
	}
}

func (r *randomRun) resume() Fact {
	f := Resume{Principal: "owner"}
	if rapid.Bool().Draw(r.t, "raise") {
		budget := r.w.st.View().GetSpec().GetBudget()
		f.Budget = &runnerdv1.Budget{
			MaxIterations: new(budget.GetMaxIterations() + 3), MaxToolCalls: new(budget.GetMaxToolCalls() + 3),
			MaxContextTokens: new(budget.GetMaxContextTokens() + 300),
		}
		if budget.MaxCostCents != nil {
			f.Budget.MaxCostCents = new(budget.GetMaxCostCents() + 5)
		}
		if budget.GetMaxDuration() != nil {
			f.Budget.MaxDuration = durationpb.New(budget.GetMaxDuration().AsDuration() + time.Hour)
		}
		if limits := r.w.st.View().GetAutoMode().GetLimits(); limits != nil {
			f.AutoLimits = &runnerdv1.AutoModeLimits{
				MaxIterations: new(limits.GetMaxIterations() + 2), MaxToolCalls: new(limits.GetMaxToolCalls() + 2),
			}
		}
	}
	return f
}

func (r *randomRun) vote() Fact {
	verdict := rapid.SampledFrom([]runnerdv1.ApprovalVerdict{
		runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
		runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE,
	}).Draw(r.t, "verdict")
	var id uint64
	if open := r.w.st.Approvals(); len(open) > 0 {
		id = open[rapid.IntRange(0, len(open)-1).Draw(r.t, "approval")].GetApprovalId()
	}
	v := r.w.vote(id, verdict)
	if rapid.IntRange(0, 9).Draw(r.t, "digest") == 9 {
		v.Digest = "k:another"
	}
	return r.ballot(v)
}

// stale is about an attempt that is over, or never was.
func (r *randomRun) stale() Fact {
	t := r.t
	id := callID(rapid.Uint32Range(1, 3).Draw(t, "iteration"), rapid.IntRange(0, 2).Draw(t, "index"))
	attempt := rapid.SampledFrom([]uint32{0, 7}).Draw(t, "attempt")
	return rapid.SampledFrom([]Fact{
		Pinned{Catalogue: r.w.tools()},
		Decided{Iteration: 1, Attempt: attempt, Decision: answerDecision("late")},
		DecideFailed{Iteration: 1, Attempt: attempt, Code: "UNAVAILABLE", Permanent: true},
		DecideBroken{Iteration: 1, Attempt: attempt, Code: "no_decision"},
		CallFinished{CallID: id, Attempt: attempt, Result: Result{Text: "late"}},
		CallLost{CallID: id, Attempt: attempt, Cause: runnerdv1.LostCause_LOST_CAUSE_STREAM},
		LookupFailed{CallID: id, Attempt: attempt},
	}).Draw(t, "stale")
}

// outcome is one that an effect may have.
func (r *randomRun) outcome(e Effect) Fact {
	t := r.t
	one := func(facts ...Fact) Fact { return facts[rapid.IntRange(0, len(facts)-1).Draw(t, "outcome")] }
	switch e := e.(type) {
	case Decide:
		decided := Decided{Iteration: e.Iteration, Attempt: e.Attempt, Decision: r.decision()}
		decided.Found = r.found(len(decided.Decision.GetToolCalls().GetCalls()))
		return one(decided, decided, decided, decided, decided,
			DecideBroken{Iteration: e.Iteration, Attempt: e.Attempt, Code: "no_decision", Message: "nothing came"},
			DecideFailed{Iteration: e.Iteration, Attempt: e.Attempt, Code: "UNAVAILABLE", Message: "refused"},
			DecideFailed{Iteration: e.Iteration, Attempt: e.Attempt, Code: "NOT_FOUND", Message: "no model", Permanent: true})
	case CallTool:
		done := CallFinished{CallID: e.CallID, Attempt: e.Attempt, Result: Result{Text: "result"}}
		failed := done
		failed.Result.Reason = runnerdv1.CallReason_CALL_REASON_TOOL_ERROR
		lost := func(cause runnerdv1.LostCause) Fact {
			return CallLost{CallID: e.CallID, Attempt: e.Attempt, Cause: cause, Message: "lost"}
		}
		return one(done, done, done, failed, lost(runnerdv1.LostCause_LOST_CAUSE_STREAM),
			lost(runnerdv1.LostCause_LOST_CAUSE_TIMEOUT), lost(runnerdv1.LostCause_LOST_CAUSE_NOT_SENT))
	case GetCall:
		done := CallFinished{CallID: e.CallID, Attempt: e.Attempt, Result: Result{Text: "result"}, Reconciled: true}
		return one(done, done,
			CallLost{CallID: e.CallID, Attempt: e.Attempt, Cause: runnerdv1.LostCause_LOST_CAUSE_NOT_SEEN, Message: "never seen"},
			LookupFailed{CallID: e.CallID, Attempt: e.Attempt, Message: "it does not know"})
	default:
		pinned := Pinned{Catalogue: r.w.tools()}
		missed := pinned
		missed.Unavailable = []*runnerdv1.ToolHostUnavailable{{Host: "shop", Message: "refused"}}
		return one(pinned, pinned, missed)
	}
}

func answerDecision(text string) *runnerdv1.Decision {
	return &runnerdv1.Decision{Next: &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: text}}}
}

func (r *randomRun) decision() *runnerdv1.Decision {
	t := r.t
	if r.asking {
		return r.askedFor()
	}
	var d *runnerdv1.Decision
	switch rapid.IntRange(0, 9).Draw(t, "decision") {
	case 9:
		d = answerDecision("done")
	case 8:
		d = &runnerdv1.Decision{Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: "which?"}}}
	case 7:
		d = &runnerdv1.Decision{}
	default:
		calls := &runnerdv1.ToolCalls{}
		for range rapid.IntRange(1, 5).Draw(t, "calls") {
			calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{
				Id: rapid.SampledFrom([]string{"", "x"}).Draw(t, "id"),
				Name: rapid.SampledFrom([]string{
					"charge", "order", "read", "write", "notify", "list", "read", "nothing",
				}).Draw(t, "tool"),
				ArgumentsJson: rapid.SampledFrom([]string{
					"{}", "", `{"n":1}`, `{"n":2.50e0}`, `{"n":"x"}`, "[", `{"command":"make all"}`, `{"command":"make x; y"}`,
				}).Draw(t, "arguments"),
			})
		}
		d = &runnerdv1.Decision{Text: "text", Next: &runnerdv1.Decision_ToolCalls{ToolCalls: calls}}
	}
	d.Truncated = rapid.IntRange(0, 19).Draw(t, "truncated") == 19
	d.Usage = rapid.SampledFrom([]*runnerdv1.Usage{
		{CostCents: new(0.1)},
		nil,
		{},
		{CostCents: new(1.0), InputTokens: proto.Int64(5)},
		{CostCents: new(2.7), InputTokens: proto.Int64(150_000)},
		{OutputTokens: proto.Int64(7), CachedInputTokens: proto.Int64(9)},
		{CostCents: new(-1.0)},
	}).Draw(t, "usage")
	return d
}

// again goes on from some point in the log with the same facts at the same times, and expects the same log.
func (r *randomRun) again() {
	points := len(r.turns)
	if r.jumped >= 0 {
		points = r.jumped // what the process before knew of its clock stands in no log
	}
	if points == 0 {
		return
	}
	from := rapid.IntRange(0, points-1).Draw(r.t, "from")
	other := newWorld(r.t, r.w.env.Spec)
	other.tools = r.w.tools
	other.events = slices.Clone(r.w.events[:r.turns[from].events])
	if len(other.events) == 0 {
		return
	}
	other.st = other.folded()
	for _, turn := range r.turns[from:] {
		if len(turn.facts) == 1 {
			if _, restarts := turn.facts[0].(Restart); restarts {
				other.st = other.folded()
				other.st.SetBehind(behind(other.st, turn.now))
			}
		}
		made, err := Advance(other.st, turn.facts, turn.now)
		if err != nil {
			r.t.Fatalf("going on from turn %d: %v", from, err)
		}
		other.events = append(other.events, made.Events...)
	}
	if diff := cmp.Diff(r.w.events, other.events, protocmp.Transform()); diff != "" {
		r.t.Fatalf("going on from turn %d gives another log: %s\n%s", from, diff, r.w)
	}
}

// settle lets everything end well and expects that the run then ends or waits for somebody.
func (r *randomRun) settle() {
	for range 200 {
		if r.w.turn.Idle && r.w.turn.WakeAt.IsZero() {
			return
		}
		facts := make([]Fact, 0, len(r.running))
		for _, e := range r.w.turn.Effects {
			switch e := e.(type) {
			case ListTools:
				facts = append(facts, Pinned{Catalogue: r.w.tools()})
			case Decide:
				facts = append(facts, Decided{Iteration: e.Iteration, Attempt: e.Attempt, Decision: answerDecision("done")})
			case CallTool:
				facts = append(facts, CallFinished{CallID: e.CallID, Attempt: e.Attempt, Result: Result{Text: "result"}})
			case GetCall:
				facts = append(facts, CallFinished{CallID: e.CallID, Attempt: e.Attempt, Result: Result{Text: "result"}, Reconciled: true})
			}
		}
		if len(facts) == 0 {
			r.w.now = r.w.turn.WakeAt
		}
		r.do(facts...)
	}
	r.t.Fatalf("the run does not come to rest\n%s", r.w)
}
