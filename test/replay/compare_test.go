package replay

import (
	"fmt"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// line is one entry of a memory in a form that can be compared: what was said, by whom, about what.
type line string

func decisionLine(text string, calls []line) line {
	return line(fmt.Sprintf("decision %q %q", text, calls))
}

func callLine(callID, providerID, tool, arguments string) line {
	return line(fmt.Sprintf("%s %q %s(%s)", callID, providerID, tool, arguments))
}

func resultLine(callID, providerID, tool string, failed bool, text string) line {
	return line(fmt.Sprintf("outcome %s %q %s failed=%t: %s", callID, providerID, tool, failed, text))
}

func inputLine(text string) line { return line(fmt.Sprintf("input %q", text)) }

const (
	refusedText  = "(runnerd says why)" // stands for messages that are runnerd's own
	noteLine     = line("note " + refusedText)
	previewLimit = maxShownResult
)

// outcomes are the calls of a play that end without being executed, by ordinal, with the reason.
type outcomes map[int]runnerdv1.CallReason

// memory is what the Decide of an iteration is to be shown, from the recording alone.
func (p *play) memory(iteration int, refused outcomes) []line {
	var lines []line
	for i := range p.decisions[:iteration-1] {
		d := &p.decisions[i]
		if len(d.ToolCalls) == 0 && strings.TrimSpace(d.Text) == "" {
			lines = append(lines, noteLine)
		} else {
			var calls []line
			for n, c := range d.ToolCalls {
				calls = append(calls, callLine(callID(i, n), c.ID, c.Name, c.ArgumentsJSON))
			}
			lines = append(lines, decisionLine(d.Text, calls))
		}
		for n := range d.ToolCalls {
			lines = append(lines, p.outcome(i, n, refused))
		}
		if d.question {
			lines = append(lines, inputLine(d.reply))
		}
		for _, text := range d.meantime {
			lines = append(lines, inputLine(text))
		}
	}
	return lines
}

func callID(decision, n int) string { return fmt.Sprintf("%d.%d", decision+1, n+1) }

func (p *play) outcome(decision, n int, refused outcomes) line {
	ordinal := p.decisions[decision].first + n
	c := &p.calls[ordinal]
	if _, ok := refused[ordinal]; ok {
		return resultLine(callID(decision, n), c.ID, c.Name, true, refusedText)
	}
	return resultLine(callID(decision, n), c.ID, c.Name, c.isError, c.result)
}

// memoryOf is what a Decide was shown. whole reads an artifact of the run.
func (p *play) memoryOf(history []*runnerdv1.HistoryEntry, refused outcomes, whole func(id string) string) []line {
	var lines []line
	for _, e := range history {
		lines = append(lines, p.lineOf(e, refused, whole))
	}
	return lines
}

func (p *play) lineOf(e *runnerdv1.HistoryEntry, refused outcomes, whole func(id string) string) line {
	if d := e.GetDecision(); d != nil {
		var calls []line
		for _, c := range d.GetCalls() {
			calls = append(calls, callLine(c.GetCallId(), c.GetProviderCallId(), c.GetToolName(), c.GetArgumentsRaw()))
		}
		return decisionLine(d.GetText(), calls)
	}
	o := e.GetObservation()
	text := o.GetText()
	if ref := o.GetTextRef(); ref != nil && text == "" { // over 64 KiB, in the log only
		text = whole(ref.GetArtifactId())
	}
	switch o.GetKind() {
	case runnerdv1.ObservationKind_OBSERVATION_KIND_USER_INPUT:
		return inputLine(text)
	case runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE:
		return noteLine
	case runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR:
		failed := o.GetKind() == runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR
		if reason, ok := refused[p.ordinal(o.GetCallId())]; ok {
			if o.GetReason() != reason || text == "" {
				return line(fmt.Sprintf("%s refused as %s: %q", o.GetCallId(), o.GetReason(), text))
			}
			text = refusedText
		}
		if o.GetTextTruncated() {
			all := whole(o.GetArtifacts()[0].GetArtifactId())
			if len(text) > previewLimit || !strings.HasPrefix(all, text[:len(text)/2]) {
				return line(fmt.Sprintf("preview of %d bytes that does not begin its whole", len(text)))
			}
			text = all
		}
		return resultLine(o.GetCallId(), o.GetProviderCallId(), o.GetToolName(), failed, text)
	default:
		return line(fmt.Sprintf("unexpected %s", o))
	}
}

// ordinal is the place in the recording of a call "<iteration>.<index>".
func (p *play) ordinal(callID string) int {
	var iteration, index int
	if _, err := fmt.Sscanf(callID, "%d.%d", &iteration, &index); err != nil || iteration < 1 || iteration > len(p.decisions) {
		return -1
	}
	return p.decisions[iteration-1].first + index - 1
}

// memoryInLog is the memory as the events of the log tell it, without the state that runnerd makes of them.
func (p *play) memoryInLog(events []*runnerdv1.Event, refused outcomes, whole func(id string) string) []line {
	var entries []*runnerdv1.HistoryEntry
	var decision *runnerdv1.DecisionEntry
	results := map[string]*runnerdv1.Observation{}
	var inputs []*runnerdv1.Observation
	add := func(o *runnerdv1.Observation) {
		entries = append(entries, &runnerdv1.HistoryEntry{Entry: &runnerdv1.HistoryEntry_Observation{Observation: o}})
	}
	flush := func() { // an iteration begins: results in the order of the calls, then what people said
		for _, c := range decision.GetCalls() {
			o := results[c.GetCallId()]
			if o == nil {
				o = &runnerdv1.Observation{}
			}
			o.CallId, o.ProviderCallId, o.ToolName = c.GetCallId(), c.GetProviderCallId(), c.GetToolName()
			add(o)
		}
		for _, o := range inputs {
			add(o)
		}
		decision, inputs = nil, nil
	}
	for _, ev := range events {
		switch e := ev.GetPayload().(type) {
		case *runnerdv1.Event_IterationStarted:
			flush()
		case *runnerdv1.Event_DecisionMade:
			decision = &runnerdv1.DecisionEntry{Text: e.DecisionMade.GetText()}
			entries = append(entries, &runnerdv1.HistoryEntry{Entry: &runnerdv1.HistoryEntry_Decision{Decision: decision}})
		case *runnerdv1.Event_DecisionInvalid:
			add(&runnerdv1.Observation{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE})
		case *runnerdv1.Event_ToolCallRequested:
			r := e.ToolCallRequested
			decision.Calls = append(decision.Calls, &runnerdv1.CallEntry{
				CallId: r.GetCallId(), ProviderCallId: r.GetProviderCallId(), ToolName: r.GetToolName(), ArgumentsRaw: r.GetArgumentsRaw(),
			})
		case *runnerdv1.Event_ToolCallCompleted:
			r := e.ToolCallCompleted
			results[r.GetCallId()] = &runnerdv1.Observation{
				Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT,
				Text: r.GetText(), TextTruncated: r.GetTextTruncated(), Artifacts: r.GetArtifacts(),
			}
		case *runnerdv1.Event_ToolCallFailed:
			r := e.ToolCallFailed
			results[r.GetCallId()] = &runnerdv1.Observation{
				Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR, Reason: r.GetReason(),
				Text: r.GetMessage(), TextTruncated: r.GetTextTruncated(), Artifacts: r.GetArtifacts(),
			}
		case *runnerdv1.Event_InputReceived:
			inputs = append(inputs, &runnerdv1.Observation{
				Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_USER_INPUT,
				Text: e.InputReceived.GetText(), TextRef: e.InputReceived.GetTextRef(),
			})
		}
	}
	flush()
	return p.memoryOf(entries, refused, whole)
}

// firstDifference says where two memories part, or "".
func firstDifference(got, want []line) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("entry %d is missing: want %s", i, cut(want[i]))
		case i >= len(want):
			return fmt.Sprintf("entry %d is too much: got %s", i, cut(got[i]))
		case got[i] != want[i]:
			return fmt.Sprintf("entry %d is\n  %s\nwant\n  %s", i, cut(got[i]), cut(want[i]))
		}
	}
	return ""
}

func cut(l line) string { return string(l[:min(len(l), 600)]) }
