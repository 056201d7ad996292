package runstate

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	// maxRequest is how big a Decide request may be, the small artifacts that ride along not counted.
	maxRequest = 2 << 20
	// shortResult is how much of a result is left when the request would be too big, in bytes.
	shortResult = 1 << 10
)

// Fetch is a part of a request that stands in an artifact of the run: read it and Set it before sending.
type Fetch struct {
	Ref *runnerdv1.ArtifactRef
	Set func([]byte)
}

// DecideRequest returns what the Decide that is wanted now asks; run token, deadline and small artifacts are the
// shell's. What is shown was fixed when the iteration started, so that all attempts ask the same. The history is
// shared with the state and must not be changed, but by the Set of a Fetch.
//
// A request stays under 3 MiB: where the history is too big, the oldest results, then the oldest parts of decisions
// that stand in artifacts, are cut to previews with a reference.
func (st *State) DecideRequest() (*runnerdv1.DecideRequest, []Fetch) {
	c, started := &st.ctl, st.mem.started
	req := &runnerdv1.DecideRequest{
		RunId: c.RunID, Agent: started.GetAgent(), Iteration: c.Iteration, Attempt: c.Decide.Attempt,
		IdempotencyKey: fmt.Sprintf("%s/%d", c.RunID, c.Iteration), Task: started.GetTask(),
		Tools: st.offered(), BudgetLeft: st.budgetLeft(), ContextJson: started.GetContextJson(),
		Identity: started.GetIdentity(), Model: started.GetModel(), Effort: started.GetEffort(), Kind: started.GetKind(),
		Usage: c.Usage.totals(), Labels: started.GetLabels(),
	}
	var fetch []Fetch
	whole := func(ref *runnerdv1.ArtifactRef, set func([]byte)) {
		if ref != nil {
			fetch = append(fetch, Fetch{ref, set})
		}
	}
	whole(started.GetTaskRef(), func(b []byte) { req.Task = string(b) })
	whole(started.GetContextRef(), func(b []byte) { req.ContextJson = string(b) })
	size := proto.Size(req)
	for _, f := range fetch {
		size += int(f.Ref.GetSize())
	}
	req.History = make([]*runnerdv1.HistoryEntry, len(st.mem.entries))
	room := maxRequest - size
	for i := len(st.mem.entries) - 1; i >= 0; i-- { // newest first: they are kept whole
		entry, parts := fit(i, st.mem.entries[i], &room)
		req.History[i] = entry
		fetch = append(fetch, parts...)
	}
	return req, fetch
}

// fit takes an entry into a request as whole as there is room.
func fit(i int, e *runnerdv1.HistoryEntry, room *int) (*runnerdv1.HistoryEntry, []Fetch) {
	size := proto.Size(e) + 8
	if o := e.GetObservation(); o != nil {
		if size > *room && (len(o.GetText()) > shortResult || o.GetStructuredJson() != "") {
			e = shorten(i, e)
			size = proto.Size(e) + 8
		}
		*room -= size
		if o.GetTextRef() == nil || int(o.GetTextRef().GetSize()) > *room {
			return e, nil
		}
	}
	parts := refsOf(e)
	if e.GetDecision() != nil {
		*room -= size
	}
	var fetch []Fetch
	shared := e
	for _, p := range parts {
		if int(p.ref.GetSize()) > *room {
			continue
		}
		*room -= int(p.ref.GetSize())
		if e == shared {
			e = proto.CloneOf(e) // the state's own entry keeps its reference
		}
		fetch = append(fetch, Fetch{p.ref, func(b []byte) { p.set(e, b) }})
	}
	return e, fetch
}

// bigPart is a part of an entry that stands in an artifact, and how it is put in its place.
type bigPart struct {
	ref *runnerdv1.ArtifactRef
	set func(*runnerdv1.HistoryEntry, []byte)
}

func refsOf(e *runnerdv1.HistoryEntry) []bigPart {
	var parts []bigPart
	add := func(ref *runnerdv1.ArtifactRef, set func(*runnerdv1.HistoryEntry, []byte)) {
		if ref != nil {
			parts = append(parts, bigPart{ref, set})
		}
	}
	if o := e.GetObservation(); o != nil {
		add(o.GetTextRef(), func(e *runnerdv1.HistoryEntry, b []byte) { e.GetObservation().Text = string(b) })
		return parts
	}
	d := e.GetDecision()
	add(d.GetTextRef(), func(e *runnerdv1.HistoryEntry, b []byte) { e.GetDecision().Text = string(b) })
	add(d.GetReasoningRef(), func(e *runnerdv1.HistoryEntry, b []byte) { e.GetDecision().Reasoning = string(b) })
	add(d.GetProviderStateRef(), func(e *runnerdv1.HistoryEntry, b []byte) { e.GetDecision().ProviderState = b })
	for i, c := range d.GetCalls() {
		add(c.GetArgumentsRef(), func(e *runnerdv1.HistoryEntry, b []byte) { e.GetDecision().GetCalls()[i].ArgumentsRaw = string(b) })
	}
	return parts
}

// shorten replaces an observation by a preview of its text and references to the whole, which stands in the event that
// made the entry. Imported observations share an event, and come first in the history.
func shorten(i int, e *runnerdv1.HistoryEntry) *runnerdv1.HistoryEntry {
	short := proto.CloneOf(e)
	o := short.GetObservation()
	whole := InlinePart{Sequence: e.GetSequence(), index: -1}
	if o.GetImported() {
		whole.index = i
	}
	if text := o.GetText(); len(text) > shortResult {
		if !o.GetTextTruncated() { // else the first artifact is the whole already
			whole.part = partText
			o.Artifacts = append([]*runnerdv1.ArtifactRef{whole.ref("text/plain; charset=utf-8", text)}, o.GetArtifacts()...)
			o.TextTruncated = true
		}
		o.Text = cutText(text, shortResult)
	}
	if structured := o.GetStructuredJson(); structured != "" {
		whole.part = partStructured
		o.StructuredRef = whole.ref("application/json", structured)
		o.StructuredJson = ""
	}
	return short
}

func (st *State) offered() []*runnerdv1.OfferedTool { return st.env.Catalogue.Offered() }

// budgetLeft is what is left before the Decide, this iteration included.
func (st *State) budgetLeft() *runnerdv1.BudgetLeft {
	c := &st.ctl
	left := &runnerdv1.BudgetLeft{
		Iterations: c.Budget.GetMaxIterations() - min(c.Budget.GetMaxIterations(), c.Iteration-1),
		ToolCalls:  c.Budget.GetMaxToolCalls() - min(c.Budget.GetMaxToolCalls(), c.ToolCalls),
	}
	if limit, capped := st.costCap(); capped {
		cents := float64(max(0, limit-c.Usage.CostNano)) / 1e9
		left.CostCents = &cents
	}
	if d, limited := st.durationLeft(c.Time); limited {
		left.Duration = durationpb.New(max(0, d))
	}
	return left
}
