package runstate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// observationOf returns what the model is shown of an event, without the names of the call it belongs to, which stand
// in other events; nil if it is shown nothing, or several things as of run_started.
func observationOf(ev *runnerdv1.Event) *runnerdv1.Observation {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_DecisionInvalid:
		return &runnerdv1.Observation{
			Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE,
			Text: "Your last output could not be used: " + p.DecisionInvalid.GetMessage(),
		}
	case *runnerdv1.Event_ToolCallCompleted:
		o := p.ToolCallCompleted
		return &runnerdv1.Observation{
			Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT,
			Text: o.GetText(), StructuredJson: o.GetStructuredJson(), StructuredRef: o.GetStructuredRef(),
			Artifacts: o.GetArtifacts(), TextTruncated: o.GetTextTruncated(), TextRepaired: o.GetTextRepaired(),
		}
	case *runnerdv1.Event_ToolCallFailed:
		o := p.ToolCallFailed
		text := o.GetMessage()
		if o.GetArgumentsPreview() != "" {
			text += "; near: " + o.GetArgumentsPreview()
		}
		return &runnerdv1.Observation{
			Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR, Reason: o.GetReason(),
			Text: text, StructuredJson: o.GetStructuredJson(), StructuredRef: o.GetStructuredRef(),
			Artifacts: o.GetArtifacts(), TextTruncated: o.GetTextTruncated(), TextRepaired: o.GetTextRepaired(),
		}
	case *runnerdv1.Event_ToolCallDenied:
		return &runnerdv1.Observation{
			Kind:   runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL,
			Reason: p.ToolCallDenied.GetReason(), Text: p.ToolCallDenied.GetMessage(),
		}
	case *runnerdv1.Event_ToolCallBlocked:
		return &runnerdv1.Observation{
			Kind:   runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL,
			Reason: p.ToolCallBlocked.GetReason(), Text: p.ToolCallBlocked.GetMessage(),
		}
	case *runnerdv1.Event_ContextWarning:
		return &runnerdv1.Observation{
			Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: p.ContextWarning.GetMessage(),
		}
	case *runnerdv1.Event_InputReceived:
		return &runnerdv1.Observation{
			Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_USER_INPUT,
			Text: p.InputReceived.GetText(), TextRef: p.InputReceived.GetTextRef(),
		}
	default:
		return nil
	}
}

// The parts of the history that can be read by an id of their own while they stand in an event.
const (
	partText       = "text"
	partStructured = "structured"     // of an observation
	partReasoning  = "reasoning"      // of a decision
	partState      = "provider_state" // of a decision
	partArguments  = "arguments"      // of a call
)

// An InlinePart names a part of the history that stands in an event, as an artifact: "event.<sequence>.text" or, for
// imported observations, which share an event, "event.<sequence>.<index>.text"; likewise the other parts.
type InlinePart struct {
	Sequence uint64 // of the event
	index    int    // of an imported observation, else -1
	part     string
}

// ParseInlinePart reads the id of an artifact; ok is false if it is not that of a part in an event.
func ParseInlinePart(id string) (p InlinePart, ok bool) {
	words := strings.Split(id, ".")
	if len(words) < 3 || len(words) > 4 {
		return p, false
	}
	sequence, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return p, false
	}
	p = InlinePart{Sequence: sequence, index: -1, part: words[len(words)-1]}
	if len(words) == 4 {
		if p.index, err = strconv.Atoi(words[2]); err != nil || p.index < 0 {
			return p, false
		}
	}
	switch p.part {
	case partText, partStructured, partReasoning, partState, partArguments:
		return p, p.id() == id // there is one way to write it
	}
	return p, false
}

func (p InlinePart) id() string {
	if p.index < 0 {
		return fmt.Sprintf("event.%d.%s", p.Sequence, p.part)
	}
	return fmt.Sprintf("event.%d.%d.%s", p.Sequence, p.index, p.part)
}

// ref refers to the part, which is this text.
func (p InlinePart) ref(mime, text string) *runnerdv1.ArtifactRef {
	sum := sha256.Sum256([]byte(text))
	return &runnerdv1.ArtifactRef{
		ArtifactId: p.id(), MimeType: mime, Size: uint64(len(text)), Sha256: hex.EncodeToString(sum[:]),
	}
}

// In returns the part from its event, with the private payload; ok is false if the event does not hold all of it.
func (p InlinePart) In(ev *runnerdv1.Event) (text string, ok bool) {
	if d, call := ev.GetDecisionMade(), ev.GetToolCallRequested(); p.index < 0 && (d != nil || call != nil) {
		switch p.part {
		case partText:
			text = d.GetText()
		case partReasoning:
			text = d.GetReasoning()
		case partState:
			text = string(d.GetProviderState())
		case partArguments:
			text = call.GetArgumentsRaw()
		}
		return text, text != ""
	}
	o := observationOf(ev)
	if p.index >= 0 {
		imported := ev.GetRunStarted().GetObservations()
		if p.index >= len(imported) {
			return "", false
		}
		o = imported[p.index]
	}
	switch {
	case o == nil:
		return "", false
	case p.part == partStructured:
		return o.GetStructuredJson(), o.GetStructuredJson() != ""
	case p.part != partText:
		return "", false
	default:
		return o.GetText(), !o.GetTextTruncated() && o.GetTextRef() == nil
	}
}
