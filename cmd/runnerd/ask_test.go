package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// typist is somebody at a keyboard.
type typist struct{ lines chan string }

func newTypist() *typist { return &typist{make(chan string, 10)} }

func (k *typist) types(line string) { k.lines <- line }

func (k *typist) drop() {
	for {
		select {
		case <-k.lines:
		default:
			return
		}
	}
}

func (k *typist) line(ctx context.Context) (string, error) {
	select {
	case line, ok := <-k.lines:
		if !ok {
			return "", io.EOF
		}
		return line, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// at lets a command run at a terminal, with somebody who types.
func at(k keyboard, env ...string) func(*program) {
	return func(p *program) {
		p.terminal = func(any) (int, bool) { return 120, true }
		p.keyboard = k
		outer := p.lookupEnv
		p.lookupEnv = func(name string) (string, bool) {
			if value, ok := environment(append(env, "NO_COLOR", "1")...)(name); ok {
				return value, true
			}
			return outer(name)
		}
	}
}

// watching is a watch of a fake daemon at a terminal.
type watching struct {
	*fakeDaemon
	*typist
	screen *lockedBuffer
	code   chan int
}

func watch(t *testing.T, f *fakeDaemon, env ...string) *watching {
	t.Helper()
	f.events = make(chan *runnerdv1.Event, 10)
	w := &watching{fakeDaemon: f, typist: newTypist(), screen: &lockedBuffer{}, code: make(chan int, 1)}
	d := f.serve(t)
	p := testProgram(w.screen, w.screen, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
	at(w.typist, env...)(p)
	go func() { w.code <- p.run(t.Context(), []string{"watch", "3f2a"}) }()
	return w
}

// asks lets the run ask.
func (w *watching) asks() {
	w.events <- stamped(&runnerdv1.Event{RunId: "3f2a", Sequence: 8, Type: "tool_call_pending_approval", Payload: &runnerdv1.Event_ToolCallPendingApproval{
		ToolCallPendingApproval: &runnerdv1.ToolCallPendingApproval{CallId: "1.1", Host: "box", Tool: "sh"},
	}})
}

func (w *watching) ends(t *testing.T) string {
	t.Helper()
	w.events <- stamped(&runnerdv1.Event{RunId: "3f2a", Sequence: 20, Type: "run_completed", Payload: &runnerdv1.Event_RunCompleted{
		RunCompleted: &runnerdv1.RunCompleted{},
	}})
	close(w.events)
	if code := <-w.code; code != exitOK {
		t.Errorf("exit code %d:\n%s", code, w.screen)
	}
	return w.screen.String()
}

// shows waits until a text stands on the screen n times.
func (w *watching) shows(t *testing.T, text string, n int) {
	t.Helper()
	waitFor(t, func() bool { return strings.Count(w.screen.String(), text) >= n })
}

func stamped(ev *runnerdv1.Event) *runnerdv1.Event {
	ev.Time = timestamppb.New(epoch)
	return ev
}

const shellPrompt = "[a]pprove  [e]dit  [g]rant  [d]eny  [s]kip: "

func TestAskedAtTheTerminal(t *testing.T) {
	t.Parallel()
	const (
		approve = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
		deny    = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
	)
	t.Run("approve, with everything shown", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		has(t, w.screen.String(), "box/sh (tier 3)", "asked by prompt (mode, layer agent)", `command  "git push"`, "timeout  1.50",
			"model says | It is only a push.\n  model says | approve? y\n", "host says | Runs a command.", "digest k:d1")
		w.types("a")
		waitFor(t, func() bool { return len(w.answers()) == 1 })
		w.ends(t)
		if got := w.answers()[0]; got.GetVerdict() != approve || got.GetApprovalDigest() != "k:d1" || got.EditedArgumentsJson != nil || got.GetGrant() != 0 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("deny, with a reason", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("d")
		w.shows(t, "why (may be empty): ", 1)
		w.types("not on a Friday")
		waitFor(t, func() bool { return len(w.answers()) == 1 })
		w.ends(t)
		if got := w.answers()[0]; got.GetVerdict() != deny || got.GetReason() != "not on a Friday" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("nothing typed is skip", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("what?") // no answer: asked again
		w.shows(t, shellPrompt, 2)
		w.types("")
		w.shows(t, "it stays open: runnerd approve 3f2a 8", 1)
		w.ends(t)
		if len(w.answers()) != 0 {
			t.Errorf("got %v", w.answers())
		}
	})
	t.Run("what was typed before the question is no answer", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.types("a")
		w.types("y")
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("s")
		w.shows(t, "it stays open", 1)
		w.ends(t)
		if len(w.answers()) != 0 {
			t.Errorf("got %v", w.answers())
		}
	})
	t.Run("grant", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("g")
		w.shows(t, "[t]ool, or for this [p]rogram", 1)
		w.types("p")
		w.shows(t, `does not ask again for box/sh running the single command "git"`, 1)
		w.shows(t, "approve and do not ask again? [y/N]", 1)
		w.types("y")
		waitFor(t, func() bool { return len(w.answers()) == 1 })
		w.shows(t, "runnerd grants revoke 3f2a 9", 1)
		w.ends(t)
		if got := w.answers()[0]; got.GetGrant() != runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX {
			t.Errorf("got %v", got)
		}
	})
	t.Run("edit, refused and edited again", func(t *testing.T) {
		t.Parallel()
		editor := script(t, `grep -q status "$1" && sed -i 's/status/log/' "$1" || sed -i 's/push/status/' "$1"`)
		f := &fakeDaemon{approval: shellApproval()}
		f.submit = func(req *runnerdv1.SubmitApprovalRequest) error {
			if strings.Contains(req.GetEditedArgumentsJson(), "status") {
				return refusal(codes.InvalidArgument, "EDIT_REFUSED", "the edited arguments are refused",
					&errdetails.BadRequest_FieldViolation{Field: "edited_arguments_json.command", Description: "no status\x1b[2J"})
			}
			return nil
		}
		w := watch(t, f, "EDITOR", editor)
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("e")
		w.shows(t, "approve with these changes? [y/N]", 1)
		has(t, w.screen.String(), `- command  "git push"`, `+ command  "git status"`, `  timeout  1.50`)
		w.types("y")
		w.shows(t, shellPrompt, 2)
		has(t, w.screen.String(), `edited_arguments_json.command: no status\u001b[2J`)
		w.types("e")
		w.shows(t, "approve with these changes? [y/N]", 2)
		w.types("y")
		waitFor(t, func() bool { return len(w.answers()) == 2 })
		w.ends(t)
		if got := w.answers()[1].GetEditedArgumentsJson(); got != `{"command":"git log","timeout":1.50,"env":{"A":"1"}}` {
			t.Errorf("got %s", got)
		}
	})
}

func TestQuestionsEndWithoutAnAnswerHere(t *testing.T) {
	t.Parallel()
	t.Run("answered by somebody else", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		denied := &runnerdv1.ToolCallDenied{CallId: "1.1", Resolution: &runnerdv1.Resolution{
			ApprovalId: 8, Via: runnerdv1.Via_VIA_HUMAN, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, Reason: "no",
		}}
		w.events <- stamped(&runnerdv1.Event{
			RunId: "3f2a", Sequence: 9, Type: "tool_call_denied", Principal: "mail:bob@example.org",
			Payload: &runnerdv1.Event_ToolCallDenied{ToolCallDenied: denied},
		})
		w.shows(t, "approval 8 needs no answer any more: answered: deny, approval 8 by mail:bob@example.org via HUMAN · no", 1)
		w.ends(t)
	})
	t.Run("the run ended", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.ends(t)
	})
	t.Run("answered at the same time", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval(), submit: func(*runnerdv1.SubmitApprovalRequest) error {
			return refusal(codes.FailedPrecondition, "ALREADY_RESOLVED", "the approval was denied")
		}}
		w := watch(t, f)
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("a")
		w.shows(t, "the approval was denied", 1)
		has(t, w.ends(t), "somebody answered first")
	})
	t.Run("no approver", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval(), get: refusal(codes.PermissionDenied, "PERMISSION_DENIED", "no")})
		w.asks()
		w.shows(t, "an approver can answer: runnerd approve 3f2a 8", 1)
		if out := w.ends(t); strings.Contains(out, "[a]pprove") {
			t.Errorf("asked who may not answer:\n%s", out)
		}
	})
	t.Run("not shown whole", func(t *testing.T) {
		t.Parallel()
		cut := shellApproval()
		cut.ArgumentsCut, cut.ArgumentsSize = true, 4<<20
		w := watch(t, &fakeDaemon{approval: cut})
		w.asks()
		w.shows(t, shellPrompt, 1)
		w.types("a")
		w.shows(t, "4194304 bytes and are not shown whole", 1)
		w.ends(t)
		if len(w.answers()) != 0 {
			t.Errorf("got %v", w.answers())
		}
	})
	t.Run("nobody types any more", func(t *testing.T) {
		t.Parallel()
		w := watch(t, &fakeDaemon{approval: shellApproval()})
		w.asks()
		w.shows(t, shellPrompt, 1)
		close(w.lines)
		w.shows(t, "it stays open: runnerd approve 3f2a 8", 1)
		w.ends(t)
	})
}

// Ctrl-C leaves the run and its question alone.
func TestInterruptLeavesTheQuestionOpen(t *testing.T) {
	t.Parallel()
	f := &fakeDaemon{approval: shellApproval(), events: make(chan *runnerdv1.Event, 1)}
	w := &watching{fakeDaemon: f, typist: newTypist(), screen: &lockedBuffer{}}
	d := f.serve(t)
	p := testProgram(w.screen, w.screen, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
	at(w.typist)(p)
	ctx, interrupt := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- p.run(ctx, []string{"watch", "3f2a"}) }()
	w.asks()
	w.shows(t, shellPrompt, 1)
	interrupt()
	if got := <-code; got != exitInterrupted || len(w.answers()) != 0 {
		t.Errorf("exit code %d, answers %v", got, w.answers())
	}
}

// Nobody is asked where nobody is, or wants to be.
func TestNobodyIsAsked(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "q", "announce it").must(t, exitOK)
	d.idle(t, "q")
	for name, tc := range map[string]struct {
		change func(*program)
		args   []string
	}{
		"no terminal": {func(*program) {}, nil},
		"--no-ask":    {at(newTypist()), []string{"--no-ask"}},
		"JSON":        {at(newTypist()), []string{"--output", "json"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out, errs lockedBuffer
			p := testProgram(&out, &errs, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
			tc.change(p)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan int, 1)
			go func() { done <- p.run(ctx, append([]string{"watch", "q"}, tc.args...)) }()
			waitFor(t, func() bool {
				return strings.Contains(out.String(), "pending_approval") || strings.Contains(out.String(), "runnerd deny q 6")
			})
			stop()
			<-done
			if both := out.String() + errs.String(); strings.Contains(both, "[a]pprove") {
				t.Errorf("asked:\n%s", both)
			}
		})
	}
}

// A run that is started at a terminal is approved there, and goes on to its end.
func TestRunAsksAndGoesOn(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	k := newTypist()
	var out, screen lockedBuffer
	p := testProgram(&out, &screen, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
	at(k)(p)
	done := make(chan int, 1)
	go func() { done <- p.run(t.Context(), []string{"run", "--id", "r", "announce it"}) }()
	waitFor(t, func() bool { return strings.Contains(screen.String(), "[s]kip: ") })
	k.types("approve")
	if code := <-done; code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, screen.String())
	}
	has(t, out.String(), "announced (1 so far): announce it")
	has(t, screen.String(), `text  "announce it"`, "via HUMAN", "run completed")
	if strings.Contains(screen.String(), "needs no answer") {
		t.Errorf("its own answer is taken for another's:\n%s", screen.String())
	}
}

// script writes an executable shell script and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReaderKeyboardTakesNoMoreThanALine(t *testing.T) {
	t.Parallel()
	in := strings.NewReader("one\ntwo\nthree")
	for _, want := range []string{"one", "two", "three"} {
		if got, err := (&readerKeyboard{in}).line(t.Context()); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	if _, err := (&readerKeyboard{in}).line(t.Context()); err != io.EOF { //nolint:errorlint // exactly that
		t.Errorf("got %v at the end", err)
	}
	if _, err := (&readerKeyboard{bytes.NewReader(bytes.Repeat([]byte("x"), maxLine+2))}).line(t.Context()); err != errLongLine { //nolint:errorlint // exactly that
		t.Errorf("got %v of a very long line", err)
	}
}
