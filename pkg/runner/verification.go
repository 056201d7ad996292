package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// progressEvery is how often a verification tells how far it is.
const progressEvery = time.Second

// verification checks a log in two passes. The first reads all events in their order and checks what each says of
// itself: hash chain, encoding, private digest. The second takes run by run and checks what the events mean: the
// invariants, and that folding them gives the stored checkpoint bodies.
type verification struct {
	store *store
	send  func(*runnerdv1.VerifyAuditResponse) error

	done     runnerdv1.AuditProgress
	findings uint64
	told     time.Time // when progress was last sent
}

// errEnough ends the first pass at the head the log had when it began: a log that grows is not run after.
var errEnough = errors.New("read up to the head")

func (v *verification) verify(ctx context.Context, run string) error {
	v.told = time.Now()
	head, err := v.store.log.Head(ctx)
	if err != nil {
		return err
	}
	broken, err := auditstore.Verify(ctx, v.store.log, run, auditstore.Cursor{}, func(page []auditstore.Record) error {
		if err := v.page(page); err != nil {
			return err
		}
		if page[len(page)-1].Position >= head {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	for _, f := range broken {
		if err := v.found(f.Run, f.Sequence, "chain", f.Problem); err != nil {
			return err
		}
	}
	if run != "" {
		return v.run(ctx, run)
	}
	for after := []byte(nil); ; {
		rows, err := v.store.log.Rows(ctx, []byte(auditstore.RunPrefix), after, pageSize)
		if err != nil {
			return err
		}
		if len(rows) == 0 {
			return nil
		}
		for _, row := range rows {
			if row.Damage != nil { // the row is lost, the events of the run are not
				if err := v.found(row.Run, 0, "unreadable", row.Damage.Error()); err != nil {
					return err
				}
			}
			if err := v.run(ctx, row.Run); err != nil {
				return err
			}
			after = row.Key
		}
	}
}

// page checks what each record says of itself.
func (v *verification) page(page []auditstore.Record) error {
	for i := range page {
		rec := &page[i]
		v.done.Events++
		ev, err := decodePublic(rec)
		if err != nil {
			if err := v.found(rec.Run, rec.Sequence, "decode", err.Error()); err != nil {
				return err
			}
			continue
		}
		if problem := v.privateProblem(rec, ev.GetPrivateDigest()); problem != "" {
			if err := v.found(rec.Run, rec.Sequence, "private", problem); err != nil {
				return err
			}
		}
	}
	return v.progress()
}

// privateProblem says what is wrong with the private part of a record; empty: nothing.
func (v *verification) privateProblem(rec *auditstore.Record, digest []byte) string {
	switch {
	case rec.Erased:
		v.done.Erased++
		return ""
	case len(digest) == 0 && rec.Private == nil:
		return ""
	case len(digest) == 0:
		return "there is a private part that the public part does not name"
	case rec.Private == nil:
		return "the private part is missing and was not erased"
	}
	if got := privateDigest(rec.Salt, rec.Private); !bytes.Equal(got[:], digest) {
		return "the private part does not have the digest in the public part"
	}
	return ""
}

// run checks what the events of one run mean.
func (v *verification) run(ctx context.Context, run string) error {
	log, err := v.readRun(ctx, run)
	if err != nil {
		return err
	}
	if log.unreadable != nil {
		if err := v.found(run, log.at, "unreadable", log.unreadable.Error()); err != nil {
			return err
		}
	}
	for _, violation := range log.violations {
		code := fmt.Sprintf("invariant-%d", violation.Invariant)
		if err := v.found(run, violation.Sequence, code, violation.Message); err != nil {
			return err
		}
	}
	if log.unreadable == nil && len(log.violations) == 0 && !log.erased {
		if err := v.replay(ctx, run); err != nil {
			return err
		}
	}
	v.done.Runs++
	return v.progress()
}

// runLog is what reading the events of a run once gave.
type runLog struct {
	violations []runstate.Violation
	erased     bool
	at         uint64 // last event that was read
	unreadable error  // why the events after that were not
}

// readRun reads the events of a run, whole, and checks the invariants.
func (v *verification) readRun(ctx context.Context, run string) (log runLog, err error) {
	env := runstate.Env{Key: v.store.key}
	if env.Spec, err = v.spec(ctx, run); errors.Is(err, auditstore.ErrCorrupt) {
		log.at, log.unreadable = 1, err
		return log, nil
	}
	if err != nil {
		return log, err
	}
	log.violations = runstate.Check(func(yield func(*runnerdv1.Event) bool) {
		for rec, readErr := range v.store.records(ctx, run, 0) {
			var ev *runnerdv1.Event
			if readErr == nil {
				log.erased = log.erased || rec.Erased
				ev, readErr = decode(rec)
			}
			if readErr != nil {
				log.unreadable = readErr
				return
			}
			log.at = rec.Sequence
			if !yield(ev) {
				return
			}
		}
	}, runstate.CheckOptions{Env: env})
	if log.unreadable != nil && !errors.Is(log.unreadable, auditstore.ErrCorrupt) {
		return log, log.unreadable // not the log's fault
	}
	return log, nil
}

// spec returns the spec of a run, by the digest in its first event.
func (v *verification) spec(ctx context.Context, run string) (*runnerdv1.RunSpec, error) {
	rec, ok, err := v.store.recordAt(ctx, run, 1)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("run %s has no first event: %w", run, auditstore.ErrCorrupt)
	}
	ev, err := decodePublic(rec)
	if err != nil {
		return nil, err
	}
	return v.store.spec(ctx, ev.GetRunStarted().GetSpecDigest())
}

// replay folds a run from its first event and compares the state with every checkpoint body that is stored of it.
func (v *verification) replay(ctx context.Context, run string) error {
	bodies, err := v.bodies(ctx, run)
	if err != nil {
		return err
	}
	var st *runstate.State
	for rec, err := range v.store.records(ctx, run, 0) {
		if err != nil {
			return err
		}
		ev, err := decode(rec)
		if err != nil {
			return err
		}
		if st == nil {
			st, err = v.store.begin(ctx, ev)
		}
		if err == nil {
			err = v.store.apply(ctx, st, ev)
		}
		if errors.Is(err, runstate.ErrIllegalEvent) || errors.Is(err, auditstore.ErrCorrupt) {
			return v.found(run, rec.Sequence, "replay", err.Error())
		}
		if err != nil {
			return err
		}
		if len(bodies) > 0 && bodies[0] == rec.Sequence {
			bodies = bodies[1:]
			if err := v.compare(ctx, st, run); err != nil {
				return err
			}
		}
		if err := v.progress(); err != nil {
			return err
		}
	}
	return nil
}

// bodies returns the sequences of the checkpoint bodies of a run, in order.
func (v *verification) bodies(ctx context.Context, run string) ([]uint64, error) {
	var sequences []uint64
	for below := uint64(math.MaxUint64); below > 0; {
		sequence, _, err := v.store.log.Body(ctx, run, below)
		if err != nil {
			return nil, fmt.Errorf("checkpoint bodies of run %s: %w", run, err)
		}
		if sequence == 0 {
			break
		}
		sequences = append(sequences, sequence)
		below = sequence - 1
	}
	slices.Reverse(sequences)
	return sequences, nil
}

// compare holds a state against the body that is stored at its sequence. A body of another version is a cache that
// nobody uses any more and says nothing.
func (v *verification) compare(ctx context.Context, st *runstate.State, run string) error {
	sequence, stored, err := v.store.log.Body(ctx, run, st.Sequence())
	if err != nil {
		return fmt.Errorf("checkpoint body of run %s: %w", run, err)
	}
	if sequence != st.Sequence() {
		return nil // dropped meanwhile
	}
	stored, ok := openBody(v.store.key, run, sequence, stored)
	if !ok {
		return v.found(run, sequence, "seal", "the checkpoint body was not written with the key of this data folder for this run")
	}
	if _, _, err := runstate.BodyDigests(stored); err != nil {
		return nil //nolint:nilerr // see above
	}
	body, err := st.Body()
	if err != nil {
		return err
	}
	if !bytes.Equal(body, stored) {
		return v.found(run, sequence, "replay", "folding the events does not give the stored checkpoint body")
	}
	return nil
}

// found tells one thing that is wrong.
func (v *verification) found(run string, sequence uint64, code, message string) error {
	v.findings++
	return v.send(&runnerdv1.VerifyAuditResponse{Event: &runnerdv1.VerifyAuditResponse_Finding{
		Finding: &runnerdv1.AuditFinding{RunId: run, Sequence: sequence, Code: code, Message: cutText(message)},
	}})
}

// progress tells how far the verification is, about once a second.
func (v *verification) progress() error {
	if time.Since(v.told) < progressEvery {
		return nil
	}
	v.told = time.Now()
	return v.send(&runnerdv1.VerifyAuditResponse{Event: &runnerdv1.VerifyAuditResponse_Progress{Progress: v.verified()}})
}

func (v *verification) verified() *runnerdv1.AuditProgress {
	return &runnerdv1.AuditProgress{Runs: v.done.GetRuns(), Events: v.done.GetEvents(), Erased: v.done.GetErased()}
}

// summary tells the end.
func (v *verification) summary() error {
	return v.send(&runnerdv1.VerifyAuditResponse{Event: &runnerdv1.VerifyAuditResponse_Summary{
		Summary: &runnerdv1.AuditSummary{Ok: v.findings == 0, Verified: v.verified(), Findings: v.findings},
	}})
}
