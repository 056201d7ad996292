package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/runnerd/runnerd/gen/runnerd/storage/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

const (
	// bodyEvery is how many events may follow a checkpoint body: what a load has to apply one by one.
	bodyEvery = 64
	// maxKeyChanges leaves room below the store's limit of keys an append.
	maxKeyChanges = auditstore.MaxKeys - 8
)

// own claims the run, however long that takes. A claim whose outcome is unknown is repeated, which does no harm.
func (e *engine) own(ctx context.Context, from auditstore.Epoch) error {
	for retry := (backoff{}); ; {
		claim, err := e.r.cfg.Log.Claim(ctx, e.run, e.r.cfg.Owner, from)
		if err == nil {
			e.claim = claim
			return nil
		}
		if !errors.Is(err, auditstore.ErrUnknown) && !errors.Is(err, auditstore.ErrUnavailable) {
			return err
		}
		if err := pause(ctx, retry.next()); err != nil {
			return err
		}
	}
}

// record makes a turn durable in one append. While the daemon stops, what would begin something new is held back: the
// next start plans it again.
func (e *engine) record(ctx context.Context, turn runstate.Turn) error {
	events := turn.Events
	if e.draining() {
		n := slices.IndexFunc(events, begins)
		if n >= 0 {
			return e.recordFirst(ctx, events[:n])
		}
	}
	switch {
	case len(events) > 0:
		return e.append(ctx, events, turn.Idle)
	case turn.Idle:
		return e.rewake(ctx)
	}
	return nil
}

// begins reports whether an event begins an effect.
func begins(ev *runnerdv1.Event) bool {
	switch ev.GetPayload().(type) {
	case *runnerdv1.Event_IterationStarted, *runnerdv1.Event_DecideRetried,
		*runnerdv1.Event_ToolCallStarted, *runnerdv1.Event_ToolCallRetried:
		return true
	}
	return false
}

// recordFirst records the first events of a turn only. The state, which is past them, is made anew.
func (e *engine) recordFirst(ctx context.Context, events []*runnerdv1.Event) error {
	if e.claim.Head == 0 {
		return errDraining()
	}
	if err := e.reload(ctx); err != nil || len(events) == 0 {
		return err
	}
	for _, ev := range events {
		if err := e.r.store.apply(ctx, e.st, ev); err != nil {
			return err
		}
	}
	return e.append(ctx, events, false)
}

// append writes events and whatever else of the run changes with them.
func (e *engine) append(ctx context.Context, events []*runnerdv1.Event, rests bool) error {
	records, err := e.enc.records(events)
	if err != nil {
		return err
	}
	a := auditstore.Append{Records: records, Reserve: slices.ContainsFunc(events, mustBeWritten)}
	if a.Shared, err = e.sharedBodies(ctx, events); err != nil {
		return err
	}
	head := events[len(events)-1].GetSequence()
	if rests || head-e.body >= bodyEvery {
		if a.Body, err = e.st.Body(); err != nil {
			return fmt.Errorf("checkpoint body: %w", err)
		}
		a.Body = sealBody(e.r.cfg.Key, e.run, head, a.Body)
		if sizeOf(&a)+roomForRow > auditstore.MaxAppend {
			a.Body = nil // a cache: a later append brings it
		}
	}
	state := e.st.Status()
	change := rests || state != e.state || slices.ContainsFunc(events, changesApprovals)
	var want, have [][]byte
	if change {
		run := summary(e.st)
		want = keysOf(run, e.st.NextDeadline())
		if have, err = e.index(ctx, &a, run, want); err != nil {
			return err
		}
	}
	if err := e.write(ctx, a); err != nil {
		return err
	}
	e.head.Store(head)
	e.state = state
	if a.Body != nil {
		e.body = head
	}
	if !change {
		return nil
	}
	e.keys = have
	return e.indexed(ctx, want)
}

// roomForRow is what is left in an append for row and keys when a checkpoint body goes with it.
const roomForRow = 128 << 10

// sharedBodies returns the bodies of the digests that the events name first. One that is too big is stored here.
func (e *engine) sharedBodies(ctx context.Context, events []*runnerdv1.Event) (map[auditstore.Digest][]byte, error) {
	var out map[auditstore.Digest][]byte
	for _, ev := range events {
		switch {
		case ev.GetRunStarted() != nil:
			out = map[auditstore.Digest][]byte{e.resolved.digest: e.resolved.body}
		case ev.GetToolsPinned() != nil:
			for i := range e.taken {
				pinned, ok := e.taken[i].fact.(runstate.Pinned)
				switch {
				case !ok:
				case len(pinned.Catalogue.Bytes()) > maxSharedBody:
					if _, err := e.r.parts(e.run).store(ctx, catalogueBlob, mimeBytes, "", pinned.Catalogue.Bytes()); err != nil {
						return nil, err
					}
				default:
					if out == nil {
						out = make(map[auditstore.Digest][]byte, 1)
					}
					out[pinned.Catalogue.Digest()] = pinned.Catalogue.Bytes()
				}
			}
		}
	}
	return out, nil
}

// mustBeWritten reports whether an event may use the disk reserve: a run can be ended on a full disk.
func mustBeWritten(ev *runnerdv1.Event) bool {
	switch ev.GetPayload().(type) {
	case *runnerdv1.Event_CancelRequested, *runnerdv1.Event_RunCompleted, *runnerdv1.Event_RunFailed, *runnerdv1.Event_RunPaused:
		return true
	}
	return false
}

// changesApprovals reports whether an event opens or closes an approval.
func changesApprovals(ev *runnerdv1.Event) bool {
	if ev.GetToolCallPendingApproval() != nil || ev.GetToolCallInDoubt() != nil ||
		ev.GetBudgetConfirmationRequested() != nil || ev.GetBudgetPrompt() != nil {
		return true
	}
	// A grant or auto mode may let a call pass, and mode DENY deny one, about which nobody was asked.
	return ev.GetToolCallApproved().GetResolution().GetApprovalId() != 0 || ev.GetToolCallDenied().GetResolution().GetApprovalId() != 0 ||
		ev.GetToolCallRetried().GetResolution() != nil || ev.GetToolCallCompleted().GetResolution() != nil ||
		ev.GetToolCallFailed().GetResolution() != nil
}

// index puts row and keys into an append and returns the keys that the run has after it. The row lists each of them,
// so that none is ever left behind. More keys than an append takes are put before it, where they lead to what is not
// there yet, and deleted after it.
func (e *engine) index(ctx context.Context, a *auditstore.Append, run *runnerdv1.Run, want [][]byte) ([][]byte, error) {
	puts, dels := missing(want, e.keys), missing(e.keys, want)
	for len(puts) > maxKeyChanges {
		first := puts[:maxKeyChanges]
		puts = puts[maxKeyChanges:]
		all := slices.SortedFunc(slices.Values(slices.Concat(e.keys, first)), bytes.Compare)
		if err := e.rekey(ctx, auditstore.Append{Put: first, Reserve: a.Reserve}, all); err != nil {
			return nil, err
		}
	}
	a.Put, a.Del = puts, dels[:min(len(dels), maxKeyChanges-len(puts))]
	have := slices.SortedFunc(slices.Values(slices.Concat(want, dels[len(a.Del):])), bytes.Compare)
	row := &storagev1.Row{
		Run: run, RequestDigest: e.requestDigest, Keys: have, BodySequence: e.body, CatalogueDigest: e.st.CatalogueDigest(),
	}
	if a.Body != nil {
		row.BodySequence = run.GetHeadSequence()
	}
	var err error
	if a.Row, err = proto.Marshal(row); err != nil {
		return nil, fmt.Errorf("row: %w", err)
	}
	return have, nil
}

// rekey changes nothing but keys: what the row says of the run changes with its events only.
func (e *engine) rekey(ctx context.Context, a auditstore.Append, have [][]byte) error {
	known, err := e.known(ctx)
	if err != nil {
		return err
	}
	known.Keys = have
	if a.Row, err = proto.Marshal(known.Row); err != nil {
		return fmt.Errorf("row: %w", err)
	}
	if err := e.write(ctx, a); err != nil {
		return err
	}
	e.keys = have
	return nil
}

// rewake puts the wake key of a run at rest right: one that an earlier process wrote tells the time of its clock.
func (e *engine) rewake(ctx context.Context) error {
	want := slices.DeleteFunc(slices.Clone(e.keys), isWakeKey)
	if at := e.st.NextDeadline(); !at.IsZero() {
		want = append(want, wakeKey(at, e.run))
		slices.SortFunc(want, bytes.Compare)
	}
	a := auditstore.Append{Put: missing(want, e.keys), Del: missing(e.keys, want)}
	if len(a.Put)+len(a.Del) == 0 {
		return nil
	}
	if err := e.rekey(ctx, a, want); err != nil {
		return err
	}
	return e.indexed(ctx, want)
}

// indexed is what follows once the events are durable: deletes that did not fit, and telling the timers.
func (e *engine) indexed(ctx context.Context, want [][]byte) error {
	for _, key := range want {
		if isWakeKey(key) {
			e.r.timers.announce(wakeTime(key))
		}
	}
	for {
		dels := missing(e.keys, want)
		if len(dels) == 0 {
			return nil
		}
		dels = dels[:min(len(dels), maxKeyChanges)]
		err := e.rekey(ctx, auditstore.Append{Del: dels}, missing(e.keys, dels))
		if errors.Is(err, auditstore.ErrFull) {
			return nil // a key that leads to nothing does no harm and is deleted with the next change
		}
		if err != nil {
			return err
		}
	}
}

// sizeOf is how much of the store's limit an append uses, or a little more.
func sizeOf(a *auditstore.Append) int {
	size := len(a.Row) + len(a.Body)
	for i := range a.Records {
		size += len(a.Records[i].Public) + len(a.Records[i].Private) + len(a.Records[i].Salt) + auditstore.MaxTrailer
	}
	for _, key := range slices.Concat(a.Put, a.Del) {
		size += len(key)
	}
	for _, body := range a.Shared {
		size += len(body) + len(auditstore.Digest{})
	}
	return size
}

// write appends, whatever it takes: what surely was not written is written again, and what may have been is looked
// for under a new claim. It returns nil exactly if the append is durable.
func (e *engine) write(ctx context.Context, a auditstore.Append) error {
	return e.patiently(ctx, func() error {
		for {
			before := *e.claim
			_, err := e.r.cfg.Log.Append(ctx, e.claim, a)
			if !errors.Is(err, auditstore.ErrUnknown) {
				return err
			}
			e.r.log.Warn("an append may or may not have been written", "run", e.run, "error", err)
			if written, err := e.settle(ctx, before, a.Records); written || err != nil {
				return err
			}
		}
	})
}

// settle finds out whether an append after a claim was written. The new claim keeps it from being written later.
func (e *engine) settle(ctx context.Context, before auditstore.Claim, records []auditstore.Record) (written bool, err error) {
	if err := e.claimAgain(ctx, before.Epoch); err != nil {
		return false, err
	}
	hash := before.HeadHash
	for i := range records {
		hash = auditstore.Hash(hash, records[i].Public)
	}
	switch now := e.claim; {
	case now.Head == before.Head+uint64(len(records)) && now.HeadHash == hash:
		return len(records) > 0, nil // without records: written once more, which changes nothing
	case now.Head == before.Head && now.HeadHash == before.HeadHash:
		return false, nil
	default:
		return false, fmt.Errorf("run %s: head is %d: %w", e.run, now.Head, auditstore.ErrConflict)
	}
}

// claimAgain claims the run after an append whose outcome is unknown. A store that cannot even do that leaves nothing
// to hold on to: the process ends and the next one reads what is true.
func (e *engine) claimAgain(ctx context.Context, from auditstore.Epoch) error {
	short, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	err := e.own(short, from)
	if err != nil && !errors.Is(err, auditstore.ErrFenced) && ctx.Err() == nil {
		err = fmt.Errorf("claim run %s again: %w", e.run, err)
		e.r.cfg.Fatal(err)
	}
	return err
}

// settleTime is how long the store may be unavailable while it is not known what it holds.
const settleTime = 30 * time.Second
