package script_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
	"github.com/runnerd/runnerd/pkg/decide/script"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
)

// serve serves a script in memory and returns a client of it.
func serve(t *testing.T, text string, journal *script.Journal) *decide.Client {
	t.Helper()
	s, err := script.Parse("script", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	server := grpctest.Serve(t, script.New(s, journal).Register, script.ServerOption())
	c, err := decide.NewClient(map[string]decide.Endpoint{
		"brain": {Address: server.Target(), DialOptions: []grpc.DialOption{server.DialOption()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func request(run string, iteration uint32) *runnerdv1.DecideRequest {
	return &runnerdv1.DecideRequest{RunId: run, Iteration: iteration, Attempt: 1}
}

func observed(kind runnerdv1.ObservationKind, text string) *runnerdv1.HistoryEntry {
	return &runnerdv1.HistoryEntry{Entry: &runnerdv1.HistoryEntry_Observation{
		Observation: &runnerdv1.Observation{Kind: kind, Text: text},
	}}
}

func TestDecisionsByIteration(t *testing.T) {
	t.Parallel()
	c := serve(t, `
decisions:
  - answer: "1"
  - repeat: 2
    steps:
      - answer: "a"
      - {repeat: 2, answer: "b"}
  - {answer: "8"}
runs:
  "loop-*":
    - repeat: forever
      steps: [{answer: "a"}, {answer: "b"}]
  "loop-special": [{answer: special}]
  "nested": [{repeat: forever, steps: [{repeat: forever, steps: [{repeat: forever, answer: deep}]}]}]
`, nil)
	for run, want := range map[string]string{"r": "1abbabb8!", "loop-1": "ababababa", "loop-special": "special!"} {
		var got strings.Builder
		for i := range uint32(9) {
			d, err := c.Decide(t.Context(), "brain", request(run, i+1), nil)
			if status.Code(err) == codes.FailedPrecondition {
				got.WriteString("!")
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got.WriteString(d.GetAnswer().GetContent())
		}
		if got.String() != want {
			t.Errorf("run %s: %q, want %q", run, got.String(), want)
		}
	}
	if d, err := c.Decide(t.Context(), "brain", request("nested", math.MaxUint32), nil); err != nil || d.GetAnswer().GetContent() != "deep" {
		t.Errorf("far iteration: %v, %v", d, err)
	}
	if _, err := c.Decide(t.Context(), "brain", request("r", 0), nil); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("iteration 0: %v", err)
	}
}

func TestDecisionFields(t *testing.T) {
	t.Parallel()
	c := serve(t, `
decisions:
  - text: t
    reasoning: r
    truncated: true
    transport: native
    provider_state: opaque
    size: 5
    calls:
      - {id: x, tool: add, arguments: '{"a": 9007199254740993} trailing'}
      - {tool: list}
    usage: {cost_cents: .nan, input_tokens: -1, output_tokens: 0}
    deltas: [one, two]
  - {question: "", usage: {cost_cents: -.inf}}
  - {answer: yes, metadata: '{"k":1}'}
  - {}
`, nil)
	var deltas []string
	d, err := c.Decide(t.Context(), "brain", request("r", 1), func(s string) { deltas = append(deltas, s) })
	if err != nil {
		t.Fatal(err)
	}
	want := decide.Calls(
		&runnerdv1.ToolCall{Id: "x", Name: "add", ArgumentsJson: `{"a": 9007199254740993} trailing`},
		&runnerdv1.ToolCall{Name: "list"})
	want.Text, want.Reasoning, want.Truncated, want.Transport, want.ProviderState = "txxxx", "r", true, "native", []byte("opaque")
	want.Usage = &runnerdv1.Usage{CostCents: new(math.NaN()), InputTokens: new(int64(-1)), OutputTokens: new(int64(0))}
	if !math.IsNaN(d.GetUsage().GetCostCents()) {
		t.Errorf("cost %v", d.GetUsage())
	}
	if diff := cmp.Diff(want, d, protocmp.Transform(), protocmp.IgnoreFields(&runnerdv1.Usage{}, "cost_cents")); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(deltas, []string{"one", "two"}) {
		t.Errorf("deltas %q", deltas)
	}
	if d, err := c.Decide(t.Context(), "brain", request("r", 2), nil); err != nil || d.GetQuestion() == nil || !math.IsInf(d.GetUsage().GetCostCents(), -1) {
		t.Errorf("question: %v, %v", d, err)
	}
	if d, err := c.Decide(t.Context(), "brain", request("r", 3), nil); err != nil || d.GetAnswer().GetContent() != "yes" || d.GetAnswer().GetMetadataJson() != `{"k":1}` {
		t.Errorf("answer: %v, %v", d, err)
	}
	if d, err := c.Decide(t.Context(), "brain", request("r", 4), nil); err != nil || d.GetNext() != nil {
		t.Errorf("nothing: %v, %v", d, err)
	}
}

func TestCasesAndTemplates(t *testing.T) {
	t.Parallel()
	c := serve(t, `
decisions:
  - repeat: forever
    cases:
      - when: {kind: tool_error, contains: disk}
        answer: no space
      - when: {kind: tool_error}
        answer: failed
      - when: {attempt: 2}
        answer: again
      - template: true
        calls: [{tool: "t{{.Iteration}}", arguments: '{"task": {{json .Request.Task}}, "last": {{json .Last}}}'}]
  - answer: never
`, nil)
	req := func(iteration, attempt uint32, history ...*runnerdv1.HistoryEntry) *runnerdv1.DecideRequest {
		return &runnerdv1.DecideRequest{Iteration: iteration, Attempt: attempt, Task: `say "hi"`, History: history}
	}
	toolError, toolResult := runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR, runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT
	for want, r := range map[string]*runnerdv1.DecideRequest{
		"no space": req(1, 1, observed(toolError, "disk full")),
		"failed":   req(2, 1, observed(toolError, "x")),
		"again":    req(3, 2, observed(toolError, "disk full"), observed(toolResult, "disk")),
	} {
		if d, err := c.Decide(t.Context(), "brain", r, nil); err != nil || d.GetAnswer().GetContent() != want {
			t.Errorf("want %s, got %v, %v", want, d, err)
		}
	}
	for range 2 { // filling a template leaves the script as it is
		d, err := c.Decide(t.Context(), "brain", req(7, 1, observed(toolResult, "a\nb")), nil)
		want := &runnerdv1.ToolCall{Name: "t7", ArgumentsJson: `{"task": "say \"hi\"", "last": "a\nb"}`}
		if diff := cmp.Diff(decide.Calls(want), d, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("%v %s", err, diff)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	c := serve(t, `
decisions:
  - answer: done
    faults: [{attempts: 2, code: UNAVAILABLE, message: overloaded}, {attempts: 3, no_decision: true}, {attempts: 4, two_decisions: true}, {attempts: 5, raw: "ff ff"}]
  - {answer: big, size: 2000000}
  - answer: late
    delay: 1m
  - faults: [{hang: true}]
`, nil)
	for attempt, want := range map[uint32]string{
		1: "rpc error: code = Unavailable desc = overloaded", 2: "rpc error: code = Unavailable desc = overloaded",
		3: "stream ended without a decision", 4: "stream went on after its decision",
		5: "answer cannot be decoded", 6: "<nil>",
	} {
		_, err := c.Decide(t.Context(), "brain", &runnerdv1.DecideRequest{Iteration: 1, Attempt: attempt}, nil)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, want) {
			t.Errorf("attempt %d: %s, want %s", attempt, got, want)
		}
	}
	if _, err := c.Decide(t.Context(), "brain", request("r", 2), nil); err == nil || !strings.Contains(err.Error(), "more than 1048576") {
		t.Errorf("oversized: %v", err)
	}
}

func TestDelayAndHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, `{"decisions": [{"answer": "late", "delay": "1m"}, {"faults": [{"hang": true}]}]}`, nil)
		start := time.Now()
		if _, err := c.Decide(t.Context(), "brain", request("r", 1), nil); err != nil || time.Since(start) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := c.Decide(ctx, "brain", request("r", 2), nil); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("hang: %v", err)
		}
	})
}

func TestJournal(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	if entries, err := script.ReadJournal(path); err != nil || entries != nil {
		t.Errorf("no file: %v, %v", entries, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := serve(t, "decisions: [{answer: a}]", script.NewJournal(f))
	want := request("r", 1)
	want.Task, want.ContextJson = "täsk", `{"n": 9007199254740993}`
	if _, err := c.Decide(t.Context(), "brain", want, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decide(t.Context(), "brain", request("r", 2), nil); status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("beyond the script: %v", err)
	}
	if _, err := f.WriteString(`{"time":"torn`); err != nil {
		t.Fatal(err)
	}
	entries, err := script.ReadJournal(path)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	if diff := cmp.Diff(want, entries[0].Request, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestBadScripts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "s: the script is empty",
		"decisions: []":          "s: line 1: want a list of steps",
		"[]":                     "s: line 1: want a mapping",
		"decisions:\n- answr: x": `s: line 2: unknown field "answr"`,
		"decisions:\n- \n":       "s: line 2: the step is empty",
		"runs:\n  r: [null]":     "s: line 2: the step is empty",
		"decisions:\n- answer: x\n  calls: [{tool: t}]": "s: line 2: answer and calls do not go together",
		"decisions:\n- calls:\n  - {tol: x}":            `s: line 3: unknown field "tol"`,
		"decisions:\n- usage: {cost: 1}":                `s: line 2: unknown field "cost"`,
		"decisions:\n- repeat: 0":                       "s: line 2: repeat is a number from 1, or forever",
		"decisions:\n- steps: []":                       "s: line 2: want a list of steps",
		"decisions:\n- cases: [{repeat: 2}]":            "s: line 2: a case is one decision",
		"decisions:\n- delay: 3":                        `s: line 2: "3" is not a duration`,
		"decisions:\n- {template: true, answer: '{{'}":  "s: line 2: template: ",
		"decisions:\n- size: -1":                        "s: line 2: size -1 is not",
		"decisions:\n- faults: [{attempts: 1}]":         "s: line 2: the fault does not say what happens",
		"decisions:\n- faults: [{code: OK}]":            `s: line 2: "OK" is not the name of a gRPC error code`,
		"decisions:\n- faults: [{hang: true, raw: ff}]": "s: line 2: hang and raw do not go together",
		"decisions:\n- faults: [{raw: xy}]":             `s: line 2: "xy" is not bytes in hex`,
		"decisions:\n- when: {kind: tool}":              `s: line 2: "tool" is not a kind of observation`,
		"runs:\n  '[': [{}]":                            `s: line 1: pattern "[" of a run`,
		"decisions: &a [{steps: *a}]":                   "s: line 1: aliases are not understood here",
		"decisions: [":                                  "s: line 1: ",
	} {
		if _, err := script.Parse("s", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
}

func TestExample(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "example.yaml")
	if err := os.WriteFile(file, []byte(script.Example()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := script.Load(file); err != nil {
		t.Fatal(err)
	}
	c := serve(t, script.Example(), nil)
	req := request("r", 2)
	req.History = []*runnerdv1.HistoryEntry{observed(runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, "3")}
	if d, err := c.Decide(t.Context(), "brain", req, nil); err != nil || d.GetAnswer().GetContent() != "The sum is 3." {
		t.Errorf("%v, %v", d, err)
	}
}
