package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// withBearer is a call that shows a token.
func withBearer(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// seenBy is every event of a run as the bearer of a token sees it; without one, as a guest.
func (w *world) seenBy(t *testing.T, token, run string) []*runnerdv1.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(harness.Context(t))
	defer cancel()
	if token != "" {
		ctx = withBearer(ctx, token)
	}
	stream, err := w.Guest.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}})
	if err != nil {
		t.Fatal(err)
	}
	var events []*runnerdv1.Event
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		events = append(events, m.GetEvent())
	}
	if len(events) == 0 {
		t.Fatalf("%s has no events", run)
	}
	return events
}

// TestViews plays one run and looks at it through each view.
func TestViews(t *testing.T) {
	t.Parallel()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Auth = &configv1.Auth{}
	for _, view := range []string{"types", "outline", "redacted"} {
		w.cfg.Auth.Tokens = append(w.cfg.Auth.Tokens, &configv1.Token{Principal: view, Sha256: hashOf(view)})
		w.cfg.Auth.Roles = append(w.cfg.Auth.Roles, &configv1.RoleBinding{Principals: []string{view}, Roles: []string{"viewer"}, View: view})
	}
	w.Daemon = harness.Start(t, w.cfg)
	run := w.play(t, "std", harness.Steps(harness.Calls("look", `{"path":"word-path","content":"word-content"}`), harness.Answer("word-answer, secret=word-secret")),
		func(_ *world, req *runnerdv1.StartRunRequest) {
			req.Task, req.Labels = "word-task, token=word-secret", map[string]string{"team": "word-label"}
		}, calls(harness.Result(`{"stdout":"word-stdout","exit":0,"note":"word-note"}`)))
	w.Done(t, run)

	words := []string{"word-task", "word-path", "word-note", "word-answer", "word-content", "word-stdout", "word-secret"}
	shows := func(t *testing.T, what string, v any, want ...string) {
		t.Helper()
		text := fmt.Sprint(v)
		for _, word := range words {
			wanted := false
			for _, one := range want {
				wanted = wanted || one == word
			}
			if strings.Contains(text, word) != wanted {
				t.Errorf("%s: shows %s: %t, want %t: %s", what, word, !wanted, wanted, text)
			}
		}
	}
	got := func(t *testing.T, view string) *runnerdv1.Run {
		t.Helper()
		answer, err := w.Guest.GetRun(withBearer(harness.Context(t), view), &runnerdv1.GetRunRequest{RunId: run})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetRun()
	}
	all := w.Events(t, run)

	t.Run("T-181 types: what happened when, and nothing else", func(t *testing.T) {
		t.Parallel()
		events := w.seenBy(t, "types", run)
		equal(t, "events", len(events), len(all))
		for i, ev := range events {
			want := &runnerdv1.Event{
				RunId: run, Sequence: all[i].GetSequence(), Type: all[i].GetType(), Time: all[i].GetTime(), Leg: all[i].GetLeg(),
				Iteration: all[i].GetIteration(), Position: all[i].GetPosition(),
			}
			if !proto.Equal(ev, want) {
				t.Errorf("got %v, want %v", ev, want)
			}
		}
		shows(t, "run", got(t, "types"))
		equal(t, "owner", got(t, "types").GetOwner(), "")
		equal(t, "labels", len(got(t, "types").GetLabels()), 0)
		list, err := w.Guest.ListRuns(withBearer(harness.Context(t), "types"), &runnerdv1.ListRunsRequest{Labels: map[string]string{"team": "word-label"}})
		if err != nil || len(list.GetRuns()) != 0 {
			t.Errorf("runs by a label that is not shown: %v, %v", list, err)
		}
	})
	t.Run("T-181 outline: no text, arguments and results", func(t *testing.T) {
		t.Parallel()
		events := w.seenBy(t, "outline", run)
		shows(t, "events", events)
		equal(t, "tool", harness.Only(events, "tool_call_requested")[0].GetToolCallRequested().GetTool(), "look")
		equal(t, "principal", events[0].GetPrincipal(), all[0].GetPrincipal())
		shows(t, "run", got(t, "outline"))
		equal(t, "label", got(t, "outline").GetLabels()["team"], "word-label")
		catalogue, err := w.Guest.ListTools(withBearer(harness.Context(t), "outline"), &runnerdv1.ListToolsRequest{Agent: "std"})
		if err != nil || len(catalogue.GetTools()) == 0 || catalogue.GetTools()[0].GetDescription() != "" || catalogue.GetTools()[0].GetName() == "" {
			t.Errorf("tools: %v, %v", catalogue, err)
		}
	})
	t.Run("T-181 redacted: everything but secrets", func(t *testing.T) {
		t.Parallel()
		shows(t, "events", w.seenBy(t, "redacted", run), "word-task", "word-path", "word-note", "word-answer")
		shows(t, "run", got(t, "redacted"), "word-task", "word-answer")
	})
	t.Run("T-181 A-136 raw: everything, for the owner", func(t *testing.T) {
		t.Parallel()
		shows(t, "events", all, words...)
		shows(t, "run", w.Run(t, run), "word-task", "word-answer", "word-secret")
		for _, view := range []string{"types", "outline", "redacted"} {
			stream, err := w.Guest.StreamEvents(withBearer(harness.Context(t), view), &runnerdv1.StreamEventsRequest{
				Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, IncludeRaw: true,
			})
			if err == nil {
				_, err = stream.Recv()
			}
			harness.Code(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
		}
	})
	t.Run("T-181 the log is the same whoever reads", func(t *testing.T) {
		t.Parallel()
		for i, ev := range w.seenBy(t, "outline", run) {
			equal(t, "hash", string(ev.GetHash()), string(all[i].GetHash()))
		}
	})
}

// TestRedaction plays arguments, results and texts with things that are not for everyone.
func TestRedaction(t *testing.T) {
	t.Parallel()
	w := shared(t)
	// public plays one call and returns its arguments and its result as a guest sees them.
	public := func(t *testing.T, arguments, text, structured string) (string, *runnerdv1.ToolCallCompleted) {
		t.Helper()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", arguments), harness.Answer("done")), calls(
			func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
				return &runnerdv1.ToolResult{Text: text, StructuredJson: structured}, nil
			}))
		w.Done(t, run)
		equal(t, "arguments sent", w.hands.Calls(run)[0].Request.GetArgumentsJson(), arguments)
		raw := w.UntilType(t, run, "tool_call_completed").GetToolCallCompleted()
		equal(t, "raw text", raw.GetText(), text)
		equal(t, "raw structure", raw.GetStructuredJson(), structured)
		events := w.seenBy(t, "", run)
		return harness.Only(events, "tool_call_requested")[0].GetToolCallRequested().GetArgumentsRaw(),
			harness.Only(events, "tool_call_completed")[0].GetToolCallCompleted()
	}

	t.Run("T-182 keys of secrets in arguments, results and metadata", func(t *testing.T) {
		t.Parallel()
		const given = `{"input_tokens": 12, "api-key":"x", "a":[{"Authorization":{"b":"x"}}], "in":"{\"passWord\":\"x\"}", "n":1.50, "secret":true}`
		const want = `{"input_tokens": 12, "api-key":"[redacted]", "a":[{"Authorization":"[redacted]"}], "in":"{\"passWord\":\"[redacted]\"}", "n":1.50, "secret":true}`
		arguments, result := public(t, given, given, given)
		equal(t, "arguments", arguments, want)
		equal(t, "text", result.GetText(), want)
		equal(t, "structure", result.GetStructuredJson(), want)
		run := w.play(t, "std", harness.Steps(harness.Answer("done")), func(_ *world, req *runnerdv1.StartRunRequest) { req.MetadataJson = given })
		w.Done(t, run)
		equal(t, "metadata", w.seenBy(t, "", run)[0].GetRunStarted().GetMetadataJson(), want)
	})
	t.Run("T-183 arguments", func(t *testing.T) {
		t.Parallel()
		arguments, _ := public(t, `{"path":"a.go","content":"x","edits":[{"old":"x","new":"y"},"content"],"command":["x"],"stdout":"z"}`, "ok", "")
		equal(t, "arguments", arguments, `{"path":"a.go","content":"[redacted]","edits":[{"old":"[redacted]","new":"[redacted]"},"content"],"command":"[redacted]","stdout":"z"}`)
	})
	t.Run("T-183 arguments that are wrong are shown to the model only", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", `{"content":"kept away",}`), harness.Answer("done")))
		w.Done(t, run)
		has(t, shown(t, w, run, 2).GetText(), "near: ", "kept away")
		if text := fmt.Sprint(w.seenBy(t, "", run)); strings.Contains(text, "kept away") {
			t.Error(text)
		}
	})
	t.Run("T-184 results", func(t *testing.T) {
		t.Parallel()
		const given, want = `{"stdout":"x","stderr":"y","exit":0,"content":[{"text":"z"}]}`, `{"stdout":"[redacted]","stderr":"[redacted]","exit":0,"content":"[redacted]"}`
		_, result := public(t, `{}`, given, given)
		equal(t, "text", result.GetText(), want)
		equal(t, "structure", result.GetStructuredJson(), want)
	})
	t.Run("T-185 shapes of secrets in task, tool error and answer", func(t *testing.T) {
		t.Parallel()
		const part = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"
		for given, want := range map[string]string{
			"a Bearer abcdefgh.1 b":               "a Bearer [redacted] b",
			"a sk-abcdefgh b":                     "a [redacted] b",
			"a api_key=abc b":                     "a api_key=[redacted] b",
			"a token=abc&b":                       "a token=[redacted]&b",
			`a "secret": "abc", b`:                `a "secret": "[redacted]", b`,
			"a password='a b' b":                  "a password='[redacted]' b",
			"a " + part + "." + part + "." + part: "a [redacted-JWT]",
			"a AKIAIOSFODNN7EXAMPLE b":            "a [redacted] b",
			"a ghp_0123456789abcdefghij b":        "a [redacted] b",
			"a github_pat_0123456789abcdefghij":   "a [redacted]",
		} {
			run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer(given)),
				func(_ *world, req *runnerdv1.StartRunRequest) { req.Task = given }, calls(harness.ToolError(given)))
			w.Done(t, run)
			events := w.seenBy(t, "", run)
			equal(t, "task", events[0].GetRunStarted().GetTask(), want)
			equal(t, "error", harness.Only(events, "tool_call_failed")[0].GetToolCallFailed().GetMessage(), want)
			equal(t, "answer", harness.Only(events, "run_completed")[0].GetRunCompleted().GetAnswer().GetContent(), want)
			equal(t, "answer of the owner", w.Run(t, run).GetFinalAnswer().GetContent(), given)
		}
	})
	t.Run("T-186 long texts are cut and marked", func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("ä", 22_000)
		_, result := public(t, `{}`, long, fmt.Sprintf(`{"a":[%q],"b":1}`, long))
		if want := strings.Repeat("ä", 20_000) + "[truncated]"; result.GetText() != want {
			t.Errorf("%d characters", utf8.RuneCountInString(result.GetText()))
		}
		structured := result.GetStructuredJson()
		if n := utf8.RuneCountInString(structured); n > 20_000 || n < 19_900 || !json.Valid([]byte(structured)) || !strings.Contains(structured, "[truncated]") {
			t.Errorf("structure: %d characters, end %s", n, structured[len(structured)-50:])
		}
	})
}
