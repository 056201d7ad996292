package replay

import (
	"encoding/json"
	"slices"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// recorded is a recording of our own with every kind of oddity.
const recorded = `{"id":"odd","task":"t","tools":["look",{"name":"book","input_schema":{"type":"object"}}],"steps":[
 {"kind":"decision","text":"first","tool_calls":[{"id":"x","name":"look","arguments_json":"{\"a\": 1}"},{"id":"x","name":"nowhere","arguments_json":""}]},
 {"kind":"tool_result","answers":1,"content":"none","is_error":true},
 {"kind":"tool_result","answers":0,"content":"seen"},
 {"kind":"user","text":"and?"},
 {"kind":"decision","text":"which one?"},
 {"kind":"user","text":"that one"},
 {"kind":"user","text":"or this"},
 {"kind":"decision","text":"a remark"},
 {"kind":"decision"},
 {"kind":"decision","tool_calls":[{"id":"","name":"book","arguments_json":"{}"}]}
]}`

func staged(t *testing.T) *play {
	t.Helper()
	r := new(recording)
	if err := json.Unmarshal([]byte(recorded), r); err != nil {
		t.Fatal(err)
	}
	p, err := stage(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStageFindsWhatTheContractDecidesOtherwise(t *testing.T) {
	t.Parallel()
	p := staged(t)
	want := []string{
		notOffered + ": call 1", inputAfterTool + ": decision 1", emptyDecision + ": decision 4",
		noResult + ": call 2", textGoesOn + ": decision 3", secondUserTurn + ": decision 2", noAnswer + ": decision 6",
	}
	if !slices.Equal(p.differs, want) {
		t.Errorf("differences are\n%q\nwant\n%q", p.differs, want)
	}
	if len(p.decisions) != 6 || p.answer != closing {
		t.Errorf("%d decisions and the answer %q, want 6 and the double's", len(p.decisions), p.answer)
	}
}

func TestMemoryFollowsTheRecording(t *testing.T) {
	t.Parallel()
	p := staged(t)
	refused := outcomes{1: runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL}
	want := []line{
		decisionLine("first", []line{callLine("1.1", "x", "look", `{"a": 1}`), callLine("1.2", "x", "nowhere", "")}),
		resultLine("1.1", "x", "look", false, "seen"),
		resultLine("1.2", "x", "nowhere", true, refusedText),
		inputLine("and?"),
		decisionLine("which one?", nil),
		inputLine("that one"),
		decisionLine("a remark", nil),
		inputLine("or this"),
		inputLine(goOn),
		noteLine,
		decisionLine("", []line{callLine("5.1", "", "book", "{}")}),
		resultLine("5.1", "", "book", false, missingResult),
	}
	if diff := firstDifference(p.memory(6, refused), want); diff != "" {
		t.Error(diff)
	}
	if diff := firstDifference(p.memory(2, refused), want[:4]); diff != "" {
		t.Error(diff)
	}
}

func TestMemoryInLogPairsResultsWithCalls(t *testing.T) {
	t.Parallel()
	p := staged(t)
	events := []*runnerdv1.Event{
		{Payload: &runnerdv1.Event_IterationStarted{}},
		{Payload: &runnerdv1.Event_InputReceived{InputReceived: &runnerdv1.InputReceived{Text: "and?"}}},
		{Payload: &runnerdv1.Event_DecisionMade{DecisionMade: &runnerdv1.DecisionMade{Text: "first"}}},
		{Payload: &runnerdv1.Event_ToolCallRequested{ToolCallRequested: &runnerdv1.ToolCallRequested{
			CallId: "1.1", ProviderCallId: "x", ToolName: "look", ArgumentsRaw: `{"a": 1}`,
		}}},
		{Payload: &runnerdv1.Event_ToolCallRequested{ToolCallRequested: &runnerdv1.ToolCallRequested{
			CallId: "1.2", ProviderCallId: "x", ToolName: "nowhere",
		}}},
		{Payload: &runnerdv1.Event_ToolCallFailed{ToolCallFailed: &runnerdv1.ToolCallFailed{
			CallId: "1.2", Reason: runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL, Message: "no such tool",
		}}},
		{Payload: &runnerdv1.Event_ToolCallCompleted{ToolCallCompleted: &runnerdv1.ToolCallCompleted{CallId: "1.1", Text: "seen"}}},
		{Payload: &runnerdv1.Event_IterationStarted{}},
	}
	refused := outcomes{1: runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL}
	if diff := firstDifference(p.memoryInLog(events, refused, nil), p.memory(2, refused)); diff != "" {
		t.Error(diff)
	}
	events[6].GetToolCallCompleted().Text = "seem"
	if diff := firstDifference(p.memoryInLog(events, refused, nil), p.memory(2, refused)); diff == "" {
		t.Error("a changed result is not told")
	}
}

func TestStageRefusesResultsOfNoCall(t *testing.T) {
	t.Parallel()
	for _, steps := range [][]recordStep{
		{{Kind: "decision", Text: "x"}, {Kind: "tool_result"}},
		{{Kind: "user", Text: "x"}},
		{{Kind: "gossip"}},
	} {
		if _, err := stage(&recording{Steps: steps}); err == nil {
			t.Errorf("steps %+v were taken", steps)
		}
	}
}
