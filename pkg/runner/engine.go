package runner

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// engine drives one run. There is one exactly while something is in progress or at hand for the run, and its one
// goroutine is the only writer of the run.
type engine struct {
	r    *Runner
	run  string
	mail *mailbox
	done chan struct{}   // closed when the engine has ended
	last *runstate.State // how it left the run; nil if it failed. It may be read, and only read, once done is closed

	head atomic.Uint64 // sequence of the last durable event

	// What follows belongs to the goroutine.
	st      *runstate.State // nil: the run has no events
	claim   *auditstore.Claim
	taken   batch // taken in and not yet answered
	effects map[string]context.CancelCauseFunc
	slot    bool // counted among the active runs
	queued  bool // waits for a slot
	enc     encoder
	spec    *runnerdv1.RunSpec
	// resolved is the spec as it was resolved when this engine started the run; nil: an earlier one did.
	resolved *resolved
	about    *runnerdv1.Run // what does not change of the run; nil until it is needed

	// What the store has of the run beside its events.
	keys          [][]byte // sorted
	state         runnerdv1.RunState
	requestDigest string
	owner         string
	started       time.Time
	body          uint64 // sequence of the newest checkpoint body
}

// post brings an item to a run and waits for the answer. It wakes a run at rest.
func (r *Runner) post(ctx context.Context, run string, it item) (answer, error) {
	select {
	case <-r.loaded:
	case <-r.ctx.Done():
		return answer{}, errDraining()
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
	reply := make(chan answer, 1)
	it.reply = reply
	if !r.put(run, it) {
		return answer{}, errDraining()
	}
	select {
	case a := <-reply:
		return a, a.err
	case <-ctx.Done():
		return answer{}, ctx.Err()
	}
}

// put hands an item to the driver of a run, a new one if there is none. It reports false once the runner has stopped.
// A driver leaves under the same lock, and only with an empty mailbox, so nothing is lost between two drivers.
func (r *Runner) put(run string, it item) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.engines[run]; e != nil {
		return e.mail.put(it)
	}
	if r.ctx.Err() != nil {
		return false
	}
	e := &engine{
		r: r, run: run, mail: newMailbox(), done: make(chan struct{}), effects: make(map[string]context.CancelCauseFunc),
	}
	e.mail.put(it)
	r.engines[run] = e
	r.work.Add(1)
	go e.main() //nolint:contextcheck // a run outlives the call that woke it
	return true
}

// active returns the driver of a run, nil if there is none.
func (r *Runner) active(run string) *engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engines[run]
}

// leave ends a driver unless something is at hand.
func (r *Runner) leave(e *engine) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !e.mail.close() {
		return false
	}
	delete(r.engines, e.run)
	delete(r.stopped, e.run)
	return true
}

// main is the goroutine of an engine.
func (e *engine) main() {
	defer e.r.work.Done()
	defer close(e.done)
	if err := e.guard(); err != nil {
		e.fail(err)
	} else {
		e.last = e.st
	}
	e.reconcile(nil)
	if e.slot {
		e.r.releaseSlot()
	}
}

// guard drives and turns a panic into an error: a bug stops one run and not the daemon.
func (e *engine) guard() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	ctx := e.r.ctx
	if err := e.load(ctx); err != nil {
		return err
	}
	if e.st == nil {
		return e.begin(ctx)
	}
	return e.drive(ctx, e.take())
}

// fail ends the engine and answers all that wait for it. What it means for the run depends on the error: a run that
// another owner drives, or that the next start finds open, needs nothing; one with a bug is left alone until then, or
// until somebody brings something. What was in progress is lost, also if it is this process that drives the run again.
func (e *engine) fail(err error) {
	reported := toError(notFound(e.run, err))
	bug := false // the clock does not wake the run again
	switch kind := reported.Kind(); {
	case e.r.ctx.Err() != nil:
		reported = errDraining()
	case kind == KindInternal, kind == KindCorrupt, errors.Is(err, auditstore.ErrTooLarge):
		bug = true
		e.r.log.Error("a run is stopped by a bug or a damaged log; it is tried again at the next start",
			"run", e.run, "error", err)
	case errors.Is(err, errOtherVersion):
		bug = true
		e.r.log.Error("a run is left alone: finish it with the version of runnerd that started it", "run", e.run, "error", err)
	}
	e.r.mu.Lock()
	delete(e.r.engines, e.run)
	items := batch(e.mail.fail())
	if bug {
		e.r.stopped[e.run] = true
	}
	if e.claim != nil {
		e.r.open[e.run] = true
	}
	e.r.mu.Unlock()
	e.taken.fail(reported)
	items.fail(reported)
	for i := range items {
		if items[i].slot {
			e.r.releaseSlot()
		}
	}
}

// load claims the run and folds it. A run without events leaves the state nil.
func (e *engine) load(ctx context.Context) error {
	known, err := e.known(ctx)
	if errors.Is(err, errNoRun) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.own(ctx, known.epoch); err != nil {
		return err
	}
	e.keys, e.state, e.body = known.GetKeys(), known.GetRun().GetState(), known.GetBodySequence()
	e.requestDigest, e.owner = known.GetRequestDigest(), known.GetRun().GetOwner()
	e.started = known.GetRun().GetCreatedAt().AsTime()
	if err := e.reload(ctx); err != nil {
		return err
	}
	if e.takeOpen() { // an earlier driver may have left something in progress
		e.taken = batch{{fact: runstate.Restart{Epoch: e.claim.Epoch.Start()}}}
	}
	return nil
}

func (e *engine) known(ctx context.Context) (known row, err error) {
	err = e.patiently(ctx, func() error {
		known, err = e.r.store.row(ctx, e.run)
		return err
	})
	return known, err
}

// reload folds the run from the log: what is in memory may be ahead of it.
func (e *engine) reload(ctx context.Context) error {
	return e.patiently(ctx, func() (err error) {
		var body uint64
		var inherited time.Time // time of the last event that an earlier process wrote
		e.st, body, err = e.r.store.fold(ctx, e.run, e.claim.Head, func(ev *runnerdv1.Event) {
			if auditstore.Position(ev.GetPosition()) <= e.r.inherited {
				inherited = ev.GetTime().AsTime()
			}
		})
		if err != nil {
			return err
		}
		e.st.SetBehind(e.r.behind(inherited, e.st.LastTime()))
		e.body = body
		e.head.Store(e.claim.Head)
		if e.spec, err = e.r.store.spec(ctx, e.st.SpecDigest()); err != nil {
			return err
		}
		if holdsUnknown(e.spec) {
			return errOtherVersion
		}
		return nil
	})
}

// drive owns one run. Each turn folds what happened into the run, makes it durable, and only then answers callers and
// touches the world.
func (e *engine) drive(ctx context.Context, facts batch) error {
	for retry := (backoff{}); ; {
		e.taken = facts
		turn, err := runstate.Advance(e.st, facts.facts(), e.r.now())
		if err != nil {
			return err // an illegal event: our bug, this run stops
		}
		err = e.record(ctx, turn)
		if errors.Is(err, auditstore.ErrFull) && e.st != nil && e.claim.Head > 0 {
			if facts, err = e.hold(ctx, err, retry.next()); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err // the state is dropped, the log is the truth
		}
		retry = backoff{}
		e.answer(turn.Replies)
		e.reconcile(turn.Effects) //nolint:contextcheck // effects end with the runner, not with a turn
		if e.rests(turn) && e.r.leave(e) {
			return nil // closed, or waiting for people or a slot: no goroutine kept
		}
		if facts, err = e.wait(ctx, turn.WakeAt); err != nil {
			return err // stopping: open calls stay open in the log
		}
	}
}

// answer tells those who brought facts what is durable now.
func (e *engine) answer(replies []runstate.Reply) {
	for i := range e.taken {
		if it := &e.taken[i]; it.start != nil {
			it.answer(answer{run: e.st.Snapshot()})
		}
	}
	e.taken.answer(replies, e.claim.Head)
	e.taken = nil
}

// rests reports whether nothing is in progress and nothing will be until a fact is brought.
func (e *engine) rests(turn runstate.Turn) bool {
	if turn.Idle {
		return true
	}
	return len(e.effects) == 0 && (e.queued || e.draining())
}

func (e *engine) draining() bool {
	select {
	case <-e.r.draining:
		return true
	default:
		return false
	}
}

// hold is what happens to a turn that the full disk refused: callers are told, the state is folded again, and what
// only the world could bring is tried again after a while, or as soon as somebody brings more.
func (e *engine) hold(ctx context.Context, full error, pause time.Duration) (batch, error) {
	for i := range e.taken {
		e.taken[i].answer(answer{err: toError(full)})
	}
	kept := e.taken.keepOwn()
	e.taken = nil
	e.r.log.Warn("a run waits for space on the disk", "run", e.run, "error", full)
	if err := e.reload(ctx); err != nil {
		return nil, err
	}
	more, err := e.wait(ctx, e.r.now().Add(pause))
	return append(kept, more...), err
}

// wait returns what comes next: facts, or nothing when the clock or a drain is all that happened.
func (e *engine) wait(ctx context.Context, wakeAt time.Time) (batch, error) {
	var clock <-chan time.Time
	if !wakeAt.IsZero() {
		timer := time.NewTimer(wakeAt.Sub(e.r.now()))
		defer timer.Stop()
		clock = timer.C
	}
	draining := e.r.draining
	if e.draining() {
		draining = nil
	}
	select {
	case <-e.mail.ready:
		return e.take(), nil
	case <-clock:
	case <-draining:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return nil, nil
}

// take empties the mailbox, as far as one turn can take it in. Items that need no turn are answered at once.
func (e *engine) take() batch {
	limit := math.MaxInt
	if e.draining() {
		limit = 1 // what follows from a fact may be held back, and what follows from the next with it
	}
	facts := e.taken
	for _, it := range e.mail.take(limit) {
		if it.effect != "" {
			delete(e.effects, it.effect)
		}
		switch {
		case it.start != nil:
			it.answer(e.existing(it.start))
		case it.read != nil:
			it.read(e.st)
			it.answer(answer{})
		case it.slot && e.slot:
			e.r.releaseSlot() // one is enough
		default:
			e.slot = e.slot || it.slot
			facts = append(facts, it)
		}
	}
	return facts
}

// reconcile brings the effects in progress to exactly those that are wanted.
func (e *engine) reconcile(want []runstate.Effect) {
	for key, cancel := range e.effects {
		if !slices.ContainsFunc(want, func(w runstate.Effect) bool { return w.Key() == key }) {
			cancel(errNotWanted)
		}
	}
	e.queued = false
	for _, effect := range want {
		if _, ok := e.effects[effect.Key()]; ok || e.draining() {
			continue
		}
		if _, first := effect.(runstate.ListTools); first && !e.slot && !e.takeSlot() {
			e.queued = true
			continue
		}
		e.start(effect)
	}
}
