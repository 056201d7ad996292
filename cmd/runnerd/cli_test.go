package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestRunFollowed(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	r := d.run(t, "run", "--follow", "--id", "hello", "say hello").must(t, exitOK)
	if r.out != "echo: say hello\n" {
		t.Errorf("standard output is not the answer alone: %q", r.out)
	}
	has(t, r.err, "run started", "agent demo", "1.1 echo", `{"text":"say hello"}`, "run completed")

	again := d.run(t, "run", "--follow", "--id", "hello", "say hello").must(t, exitOK)
	if again.out != r.out || strings.Count(again.err, "run started") != 1 {
		t.Errorf("the same id and request is not the same run: %q\n%s", again.out, again.err)
	}
	other := d.run(t, "run", "--id", "hello", "say goodbye").must(t, exitFailure)
	has(t, other.err, "error: ", "hint: leave out --id")
}

func TestRunPrintsItsIDWhereNobodyWatches(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	r := d.run(t, "run", "say hello").must(t, exitOK)
	id := strings.TrimSpace(r.out)
	if len(id) != 32 || r.err != "" {
		t.Fatalf("got %q, %q", r.out, r.err)
	}
	if run := d.idle(t, id); run.GetOutcome() != runnerdv1.Outcome_OUTCOME_SUCCESS {
		t.Errorf("got %v", run)
	}
	tty := d.runWith(t, func(p *program) {
		p.terminal = func(any) (int, bool) { return 100, true }
	}, "run", "--color", "never", "say hello").must(t, exitOK)
	has(t, tty.err, "run completed")
	has(t, tty.out, "echo: say hello\n")
}

func TestRunTakesEverythingARequestHas(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	task := filepath.Join(t.TempDir(), "task.md")
	if err := os.WriteFile(task, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := d.runWith(t, func(p *program) { p.in = strings.NewReader(`{"branch":"main"}`) },
		"run", "-o", "json", "-f", task, "--context", "-", "--metadata", `{"ticket":7}`, "-l", "repo=runnerd", "-l", "team=a=b",
		"--kind", "investigate", "--model", "m", "--effort", "high", "--approval", "pause", "--approval-timeout", "1m",
		"--max-iterations", "7", "--max-tool-calls", "8", "--max-cost-cents", "0.5", "--max-duration", "1m", "--max-failures", "2",
		"--max-refusals", "3", "--max-context-tokens", "1000",
	).must(t, exitOK)
	run := messages(t, r.out, newRun)[0]
	b := run.GetSpec().GetBudget()
	for what, ok := range map[string]bool{
		"task":     run.GetTask() == "from a file",
		"metadata": run.GetMetadataJson() == `{"ticket":7}`,
		"labels":   run.GetLabels()["repo"] == "runnerd" && run.GetLabels()["team"] == "a=b",
		"kind":     run.GetKind() == runnerdv1.TaskKind_TASK_KIND_INVESTIGATE,
		"model":    run.GetModel() == "m" && run.GetEffort() == "high",
		"approval": run.GetSpec().GetApproval().GetMode() == runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE &&
			run.GetSpec().GetApproval().GetTimeout().GetSeconds() == 60,
		"budget": b.GetMaxIterations() == 7 && b.GetMaxToolCalls() == 8 && b.GetMaxCostCents() == 0.5 &&
			b.GetMaxDuration().GetSeconds() == 60 && b.GetMaxConsecutiveFailures() == 2 &&
			b.GetMaxConsecutiveRefusals() == 3 && b.GetMaxContextTokens() == 1000,
	} {
		if !ok {
			t.Errorf("%s did not arrive: %v", what, run)
		}
	}
}

func TestRunRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	for _, tc := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "give the task once", []string{"--task", "a", "b"}},
		{exitUsage, "not both", []string{"--task", "a", "-f", "b"}},
		{exitUsage, "no such file", []string{"-f", "/nowhere/task"}},
		{exitUsage, "--label \"x\" is not key=value", []string{"-l", "x", "t"}},
		{exitUsage, "--kind \"poem\" is none of edit, investigate, test_only", []string{"--kind", "poem", "t"}},
		{exitUsage, "--approval \"never\"", []string{"--approval", "never", "t"}},
		{exitUsage, "--output \"xml\"", []string{"-o", "xml", "t"}},
		{exitUsage, "unknown flag", []string{"--nope"}},
		{exitUsage, "at most 1 arg", []string{"a", "b"}},
		{exitFailure, "hint: agents are configured", []string{"--agent", "nobody", "t"}},
		{exitFailure, "max_iterations", []string{"--max-iterations", "101", "t"}},
		{exitFailure, "run_id", []string{"--id", "no/slash", "t"}},
		{exitFailure, "context_json", []string{"--context", "-", "t"}},
		{exitUnreachable, "hint: start one with runnerd serve", []string{"--addr", "127.0.0.1:1", "t"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			r := d.runWith(t, func(p *program) { p.in = strings.NewReader("[1]") }, append([]string{"run"}, tc.args...)...)
			r.must(t, tc.code)
			has(t, r.err, "error: ", tc.want)
			if r.out != "" {
				t.Errorf("something was printed: %q", r.out)
			}
		})
	}
}

// What is no command, and what is no use of one, is refused with what may have been meant.
func TestMistypedCommands(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ args, want string }{
		{"aprove", `error: unknown command "aprove" for "runnerd"; did you mean approve?`},
		{"policy explian", `error: unknown command "explian" for "runnerd policy"; did you mean explain?`},
		{"audit nonsense", `error: unknown command "nonsense" for "runnerd audit"`},
		{"grants revoke r", "usage: runnerd grants revoke [flags] RUN GRANT"},
	} {
		var out, errs lockedBuffer
		code := testProgram(&out, &errs, nil).run(t.Context(), strings.Fields(tc.args))
		r := result{code, out.String(), errs.String()}
		has(t, r.must(t, exitUsage).err, tc.want)
	}
}

func TestExitCodesOfOutcomes(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	t.Run("incomplete, then resumed", func(t *testing.T) {
		t.Parallel()
		r := d.run(t, "run", "--follow", "--id", "loop", "--max-iterations", "3", "forever").must(t, exitRunIncomplete)
		has(t, r.err, "run incomplete", "MAX_ITERATIONS", "hint: runnerd resume loop --max-iterations N")
		has(t, d.run(t, "resume", "loop").must(t, exitFailure).err, "hint: runnerd resume has a flag")
		has(t, d.run(t, "resume", "loop", "--max-iterations", "101").must(t, exitFailure).err, "max_iterations")
		has(t, d.run(t, "resume", "loop", "--auto-max-iterations", "5").must(t, exitFailure).err, "not in auto mode")
		resumed := messages(t, d.run(t, "resume", "loop", "--max-iterations", "5", "-o", "json").must(t, exitOK).out, newRun)[0]
		if resumed.GetSpec().GetBudget().GetMaxIterations() != 5 {
			t.Errorf("got %v", resumed)
		}
		if run := d.idle(t, "loop"); run.GetIteration() != 5 || run.GetLeg() != 2 {
			t.Errorf("resumed run: got iteration %d, leg %d", run.GetIteration(), run.GetLeg())
		}
	})
	t.Run("incomplete by a limit of auto mode, then resumed", func(t *testing.T) {
		t.Parallel()
		r := d.run(t, "run", "--follow", "--agent", "auto", "--id", "auto", "forever").must(t, exitRunIncomplete)
		has(t, r.err, "the iterations of auto mode are used up: 3 of 3", "hint: runnerd resume auto --auto-max-iterations N")
		has(t, d.run(t, "resume", "auto").must(t, exitFailure).err, "auto_mode_limits.max_iterations", "hint: runnerd resume has a flag")
		has(t, d.run(t, "resume", "auto", "--auto-max-iterations", "10").must(t, exitFailure).err, "auto_mode_limits.max_iterations", "at most 9")
		resumed := messages(t, d.run(t, "resume", "auto", "--auto-max-iterations", "5", "-o", "json").must(t, exitOK).out, newRun)[0]
		if resumed.GetAutoMode().GetLimits().GetMaxIterations() != 5 || resumed.GetAutoMode().GetLimits().GetMaxToolCalls() != 100 {
			t.Errorf("got %v", resumed.GetAutoMode())
		}
		if run := d.idle(t, "auto"); run.GetIteration() != 5 || run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT {
			t.Errorf("resumed run: got iteration %d, %v", run.GetIteration(), run.GetStopReason())
		}
	})
	t.Run("blocked, then answered", func(t *testing.T) {
		t.Parallel()
		r := d.run(t, "run", "--follow", "--agent", "strict", "--id", "ask", "ask me").must(t, exitRunBlocked)
		has(t, r.err, "hint: runnerd input ask")
		has(t, d.run(t, "input", "ask", "blue").must(t, exitOK).out, "recorded as event")
		if run := d.idle(t, "ask"); run.GetFinalAnswer().GetContent() != "you said: blue" {
			t.Errorf("got %v", run.GetFinalAnswer())
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		t.Parallel()
		d.run(t, "run", "--id", "wait", "announce it").must(t, exitOK)
		d.idle(t, "wait")
		has(t, d.run(t, "cancel", "wait", "--reason", "not needed").must(t, exitOK).out, "wait: done, failed:system (STOPPED)")
		has(t, d.run(t, "cancel", "wait", "--abort").must(t, exitOK).out, "STOPPED") // a DONE run is left as it is
		has(t, d.run(t, "run", "--follow", "--id", "wait", "announce it").must(t, exitRunCancelled).err, "STOP", "not needed")
	})
	t.Run("failed", func(t *testing.T) {
		t.Parallel()
		d.run(t, "run", "--agent", "strict", "--id", "no", "announce it").must(t, exitOK)
		d.idle(t, "no")
		d.run(t, "deny", "no", "--reason", "not on a Friday").must(t, exitOK)
		r := d.run(t, "run", "--follow", "--agent", "strict", "--id", "no", "announce it").must(t, exitRunFailed)
		has(t, r.err, "denied", "not on a Friday", "PERMISSION_DENIED")
	})
}

func TestApprovals(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "one", "announce one\u202e").must(t, exitOK)
	d.idle(t, "one")

	has(t, d.anonymous(t, "approvals").must(t, exitFailure).err, "hint: approver.token")
	has(t, d.anonymous(t, "approve", "one", "6").must(t, exitFailure).err, "hint: approver.token")
	list := d.run(t, "approvals").must(t, exitOK).out
	has(t, list, "one 6", "demo/announce", "asked by approval_for:announce", "arguments, 26 bytes:", `text  "announce one\u202e"`, "runnerd approve one 6")
	open := messages(t, d.run(t, "approvals", "one", "-o", "json").must(t, exitOK).out, func() *runnerdv1.Approval { return &runnerdv1.Approval{} })
	if len(open) != 1 || open[0].GetArgumentsJson() != "{\"text\":\"announce one\u202e\"}" {
		t.Errorf("--output json is not exact: %v", open)
	}

	checkWrongVerdicts(t, d)
	checkApproved(t, d)
	checkPaused(t, d)
}

// checkWrongVerdicts: what is answered wrongly stays open.
func checkWrongVerdicts(t *testing.T, d *daemon) {
	t.Helper()
	has(t, d.run(t, "approve", "one", "x").must(t, exitUsage).err, `"x" is no approval id`)
	has(t, d.run(t, "approve", "one", "5").must(t, exitFailure).err, "hint: runnerd approvals")
	has(t, d.run(t, "approve", "nosuch", "6").must(t, exitFailure).err, "hint: runnerd runs")
	has(t, d.run(t, "deny", "one", "--settle", "done").must(t, exitFailure).err, "error: ")
	no := d.runWith(t, func(p *program) {
		p.terminal = func(any) (int, bool) { return 80, true }
		p.in = strings.NewReader("\n")
	}, "approve", "one", "6", "--color", "never").must(t, exitFailure)
	has(t, no.err, `text  "announce one\u202e"`, "digest ", "approve? [y/N]", "stays open")
	if run := d.idle(t, "one"); len(run.GetApprovals()) != 1 {
		t.Errorf("got %v", run.GetApprovals())
	}
}

// checkApproved: an approval is answered once.
func checkApproved(t *testing.T, d *daemon) {
	t.Helper()
	yes := d.runWith(t, func(p *program) {
		p.terminal = func(any) (int, bool) { return 80, true }
		p.in = strings.NewReader("y\n")
	}, "approve", "one", "--reason", "fine").must(t, exitOK)
	has(t, yes.out, "approved demo/announce (run one, approval 6")
	if run := d.idle(t, "one"); !strings.Contains(run.GetFinalAnswer().GetContent(), "announced (1 so far): announce one") {
		t.Errorf("got %v", run.GetFinalAnswer())
	}
	has(t, d.run(t, "approve", "one", "6").must(t, exitOK).out, "approved")
	has(t, d.run(t, "deny", "one", "6").must(t, exitFailure).err, "error: ")
	has(t, d.run(t, "approve", "one").must(t, exitFailure).err, "waits for no approval")
	has(t, d.run(t, "watch", "one").must(t, exitOK).out, "via HUMAN", "fine")
}

// checkPaused: a paused run goes on.
func checkPaused(t *testing.T, d *daemon) {
	t.Helper()
	d.run(t, "run", "--id", "two", "--approval", "pause", "announce two").must(t, exitOK)
	if run := d.idle(t, "two"); run.GetState() != runnerdv1.RunState_RUN_STATE_PAUSED {
		t.Fatalf("got %v", run.GetState())
	}
	has(t, d.run(t, "resume", "two").must(t, exitFailure).err, "hint: answer it")
	answered := messages(t, d.run(t, "deny", "two", "-o", "json").must(t, exitOK).out, func() *runnerdv1.Approval { return &runnerdv1.Approval{} })[0]
	if answered.GetVia() != runnerdv1.Via_VIA_HUMAN || answered.GetClosedBy() != "local:owner" {
		t.Errorf("got %v", answered)
	}
	if run := d.idle(t, "two"); run.GetLeg() != 2 || !strings.Contains(run.GetFinalAnswer().GetContent(), "did not work") {
		t.Errorf("got %v", run)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "a", "--label", "n=1", "say access_token=abcdefgh").must(t, exitOK)
	d.run(t, "run", "--id", "b", "tell the time").must(t, exitOK)
	d.idle(t, "a")
	d.idle(t, "b")
	want := []string{
		"run_started", "tools_pinned", "iteration_started", "decision_made", "tool_call_requested", "tool_call_started",
		"tool_call_completed", "iteration_started", "decision_made", "run_completed",
	}
	if got := types(t, d.run(t, "watch", "a", "-o", "json").must(t, exitOK).out); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	if got := types(t, d.run(t, "watch", "a", "-o", "json", "--after", "8").must(t, exitOK).out); !slices.Equal(got, want[8:]) {
		t.Errorf("--after 8: got %v", got)
	}
	if got := types(t, d.run(t, "watch", "--all", "-o", "json", "--follow=false", "--type", "run_started,run_completed").must(t, exitOK).out); len(got) != 4 {
		t.Errorf("--all: got %v", got)
	}
	all := d.run(t, "watch", "--all", "--follow=false").must(t, exitOK).out
	has(t, all, "  a ", "  b ", "[redacted]")
	if strings.Contains(all, "abcdefgh") {
		t.Errorf("what only its owner may see is shown without --raw:\n%s", all)
	}
	has(t, d.run(t, "watch", "a", "--raw").must(t, exitOK).out, `{"text":"say access_token=abcdefgh"}`)
	has(t, d.anonymous(t, "watch", "a", "--raw").must(t, exitFailure).err, "error: ")
	has(t, d.run(t, "watch", "nosuch").must(t, exitFailure).err, "hint: runnerd runs lists the runs")
	has(t, d.run(t, "watch").must(t, exitUsage).err, "name one run")
	has(t, d.run(t, "watch", "--all", "a").must(t, exitUsage).err, "name one run")
	has(t, d.run(t, "watch", "--all", "--after", "3").must(t, exitUsage).err, "--cursor")
	has(t, d.run(t, "watch", "a", "--after", "99").must(t, exitFailure).err, "hint: leave out --after")
	has(t, d.run(t, "watch", "a", "--type", "nosuch").must(t, exitFailure).err, "hint: docs/events.md")
}

func TestWatchShowsWhatIsInProgress(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	r := d.run(t, "run", "--follow", "--signals", "--id", "w", "wait 1").must(t, exitOK)
	has(t, r.err, "… 1.1 wait · ", " % · waiting", "… waited") // progress of the tool, then the text of the model
	if again := d.run(t, "watch", "w", "--signals").must(t, exitOK).out; strings.Contains(again, "…") {
		t.Errorf("signals are shown of what is over:\n%s", again)
	}
}

func TestRuns(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	if r := d.run(t, "runs").must(t, exitOK); r.out != "" {
		t.Errorf("no runs: got %q", r.out)
	}
	for _, id := range []string{"r1", "r2", "r3"} {
		d.run(t, "run", "--id", id, "--label", "n="+id, "say "+id+"\x1b[31m").must(t, exitOK)
		d.idle(t, id)
	}
	d.run(t, "run", "--id", "open", "announce").must(t, exitOK)
	d.idle(t, "open")

	ids := func(args ...string) string {
		var all []string
		for _, run := range messages(t, d.run(t, append([]string{"runs", "-o", "json"}, args...)...).must(t, exitOK).out, newRun) {
			all = append(all, run.GetRunId())
		}
		return strings.Join(all, " ")
	}
	for _, tc := range []struct{ args, want string }{
		{"", "open r3 r2 r1"},
		{"--limit 2", "open r3"},
		{"--limit 0", "open r3 r2 r1"},
		{"--state waiting_approval", "open"},
		{"--state DONE", "r3 r2 r1"},
		{"--label n=r2", "r2"},
		{"--agent nobody", ""},
	} {
		if got := ids(strings.Fields(tc.args)...); got != tc.want {
			t.Errorf("runs %s: got %q, want %q", tc.args, got, tc.want)
		}
	}
	table := d.run(t, "runs").must(t, exitOK).out
	has(t, table, "RUN ", "waiting_approval", "completed", `say r1\u001b[31m`)
	one := d.run(t, "runs", "open").must(t, exitOK).out
	has(t, one, "state         waiting_approval\n", "waits for approval 6", `text  "announce"`, "1 of 25", "0.01 ¢ of 100.00 ¢")
	if other := d.anonymous(t, "runs", "open").must(t, exitOK).out; strings.Contains(other, `text  "announce"`) {
		t.Errorf("arguments are shown to somebody who may not approve:\n%s", other)
	}
	has(t, d.run(t, "runs", "r1").must(t, exitOK).out, "answer\necho: say r1")
	has(t, d.run(t, "runs", "--state", "asleep").must(t, exitUsage).err, "waiting_input")
	has(t, d.run(t, "runs", "nosuch").must(t, exitFailure).err, `no run "nosuch"`)
}

func TestTools(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	has(t, d.run(t, "tools", "strict").must(t, exitOK).out, "announce", "repeat", "warning", "demo/echo, demo/clock, demo/wait, demo/announce: missing_output_schema: no output schema",
		"read-only, idempotent", "not destructive", "2m0s")
	got := messages(t, d.run(t, "tools", "-o", "json").must(t, exitOK).out, func() *runnerdv1.ListToolsResponse { return &runnerdv1.ListToolsResponse{} })
	if len(got) != 1 || len(got[0].GetTools()) != 4 {
		t.Errorf("got %v", got)
	}
	d.run(t, "tools", "nobody").must(t, exitFailure)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	token, err := os.ReadFile(filepath.Join(d.dir, "approver.token"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, token, 0o600); err != nil {
		t.Fatal(err)
	}
	as := func(env ...string) func(*program) {
		return func(p *program) {
			p.lookupEnv = environment(append([]string{"RUNNERD_ADDR", d.addr, "HOME", "/nowhere"}, env...)...)
		}
	}
	d.runWith(t, as("RUNNERD_TOKEN", strings.TrimSpace(string(token))), "approvals").must(t, exitOK)
	d.runWith(t, as(), "approvals", "--token-file", file).must(t, exitOK)
	d.runWith(t, as(), "approvals", "--data-dir", d.dir).must(t, exitOK)
	has(t, d.runWith(t, as("RUNNERD_TOKEN", "wrong"), "approvals").must(t, exitFailure).err, "not valid")
	has(t, d.runWith(t, as("RUNNERD_TOKEN", "two words"), "approvals").must(t, exitUsage).err, "RUNNERD_TOKEN holds no token")
	has(t, d.runWith(t, as(), "approvals", "--token-file", "/nowhere/token").must(t, exitUsage).err, "--token-file")
	far := d.runWith(t, as("RUNNERD_TOKEN", "secret"), "approvals", "--addr", "192.0.2.1:7780").must(t, exitUsage)
	has(t, far.err, "a token is not sent to 192.0.2.1:7780 without TLS")
}

// The examples of the help are commands that exist, with flags that exist.
func TestHelpHasExamplesThatWork(t *testing.T) {
	t.Parallel()
	root := newRoot(testProgram(&lockedBuffer{}, &lockedBuffer{}, nil))
	for cmd := range allCommands(root) {
		if cmd.Short == "" {
			t.Errorf("%s has no short help", cmd.CommandPath())
		}
		if cmd == root || cmd.Hidden || cmd.RunE == nil {
			continue
		}
		if cmd.Example == "" {
			t.Errorf("%s has no examples", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			for _, words := range runnerdCommands(line) {
				found, rest, err := root.Find(words)
				if err != nil || found == root {
					t.Errorf("example %q: %v", line, err)
					continue
				}
				if err := found.ParseFlags(rest); err != nil {
					t.Errorf("example %q: %v", line, err)
				}
			}
		}
	}
}
