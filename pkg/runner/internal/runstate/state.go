package runstate

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// ErrIllegalEvent says that an event cannot follow the state it is applied to: a bug, or a log that was tampered with.
var ErrIllegalEvent = errors.New("illegal event")

// ErrNotOpen answers a vote on an approval that is not open. Whether it was ever opened, and how it was closed, stands
// in the log from the sequence of its id on.
var ErrNotOpen = errors.New("approval is not open")

// ErrNoGrant answers the revocation of a grant that does not hold. Whether it ever did stands in the log, at the
// sequence of its id.
var ErrNoGrant = errors.New("grant does not hold")

// Env is what the rules of a run are evaluated with. It is in no event and in no checkpoint body.
type Env struct {
	Key        Key // key of all digests
	Spec       *runnerdv1.RunSpec
	SpecDigest string     // of Spec, lower-case hex, where it is known; New needs it
	Catalogue  *Catalogue // nil until tools_pinned
}

// State is one run: the fold of its events. It holds control, which a checkpoint body keeps, and memory, the contents,
// which are read from the events again.
type State struct {
	env    Env
	ctl    control
	mem    memory
	behind time.Duration // how far the clock of the process is behind that of the run
}

// phase is where in an iteration a run is. It says nothing about whether the leg is open.
type phase string

const (
	phaseQueued   phase = "queued"   // no tools yet
	phaseBetween  phase = "between"  // every call has its outcome: the next iteration may start
	phaseDecide   phase = "decide"   // a Decide is wanted
	phaseCalls    phase = "calls"    // a decision with calls, not all of which have an outcome
	phaseAnswer   phase = "answer"   // a decision with an answer that has not ended the run yet
	phaseQuestion phase = "question" // a decision with a question that has not been answered yet
)

const bodyVersion = 1

// control is the part of a State that decides what may follow. It is bounded by what is live.
type control struct {
	Version         int
	RunID           string
	SpecDigest      string
	CatalogueDigest string `json:",omitempty"`

	Sequence  uint64
	Time      time.Time
	Leg       uint32
	Iteration uint32
	Phase     phase
	Stop      runnerdv1.StopReason `json:",omitempty"` // set: the leg is closed

	Budget     *runnerdv1.Budget         // limits that hold now
	AutoLimits *runnerdv1.AutoModeLimits `json:",omitempty"` // of auto mode that hold now; nil: it is off
	Running    time.Duration             // time in RUNNING

	ToolCalls      uint32
	Imported       uint32 `json:",omitempty"` // of them, given at the start
	AutoApproved   uint32 `json:",omitempty"` // calls that auto mode approved
	AutoCallsHit   bool   `json:",omitempty"` // a call of this leg was over max_tool_calls of auto mode
	Failures       uint32 // in a row
	InvalidInRow   uint32 // how many of them, the last ones, were invalid decisions
	Refusals       uint32 `json:",omitempty"` // in a row
	ToolBudgetHit  bool   `json:",omitempty"` // a call of this leg was blocked TOOL_BUDGET
	Usage          usage
	CostWarned     bool     `json:",omitempty"`
	Warned         []uint32 `json:",omitempty"` // levels of the cost cap, in the order of their warnings
	ContextWarned  bool     `json:",omitempty"`
	ContextTokens  int64    `json:",omitempty"` // of the last Decide that reported any
	CheckpointSeq  uint64   `json:",omitempty"` // event that completed the last complete iteration
	HistoryEntries uint32

	Confirm  confirmation `json:",omitzero"`
	Decide   decideState
	Grants   []*grant      `json:",omitempty"` // that hold, oldest first
	Starts   []*toolStarts `json:",omitempty"` // of tools with a rate limit
	Calls    []*call       `json:",omitempty"` // of the decision being worked on, in order
	Question uint64        `json:",omitempty"` // open input_requested
	Unread   uint32        `json:",omitempty"` // inputs that no Decide was shown
	Inputs   []inputSeen   `json:",omitempty"` // the last request ids, so that none is recorded twice
	Cancel   cancelRequest `json:",omitzero"`
}

type decideState struct {
	Attempt      uint32
	AskAt        time.Time // when the attempt starts
	Failed       uint32    // attempts of this iteration that failed since it was first asked, resumed or recovered
	FirstFailure time.Time
}

type usage struct {
	CostNano, In, Out, Cached            int64
	Decisions, WithoutUsage, WithoutCost uint32
}

type inputSeen struct {
	RequestID string
	Sequence  uint64
}

type cancelRequest struct {
	Mode runnerdv1.CancelMode
	At   time.Time
}

// callStatus is where a call of the open decision is.
type callStatus string

const (
	callRequested callStatus = "requested" // no approval is open, not started
	callPending   callStatus = "pending"   // a person is asked whether it may run
	callApproved  callStatus = "approved"  // may run when it is its turn
	callStarted   callStatus = "started"   // an attempt is, or will at RetryAt be, in progress
	callLookup    callStatus = "lookup"    // its host is asked what became of it
	callDoubt     callStatus = "doubt"     // a person is asked what became of it
	callCompleted callStatus = "completed"
	callFailed    callStatus = "failed"
	callDenied    callStatus = "denied"
	callBlocked   callStatus = "blocked"
)

// call is one call of the decision being worked on.
type call struct {
	ID              string
	ToolName        string // as the model wrote it
	Host, Tool      string
	arguments       Part // what is sent; read from the event again
	ArgumentsHash   string
	ArgumentDigest  string
	SchemaDigest    string
	Verdict         runnerdv1.Verdict
	Gate, Rule      string
	Layer           string `json:",omitempty"`
	Tier            uint32
	RateLimit       *runnerdv1.RateLimit `json:",omitempty"`
	Recovery        runnerdv1.Recovery
	Annotations     *runnerdv1.Annotations
	RequestedSeq    uint64
	Status          callStatus
	Reason          runnerdv1.CallReason `json:",omitempty"` // of the outcome
	ClosedVia       runnerdv1.Via        `json:",omitempty"` // how its approval was closed
	GrantID         uint64               `json:",omitempty"` // grant that let it pass
	Edited          bool                 `json:",omitempty"` // the approver changed the arguments
	Attempt         uint32
	StartAt         time.Time           // when the attempt starts
	Deadline        time.Time           // of the attempt, or of the look-up
	Approval        uint64              `json:",omitempty"` // open, or approved and not consumed
	ApprovalDigest  string              `json:",omitempty"`
	ApprovalOpened  time.Time           `json:",omitzero"`
	ApprovalExpires time.Time           `json:",omitzero"`
	Cause           runnerdv1.LostCause `json:",omitempty"` // why it is in doubt
	Sent            bool                `json:",omitempty"` // an earlier attempt was lost and may have taken effect
}

func (c *call) done() bool {
	switch c.Status {
	case callCompleted, callFailed, callDenied, callBlocked:
		return true
	}
	return false
}

// inProgress reports whether the world works on the call.
func (c *call) inProgress() bool { return c.Status == callStarted || c.Status == callLookup }

// asks reports whether a person is asked about the call.
func (c *call) asks() bool { return c.Status == callPending || c.Status == callDoubt }

// New returns the empty state of a run. Its first fact must be Start.
func New(env Env, runID string) *State {
	if env.SpecDigest == "" {
		_, digest := SpecBytes(env.Spec)
		env.SpecDigest = hex.EncodeToString(digest[:])
	}
	return &State{env: env, ctl: control{
		Version: bodyVersion, RunID: runID, SpecDigest: env.SpecDigest,
		Phase: phaseQueued, Budget: env.Spec.GetBudget(), AutoLimits: autoLimitsOf(env.Spec),
	}}
}

// Restore returns the state at a checkpoint body. Its memory is empty: Remember the events from HistoryFrom up to the
// body's sequence, then Apply the later ones.
func Restore(env Env, body []byte) (*State, error) {
	st := &State{env: env}
	if err := json.Unmarshal(body, &st.ctl); err != nil {
		return nil, fmt.Errorf("checkpoint body: %w", err)
	}
	if st.ctl.Version != bodyVersion {
		return nil, fmt.Errorf("checkpoint body has version %d, not %d", st.ctl.Version, bodyVersion)
	}
	return st, nil
}

// BodyDigests returns the digests, lower-case hex, of the spec and the catalogue that a body belongs to; the latter is
// empty before tools_pinned.
func BodyDigests(body []byte) (spec, catalogue string, err error) {
	var c struct {
		Version                     int
		SpecDigest, CatalogueDigest string
	}
	if err := json.Unmarshal(body, &c); err != nil {
		return "", "", fmt.Errorf("checkpoint body: %w", err)
	}
	if c.Version != bodyVersion {
		return "", "", fmt.Errorf("checkpoint body has version %d, not %d", c.Version, bodyVersion)
	}
	return c.SpecDigest, c.CatalogueDigest, nil
}

// Body returns the checkpoint body: control without contents. It may be deleted at any time.
func (st *State) Body() ([]byte, error) { return json.Marshal(&st.ctl) }

// HistoryFrom returns the first sequence whose event is needed to rebuild the memory of the run.
func (st *State) HistoryFrom() uint64 { return 1 }

// Spec returns the spec of the run. It must not be changed.
func (st *State) Spec() *runnerdv1.RunSpec { return st.env.Spec }

// Catalogue returns the tools pinned for the run; nil before tools_pinned. It is not changed, so it may be kept.
func (st *State) Catalogue() *Catalogue { return st.env.Catalogue }

// SetCatalogue gives the state the catalogue whose digest it knows from tools_pinned.
func (st *State) SetCatalogue(c *Catalogue) { st.env.Catalogue = c }

// SetBehind says how far the clock of the process is behind that of the run: event times never go back, so a run whose
// last events were written while the clock was ahead has a clock of its own. It is 0 for a new or restored state, not
// negative, and must be the same whenever a process loads the run, lest deadlines move with every load.
func (st *State) SetBehind(by time.Duration) { st.behind = by }

// SpecDigest returns the digest of the run's spec, lower-case hex.
func (st *State) SpecDigest() string { return st.ctl.SpecDigest }

// CatalogueDigest returns the digest of the pinned catalogue, lower-case hex; empty before tools_pinned.
func (st *State) CatalogueDigest() string { return st.ctl.CatalogueDigest }

// Sequence returns the sequence of the last event.
func (st *State) Sequence() uint64 { return st.ctl.Sequence }

// LastTime returns the time of the last event.
func (st *State) LastTime() time.Time { return st.ctl.Time }

// Leg returns the current leg, from 1.
func (st *State) Leg() uint32 { return st.ctl.Leg }

// Iteration returns the current iteration, from 1; 0 before the first.
func (st *State) Iteration() uint32 { return st.ctl.Iteration }

// Closed reports whether the leg is closed: the run is PAUSED or DONE.
func (st *State) Closed() bool { return st.ctl.Stop != 0 }

// Done reports whether the run is DONE.
func (st *State) Done() bool { return st.Closed() && !st.paused() }

// Final reports whether the run is DONE and can never go on.
func (st *State) Final() bool { return st.Done() && Resumable(st.ctl.Stop) == ResumeNever }

func (st *State) paused() bool {
	return st.ctl.Stop == runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL
}

// Status returns what the run does now.
func (st *State) Status() runnerdv1.RunState {
	switch {
	case st.paused():
		return runnerdv1.RunState_RUN_STATE_PAUSED
	case st.Closed():
		return runnerdv1.RunState_RUN_STATE_DONE
	case st.ctl.Phase == phaseQueued:
		return runnerdv1.RunState_RUN_STATE_QUEUED
	case st.ctl.Confirm.open():
		return runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL
	case st.ctl.Phase == phaseQuestion:
		return runnerdv1.RunState_RUN_STATE_WAITING_INPUT
	case st.ctl.Phase == phaseCalls && st.asking() && !st.working():
		return runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL
	default:
		return runnerdv1.RunState_RUN_STATE_RUNNING
	}
}

func (st *State) asking() bool  { return slices.ContainsFunc(st.ctl.Calls, (*call).asks) }
func (st *State) working() bool { return slices.ContainsFunc(st.ctl.Calls, (*call).inProgress) }

func (st *State) call(id string) *call {
	for _, c := range st.ctl.Calls {
		if c.ID == id {
			return c
		}
	}
	return nil
}

// AtCheckpoint reports whether the last event completed an iteration, and the label of that checkpoint.
func (st *State) AtCheckpoint() (label string, ok bool) {
	if st.ctl.CheckpointSeq == 0 || st.ctl.CheckpointSeq != st.ctl.Sequence {
		return "", false
	}
	return fmt.Sprintf("step-%d", st.ctl.Iteration), true
}
