package script_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
	"github.com/runnerd/runnerd/pkg/toolhost"
	"github.com/runnerd/runnerd/pkg/toolhost/script"
)

const maxResult = 1 << 20

// serve serves a script in memory, until the test ends or stop is called, and returns a client of it.
func serve(t *testing.T, text string, cfg script.Config) (c *toolhost.Client, stop func()) {
	t.Helper()
	s, err := script.Parse("script", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	h, err := script.New(s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	server := grpctest.Serve(t, h.Register, script.ServerOption())
	c, err = toolhost.NewClient(map[string]toolhost.Endpoint{
		"host": {Address: server.Target(), DialOptions: []grpc.DialOption{server.DialOption()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			server.Stop()
			if err := errors.Join(c.Close(), h.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return c, stop
}

func request(run, key, tool string, attempt uint32) *runnerdv1.CallToolRequest {
	return &runnerdv1.CallToolRequest{
		RunId: run, CallId: key, IdempotencyKey: run + "/" + key, Attempt: attempt, Name: tool, ArgumentsJson: `{"a": 1}`,
	}
}

// call makes a call and says in a word what came of it.
func call(t *testing.T, c *toolhost.Client, req *runnerdv1.CallToolRequest) string {
	t.Helper()
	r, err := c.CallTool(t.Context(), "host", req, maxResult, nil)
	if err != nil {
		if s := status.Code(err); s != codes.Internal {
			return s.String()
		}
		return err.Error()
	}
	return r.GetText()
}

// phases are the lines of a ledger without times.
func phases(t *testing.T, path string) []string {
	t.Helper()
	records, err := toolhost.ReadLedger(path)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range records {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s#%d %s", r.Phase, r.Key, r.Attempt, r.State)))
	}
	return lines
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, `
tools:
  - name: a
    description: d
    input_schema: {type: object, required: [x]}
    output_schema: '{"type":'
    read_only: true
    destructive: false
  - {name: ""}
  - {name: "get\nname"}
  - {name: a}
`, script.Config{})
	got, err := c.ListTools(t.Context(), "host")
	if err != nil {
		t.Fatal(err)
	}
	want := &runnerdv1.ToolHostServiceListToolsResponse{Tools: []*runnerdv1.ToolDefinition{
		{
			Name: "a", Description: "d", InputSchemaJson: `{"required":["x"],"type":"object"}`, OutputSchemaJson: `{"type":`,
			Annotations: &runnerdv1.Annotations{ReadOnly: new(true), Destructive: new(false)},
		},
		{Annotations: &runnerdv1.Annotations{}},
		{Name: "get\nname", Annotations: &runnerdv1.Annotations{}},
		{Name: "a", Annotations: &runnerdv1.Annotations{}},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestResultsByCallOfTheRun(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	text := `
tools:
  - name: t
    results:
      - text: first
      - cases:
          - {when: {run: "r*", contains: '"a": 1'}, text: second}
          - {when: {attempt: 2}, text: again}
      - echo: true
`
	c, stop := serve(t, text, script.Config{Ledger: path})
	for _, tt := range []struct{ run, key, want string }{
		{"r", "1.0", "first"},
		{"r", "1.1", "second"},
		{"other", "1.0", "first"},
		{"other", "1.1", "FailedPrecondition"},
		{"r", "2.0", `{"a": 1}`},
	} {
		if got := call(t, c, request(tt.run, tt.key, "t", 1)); got != tt.want {
			t.Errorf("%s/%s: %s, want %s", tt.run, tt.key, got, tt.want)
		}
	}
	stop()
	// Another process goes on where the ledger ends.
	c, _ = serve(t, text, script.Config{Ledger: path})
	if got := call(t, c, request("r", "3.0", "t", 1)); got != `{"a": 1}` {
		t.Errorf("after the restart: %s", got)
	}
}

func TestResultFields(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, `
tools:
  - name: t
    results:
      - text: x
        size: 3
        structured: '{"Id":9223372036854775807}'
        is_error: true
        blobs: [{mime: image/png, name: n, text: PNG, size: 5}]
        progress: [{message: half, fraction: 0.5}, {message: more}]
`, script.Config{})
	var seen []*runnerdv1.Progress
	got, err := c.CallTool(t.Context(), "host", request("r", "1.0", "t", 1), maxResult, func(p *runnerdv1.Progress) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	want := &runnerdv1.ToolResult{
		Text: "xxx", StructuredJson: `{"Id":9223372036854775807}`, IsError: true,
		Blobs: []*runnerdv1.Blob{{MimeType: "image/png", Name: "n", Data: []byte("PNGxx")}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]*runnerdv1.Progress{{Message: "half", Fraction: new(0.5)}, {Message: "more"}}, seen, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	c, _ := serve(t, `
tools:
  - name: before
    results: [{text: ok, faults: [{attempts: 1, code: UNAVAILABLE}]}]
  - name: after
    results: [{text: ok, faults: [{attempts: 1, code: UNAVAILABLE, at: after_effect}]}]
  - name: idempotent
    idempotent: true
    results: [{text: ok, faults: [{attempts: 1, code: UNAVAILABLE, at: after_effect}]}]
  - name: ended
    results: [{text: ok, faults: [{attempts: 1, code: UNAVAILABLE, at: after_end}]}]
  - name: none
    results: [{text: ok, faults: [{no_result: true}]}]
  - name: two
    results: [{text: ok, faults: [{two_results: true}]}]
  - name: raw
    results: [{text: ok, faults: [{raw: ff}]}]
`, script.Config{Ledger: path})
	for tool, want := range map[string][]string{
		"before": {"Unavailable", "ok"}, "after": {"Unavailable", "ok"}, "idempotent": {"Unavailable", "ok", "ok"},
		"ended": {"Unavailable", "ok"},
		"none":  {"stream ended without a result"}, "two": {"stream went on after its result"},
	} {
		for i, w := range want {
			if got := call(t, c, request("r", tool, tool, uint32(i+1))); got != w {
				t.Errorf("%s attempt %d: %q, want %q", tool, i+1, got, w)
			}
		}
	}
	if got := call(t, c, request("r", "raw", "raw", 1)); !strings.HasPrefix(got, "answer cannot be decoded") {
		t.Errorf("raw: %q", got)
	}
	got := make(map[string][]string)
	for _, line := range phases(t, path) {
		_, key, _ := strings.Cut(line, "/")
		tool, _, _ := strings.Cut(key, "#")
		got[tool] = append(got[tool], strings.ReplaceAll(line, "r/"+tool, ""))
	}
	for tool, want := range map[string][]string{
		"before":     {"begin #1", "end #1 not_executed", "begin #2", "effect #2", "end #2 finished"},
		"after":      {"begin #1", "effect #1", "end #1 open", "begin #2", "effect #2", "end #2 finished"},
		"idempotent": {"begin #1", "effect #1", "end #1 open", "begin #2", "end #2 finished", "repeat #3"},
		"ended":      {"begin #1", "effect #1", "end #1 finished", "repeat #2", "effect #2"},
	} {
		if diff := cmp.Diff(want, got[tool]); diff != "" {
			t.Errorf("%s: %s", tool, diff)
		}
	}
}

func TestGetCallAnswers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	c, _ := serve(t, `
tools: [{name: t, results: [{text: ok}]}]
get_call: [running, unknown, UNAVAILABLE, not_seen, ledger]
`, script.Config{Ledger: path})
	if list, err := c.ListTools(t.Context(), "host"); err != nil || !list.GetHasGetCall() {
		t.Errorf("list: %v, %v", list, err)
	}
	call(t, c, request("r", "1.0", "t", 1))
	var got []string
	for range 6 {
		resp, err := c.GetCall(t.Context(), "host", &runnerdv1.GetCallRequest{IdempotencyKey: "r/1.0", Attempt: 1}, maxResult)
		got = append(got, strings.TrimPrefix(fmt.Sprintf("%T %s", resp.GetState(), status.Code(err)), "*runnerdv1.GetCallResponse_"))
	}
	want := []string{"Running OK", "<nil> OK", "<nil> Unavailable", "NotSeen OK", "Finished OK", "Finished OK"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A promise is kept.
	for range 5 {
		if _, err := c.GetCall(t.Context(), "host", &runnerdv1.GetCallRequest{IdempotencyKey: "r/9.0", Attempt: 1}, maxResult); err != nil && status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
	for attempt, want := range map[uint32]string{1: "FailedPrecondition", 2: "ok"} {
		if got := call(t, c, request("r", "9.0", "t", attempt)); got != want {
			t.Errorf("attempt %d after the promise: %s, want %s", attempt, got, want)
		}
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "ledger")
		c, stop := serve(t, `
tools:
  - {name: hang, results: [{progress: [{message: begun}], faults: [{hang: true, at: after_effect}]}]}
  - {name: obedient, results: [{delay: 1m}]}
  - {name: deaf, results: [{delay: 1m, ignore_cancel: true, text: late}]}
`, script.Config{Ledger: path})
		for _, tool := range []string{"hang", "obedient", "deaf"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := c.CallTool(ctx, "host", request("r", tool, tool, 1), maxResult, nil); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%s: %v", tool, err)
			}
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		stop()
		want := []string{
			"begin r/hang#1", "effect r/hang#1", "end r/hang#1 open",
			"begin r/obedient#1", "end r/obedient#1 not_executed",
			"begin r/deaf#1", "effect r/deaf#1", "end r/deaf#1 finished",
		}
		if diff := cmp.Diff(want, phases(t, path)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestMain serves a script until it is killed, if the test asks for that by the environment.
func TestMain(m *testing.M) {
	if path := os.Getenv("SCRIPT_LEDGER"); path != "" {
		serveUntilKilled(path)
	}
	goleak.VerifyTestMain(m)
}

const crashing = `
tools:
  - name: before
    results: [{text: ok, faults: [{attempts: 1, crash: true}]}]
  - name: after
    idempotent: true
    results: [{text: ok, faults: [{attempts: 1, crash: true, at: after_effect}]}]
  - name: ended
    results: [{text: ok, faults: [{attempts: 1, crash: true, at: after_end}]}]
get_call: [ledger]
`

func serveUntilKilled(path string) {
	s, err := script.Parse("script", []byte(crashing))
	if err != nil {
		panic(err)
	}
	h, err := script.New(s, script.Config{Ledger: path, Crash: func() {
		p, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = p.Kill()
		}
		if err != nil {
			panic(err)
		}
		select {}
	}})
	if err != nil {
		panic(err)
	}
	lis, err := listenAndSay()
	if err != nil {
		panic(err)
	}
	panic(h.Serve(context.Background(), lis))
}

func TestLedgerSurvivesKill(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ledger")
	for _, tool := range []string{"before", "after", "ended"} {
		host := exec.CommandContext(t.Context(), os.Args[0])
		host.Env = append(os.Environ(), "SCRIPT_LEDGER="+path)
		c := dialProcess(t, host)
		if got := call(t, c, request("r", tool, tool, 1)); got != "Unavailable" {
			t.Errorf("%s: the call of a host that was killed ended %s", tool, got)
		}
		if err := host.Wait(); err == nil {
			t.Errorf("%s: the host was not killed", tool)
		}
	}
	c, stop := serve(t, crashing, script.Config{Ledger: path, Crash: func() { t.Error("crash in attempt 2") }})
	for tool, want := range map[string]string{"before": "<nil>", "after": "<nil>", "ended": "*runnerdv1.GetCallResponse_Finished"} {
		got, err := c.GetCall(t.Context(), "host", &runnerdv1.GetCallRequest{IdempotencyKey: "r/" + tool, Attempt: 1}, maxResult)
		if err != nil || fmt.Sprintf("%T", got.GetState()) != want {
			t.Errorf("%s: %v, %v, want %s", tool, got, err, want)
		}
	}
	if got := call(t, c, request("r", "after", "after", 2)); got != "ok" {
		t.Errorf("attempt 2: %s", got)
	}
	stop()
	want := []string{
		"begin r/before#1",
		"begin r/after#1", "effect r/after#1",
		"begin r/ended#1", "effect r/ended#1", "end r/ended#1 finished",
		"begin r/after#2", "end r/after#2 finished",
	}
	if diff := cmp.Diff(want, phases(t, path)); diff != "" {
		t.Error(diff)
	}
}

func TestBadScripts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                              "s: the script is empty",
		"tools:\n- nam: x":              `s: line 2: unknown field "nam"`,
		"tools:\n- read_only: x":        "s: unmarshal errors:\n  line 2: ",
		"tools:\n- null":                "s: line 1: an empty tool stands in tools",
		"tools:\n- results: [{txt: x}]": `s: line 2: unknown field "txt"`,
		"tools:\n- results: [{text: x, echo: true}]":                         "s: line 2: echo and text do not go together",
		"tools:\n- results: [{cases: [{cases: []}]}]":                        "s: line 2: a case is one result",
		"tools:\n- results: [{size: 1000000000}]":                            "s: line 2: size 1000000000",
		"tools:\n- results: [{blobs: [{size: -1}]}]":                         "s: line 2: size -1",
		"tools:\n- results: [{when: {run: '['}}]":                            `s: line 2: pattern "["`,
		"tools:\n- results: [{faults: [{at: after_effect}]}]":                "s: line 2: the fault does not say",
		"tools:\n- results: [{faults: [{at: later, hang: true}]}]":           `s: line 2: "later" is none of`,
		"tools:\n- results: [{faults: [{at: after_end, raw: ff}]}]":          "s: line 2: no_result, two_results and raw",
		"tools:\n- results: [{ignore_cancel: true, faults: [{hang: true}]}]": "s: line 2: a call that hangs",
		"tools:\n- {name: t}\nget_call: [sometimes]":                         `s: line 3: "sometimes" is none of`,
		"tools:\n- results: [{progress: [{massage: x}]}]":                    `s: line 2: unknown field "massage"`,
	} {
		if _, err := script.Parse("s", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"tools: [{name: t, results: [{faults: [{crash: true}]}]}]": "cannot crash",
		"{tools: [{name: t}], get_call: [ledger]}":                 "there is none",
	} {
		s, err := script.Parse("s", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := script.New(s, script.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestExample(t *testing.T) {
	t.Parallel()
	c, _ := serve(t, script.Example(), script.Config{})
	req := request("r", "1.0", "add", 1)
	req.ArgumentsJson = `{"a": 1, "b": 2}`
	if got := call(t, c, req); got != "3" {
		t.Errorf("add: %s", got)
	}
}
