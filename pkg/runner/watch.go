package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// WatchOptions says what is watched and from where.
type WatchOptions struct {
	Run           string   // empty: all runs
	AfterSequence *uint64  // of a run: events after this sequence; nil: from the first
	AfterCursor   string   // events after the one that came with this cursor; wins over AfterSequence
	Types         []string // only events and signals of these types; empty: all
	Follow        bool     // stay at the head and send what comes
	Signals       bool     // also signals; of a run only
	Raw           bool     // events with their private part

	// Shows says whether events of a run are sent, and how much of them; nil: of all runs, redacted.
	Shows func(ctx context.Context, run string) (view View, sees bool, err error)
}

// WatchItem is one event or one signal.
type WatchItem struct {
	Run      string
	Sequence uint64
	Type     string
	Cursor   string            // of the event; empty for a signal
	Event    []byte            // the encoded message, nil for a signal; shared, must not be changed
	Signal   *runnerdv1.Signal // nil for an event; shared, must not be changed
}

// idleAfter is how long a watcher hears nothing before it is told where the head is.
const idleAfter = 15 * time.Second

// watch is one call of Watch.
type watch struct {
	r     *Runner
	opt   WatchOptions
	scope auditstore.Scope
	send  func([]WatchItem) error

	at    auditstore.Cursor // everything up to it was sent
	skip  auditstore.Cursor // events of this append up to this sequence are not sent
	ended bool              // the last event closed the run
	items []WatchItem
	idle  *time.Timer
}

// Watch sends the events of a scope in order, without gap or duplicate, until there are no more, and with Follow those
// that come. On a run it then goes through pauses and ends after an event that closed the run and is the last when it
// is sent. send is called from one goroutine with a page of the log, which it must not keep; nothing of the log is
// held meanwhile. After 15 s without an item it gets a stream_progress signal, whatever Types are.
//
// Errors have the reasons RUN_NOT_FOUND, BAD_CURSOR, PAST_HEAD (with the head), DRAINING and those of the store, or are
// what send returned or the end of ctx.
func (r *Runner) Watch(ctx context.Context, opt WatchOptions, send func([]WatchItem) error) error {
	w := &watch{r: r, opt: opt, scope: auditstore.Scope{Run: opt.Run}, send: send}
	if opt.Run != "" {
		if _, err := r.store.row(ctx, opt.Run); err != nil {
			return notFound(opt.Run, err)
		}
	}
	if err := w.begin(ctx); err != nil {
		return err
	}
	var watcher *watcher
	if opt.Signals && opt.Run != "" {
		watcher = r.hub.watchSignals(opt.Run)
	} else {
		watcher = r.hub.watch(opt.Run)
	}
	defer r.hub.forget(watcher)
	w.idle = time.NewTimer(idleAfter)
	defer w.idle.Stop()
	for {
		more, err := w.page(ctx)
		if err != nil {
			return err
		}
		select {
		case <-r.draining:
			return errDraining()
		default:
		}
		if more {
			continue
		}
		if !opt.Follow || w.ended {
			return nil
		}
		if err := w.wait(ctx, watcher); err != nil {
			return err
		}
	}
}

// page sends one page and reports whether there was one.
func (w *watch) page(ctx context.Context) (more bool, err error) {
	records, next, err := w.r.cfg.Log.Read(ctx, w.scope, w.at, auditstore.MaxPage)
	if err != nil || len(records) == 0 {
		return false, err
	}
	w.items = w.items[:0]
	for i := range records {
		rec := &records[i]
		if rec.Position == w.skip.Position && rec.Sequence <= w.skip.Sequence {
			continue
		}
		kind := typeOf(rec.Public)
		w.ended = w.scope.Run != "" && (kind == "run_completed" || kind == "run_failed")
		if !w.wants(kind) {
			continue
		}
		view := ViewRedacted
		if w.opt.Shows != nil {
			var sees bool
			if view, sees, err = w.opt.Shows(ctx, rec.Run); err != nil {
				return false, err
			} else if !sees {
				continue
			}
		}
		item := WatchItem{
			Run: rec.Run, Sequence: rec.Sequence, Type: kind, Event: rec.Wire,
			Cursor: w.r.cursor(auditstore.Cursor{Position: rec.Position, Sequence: rec.Sequence}),
		}
		switch {
		case view < ViewRedacted:
			item.Event, err = viewWire(rec, view)
		case w.opt.Raw && rec.Private != nil:
			item.Event, err = rawWire(rec)
		}
		if err != nil {
			return false, err
		}
		w.items = append(w.items, item)
	}
	w.at = next
	// In the scope of all runs the page ends with a whole append: all of it was sent.
	w.at.Sequence = records[len(records)-1].Sequence
	if len(w.items) == 0 {
		return true, nil
	}
	return true, w.send(w.items)
}

func (w *watch) wants(kind string) bool {
	return len(w.opt.Types) == 0 || slices.Contains(w.opt.Types, kind)
}

// wait returns when there may be something to read; it sends signals meanwhile.
func (w *watch) wait(ctx context.Context, watcher *watcher) error {
	w.idle.Reset(idleAfter)
	for {
		w.items = w.items[:0]
		select {
		case <-watcher.wake:
			return nil
		case s := <-watcher.signals:
			w.signal(s)
			for range len(watcher.signals) {
				w.signal(<-watcher.signals)
			}
		case <-w.idle.C:
			w.items = append(w.items, w.progress())
		case <-w.r.draining:
			return errDraining()
		case <-ctx.Done():
			return ctx.Err()
		}
		if len(w.items) == 0 {
			continue
		}
		if err := w.send(w.items); err != nil {
			return err
		}
		w.idle.Reset(idleAfter)
	}
}

func (w *watch) signal(s *runnerdv1.Signal) {
	if w.wants(s.GetType()) {
		w.items = append(w.items, WatchItem{Run: s.GetRunId(), Sequence: s.GetAfterSequence(), Type: s.GetType(), Signal: s})
	}
}

// progress tells that everything up to the head was sent.
func (w *watch) progress() WatchItem {
	s := &runnerdv1.Signal{RunId: w.scope.Run, Type: "stream_progress"}
	p := &runnerdv1.StreamProgressSignal{HeadCursor: w.r.cursor(w.at)}
	if w.scope.Run != "" {
		s.AfterSequence, p.HeadSequence = w.at.Sequence, w.at.Sequence
	}
	s.Payload = &runnerdv1.Signal_StreamProgress{StreamProgress: p}
	return WatchItem{Run: w.scope.Run, Sequence: w.at.Sequence, Type: s.GetType(), Signal: s}
}

// begin finds out where to begin.
func (w *watch) begin(ctx context.Context) error {
	var cursor auditstore.Cursor
	if w.opt.AfterCursor != "" {
		var err error
		if cursor, err = w.r.parseCursor(ctx, w.opt.AfterCursor); err != nil {
			return err
		}
	}
	if w.scope.Run == "" {
		if cursor.Position > 0 { // the append it lies in may not have been sent whole
			w.at, w.skip = auditstore.Cursor{Position: cursor.Position - 1}, cursor
		}
		return nil
	}
	if w.opt.AfterCursor != "" {
		return w.afterCursor(ctx, cursor)
	}
	if w.opt.AfterSequence == nil || *w.opt.AfterSequence == 0 {
		return nil
	}
	rec, ok, err := w.r.store.recordAt(ctx, w.scope.Run, *w.opt.AfterSequence)
	if err != nil {
		return err
	}
	if !ok {
		head, err := w.r.headOf(ctx, w.scope.Run)
		if err != nil {
			return err
		}
		return pastHead(w.scope.Run, head)
	}
	w.after(rec)
	return nil
}

// after makes the watch begin after an event of its run.
func (w *watch) after(rec *auditstore.Record) {
	w.at = auditstore.Cursor{Position: rec.Position, Sequence: rec.Sequence}
	kind := typeOf(rec.Public)
	w.ended = kind == "run_completed" || kind == "run_failed"
}

// afterCursor makes the watch of a run begin after a cursor, which may be that of another run's event.
func (w *watch) afterCursor(ctx context.Context, c auditstore.Cursor) error {
	head, err := w.r.headOf(ctx, w.scope.Run)
	if err != nil {
		return err
	}
	// The last event at or before the cursor.
	low, high := uint64(0), head
	for low < high {
		middle := high - (high-low)/2
		rec, ok, err := w.r.store.recordAt(ctx, w.scope.Run, middle)
		if err != nil {
			return err
		}
		if ok && (rec.Position < c.Position || rec.Position == c.Position && rec.Sequence <= c.Sequence) {
			low = middle
		} else {
			high = middle - 1
		}
	}
	if low == 0 {
		return nil
	}
	rec, _, err := w.r.store.recordAt(ctx, w.scope.Run, low)
	if err == nil {
		w.after(rec)
	}
	return err
}

// headOf returns the sequence of the last event of a run.
func (r *Runner) headOf(ctx context.Context, run string) (uint64, error) {
	if e := r.active(run); e != nil {
		if head := e.head.Load(); head > 0 {
			return head, nil
		}
	}
	// Doubling, then halving: the log is asked a few times, however long the run is.
	low, high := uint64(0), uint64(64)
	for {
		_, ok, err := r.store.recordAt(ctx, run, high)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		low, high = high, 2*high
	}
	for low+1 < high {
		middle := low + (high-low)/2
		_, ok, err := r.store.recordAt(ctx, run, middle)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// rawWire encodes an event with its private part.
func rawWire(rec *auditstore.Record) ([]byte, error) {
	ev, err := decode(rec)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(ev)
}

// typeOf returns the type of an encoded event without decoding the rest.
func typeOf(public []byte) string {
	for len(public) > 0 {
		num, typ, n := protowire.ConsumeTag(public)
		if n < 0 {
			return ""
		}
		public = public[n:]
		if num == 3 && typ == protowire.BytesType {
			b, n := protowire.ConsumeBytes(public)
			if n < 0 {
				return ""
			}
			return string(b)
		}
		if n = protowire.ConsumeFieldValue(num, typ, public); n < 0 {
			return ""
		}
		public = public[n:]
	}
	return ""
}

// cursor returns a place in the log as clients keep it: "<log>.<position>.<sequence>".
func (r *Runner) cursor(c auditstore.Cursor) string {
	b := make([]byte, 0, len(r.cfg.LogID)+24)
	b = append(append(b, r.cfg.LogID...), '.')
	b = append(strconv.AppendUint(b, uint64(c.Position), 10), '.')
	return string(strconv.AppendUint(b, c.Sequence, 10))
}

// parseCursor returns the place that a cursor names. Errors have the reasons BAD_CURSOR and PAST_HEAD.
func (r *Runner) parseCursor(ctx context.Context, text string) (auditstore.Cursor, error) {
	id, rest, _ := strings.Cut(text, ".")
	position, sequence, _ := strings.Cut(rest, ".")
	p, err1 := strconv.ParseUint(position, 10, 64)
	s, err2 := strconv.ParseUint(sequence, 10, 64)
	c := auditstore.Cursor{Position: auditstore.Position(p), Sequence: s}
	if errors.Join(err1, err2) != nil || id != r.cfg.LogID || r.cursor(c) != text {
		return c, errorf(runnerdv1.ErrorReason_ERROR_REASON_BAD_CURSOR, "the cursor is not one of this log")
	}
	head, err := r.cfg.Log.Head(ctx)
	if err != nil {
		return c, err
	}
	if c.Position > head {
		e := errorf(runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD, "the log ends at position %d", head)
		return c, e.with("head", fmt.Sprint(uint64(head)))
	}
	return c, nil
}
