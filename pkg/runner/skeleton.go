package runner

import (
	"context"
	"errors"
	"iter"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	storagev1 "github.com/runnerd/runnerd/gen/runnerd/storage/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

type (
	store struct {
		log   auditstore.Log
		blobs auditstore.Blobs
		key   Key
	}
	slots      struct{ free int }
	hub        struct{}
	timers     struct{}
	tokens     struct{}
	catalogues struct{}
	engine     struct{}
)

func newHub(auditstore.Log) *hub { return nil }
func newTimers() *timers         { return nil }
func newTokens() *tokens         { return nil }
func newCatalogues() *catalogues { return nil }

// Index keys, see rows.go: list/ and agent/ are newest first.
const (
	prefixOpen  = "open/"  // open/<run>
	prefixWake  = "wake/"  // wake/<20-digit nanos>/<run>
	prefixAsk   = "ask/"   // ask/<20-digit nanos opened>/<run>/<approval id>
	prefixList  = "list/"  // list/<20-digit inverted nanos>/<run>
	prefixAgent = "agent/" // agent/<agent>/<20-digit inverted nanos>/<run>
)

// Snapshot is a run at one moment.
type Snapshot struct {
	Run *runnerdv1.Run // unredacted; the receiver owns it
}

// WatchOptions says what is watched and from where.
type WatchOptions struct {
	Run           string   // empty: all runs
	AfterSequence *uint64  // run scope: events after this sequence
	AfterCursor   string   // events after the one that came with this cursor
	Types         []string // only events and signals of these types; empty: all
	Follow        bool     // stay at the head and send what comes
	Signals       bool     // run scope only
	Raw           bool     // events with their private part
}

// WatchItem is one event or one signal.
type WatchItem struct {
	Run      string
	Sequence uint64
	Type     string
	Cursor   string            // of the event; of the head for stream_progress
	Event    []byte            // the encoded message; nil for a signal. It must not be changed.
	Signal   *runnerdv1.Signal // nil for an event. It must not be changed.
}

// Run recovers open runs and serves; returns after the drain when ctx ends.
func (r *Runner) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Drain ...
func (r *Runner) Drain(ctx context.Context) error { return errors.ErrUnsupported }

// Start starts a run, or returns the one that exists with the same request.
func (r *Runner) Start(ctx context.Context, principal string, req *runnerdv1.StartRunRequest) (run *runnerdv1.Run, existed bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// Deliver brings a fact to a run and returns once what follows is durable. err is a *runstate.Refusal or
// runstate.ErrNotOpen (also in Reply.Err) or an *Error. Texts over 64 KiB of an Input are put into blobs here.
func (r *Runner) Deliver(ctx context.Context, runID string, fact runstate.Fact) (runstate.Reply, error) {
	return runstate.Reply{}, errors.ErrUnsupported
}

// Inspect runs read with the state of a run as it is now, between two turns if it is active. read must not change or
// keep anything of the state.
func (r *Runner) Inspect(ctx context.Context, runID string, read func(*runstate.State)) error {
	return errors.ErrUnsupported
}

// Snapshot ...
func (r *Runner) Snapshot(ctx context.Context, runID string) (*Snapshot, error) {
	return nil, errors.ErrUnsupported
}

// WaitRun returns the run when it is DONE or, with idle, when nothing is in progress, or with timedOut when ctx ends.
func (r *Runner) WaitRun(ctx context.Context, runID string, idle bool) (run *runnerdv1.Run, timedOut bool, err error) {
	return nil, false, errors.ErrUnsupported
}

// At returns the state of a run at a sequence, 0: the head. The caller owns it. Past the head: PAST_HEAD.
func (r *Runner) At(ctx context.Context, runID string, sequence uint64) (*runstate.State, error) {
	return nil, errors.ErrUnsupported
}

// Row returns the row of a run, RUN_NOT_FOUND if there is none.
func (r *Runner) Row(ctx context.Context, runID string) (*storagev1.Row, error) {
	return nil, errors.ErrUnsupported
}

// Events yields the events of a run after a sequence, whole (with their private part), trailer fields set.
func (r *Runner) Events(ctx context.Context, runID string, after uint64) iter.Seq2[*runnerdv1.Event, error] {
	return nil
}

// Event returns one event of a run, whole.
func (r *Runner) Event(ctx context.Context, runID string, sequence uint64) (*runnerdv1.Event, error) {
	return nil, errors.ErrUnsupported
}

// Checkpoint returns the checkpoint of an iteration, 0: the latest. CHECKPOINT_NOT_FOUND.
func (r *Runner) Checkpoint(ctx context.Context, runID string, iteration uint32) (*runnerdv1.Checkpoint, error) {
	return nil, errors.ErrUnsupported
}

// Checkpoints lists checkpoints of iterations larger than after, at most limit.
func (r *Runner) Checkpoints(ctx context.Context, runID string, after uint32, limit int) ([]*runnerdv1.Checkpoint, error) {
	return nil, errors.ErrUnsupported
}

// ListTools asks the hosts of an agent now. AGENT_NOT_FOUND.
func (r *Runner) ListTools(ctx context.Context, agent string) (*runstate.Catalogue, []*runnerdv1.Finding, error) {
	return nil, nil, errors.ErrUnsupported
}

// ReadBlob returns the rest of the chunk at offset of a stored artifact, io.EOF past its end, ARTIFACT_NOT_FOUND.
func (r *Runner) ReadBlob(ctx context.Context, runID, artifactID string, offset int64) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

// ReadPart returns the whole of an artifact and checks its digest.
func (r *Runner) ReadPart(ctx context.Context, runID string, ref *runnerdv1.ArtifactRef) ([]byte, error) {
	return nil, errors.ErrUnsupported
}

// Settled stores what is big of a settled result and returns the result for a Vote.
func (r *Runner) Settled(ctx context.Context, runID string, approvalID uint64, result *runnerdv1.SettledResult) (*runstate.Result, error) {
	return nil, errors.ErrUnsupported
}

// CheckRunToken returns the run for which a token is valid now.
func (r *Runner) CheckRunToken(token string) (run string, ok bool) { return "", false }

// Watch sends the events of a scope in order, and signals, until there is nothing more to send, ctx ends, or a drain
// begins. send is called from one goroutine with at most 1000 items; after 15 s without any it gets a stream_progress
// signal. Errors: RUN_NOT_FOUND, BAD_CURSOR, PAST_HEAD (metadata head), DRAINING, ctx's, what send returns.
func (r *Runner) Watch(ctx context.Context, opt WatchOptions, send func([]WatchItem) error) error {
	return errors.ErrUnsupported
}
