package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files of this package")

// golden compares with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got; -rewrite to take it):\n%s", file, diff)
	}
}

var epoch = time.Date(2026, 5, 4, 12, 4, 5, 0, time.UTC)

// readEvents reads events as text protos, one a line.
func readEvents(t *testing.T, file string) []*runnerdv1.Event {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var events []*runnerdv1.Event
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		ev := &runnerdv1.Event{}
		if err := prototext.Unmarshal([]byte(line), ev); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		ev.RunId, ev.Sequence = "3f2a", uint64(len(events)+1)
		ev.Time = timestamppb.New(epoch.Add(time.Duration(len(events)) * 101 * time.Millisecond))
		ev.Type = string(ev.ProtoReflect().WhichOneof(payloadOf(ev)).Name())
		events = append(events, ev)
	}
	return events
}

func payloadOf(ev *runnerdv1.Event) protoreflect.OneofDescriptor {
	return ev.ProtoReflect().Descriptor().Oneofs().ByName("payload")
}

func testRenderer(out *bytes.Buffer) *renderer {
	return &renderer{
		out: out, zone: time.UTC, now: func() time.Time { return epoch },
		approval: func(_ context.Context, run string, id uint64) (*runnerdv1.Approval, error) {
			if id > 26 {
				return nil, errors.New("not an approver")
			}
			return &runnerdv1.Approval{
				RunId: run, ApprovalId: id, Host: "shop", Tool: "charge",
				ArgumentsJson: "{\"amount\":9007199254740993,\"to\":\"\u202eevil\"}", ArgumentsSize: 40,
				Annotations: &runnerdv1.Annotations{Destructive: new(true)}, Tier: 3, Layer: "agent", Gate: "approval_for",
				Rule: "approval_for:charge*", ModelText: "A refund,\nas agreed.", HostText: "Charges a card.", Program: "charge",
				PossibleGrants: []runnerdv1.GrantScope{runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL, runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX},
			}, nil
		},
	}
}

// How each kind of event looks is for people to judge: see the golden file.
func TestEventsLookAsTheyShould(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := testRenderer(&out)
	for _, ev := range readEvents(t, "events.txtpb") {
		if err := r.event(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "events.golden", out.String())
	if len(r.calls) > 4 {
		t.Errorf("calls that have their outcome are still remembered: %v", r.calls)
	}
}

// No kind of event is shown by its bare type name.
func TestEveryEventIsDescribed(t *testing.T) {
	t.Parallel()
	shown := map[protoreflect.Name]bool{}
	for _, ev := range readEvents(t, "events.txtpb") {
		shown[ev.ProtoReflect().WhichOneof(payloadOf(ev)).Name()] = true
	}
	fields := payloadOf(&runnerdv1.Event{}).Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !shown[field.Name()] {
			t.Errorf("testdata/events.txtpb has no %s", field.Name())
		}
		ev := &runnerdv1.Event{Type: string(field.Name())}
		ev.ProtoReflect().Set(field, ev.ProtoReflect().NewField(field))
		if e := testRenderer(nil).describe(t.Context(), ev); e.what == ev.GetType() {
			t.Errorf("%s is not described", field.Name())
		}
	}
}

func TestUnknownEventIsShownByItsType(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := testRenderer(&out).event(t.Context(), &runnerdv1.Event{RunId: "r", Type: "child_started", Time: timestamppb.New(epoch)})
	if err != nil || !strings.Contains(out.String(), "child_started") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// Whatever stands in any field of any event, the terminal is not touched by it.
func TestHostileEventsAreHarmless(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b[2J\u202e\u009b\u200b\r\n\u2028\U000e0041"
	fields := payloadOf(&runnerdv1.Event{}).Fields()
	for i := range fields.Len() {
		ev := &runnerdv1.Event{Time: timestamppb.New(epoch)}
		fill(ev.ProtoReflect(), hostile, 0)
		payload := ev.ProtoReflect().NewField(fields.Get(i))
		fill(payload.Message(), hostile, 0)
		ev.ProtoReflect().Set(fields.Get(i), payload)
		var out bytes.Buffer
		r := testRenderer(&out)
		r.runs = true
		r.approval = func(context.Context, string, uint64) (*runnerdv1.Approval, error) {
			a := &runnerdv1.Approval{}
			fill(a.ProtoReflect(), hostile, 0)
			return a, nil
		}
		if err := r.event(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if safe := safeLine(strings.TrimSuffix(line, "\n")); safe != strings.TrimSuffix(line, "\n") {
				t.Errorf("%s: %+q", fields.Get(i).Name(), line)
			}
		}
	}
}

// fill puts a text into every string of a message, down to a depth.
func fill(m protoreflect.Message, text string, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.ContainingOneof() != nil && !field.ContainingOneof().IsSynthetic():
		case field.IsMap():
			if field.MapKey().Kind() == protoreflect.StringKind && field.MapValue().Kind() == protoreflect.StringKind {
				m.Mutable(field).Map().Set(protoreflect.ValueOfString(text).MapKey(), protoreflect.ValueOfString(text))
			}
		case field.IsList():
			list := m.Mutable(field).List()
			switch field.Kind() { //nolint:exhaustive // the rest holds no text
			case protoreflect.StringKind:
				list.Append(protoreflect.ValueOfString(text))
			case protoreflect.MessageKind:
				if depth < 3 {
					fill(list.AppendMutable().Message(), text, depth+1)
				}
			}
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(text))
		case field.Kind() == protoreflect.MessageKind && depth < 3 && field.Message().FullName() != "google.protobuf.Timestamp":
			fill(m.Mutable(field).Message(), text, depth+1)
		}
	}
}

func TestLinesFitTheTerminal(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := testRenderer(&out)
	r.width = 80
	for _, ev := range readEvents(t, "events.txtpb") {
		if err := r.event(t.Context(), ev); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 && !strings.Contains(line, "┃") {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

func TestSignalsAreShownOnOneLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := testRenderer(&out)
	r.live = &liveLine{out: &out, width: 40}
	delta := func(text string) {
		r.signal(&runnerdv1.Signal{RunId: "r", Iteration: 1, Payload: &runnerdv1.Signal_TextDelta{
			TextDelta: &runnerdv1.TextDeltaSignal{Text: text},
		}})
	}
	delta("Let me ")
	delta("look\x1b[2J")
	if got, want := out.String(), "\r\x1b[K… Let me \r\x1b[K… Let me look\\u001b[2J"; got != want {
		t.Errorf("on a terminal:\n got %q\nwant %q", got, want)
	}
	out.Reset()
	if err := r.event(t.Context(), &runnerdv1.Event{Time: timestamppb.New(epoch), Type: "x"}); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "\r\x1b[K12:04:05") {
		t.Errorf("the live line is not taken away before an event: %q", out.String())
	}

	out.Reset()
	r.live = &liveLine{out: &out}
	r.signal(&runnerdv1.Signal{RunId: "r", Payload: &runnerdv1.Signal_ToolProgress{
		ToolProgress: &runnerdv1.ToolProgressSignal{CallId: "1.1", Message: "half way", Fraction: new(0.5)},
	}})
	if got, want := out.String(), "… 1.1 · 50 % · half way\n"; got != want {
		t.Errorf("elsewhere: got %q, want %q", got, want)
	}
}

// A question about the budget is shown with what was spent, and is about no call.
func TestBudgetQuestionsAreShown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := testProgram(&out, &out, nil)
	a := &runnerdv1.Approval{
		RunId: "3f2a", ApprovalId: 9, Kind: runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET, Rule: "confirm_at_90",
		Budget: &runnerdv1.BudgetQuestion{Level: 90, Percent: 92.5, CostNanocents: 92_500_000_000, MaxCostCents: 100},
	}
	run := &runnerdv1.Run{
		RunId: "3f2a", WarnedLevels: []uint32{50, 80, 90}, ConsecutiveRefusals: 2, ContextTokens: 150_000,
		ContextZone: runnerdv1.ContextZone_CONTEXT_ZONE_YELLOW, Approvals: []*runnerdv1.Approval{a},
		Spec: &runnerdv1.RunSpec{Budget: &runnerdv1.Budget{MaxContextTokens: new(uint32(200_000))}},
	}
	if err := p.printRun(&out, run, style{}); err != nil {
		t.Fatal(err)
	}
	a.Verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
	out.WriteString(verdictText(a))
	for _, want := range []string{
		"90 %", "150000 of 200000 tokens, yellow", "92.50 ¢ of 100.00 ¢ spent (92.5 %); approve: go on, deny: end the run",
		"asked by confirm_at_90", "runnerd approve 3f2a 9", "denied to go on: 92.50 ¢ of 100.00 ¢ spent (92.5 %) (run 3f2a, approval 9",
	} {
		has(t, out.String(), want)
	}
}
