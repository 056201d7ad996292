package runner

import (
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// hub tells watchers that there is something to read. It holds no events: a watcher reads the log, so a slow one holds
// up nobody and misses nothing. Signals are the exception: they are handed over, or dropped.
type hub struct {
	log     auditstore.Log
	arrived chan struct{} // has room for one: there is a first watcher

	waking []*watcher // scratch of wake, which only run calls

	mu       sync.RWMutex
	watchers map[string]map[*watcher]bool // by run; "" are those of all runs
}

// watcher is somebody who waits for events of a run, or of all.
type watcher struct {
	run     string
	wake    chan struct{}          // has room for one: there may be something to read
	signals chan *runnerdv1.Signal // nil: not wanted
}

// maxSignals is how many signals wait for a watcher; more are dropped.
const maxSignals = 64

func newHub(log auditstore.Log) *hub {
	return &hub{log: log, arrived: make(chan struct{}, 1), watchers: make(map[string]map[*watcher]bool)}
}

// watch registers a watcher of a run; an empty run means all. What is committed from now on wakes it.
func (h *hub) watch(run string) *watcher {
	return h.register(&watcher{run: run, wake: make(chan struct{}, 1)})
}

// watchSignals registers a watcher of a run who wants signals too.
func (h *hub) watchSignals(run string) *watcher {
	return h.register(&watcher{
		run: run, wake: make(chan struct{}, 1), signals: make(chan *runnerdv1.Signal, maxSignals),
	})
}

func (h *hub) register(w *watcher) *watcher {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watchers[w.run] == nil {
		h.watchers[w.run] = make(map[*watcher]bool, 1)
	}
	h.watchers[w.run][w] = true
	select {
	case h.arrived <- struct{}{}:
	default:
	}
	return w
}

func (h *hub) forget(w *watcher) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.watchers[w.run], w)
	if len(h.watchers[w.run]) == 0 {
		delete(h.watchers, w.run)
	}
}

// run wakes watchers until ctx ends. Without watchers it sleeps.
func (h *hub) run(ctx context.Context) error {
	for {
		select {
		case <-h.arrived:
		case <-ctx.Done():
			return nil
		}
		if err := h.follow(ctx); err != nil || ctx.Err() != nil {
			return ignoreEnd(ctx, err)
		}
	}
}

// follow wakes watchers as long as there are any.
func (h *hub) follow(ctx context.Context) error {
	var at auditstore.Position
	retry := func(do func() error) error {
		for b := (backoff{}); ; {
			err := do()
			if !errors.Is(err, auditstore.ErrUnavailable) {
				return err
			}
			if err := pause(ctx, b.next()); err != nil {
				return err
			}
		}
	}
	err := retry(func() (err error) {
		at, err = h.log.Head(ctx)
		return err
	})
	if err != nil {
		return err
	}
	h.wake("", true) // what was committed before the head was known
	for h.watched() {
		err := retry(func() error {
			newest, err := h.log.Wait(ctx, at)
			if err != nil || newest <= at {
				return err // woken early
			}
			at, err = h.spread(ctx, at, newest)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// spread wakes the watchers of the runs that have something after a position, and returns the position after it.
func (h *hub) spread(ctx context.Context, at, newest auditstore.Position) (auditstore.Position, error) {
	h.wake("", false)
	if h.watchesNoRun() {
		return newest, nil
	}
	for {
		page, next, err := h.log.Read(ctx, auditstore.Scope{}, auditstore.Cursor{Position: at}, auditstore.MaxPage)
		if err != nil || len(page) == 0 {
			return at, err
		}
		last := ""
		for i := range page {
			if run := page[i].Run; run != last {
				h.wake(run, false)
				last = run
			}
		}
		at = next.Position
	}
}

// wakeAtOnce is how many watchers are woken before others get to run. A thousand of them, each with something to send,
// would stand in front of the runs that go on.
const wakeAtOnce = 16

// wake wakes the watchers of a run, or everybody.
func (h *hub) wake(run string, everybody bool) {
	h.mu.RLock()
	if everybody {
		for _, watchers := range h.watchers {
			h.waking = slices.AppendSeq(h.waking, maps.Keys(watchers))
		}
	} else {
		h.waking = slices.AppendSeq(h.waking, maps.Keys(h.watchers[run]))
	}
	h.mu.RUnlock()
	for i, w := range h.waking {
		select {
		case w.wake <- struct{}{}:
		default:
		}
		if i%wakeAtOnce == wakeAtOnce-1 {
			runtime.Gosched()
		}
	}
	clear(h.waking) // they may be forgotten meanwhile
	h.waking = h.waking[:0]
}

func (h *hub) watched() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.watchers) > 0
}

func (h *hub) watchesNoRun() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.watchers) == 1 && h.watchers[""] != nil
}

// listens reports whether somebody wants the signals of a run.
func (h *hub) listens(run string) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for w := range h.watchers[run] {
		if w.signals != nil {
			return true
		}
	}
	return false
}

// signal hands a signal to those who want it and have room.
func (h *hub) signal(s *runnerdv1.Signal) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for w := range h.watchers[s.GetRunId()] {
		if w.signals == nil {
			continue
		}
		select {
		case w.signals <- s:
		default:
		}
	}
}

// listened returns the runs whose signals somebody wants.
func (h *hub) listened() []string {
	h.mu.RLock()
	defer h.mu.RUnlock()
	var runs []string
	for run, watchers := range h.watchers {
		for w := range watchers {
			if w.signals != nil {
				runs = append(runs, run)
				break
			}
		}
	}
	return runs
}

// signal tells something live about an effect of the run, if somebody listens. It never waits.
func (e *engine) signal(at flight, kind string, fill func(*runnerdv1.Signal)) {
	if e.r.hub.listens(e.run) {
		e.r.hub.signal(newSignal(e.run, e.head.Load(), at, kind, fill))
	}
}

func newSignal(run string, after uint64, at flight, kind string, fill func(*runnerdv1.Signal)) *runnerdv1.Signal {
	s := &runnerdv1.Signal{RunId: run, Type: kind, AfterSequence: after, Iteration: at.iteration, Attempt: at.attempt}
	fill(s)
	return s
}

// heartbeatEvery is how often those who listen are told that an effect is in progress.
const heartbeatEvery = 5 * time.Second

// heartbeats tells listeners which effects are in progress, until ctx ends.
func (r *Runner) heartbeats(ctx context.Context) {
	ticker := time.NewTicker(heartbeatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, run := range r.hub.listened() {
			e := r.active(run)
			if e == nil {
				continue
			}
			for _, at := range r.tokens.of(run) {
				r.hub.signal(newSignal(run, e.head.Load(), at, "heartbeat", func(s *runnerdv1.Signal) {
					s.Payload = &runnerdv1.Signal_Heartbeat{Heartbeat: &runnerdv1.HeartbeatSignal{
						Effect: at.name, Elapsed: durationpb.New(r.now().Sub(at.since)),
					}}
				}))
			}
		}
	}
}

// ignoreEnd returns err unless it only says that ctx has ended or the store was closed behind it.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return nil
}
