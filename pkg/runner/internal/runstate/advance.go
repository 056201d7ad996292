package runstate

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Advance accepts each fact in order, then plans until only the world can help. It changes st: when the events of the
// turn are not recorded, st is worth nothing and must be dropped. now is a time of the process, see [State.SetBehind].
// An error is an illegal event: a bug of the rules.
func Advance(st *State, facts []Fact, now time.Time) (turn Turn, err error) {
	t := &advance{st: st, now: now.Add(st.behind)}
	turn.Replies = make([]Reply, 0, len(facts))
	if len(facts) > 0 {
		if restart, ok := facts[0].(Restart); ok { // before all else: the time before it is not the run's
			turn.Replies, facts = append(turn.Replies, t.accept(restart)), facts[1:]
		}
	}
	t.expire()
	for _, f := range facts {
		turn.Replies = append(turn.Replies, t.accept(f))
	}
	t.plan()
	if t.err != nil {
		return Turn{}, t.err
	}
	turn.Events = t.events
	turn.Effects = t.effects()
	if wake := t.wakeAt(); !wake.IsZero() {
		turn.WakeAt = t.world(wake)
	}
	turn.Idle = len(turn.Effects) == 0 && st.resting()
	return turn, nil
}

// resting reports whether nothing goes on by itself but the clock.
func (st *State) resting() bool {
	switch st.Status() {
	case runnerdv1.RunState_RUN_STATE_QUEUED, runnerdv1.RunState_RUN_STATE_RUNNING:
		return false
	}
	return true
}

// advance is one turn in the making.
type advance struct {
	st     *State
	now    time.Time
	events []*runnerdv1.Event
	err    error
}

// emit completes an event that has a payload, and a principal if somebody caused it, folds it into the state and
// returns its sequence.
func (t *advance) emit(ev *runnerdv1.Event) uint64 {
	if t.err != nil {
		return 0
	}
	c := &t.st.ctl
	at := t.now
	if at.Before(c.Time) {
		at = c.Time
	}
	ev.RunId, ev.Sequence, ev.Type, ev.Time = c.RunID, c.Sequence+1, typeOf(ev), timestamppb.New(at)
	ev.Leg, ev.Iteration = c.Leg, c.Iteration
	switch ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted, *runnerdv1.Event_RunResumed:
		ev.Leg++
	case *runnerdv1.Event_IterationStarted:
		ev.Iteration++
	}
	if err := Apply(t.st, ev); err != nil {
		t.err = err
		return 0
	}
	t.events = append(t.events, ev)
	return ev.GetSequence()
}

// effects is the whole set that should be in progress in the world.
func (t *advance) effects() []Effect {
	st, c := t.st, &t.st.ctl
	if st.Closed() {
		return nil
	}
	switch c.Phase {
	case phaseQueued:
		return []Effect{ListTools{}}
	case phaseDecide:
		if t.now.Before(c.Decide.AskAt) {
			return nil
		}
		return []Effect{Decide{
			Iteration: c.Iteration, Attempt: c.Decide.Attempt,
			Deadline: t.world(c.Decide.AskAt.Add(st.env.Spec.GetDecideTimeout().AsDuration())),
		}}
	}
	var effects []Effect
	for _, call := range c.Calls {
		if e := t.callEffect(call); e != nil {
			effects = append(effects, e)
		}
	}
	return effects
}

func (t *advance) callEffect(c *call) Effect {
	key := t.st.ctl.RunID + "/" + c.ID
	lookup := GetCall{
		CallID: c.ID, Host: c.Host, Tool: c.Tool, Attempt: c.Attempt, IdempotencyKey: key, Deadline: t.world(c.Deadline),
	}
	aborting := t.st.ctl.Cancel.Mode == runnerdv1.CancelMode_CANCEL_MODE_ABORT
	switch {
	case c.Status == callLookup:
		return lookup
	case c.Status != callStarted:
		return nil
	case aborting && c.Recovery == runnerdv1.Recovery_RECOVERY_RECONCILE:
		lookup.Deadline = t.world(t.st.settleBy())
		return lookup
	case aborting || t.now.Before(c.StartAt):
		return nil
	default:
		return CallTool{
			CallID: c.ID, Host: c.Host, Tool: c.Tool, Attempt: c.Attempt, IdempotencyKey: key, SchemaDigest: c.SchemaDigest,
			Arguments: c.arguments, Deadline: t.world(c.Deadline),
		}
	}
}

// world turns a time of the run's clock into one of the process.
func (t *advance) world(at time.Time) time.Time { return at.Add(-t.st.behind) }

// wakeAt is when the clock alone changes something; zero: never.
func (t *advance) wakeAt() time.Time {
	st, c := t.st, &t.st.ctl
	if st.Closed() {
		return time.Time{}
	}
	var first time.Time
	earlier := func(at time.Time) {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	if c.Phase == phaseDecide && t.now.Before(c.Decide.AskAt) {
		earlier(c.Decide.AskAt)
	}
	if c.Confirm.open() {
		earlier(c.Confirm.Expires)
	}
	for _, call := range c.Calls {
		if call.asks() {
			earlier(call.ApprovalExpires)
		}
		if call.Status == callStarted && t.now.Before(call.StartAt) {
			earlier(call.StartAt)
		}
	}
	if c.Cancel.Mode == runnerdv1.CancelMode_CANCEL_MODE_ABORT {
		earlier(st.settleBy())
	}
	if left, limited := st.durationLeft(t.now); limited && st.Status() == runnerdv1.RunState_RUN_STATE_RUNNING {
		// A limit that was reached with calls in progress is waited for by their outcomes, not by the clock.
		if left > 0 {
			earlier(t.now.Add(left))
		}
	}
	if left, limited := st.autoTimeLeft(c.AutoLimits, t.now); limited && left > 0 && st.Status() == runnerdv1.RunState_RUN_STATE_RUNNING {
		earlier(t.now.Add(left))
	}
	return first
}

// NextDeadline is when a run at rest must be woken; zero: never. Like Turn.WakeAt it is a time of the process.
func (st *State) NextDeadline() time.Time {
	t := advance{st: st, now: st.ctl.Time}
	at := t.wakeAt()
	if at.IsZero() {
		return at
	}
	return t.world(at)
}

// durationLeft is what is left of max_duration at now.
func (st *State) durationLeft(now time.Time) (left time.Duration, limited bool) {
	limit := st.ctl.Budget.GetMaxDuration().AsDuration()
	if limit <= 0 {
		return 0, false
	}
	return limit - st.running(now), true
}

// running is the time in RUNNING at now.
func (st *State) running(now time.Time) time.Duration {
	if st.Status() != runnerdv1.RunState_RUN_STATE_RUNNING {
		return st.ctl.Running
	}
	return st.ctl.Running + max(0, now.Sub(st.ctl.Time))
}

// settleTime is how long an aborted run may take to settle the calls in progress.
const settleTime = 5 * time.Second

func (st *State) settleBy() time.Time { return st.ctl.Cancel.At.Add(settleTime) }

func (t *advance) plan() {
	for t.err == nil && !t.st.Closed() && t.step() {
	}
}

// payloadField is the oneof of an event's payload.
var payloadField = (*runnerdv1.Event)(nil).ProtoReflect().Descriptor().Oneofs().ByName("payload")

// typeOf is the name of an event's payload.
func typeOf(ev *runnerdv1.Event) string {
	if f := ev.ProtoReflect().WhichOneof(payloadField); f != nil {
		return string(f.Name())
	}
	return ""
}

// payloadOf is the message of an event's payload; nil if the event has none that this version knows.
func payloadOf(ev *runnerdv1.Event) any {
	m := ev.ProtoReflect()
	if f := m.WhichOneof(payloadField); f != nil {
		return m.Get(f).Message().Interface()
	}
	return nil
}
