package runstate

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	// maxRequest is how big a Decide request may be, the small artifacts that ride along not counted.
	maxRequest = 2 << 20
	// shortResult is how much of a result is left when the request would be too big, in bytes. Parts of decisions that
	// are bigger are only referred to then.
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
// A request stays under 3 MiB: where the history is too big, the oldest results are cut to previews with a reference to
// the whole, and of the oldest decisions big parts are only referred to.
func (st *State) DecideRequest() (*runnerdv1.DecideRequest, []Fetch) {
	req, fetch := st.requestFrame()
	size := proto.Size(req)
	for _, f := range fetch {
		size += int(f.Ref.GetSize())
	}
	history, whole := st.fitHistory(maxRequest - size)
	for i, e := range slices.Backward(history) {
		if whole[i] {
			history[i] = fetchParts(e, func(f Fetch) { fetch = append(fetch, f) })
		}
	}
	req.History = history
	return req, fetch
}

// requestFrame is a request without the history.
func (st *State) requestFrame() (*runnerdv1.DecideRequest, []Fetch) {
	c, started := &st.ctl, st.mem.started
	req := &runnerdv1.DecideRequest{
		RunId: c.RunID, Agent: started.GetAgent(), Iteration: c.Iteration, Attempt: c.Decide.Attempt,
		IdempotencyKey: fmt.Sprintf("%s/%d", c.RunID, c.Iteration), Task: started.GetTask(),
		Tools: st.offered(), BudgetLeft: st.budgetLeft(), ContextJson: started.GetContextJson(),
		Identity: started.GetIdentity(), Model: started.GetModel(), Effort: started.GetEffort(), Kind: started.GetKind(),
		Usage: c.Usage.totals(), Labels: started.GetLabels(),
	}
	var fetch []Fetch
	add := func(ref *runnerdv1.ArtifactRef, set func([]byte)) {
		if ref != nil {
			fetch = append(fetch, Fetch{ref, set})
		}
	}
	add(started.GetTaskRef(), func(b []byte) { req.Task = string(b) })
	add(started.GetContextRef(), func(b []byte) { req.ContextJson = string(b) })
	return req, fetch
}

// fitHistory returns the history as whole as there is room, and which of its entries are whole: their parts that stand
// in artifacts are to be fetched.
func (st *State) fitHistory(room int) (history []*runnerdv1.HistoryEntry, whole []bool) {
	history, whole = slices.Clone(st.mem.entries), make([]bool, len(st.mem.entries))
	newest := 0 // the last decision: it and what follows are cut last
	sizes := st.mem.wholeSizes()
	for i, e := range history {
		whole[i] = true
		room -= sizes[i]
		if e.GetDecision() != nil {
			newest = i
		}
	}
	replace := func(i int, short *runnerdv1.HistoryEntry) {
		was := entrySize(history[i])
		if whole[i] {
			was = sizes[i]
		}
		room += was - entrySize(short)
		history[i], whole[i] = short, false
	}
	for _, span := range [][2]int{{0, newest}, {newest, len(history)}} {
		for i := span[0]; i < span[1] && room < 0; i++ {
			switch e := history[i]; {
			case e.GetObservation() != nil && canShorten(e.GetObservation()):
				replace(i, shorten(i, e))
			case sizes[i] > entrySize(e):
				replace(i, e)
			}
		}
		for i := span[0]; i < span[1] && room < 0; i++ {
			if history[i].GetDecision() != nil {
				replace(i, st.mem.shortenDecision(history[i]))
			}
		}
	}
	return history, whole
}

// entrySize is what an entry takes in a request, without its parts that stand in artifacts.
func entrySize(e *runnerdv1.HistoryEntry) int { return proto.Size(e) + 8 }

func wholeSize(e *runnerdv1.HistoryEntry) int {
	size := entrySize(e)
	for _, p := range refsOf(e) {
		size += int(p.ref.GetSize())
	}
	return size
}

// wholeSizes returns the sizes of all entries. Each is measured once, as soon as it does not change any more: every
// Decide asks for those of all before.
func (m *memory) wholeSizes() []int {
	sizes := m.sizes
	for _, e := range m.entries[len(sizes):] {
		sizes = append(sizes, wholeSize(e))
	}
	if m.open == nil { // else the last decision still gets its calls
		m.sizes = sizes
	}
	return sizes
}

// fetchParts returns an entry into which its parts that stand in artifacts can be put.
func fetchParts(e *runnerdv1.HistoryEntry, fetch func(Fetch)) *runnerdv1.HistoryEntry {
	parts := refsOf(e)
	if len(parts) == 0 {
		return e
	}
	e = proto.CloneOf(e) // the state's own entry keeps its reference
	for _, p := range parts {
		fetch(Fetch{p.ref, func(b []byte) { p.set(e, b) }})
	}
	return e
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

func canShorten(o *runnerdv1.Observation) bool {
	return len(o.GetText()) > shortResult || o.GetStructuredJson() != "" || len(o.GetEditedArgumentsJson()) > shortResult
}

// shortenDecision replaces the big parts of a decision by references to the events that hold them. Nothing of them is
// left: half an argument, or half of what is opaque, is worth nothing.
func (m *memory) shortenDecision(e *runnerdv1.HistoryEntry) *runnerdv1.HistoryEntry {
	short := proto.CloneOf(e)
	d := short.GetDecision()
	ref := func(sequence uint64, part, mime, text string) *runnerdv1.ArtifactRef {
		return InlinePart{Sequence: sequence, index: -1, part: part}.ref(mime, text)
	}
	if text := d.GetText(); len(text) > shortResult {
		d.Text, d.TextRef = "", ref(e.GetSequence(), partText, "text/plain; charset=utf-8", text)
	}
	if text := d.GetReasoning(); len(text) > shortResult {
		d.Reasoning, d.ReasoningRef = "", ref(e.GetSequence(), partReasoning, "text/plain; charset=utf-8", text)
	}
	if data := d.GetProviderState(); len(data) > shortResult {
		d.ProviderState, d.ProviderStateRef = nil, ref(e.GetSequence(), partState, "application/octet-stream", string(data))
	}
	for _, c := range d.GetCalls() {
		if text := c.GetArgumentsRaw(); len(text) > shortResult {
			c.ArgumentsRaw = ""
			c.ArgumentsRef = ref(m.requested[c.GetCallId()], partArguments, "application/json", text)
		}
	}
	return short
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
	if len(o.GetEditedArgumentsJson()) > shortResult {
		o.EditedArgumentsJson = "" // that they were edited is said; the result is what counts
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
