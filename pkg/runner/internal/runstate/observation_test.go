package runstate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestInlineParts reads what a shortened observation refers to from the event that made it.
func TestInlineParts(t *testing.T) {
	t.Parallel()
	long, structured := strings.Repeat("x", 5000), `{"a":1}`
	imported := []*runnerdv1.Observation{
		{Text: "short", Imported: true},
		{Text: long, StructuredJson: structured, Imported: true},
	}
	for name, ev := range map[string]*runnerdv1.Event{
		"completed": {Payload: &runnerdv1.Event_ToolCallCompleted{ToolCallCompleted: &runnerdv1.ToolCallCompleted{Text: long, StructuredJson: structured}}},
		"failed":    {Payload: &runnerdv1.Event_ToolCallFailed{ToolCallFailed: &runnerdv1.ToolCallFailed{Message: long, StructuredJson: structured}}},
		"denied":    {Payload: &runnerdv1.Event_ToolCallDenied{ToolCallDenied: &runnerdv1.ToolCallDenied{Message: long}}},
		"blocked":   {Payload: &runnerdv1.Event_ToolCallBlocked{ToolCallBlocked: &runnerdv1.ToolCallBlocked{Message: long}}},
		"input":     {Payload: &runnerdv1.Event_InputReceived{InputReceived: &runnerdv1.InputReceived{Text: long}}},
		"invalid":   {Payload: &runnerdv1.Event_DecisionInvalid{DecisionInvalid: &runnerdv1.DecisionInvalid{Message: long}}},
		"imported":  {Payload: &runnerdv1.Event_RunStarted{RunStarted: &runnerdv1.RunStarted{Observations: imported}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ev.Sequence = 7
			o, index := observationOf(ev), 0
			if o == nil {
				o, index = imported[1], 1
			}
			short := shorten(index, entry(ev, o)).GetObservation()
			if len(short.GetText()) > shortResult || !short.GetTextTruncated() || short.GetStructuredJson() != "" {
				t.Errorf("shortened to %d bytes, truncated=%t, %q", len(short.GetText()), short.GetTextTruncated(), short.GetStructuredJson())
			}
			check := func(ref *runnerdv1.ArtifactRef, want string) {
				part, ok := ParseInlinePart(ref.GetArtifactId())
				if !ok || part.Sequence != 7 {
					t.Fatalf("%q names no part of event 7", ref.GetArtifactId())
				}
				got, ok := part.In(ev)
				sum := sha256.Sum256([]byte(want))
				if !ok || got != want || ref.GetSize() != uint64(len(want)) || ref.GetSha256() != hex.EncodeToString(sum[:]) {
					t.Errorf("%v gives %d bytes, want %d", ref, len(got), len(want))
				}
			}
			check(short.GetArtifacts()[0], o.GetText())
			if o.GetStructuredJson() != "" {
				check(short.GetStructuredRef(), o.GetStructuredJson())
			}
		})
	}

	t.Run("what is not whole in the event is not in it", func(t *testing.T) {
		t.Parallel()
		ev := &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallCompleted{ToolCallCompleted: &runnerdv1.ToolCallCompleted{
			Text: "a preview", TextTruncated: true,
		}}}
		for _, id := range []string{"event.1.text", "event.1.structured", "event.1.0.text"} {
			part, ok := ParseInlinePart(id)
			if !ok {
				t.Errorf("%q does not parse", id)
			}
			if text, ok := part.In(ev); ok {
				t.Errorf("%q gives %q", id, text)
			}
		}
		for _, id := range []string{"", "event", "event.1", "event.01.text", "event.1.-1.text", "event.1.00.text", "event.1.other", "1.1.1.0", "event.1.2.3.text", "Event.1.text"} {
			if _, ok := ParseInlinePart(id); ok {
				t.Errorf("%q parses", id)
			}
		}
	})
}

// TestEditIsToldWithTheOutcome lets calls run edited, one of which is blocked before it runs, and cuts what is told.
func TestEditIsToldWithTheOutcome(t *testing.T) {
	t.Parallel()
	spec := newSpec()
	spec.Policy, spec.InDoubt = askFor("charge"), runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_FAIL
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("charge", "charge", "charge", "charge"))
	long := `{"n":2,"note":"` + strings.Repeat("x", 2*shortResult) + `"}`
	for _, edit := range []*Edit{{Text: long}, nil, {Text: `{"n":3}`}, {Text: `{"n":4}`}} {
		v := w.vote(w.open(), approve)
		v.Edited = edit
		w.do(v)
	}
	w.finish("1.1", 1)
	w.finish("1.2", 1)
	w.lose("1.3", stream) // its outcome stays unknown, so the last is not run
	var told []string
	for _, e := range w.st.History()[1:] {
		o := e.GetObservation()
		told = append(told, fmt.Sprintf("%s %s %t %d", o.GetCallId(), short(o.GetKind(), "OBSERVATION_KIND"), o.GetArgumentsEdited(), len(o.GetEditedArgumentsJson())))
	}
	want := []string{
		fmt.Sprintf("1.1 TOOL_RESULT true %d", len(long)), "1.2 TOOL_RESULT false 0", "1.3 TOOL_ERROR true 7", "1.4 DENIAL false 0",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told are %q, want %q", told, want)
	}
	cut := shorten(1, w.st.History()[1]).GetObservation()
	if !canShorten(w.st.History()[1].GetObservation()) || !cut.GetArgumentsEdited() || cut.GetEditedArgumentsJson() != "" {
		t.Errorf("where there is no room the edit is shown as %q, edited %t", cut.GetEditedArgumentsJson(), cut.GetArgumentsEdited())
	}
}
