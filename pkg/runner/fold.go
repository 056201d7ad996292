package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// store is the durable side of a runner as runs and events: it folds what the log holds into states.
type store struct {
	log    auditstore.Log
	blobs  auditstore.Blobs
	key    Key
	shared shared
}

// fold returns the state of a run at a sequence, or at the head if there is less, and the sequence of the checkpoint
// body it began with. It calls see, unless nil, with each event. A run without events is [errNoRun].
func (s *store) fold(ctx context.Context, run string, upTo uint64, see func(*runnerdv1.Event)) (st *runstate.State, body uint64, err error) {
	st, body, err = s.restore(ctx, run, upTo)
	if err != nil {
		return nil, 0, err
	}
	from := uint64(1)
	if st != nil {
		from = st.HistoryFrom()
	}
	for rec, err := range s.records(ctx, run, from-1) {
		if err != nil {
			return nil, 0, err
		}
		if rec.Sequence > upTo {
			break
		}
		ev, err := decode(rec)
		if err != nil {
			return nil, 0, err
		}
		if see != nil {
			see(ev)
		}
		switch {
		case st == nil:
			if st, err = s.begin(ctx, ev); err == nil {
				err = s.apply(ctx, st, ev)
			}
		case rec.Sequence <= body:
			err = st.Remember(ev)
		default:
			err = s.apply(ctx, st, ev)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("fold run %s, sequence %d: %w", run, rec.Sequence, err)
		}
	}
	if st == nil {
		return nil, 0, errNoRun
	}
	return st, body, nil
}

// errNoRun says that a run has no events.
var errNoRun = errors.New("no such run")

// restore returns the state at the newest checkpoint body at or before a sequence, without its history; nil if there
// is no body that can be used. Bodies are a cache: one that cannot be read costs time only.
func (s *store) restore(ctx context.Context, run string, upTo uint64) (*runstate.State, uint64, error) {
	sequence, body, err := s.log.Body(ctx, run, upTo)
	if err != nil {
		return nil, 0, fmt.Errorf("checkpoint body of run %s: %w", run, err)
	}
	if sequence == 0 {
		return nil, 0, nil
	}
	body, ok := openBody(s.key, run, sequence, body)
	if !ok {
		return nil, 0, nil // not ours: fold from the first event
	}
	spec, catalogue, err := runstate.BodyDigests(body)
	if err != nil {
		return nil, 0, nil //nolint:nilerr // a body of another version: fold from the first event
	}
	env := runstate.Env{Key: s.key}
	if env.Spec, err = s.spec(ctx, spec); err != nil {
		return nil, 0, err
	}
	if catalogue != "" {
		if env.Catalogue, err = s.catalogue(ctx, run, catalogue); err != nil {
			return nil, 0, err
		}
	}
	st, err := runstate.Restore(env, body)
	if err != nil {
		return nil, 0, nil //nolint:nilerr // as above
	}
	return st, sequence, nil
}

// begin returns the empty state for a run that begins with the event.
func (s *store) begin(ctx context.Context, ev *runnerdv1.Event) (*runstate.State, error) {
	spec, err := s.spec(ctx, ev.GetRunStarted().GetSpecDigest())
	if err != nil {
		return nil, err
	}
	return runstate.New(runstate.Env{Key: s.key, Spec: spec, SpecDigest: ev.GetRunStarted().GetSpecDigest()}, ev.GetRunId()), nil
}

// apply folds one event and gives the state its catalogue once it is pinned.
func (s *store) apply(ctx context.Context, st *runstate.State, ev *runnerdv1.Event) error {
	if err := runstate.Apply(st, ev); err != nil {
		return err
	}
	if ev.GetToolsPinned() == nil {
		return nil
	}
	catalogue, err := s.catalogue(ctx, ev.GetRunId(), st.CatalogueDigest())
	if err != nil {
		return err
	}
	st.SetCatalogue(catalogue)
	return nil
}

// shared keeps values that many runs share, by digest: specs and compiled catalogues.
type shared struct {
	mu     sync.Mutex
	values map[string]any
}

// maxShared bounds how many values are kept; past it all are dropped and read again when needed.
const maxShared = 512

func (s *shared) get(digest string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.values[digest]
}

func (s *shared) put(digest string, value any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.values == nil || len(s.values) >= maxShared {
		s.values = make(map[string]any)
	}
	s.values[digest] = value
}

// spec returns the spec with a digest.
func (s *store) spec(ctx context.Context, digest string) (*runnerdv1.RunSpec, error) {
	return sharedValue(s, digest, func() ([]byte, error) { return s.sharedBody(ctx, digest) }, func(b []byte) (*runnerdv1.RunSpec, error) {
		spec := new(runnerdv1.RunSpec)
		return spec, proto.Unmarshal(b, spec)
	})
}

// catalogue returns the catalogue of a run. One that is too big to go with an append is an artifact of the run.
func (s *store) catalogue(ctx context.Context, run, digest string) (*runstate.Catalogue, error) {
	read := func() ([]byte, error) {
		body, err := s.sharedBody(ctx, digest)
		if errors.Is(err, auditstore.ErrNotFound) {
			return s.readBlob(ctx, run, catalogueBlob)
		}
		return body, err
	}
	return sharedValue(s, digest, read, func(b []byte) (*runstate.Catalogue, error) {
		pb := new(runnerdv1.Catalogue)
		if err := proto.Unmarshal(b, pb); err != nil {
			return nil, err
		}
		return runstate.NewCatalogue(pb), nil
	})
}

const (
	// maxSharedBody is the biggest body in bytes that goes with an append.
	maxSharedBody = 160 << 10
	// catalogueBlob is the artifact of a run that holds its catalogue, if that is bigger.
	catalogueBlob = "catalogue"
)

// sharedBody returns the shared value with a digest, lower-case hex.
func (s *store) sharedBody(ctx context.Context, digest string) ([]byte, error) {
	raw, err := hex.DecodeString(digest)
	if err != nil || len(raw) != len(auditstore.Digest{}) {
		return nil, fmt.Errorf("not a digest: %w", auditstore.ErrCorrupt)
	}
	return s.log.Shared(ctx, auditstore.Digest(raw))
}

// readBlob returns the whole of an artifact.
func (s *store) readBlob(ctx context.Context, run, id string) ([]byte, error) {
	var data []byte
	for {
		piece, err := s.blobs.Get(ctx, run, id, int64(len(data)))
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		data = append(data, piece...)
	}
}

// sharedValue returns what a body with a digest says; it reads and parses the body only if nobody has lately.
func sharedValue[T any](s *store, digest string, read func() ([]byte, error), parse func([]byte) (T, error)) (T, error) {
	if value, ok := s.shared.get(digest).(T); ok {
		return value, nil
	}
	var none T
	body, err := read()
	if err == nil && fmt.Sprintf("%x", sha256.Sum256(body)) != digest {
		err = auditstore.ErrCorrupt
	}
	if errors.Is(err, auditstore.ErrNotFound) {
		err = fmt.Errorf("%w: %w", auditstore.ErrCorrupt, err)
	}
	if err != nil {
		return none, fmt.Errorf("body with digest %s: %w", digest, err)
	}
	value, err := parse(body)
	if err != nil {
		return none, fmt.Errorf("body with digest %s: %w: %w", digest, auditstore.ErrCorrupt, err)
	}
	s.shared.put(digest, value)
	return value, nil
}

// At returns the state of a run as of an event, 0: the last. The caller owns it. Errors have the reasons RUN_NOT_FOUND
// and PAST_HEAD, the latter with the head.
func (r *Runner) At(ctx context.Context, runID string, sequence uint64) (*runstate.State, error) {
	upTo := sequence
	if upTo == 0 {
		upTo = math.MaxUint64
	}
	st, _, err := r.store.fold(ctx, runID, upTo, nil)
	if errors.Is(err, errNoRun) {
		return nil, runNotFound(runID)
	}
	if err != nil {
		return nil, err
	}
	if st.Sequence() < sequence {
		return nil, pastHead(runID, st.Sequence())
	}
	return st, nil
}

func pastHead(run string, head uint64) *Error {
	e := errorf(runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD, "run %q ends at event %d", run, head)
	return e.with("head", fmt.Sprint(head))
}
