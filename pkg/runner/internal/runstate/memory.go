package runstate

import (
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// memory is the contents of a run: its history and the words around it. It is a fold of its own over the same events,
// so that a checkpoint body need not hold contents: they are read again from the log.
type memory struct {
	started   *runnerdv1.RunStarted
	owner     string
	created   time.Time
	entries   []*runnerdv1.HistoryEntry
	sizes     []int                    // of the first entries, as wholeSize gives them
	open      *runnerdv1.DecisionEntry // decision whose calls do not all have an outcome
	results   []*runnerdv1.HistoryEntry
	missing   int                       // of results
	waiting   []*runnerdv1.HistoryEntry // inputs and notes that no Decide was shown
	requested map[string]uint64         // by call id: the events with the arguments
	edits     map[string]Part           // by call id, of the open decision: what an approver let run instead
	answer    *runnerdv1.FinalAnswer
	question  *runnerdv1.Question
	message   string
	hint      string
}

// Remember folds an event into the memory of the state only. The event must not be newer than the body the state was
// restored from.
func (st *State) Remember(ev *runnerdv1.Event) error {
	st.mem.apply(ev)
	if req := ev.GetToolCallRequested(); req != nil {
		if c := st.call(req.GetCallId()); c != nil {
			c.arguments = effectiveArguments(req)
		}
	}
	if p := ev.GetToolCallApproved(); p != nil && (p.EditedArgumentsJson != nil || p.GetEditedArgumentsRef() != nil) {
		if c := st.call(p.GetCallId()); c != nil {
			c.arguments = editedArguments(p)
		}
	}
	return nil
}

// effectiveArguments returns what is sent to the host.
func effectiveArguments(req *runnerdv1.ToolCallRequested) Part {
	if req.ArgumentsJson != nil {
		return Part{Text: req.GetArgumentsJson()}
	}
	return Part{Text: req.GetArgumentsRaw(), Ref: req.GetArgumentsRef()}
}

func (m *memory) apply(ev *runnerdv1.Event) {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_RunStarted:
		m.started, m.owner, m.created = p.RunStarted, ev.GetPrincipal(), ev.GetTime().AsTime()
		for _, o := range p.RunStarted.GetObservations() {
			m.observe(ev, o)
		}
	case *runnerdv1.Event_RunResumed:
		m.message, m.hint = "", "" // an answer that went over a limit may still end the run
	case *runnerdv1.Event_RunCompleted:
		m.answer = p.RunCompleted.GetAnswer()
	case *runnerdv1.Event_RunFailed:
		m.message, m.hint, m.answer = p.RunFailed.GetMessage(), p.RunFailed.GetHint(), p.RunFailed.GetAnswer()
	case *runnerdv1.Event_IterationStarted:
		m.entries = append(m.entries, m.waiting...)
		m.waiting, m.answer = nil, nil
	case *runnerdv1.Event_DecisionMade:
		m.decide(ev, p.DecisionMade)
	case *runnerdv1.Event_DecisionInvalid:
		m.observe(ev, observationOf(ev))
	case *runnerdv1.Event_ToolCallRequested:
		m.request(ev.GetSequence(), p.ToolCallRequested)
	case *runnerdv1.Event_ToolCallApproved:
		m.edit(p.ToolCallApproved)
	case *runnerdv1.Event_ToolCallCompleted:
		m.outcome(ev, p.ToolCallCompleted.GetCallId())
	case *runnerdv1.Event_ToolCallFailed:
		m.outcome(ev, p.ToolCallFailed.GetCallId())
	case *runnerdv1.Event_ToolCallDenied:
		m.outcome(ev, p.ToolCallDenied.GetCallId())
	case *runnerdv1.Event_ToolCallBlocked:
		m.outcome(ev, p.ToolCallBlocked.GetCallId())
	case *runnerdv1.Event_InputRequested:
		m.question.Sequence, m.question.AskedAt = ev.GetSequence(), ev.GetTime()
	case *runnerdv1.Event_ContextWarning: // after the results of the decision that it follows
		m.waiting = append(m.waiting, entry(ev, observationOf(ev)))
	case *runnerdv1.Event_InputReceived:
		m.waiting = append(m.waiting, entry(ev, observationOf(ev)))
		m.question = nil
	}
}

func entry(ev *runnerdv1.Event, o *runnerdv1.Observation) *runnerdv1.HistoryEntry {
	return &runnerdv1.HistoryEntry{
		Sequence: ev.GetSequence(), Iteration: ev.GetIteration(),
		Entry: &runnerdv1.HistoryEntry_Observation{Observation: o},
	}
}

func (m *memory) observe(ev *runnerdv1.Event, o *runnerdv1.Observation) {
	m.entries = append(m.entries, entry(ev, o))
}

func (m *memory) decide(ev *runnerdv1.Event, d *runnerdv1.DecisionMade) {
	e := &runnerdv1.DecisionEntry{
		Text: d.GetText(), TextRef: d.GetTextRef(), Reasoning: d.GetReasoning(), ReasoningRef: d.GetReasoningRef(),
		ProviderState: d.GetProviderState(), ProviderStateRef: d.GetProviderStateRef(),
		Answer:   d.GetKind() == runnerdv1.DecisionKind_DECISION_KIND_ANSWER,
		Question: d.GetKind() == runnerdv1.DecisionKind_DECISION_KIND_QUESTION,
	}
	m.entries = append(m.entries, &runnerdv1.HistoryEntry{
		Sequence: ev.GetSequence(), Iteration: ev.GetIteration(),
		Entry: &runnerdv1.HistoryEntry_Decision{Decision: e},
	})
	m.answer, m.question = nil, nil
	switch d.GetKind() {
	case runnerdv1.DecisionKind_DECISION_KIND_CALLS:
		m.open = e
		m.missing = len(d.GetCallIds())
		m.results = make([]*runnerdv1.HistoryEntry, 0, m.missing)
	case runnerdv1.DecisionKind_DECISION_KIND_ANSWER:
		m.answer = &runnerdv1.FinalAnswer{Content: d.GetText(), ContentRef: d.GetTextRef(), MetadataJson: d.GetMetadataJson()}
	case runnerdv1.DecisionKind_DECISION_KIND_QUESTION:
		m.question = &runnerdv1.Question{Sequence: ev.GetSequence(), Text: d.GetText(), AskedAt: ev.GetTime()}
	}
}

func (m *memory) request(sequence uint64, r *runnerdv1.ToolCallRequested) {
	if m.requested == nil {
		m.requested = make(map[string]uint64)
	}
	m.requested[r.GetCallId()] = sequence
	m.open.Calls = append(m.open.Calls, &runnerdv1.CallEntry{
		CallId: r.GetCallId(), ProviderCallId: r.GetProviderCallId(), ToolName: r.GetToolName(),
		ArgumentsRaw: r.GetArgumentsRaw(), ArgumentsRef: r.GetArgumentsRef(),
	})
	m.results = append(m.results, nil)
}

// edit keeps what an approver lets run instead of what the model wrote.
func (m *memory) edit(p *runnerdv1.ToolCallApproved) {
	if p.EditedArgumentsJson == nil && p.GetEditedArgumentsRef() == nil {
		return
	}
	if m.edits == nil {
		m.edits = make(map[string]Part)
	}
	m.edits[p.GetCallId()] = editedArguments(p)
}

// outcome keeps what a call came to. When the last one is there, all of them join the history in call order.
func (m *memory) outcome(ev *runnerdv1.Event, callID string) {
	o := observationOf(ev)
	for i, c := range m.open.GetCalls() {
		if c.GetCallId() == callID {
			o.CallId, o.ProviderCallId, o.ToolName = callID, c.GetProviderCallId(), c.GetToolName()
			if edit, edited := m.edits[callID]; edited && ran(o) {
				o.ArgumentsEdited, o.EditedArgumentsJson = true, edit.Text
			}
			m.results[i] = entry(ev, o)
			m.missing--
			break
		}
	}
	if m.missing == 0 {
		m.entries = append(m.entries, m.results...)
		m.open, m.results, m.edits = nil, nil, nil
	}
}

// ran reports whether an observation is of a call that was started, and not of one that was refused after all.
func ran(o *runnerdv1.Observation) bool {
	return o.GetKind() != runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL
}

// History returns the memory of the run, oldest first: also results that wait for those of earlier calls, and inputs and
// notes that no Decide was shown yet. The entries are shared and must not be changed.
func (st *State) History() []*runnerdv1.HistoryEntry {
	all := make([]*runnerdv1.HistoryEntry, 0, len(st.mem.entries)+len(st.mem.results)+len(st.mem.waiting))
	all = append(all, st.mem.entries...)
	for _, r := range st.mem.results {
		if r != nil {
			all = append(all, r)
		}
	}
	return append(all, st.mem.waiting...)
}

// historyLen returns how many entries History has, without making it.
func (st *State) historyLen() int {
	n := len(st.mem.entries) + len(st.mem.waiting)
	for _, r := range st.mem.results {
		if r != nil {
			n++
		}
	}
	return n
}

// Task returns the task of the run.
func (st *State) Task() Part {
	return Part{Text: st.mem.started.GetTask(), Ref: st.mem.started.GetTaskRef()}
}
