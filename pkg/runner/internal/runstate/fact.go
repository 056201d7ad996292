package runstate

import (
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// RulesVersion is the version of the rules in this package. It stands in run_started and in every spec: under the same
// version the same log gives the same plan.
const RulesVersion = 1

// A Fact is something the world tells a run. Facts that come too late, twice, or for another attempt are dropped
// without an event.
type Fact interface{ isFact() }

// Start is the first fact of a run, and only that.
type Start struct {
	Principal string
	Started   *runnerdv1.RunStarted // complete but for nothing: it is recorded as given
}

// Pinned brings the tools of the run: the outcome of ListTools, once a slot is free.
type Pinned struct {
	Catalogue   *Catalogue
	Findings    []*runnerdv1.Finding
	Unavailable []*runnerdv1.ToolHostUnavailable // hosts that could not list their tools
}

// Decided brings the decision of an attempt of a Decide. Decision is never nil and within the bounds of size and
// number of calls; the rest is checked here.
type Decided struct {
	Iteration, Attempt uint32
	Decision           *runnerdv1.Decision
	Refs               DecisionRefs
	Found              []Found // by call; nil: there is nothing against any
	Duration           time.Duration
	AnsweredBy         string // name in the certificate of the decide service; empty: unknown
}

// DecisionRefs says where parts of a decision were stored that are too big for an event. A nil entry means that the
// part stays in the event. Arguments is either nil or as long as the list of calls.
type DecisionRefs struct {
	Text, Reasoning, ProviderState *runnerdv1.ArtifactRef
	Arguments                      []*runnerdv1.ArtifactRef
}

// DecideBroken says that a Decide ended with OK and gave nothing that could be a decision.
type DecideBroken struct {
	Iteration, Attempt uint32
	Code               string // undecodable, too_large, too_many_calls, no_decision, several_decisions
	Message, Preview   string
}

// DecideFailed says that an attempt of a Decide ended with an error, or at its deadline.
type DecideFailed struct {
	Iteration, Attempt uint32
	Code               string // gRPC status code name, for example UNAVAILABLE
	Message            string
	Permanent          bool // the status is one that asking again cannot cure
}

// Result is the outcome of a call in the form in which events hold it: big and binary parts are stored as artifacts
// before the fact is brought.
type Result struct {
	Reason         runnerdv1.CallReason // unspecified: the call completed; else why it failed
	Text           string               // what the model is shown, at most 50000 bytes of valid UTF-8
	StructuredJSON string
	StructuredRef  *runnerdv1.ArtifactRef
	Artifacts      []*runnerdv1.ArtifactRef
	TextTruncated  bool
	TextRepaired   bool
	Preview        string // of arguments that are wrong: what the model is shown after the text
	Code           string // gRPC status code of the host, where the reason is one
}

// CallFinished brings the outcome of an attempt of a call, from CallTool or, Reconciled, from GetCall.
type CallFinished struct {
	CallID     string
	Attempt    uint32
	Result     Result
	Duration   time.Duration
	Reconciled bool
	AnsweredBy string // name in the certificate of the host; empty: unknown
}

// CallLost says that an attempt ended and its outcome is not known. Cause NOT_SENT: the request never left the
// process. Cause NOT_SEEN: the host promised that it was not and will not be executed.
type CallLost struct {
	CallID  string
	Attempt uint32
	Cause   runnerdv1.LostCause
	Message string
}

// LookupFailed says that GetCall cannot tell what became of a call.
type LookupFailed struct {
	CallID  string
	Attempt uint32
	Message string
}

// Vote is an approver's verdict.
type Vote struct {
	Principal  string
	ApprovalID uint64
	Verdict    runnerdv1.ApprovalVerdict
	Digest     string
	Reason     string
	Result     *Result              // SETTLE only
	Grant      runnerdv1.GrantScope // APPROVE of a call only: given with it
	Edited     *Edit                // APPROVE of a call only: what is to run instead
	Found      Found                // about what is to run
}

// Edit is what an approver wants to run instead of what the model wrote. Ref is where the text was stored if it is too
// big for an event.
type Edit struct {
	Text string
	Ref  *runnerdv1.ArtifactRef
}

// Input is what a person says to a run.
type Input struct {
	Principal string
	Text      string
	TextRef   *runnerdv1.ArtifactRef // set: Text is not recorded
	RequestID string
}

// Cancel asks a run to end.
type Cancel struct {
	Principal string
	Mode      runnerdv1.CancelMode
	Reason    string
}

// Resume lets a resumable run go on. Budget holds the fields to change, within the spec's budget_max (the shell
// checks); nil changes nothing. AutoLimits are the same for the limits of auto mode.
type Resume struct {
	Principal  string
	Budget     *runnerdv1.Budget
	AutoLimits *runnerdv1.AutoModeLimits
}

// Restart says that the daemon came back. Bring it once to every open run that is loaded after a start.
type Restart struct {
	Epoch uint64
}

func (Start) isFact()        {}
func (Pinned) isFact()       {}
func (Decided) isFact()      {}
func (DecideBroken) isFact() {}
func (DecideFailed) isFact() {}
func (CallFinished) isFact() {}
func (CallLost) isFact()     {}
func (LookupFailed) isFact() {}
func (Vote) isFact()         {}
func (Input) isFact()        {}
func (Cancel) isFact()       {}
func (Resume) isFact()       {}
func (Restart) isFact()      {}
