package runner

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestViewOf(t *testing.T) {
	t.Parallel()
	viewer := func(v View) Rights { return Rights{Roles: RoleViewer, View: v} }
	run := &runnerdv1.Run{Agent: "coder", Owner: "ann"}
	for name, tc := range map[string]struct {
		caller Principal
		want   View
	}{
		"owner with a credential":        {Principal{Name: "ann", Credential: true}, viewRaw},
		"owner without one":              {Principal{Name: "ann"}, ViewRedacted},
		"admin of the agent":             {Principal{Name: "bob", Credential: true, Agents: map[string]Rights{"coder": {Roles: RoleAdmin}}}, viewRaw},
		"admin of another":               {Principal{Name: "bob", Credential: true, Agents: map[string]Rights{"other": {Roles: RoleAdmin}}}, ViewTypes},
		"operator who is no viewer":      {Principal{Name: "bob", Credential: true, Everywhere: Rights{Roles: RoleOperator, View: ViewRedacted}}, ViewTypes},
		"viewer":                         {Principal{Name: "bob", Everywhere: viewer(ViewRedacted)}, ViewRedacted},
		"viewer of types":                {Principal{Name: "bob", Everywhere: viewer(ViewTypes)}, ViewTypes},
		"viewer of more of that agent":   {Principal{Name: "bob", Everywhere: viewer(ViewTypes), Agents: map[string]Rights{"coder": viewer(ViewOutline)}}, ViewOutline},
		"viewer of more of another":      {Principal{Name: "bob", Everywhere: viewer(ViewTypes), Agents: map[string]Rights{"other": viewer(ViewRedacted)}}, ViewTypes},
		"nobody, and a run without name": {Principal{}, ViewTypes},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.caller.viewOf(run); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	now := timestamppb.New(time.Unix(1, 0))
	ev := &runnerdv1.Event{
		RunId: "r", Sequence: 3, Type: "cancel_requested", Time: now, Leg: 1, Iteration: 2, Principal: "ann", PrivateDigest: []byte{1},
		Position: 7, PrevHash: []byte{2}, Hash: []byte{3},
		Payload: &runnerdv1.Event_CancelRequested{CancelRequested: &runnerdv1.CancelRequested{Mode: 1, Reason: "it has secret=x"}},
	}
	outline := proto.CloneOf(ev)
	outline.GetCancelRequested().Reason = ""
	redacted := proto.CloneOf(ev)
	redacted.GetCancelRequested().Reason = "it has secret=[redacted]"
	types := &runnerdv1.Event{RunId: "r", Sequence: 3, Type: "cancel_requested", Time: now, Leg: 1, Iteration: 2, Position: 7}
	for view, want := range map[View]*runnerdv1.Event{ViewTypes: types, ViewOutline: outline, ViewRedacted: redacted, viewRaw: ev} {
		if got := show(ev, view); !proto.Equal(got, want) {
			t.Errorf("view %d: got %v, want %v", view, got, want)
		}
	}
	run := &runnerdv1.Run{
		RunId: "r", Agent: "a", Owner: "ann", Task: "t", State: 2, Leg: 1, Iteration: 2, CreatedAt: now, UpdatedAt: now,
		HeadSequence: 3, Labels: map[string]string{"a": "b"}, FinalAnswer: &runnerdv1.FinalAnswer{Content: "c"},
	}
	want := &runnerdv1.Run{RunId: "r", Agent: "a", State: 2, Leg: 1, Iteration: 2, CreatedAt: now, UpdatedAt: now, HeadSequence: 3}
	if got := show(run, ViewTypes); !proto.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := show(run, ViewOutline); got.GetTask() != "" || got.GetFinalAnswer().GetContent() != "" || got.GetOwner() != "ann" || len(got.GetLabels()) != 1 {
		t.Errorf("got %v", got)
	}
	finding := &runnerdv1.Finding{Host: "h", Code: "c", Message: "m"}
	if got := show(finding, ViewTypes); got.GetMessage() != "" || got.GetCode() != "c" {
		t.Errorf("what is about no run: got %v", got)
	}
}

func TestVisibleSignals(t *testing.T) {
	t.Parallel()
	text := &runnerdv1.Signal{RunId: "r", Payload: &runnerdv1.Signal_TextDelta{TextDelta: &runnerdv1.TextDeltaSignal{Text: "x"}}}
	tool := &runnerdv1.Signal{RunId: "r", Type: "tool_progress", Payload: &runnerdv1.Signal_ToolProgress{ToolProgress: &runnerdv1.ToolProgressSignal{
		CallId: "1.1", Message: "reading x", Fraction: new(0.5),
	}}}
	head := &runnerdv1.Signal{Payload: &runnerdv1.Signal_StreamProgress{StreamProgress: &runnerdv1.StreamProgressSignal{HeadCursor: "c"}}}
	for view := ViewTypes; view <= viewRaw; view++ {
		raw := view == viewRaw
		if got := visible(text, view); (got != nil) != raw {
			t.Errorf("view %d: got %v", view, got)
		}
		got := visible(tool, view)
		if (got.GetToolProgress().GetMessage() != "") != raw || (got.GetToolProgress().GetFraction() > 0) != (view > ViewTypes) || got.GetType() != "tool_progress" {
			t.Errorf("view %d: got %v", view, got)
		}
		if got := visible(head, view); got != head {
			t.Errorf("view %d: got %v", view, got)
		}
	}
	if tool.GetToolProgress().GetMessage() == "" {
		t.Error("the signal is changed")
	}
}
