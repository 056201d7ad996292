package runstate

import (
	"fmt"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Turn is what follows from some facts: record Events in one append, then answer, then bring the effects in progress
// to exactly Effects, then call Advance again when a fact comes or at WakeAt.
type Turn struct {
	Events  []*runnerdv1.Event
	Replies []Reply   // one for each fact, in order
	Effects []Effect  // the whole set that should be in progress; start what is missing, cancel the rest
	WakeAt  time.Time // call Advance at the latest then; zero: the clock changes nothing
	Idle    bool      // nothing is wanted: the run is closed or waits for people; WakeAt may still be set
}

// Reply answers a fact. Err is nil, a *Refusal, ErrNotOpen or ErrNoGrant; nothing was recorded for the fact then.
type Reply struct {
	Err      error
	Sequence uint64 // event that answers the fact: input_received, the closing of the approval, cancel_requested, …; 0: none
}

// Refusal says why a fact that somebody waits for is refused.
type Refusal struct {
	Reason  runnerdv1.ErrorReason
	Message string
	Field   string // of the request, where one of its fields is to blame; else empty
}

func (r *Refusal) Error() string { return r.Message }

func refuse(reason runnerdv1.ErrorReason, format string, args ...any) Reply {
	return Reply{Err: &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}}
}

// An Effect is something that should be in progress in the world.
type Effect interface {
	// Key names the effect: two effects with one key are the same attempt of the same thing.
	Key() string
}

// ListTools gets the catalogue of the agent; its outcome is Pinned. It waits for a free slot.
type ListTools struct{}

// Decide asks the decide service; State.DecideRequest has the request. Outcomes: Decided, DecideBroken, DecideFailed.
type Decide struct {
	Iteration, Attempt uint32
	Deadline           time.Time // then: DecideFailed with DEADLINE_EXCEEDED
}

// CallTool calls a tool host. Outcomes: CallFinished, CallLost. An effect that is no longer wanted while its call is
// open ends with CallLost, cause CANCEL.
type CallTool struct {
	CallID, Host, Tool string
	Attempt            uint32
	IdempotencyKey     string
	SchemaDigest       string // of the tool as it is pinned
	Arguments          Part
	Deadline           time.Time // then: CallLost with cause TIMEOUT
}

// GetCall asks a tool host what became of a call, again and again while it says RUNNING, until Deadline. Outcomes:
// CallFinished, CallLost with cause NOT_SEEN, LookupFailed.
type GetCall struct {
	CallID, Host, Tool string
	Attempt            uint32
	IdempotencyKey     string
	Deadline           time.Time
}

// Key implements Effect.
func (ListTools) Key() string { return "list" }

// Key implements Effect.
func (e Decide) Key() string { return fmt.Sprintf("decide/%d/%d", e.Iteration, e.Attempt) }

// Key implements Effect.
func (e CallTool) Key() string { return fmt.Sprintf("call/%s/%d", e.CallID, e.Attempt) }

// Key implements Effect.
func (e GetCall) Key() string { return fmt.Sprintf("get/%s/%d", e.CallID, e.Attempt) }

// Part is text that stands in the log or, when it is big, in an artifact of the run.
type Part struct {
	Text string                 `json:"text,omitempty"`
	Ref  *runnerdv1.ArtifactRef `json:"ref,omitempty"`
}
