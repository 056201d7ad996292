package runstate

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// timeZero is when test runs start.
var timeZero = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// event fills in the envelope of an event of the run "r" in leg 1, iteration 1.
func event(sequence uint64, ev *runnerdv1.Event) *runnerdv1.Event {
	ev.RunId, ev.Sequence, ev.Type, ev.Leg, ev.Iteration = "r", sequence, typeOf(ev), 1, 1
	ev.Time = timestamppb.New(timeZero)
	return ev
}

// tester is what testing.T and rapid.T have in common.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// world drives a run as the shell would, and checks after every turn what must hold after every turn.
type world struct {
	t      tester
	env    Env
	st     *State
	now    time.Time
	events []*runnerdv1.Event
	turn   Turn
	epoch  uint64
	tools  func() *Catalogue
}

var testKey = Key{ID: "k", Secret: []byte("the secret of the test's data folder")}

// newSpec is the spec of an agent as it is without configuration.
func newSpec() *runnerdv1.RunSpec {
	return &runnerdv1.RunSpec{
		Agent: "agent", DecideService: "brain", ToolHosts: []string{"files", "bank", "shop"},
		Budget: &runnerdv1.Budget{
			MaxIterations: proto.Uint32(25), MaxToolCalls: proto.Uint32(25), MaxCostCents: proto.Float64(100),
			MaxConsecutiveFailures: proto.Uint32(5),
		},
		Approval: &runnerdv1.ApprovalSettings{
			Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, Timeout: durationpb.New(time.Hour),
		},
		DecideTimeout: durationpb.New(240 * time.Second), DecidePatience: durationpb.New(5 * time.Minute),
		MaxParallelTools: 4, MaxResultBytes: 16 << 20, RulesVersion: RulesVersion,
	}
}

// newCatalogue has a tool of each kind: read and list are read-only, list can be called twice in 30 s, write and notify idempotent, charge can't be
// repeated, and the host of order knows what became of it.
var newCatalogue = sync.OnceValue(func() *Catalogue {
	tool := func(name string, a *runnerdv1.Annotations) *runnerdv1.ToolDefinition {
		return &runnerdv1.ToolDefinition{
			Name: name, Description: name, Annotations: a, OutputSchemaJson: `{"type":"object"}`,
			InputSchemaJson: `{"type":"object","properties":{"n":{"type":"integer"}}}`,
		}
	}
	yes, no := new(true), new(false)
	c, _ := BuildCatalogue([]HostTools{
		{Host: "files", Timeout: 10 * time.Second, Override: map[string]ToolOverride{
			"list": {RateLimit: &runnerdv1.RateLimit{MaxCalls: 2, Per: durationpb.New(30 * time.Second)}},
		}, Tools: []*runnerdv1.ToolDefinition{
			tool("read", &runnerdv1.Annotations{ReadOnly: yes}), tool("list", &runnerdv1.Annotations{ReadOnly: yes}),
			tool("write", &runnerdv1.Annotations{Destructive: no, Idempotent: yes}),
		}},
		{Host: "bank", Timeout: 30 * time.Second, Tools: []*runnerdv1.ToolDefinition{
			tool("charge", nil), tool("notify", &runnerdv1.Annotations{Destructive: no, Idempotent: yes}),
		}},
		{Host: "shop", Timeout: 30 * time.Second, HasGetCall: true, Tools: []*runnerdv1.ToolDefinition{tool("order", nil)}},
	})
	return c
})

func newWorld(t tester, spec *runnerdv1.RunSpec) *world {
	t.Helper()
	env := Env{Key: testKey, Spec: spec}
	return &world{t: t, env: env, st: New(env, "r"), now: timeZero, epoch: 1, tools: newCatalogue}
}

// start begins the run.
func (w *world) start(observations ...*runnerdv1.Observation) Turn {
	w.t.Helper()
	_, digest := SpecBytes(w.env.Spec)
	return w.do(Start{Principal: "owner", Started: &runnerdv1.RunStarted{
		Agent: "agent", Task: "the task", SpecDigest: hex.EncodeToString(digest[:]), RulesVersion: RulesVersion,
		Observations: observations, ReplayedObservations: uint32(len(observations)),
	}})
}

// do takes facts into the run and records what follows.
func (w *world) do(facts ...Fact) Turn {
	w.t.Helper()
	explained := w.explain(facts)
	turn, err := Advance(w.st, facts, w.now)
	if err != nil {
		w.t.Fatalf("advance by %+v: %v\n%s", facts, err, w)
	}
	if len(turn.Replies) != len(facts) {
		w.t.Fatalf("%d replies to %d facts", len(turn.Replies), len(facts))
	}
	w.turn = turn
	w.events = append(w.events, turn.Events...)
	w.compare(explained, turn.Events)
	w.check()
	return turn
}

// check checks what must hold after every turn.
func (w *world) check() {
	w.t.Helper()
	keys := make(map[string]bool)
	for _, e := range w.turn.Effects {
		if keys[e.Key()] {
			w.t.Fatalf("two effects %s\n%s", e.Key(), w)
		}
		keys[e.Key()] = true
	}
	if w.turn.Idle && len(w.turn.Effects) > 0 {
		w.t.Fatalf("idle with effects\n%s", w)
	}
	if !w.turn.Idle && len(w.turn.Effects) == 0 && w.turn.WakeAt.IsZero() {
		w.t.Fatalf("nothing is wanted and nothing will wake it\n%s", w)
	}
	if at := w.st.NextDeadline(); w.turn.Idle && !at.Equal(w.turn.WakeAt) {
		w.t.Fatalf("at rest it must be woken at %s, not at %s\n%s", w.turn.WakeAt, at, w)
	}
	if len(w.events) == 0 {
		return
	}
	if n := len(w.st.History()); w.st.historyLen() != n {
		w.t.Fatalf("the history of %d entries is counted as %d\n%s", n, w.st.historyLen(), w)
	}
	// What was recorded gives the same state, and nothing follows from it that did not follow before.
	for name, again := range map[string]*State{
		"folded": w.folded(), "restored": w.restored(len(w.events)), "half restored": w.restored(len(w.events) / 2),
	} {
		if diff := cmp.Diff(w.st.ctl, again.ctl, protocmp.Transform(), cmpopts.EquateEmpty(), cmp.AllowUnexported(call{})); diff != "" {
			w.t.Fatalf("the %s state differs: %s\n%s", name, diff, w)
		}
		if diff := cmp.Diff(w.st.History(), again.History(), protocmp.Transform()); diff != "" {
			w.t.Fatalf("the %s history differs: %s\n%s", name, diff, w)
		}
		if diff := cmp.Diff(w.st.View(), again.View(), protocmp.Transform()); diff != "" {
			w.t.Fatalf("the %s view differs: %s\n%s", name, diff, w)
		}
		again.behind = w.st.behind // the same process
		turn, err := Advance(again, nil, w.now)
		if err != nil || len(turn.Events) > 0 {
			w.t.Fatalf("from the %s state %d further events follow (%v): %v\n%s", name, len(turn.Events), err, turn.Events, w)
		}
		if diff := cmp.Diff(w.turn.Effects, turn.Effects, protocmp.Transform()); diff != "" {
			w.t.Fatalf("from the %s state other effects follow: %s\n%s", name, diff, w)
		}
		if !turn.WakeAt.Equal(w.turn.WakeAt) || turn.Idle != w.turn.Idle {
			w.t.Fatalf("the %s state wakes at %s, idle %t, not at %s, %t\n%s", name, turn.WakeAt, turn.Idle, w.turn.WakeAt, w.turn.Idle, w)
		}
	}
}

// verify checks the whole log.
func (w *world) verify() {
	w.t.Helper()
	for _, v := range Check(slices.Values(w.events), CheckOptions{Env: w.env}) {
		w.t.Errorf("invariant %d at %d: %s\n%s", v.Invariant, v.Sequence, v.Message, w)
	}
}

// folded is the state that the recorded events give.
func (w *world) folded() *State {
	w.t.Helper()
	st := New(w.env, "r")
	w.fold(st, w.events)
	return st
}

// restored is the state that the checkpoint body after some events, and the events after it, give.
func (w *world) restored(at int) *State {
	w.t.Helper()
	before := New(w.env, "r")
	w.fold(before, w.events[:at])
	st, err := Restore(w.env, []byte(bodyOf(w.t, before)))
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	for _, ev := range w.events[:at] {
		if ev.GetSequence() < st.HistoryFrom() {
			continue
		}
		if err := st.Remember(ev); err != nil {
			w.t.Fatalf("%v", err)
		}
	}
	if st.CatalogueDigest() != "" {
		st.SetCatalogue(w.tools())
	}
	w.fold(st, w.events[at:])
	return st
}

func (w *world) fold(st *State, events []*runnerdv1.Event) {
	w.t.Helper()
	for _, ev := range events {
		if err := Apply(st, ev); err != nil {
			w.t.Fatalf("%v\n%s", err, w)
		}
	}
	if st.CatalogueDigest() != "" {
		st.SetCatalogue(w.tools())
	}
}

func bodyOf(t tester, st *State) string {
	t.Helper()
	body, err := st.Body()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(body)
}

// restart loads the run as a daemon does that starts, after it lost what was in progress.
func (w *world) restart() Turn {
	w.t.Helper()
	w.epoch++
	w.st = w.restored(len(w.events))
	w.st.SetBehind(behind(w.st, w.now))
	return w.do(Restart{Epoch: w.epoch})
}

// behind is how far a process that starts now is behind the run.
func behind(st *State, now time.Time) time.Duration { return max(0, st.LastTime().Sub(now)) }

// vote answers an open approval with the digest it asks for.
func (w *world) vote(id uint64, verdict runnerdv1.ApprovalVerdict) Vote {
	w.t.Helper()
	v := Vote{Principal: "approver", ApprovalID: id, Verdict: verdict}
	if a, _, ok := w.st.Approval(id); ok {
		v.Digest = a.GetApprovalDigest()
	}
	if verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE {
		v.Result = &Result{Text: "what really happened"}
	}
	return v
}

// String shows the whole log in short.
func (w *world) String() string {
	var log strings.Builder
	for _, ev := range w.events {
		fmt.Fprintln(&log, describeEvent(ev))
	}
	return log.String()
}

// askFor is the policy of an agent that asks for the tools that match the globs.
func askFor(globs ...string) []*runnerdv1.PolicyLayer {
	return []*runnerdv1.PolicyLayer{{Name: "agent", ApprovalFor: globs}}
}
