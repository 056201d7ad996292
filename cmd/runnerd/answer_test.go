package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestApproveWithOtherArguments(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "arguments.json")
	if err := os.WriteFile(file, []byte("{\"command\": \"git status\", \"n\": 9007199254740993}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("from a file, byte for byte", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval()}
		r := f.serve(t).run(t, "approve", "3f2a", "8", "--arguments", file, "--reason", "look first").must(t, exitOK)
		has(t, r.err, `- command  "git push"`, `+ command  "git status"`)
		has(t, r.out, "approved box/sh with other arguments (run 3f2a, approval 8, digest k:d1)")
		got := f.answers()[0]
		if got.GetEditedArgumentsJson() != `{"command": "git status", "n": 9007199254740993}` || got.GetApprovalDigest() != "k:d1" || got.GetReason() != "look first" {
			t.Errorf("got %v", got)
		}
	})
	t.Run("the same is no edit", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval()}
		f.serve(t).runWith(t, func(p *program) { p.in = strings.NewReader(f.approval.GetArgumentsJson() + "\n") },
			"approve", "3f2a", "8", "--arguments", "-").must(t, exitOK)
		if got := f.answers()[0]; got.EditedArgumentsJson != nil {
			t.Errorf("got %v", got)
		}
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval(), submit: func(*runnerdv1.SubmitApprovalRequest) error {
			return refusal(codes.InvalidArgument, "EDIT_REFUSED", "the edited arguments are refused",
				&errdetails.BadRequest_FieldViolation{Field: "edited_arguments_json.n", Description: "not expected"})
		}}
		r := f.serve(t).run(t, "approve", "3f2a", "8", "--arguments", file).must(t, exitFailure)
		has(t, r.err, "the edited arguments are refused", "edited_arguments_json.n: not expected", "hint: the approval stays open")
	})
	t.Run("wrong", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval()}
		d := f.serve(t)
		with := func(text string) func(*program) { return func(p *program) { p.in = strings.NewReader(text) } }
		has(t, d.runWith(t, with("{\n  x}"), "approve", "3f2a", "8", "--arguments", "-").must(t, exitUsage).err, "--arguments: line 2, column 3")
		has(t, d.runWith(t, with("[1]"), "approve", "3f2a", "8", "--arguments", "-").must(t, exitUsage).err, "no JSON object")
		has(t, d.run(t, "approve", "3f2a", "8", "--arguments", "/nowhere").must(t, exitUsage).err, "no such file")
		has(t, d.run(t, "approve", "3f2a", "8", "--edit").must(t, exitUsage).err, "--edit needs a terminal")
		has(t, d.run(t, "approve", "3f2a", "8", "--grant", "all").must(t, exitUsage).err, `--grant "all" is none of prefix, tool`)
		has(t, d.run(t, "approve", "3f2a", "8", "--edit", "--settle", "x").err, "none of the others can be")
		if len(f.answers()) != 0 {
			t.Errorf("got %v", f.answers())
		}
	})
}

func TestApproveWithAnEditor(t *testing.T) {
	t.Parallel()
	t.Run("changed, with what was wrong edited again", func(t *testing.T) {
		t.Parallel()
		// First it writes what is no JSON, then what is. It sees a file that only its owner can read.
		editor := script(t, `test -n "$(find "$1" -perm 600)" || exit 1
grep -q broken "$1" && echo '{"command": "git log"}' > "$1" || echo '{ broken' > "$1"`)
		f := &fakeDaemon{approval: shellApproval()}
		k := newTypist()
		d, screen, out := f.serve(t), &lockedBuffer{}, &lockedBuffer{}
		p := testProgram(out, screen, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
		at(k, "VISUAL", editor, "EDITOR", "false")(p)
		done := make(chan int, 1)
		go func() { done <- p.run(t.Context(), []string{"approve", "3f2a", "8", "--edit"}) }()
		waitFor(t, func() bool { return strings.Contains(screen.String(), "edit again? [Y/n]") })
		has(t, screen.String(), "line 1, column 3: invalid character 'b'")
		k.types("")
		waitFor(t, func() bool { return strings.Contains(screen.String(), "approve with these changes? [y/N]") })
		has(t, screen.String(), `- command  "git push"`, `+ command  "git log"`)
		k.types("y")
		if code := <-done; code != exitOK {
			t.Fatalf("exit code %d:\n%s", code, screen)
		}
		has(t, out.String(), "box/sh with other arguments")
		if got := f.answers()[0].GetEditedArgumentsJson(); got != `{"command":"git log"}` {
			t.Errorf("got %s", got)
		}
	})
	t.Run("not changed", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval()}
		r := f.serve(t).runWith(t, at(newTypist(), "EDITOR", "true"), "approve", "3f2a", "8", "--edit", "--yes").must(t, exitOK)
		has(t, r.err, "nothing was changed")
		if got := f.answers()[0]; got.EditedArgumentsJson != nil {
			t.Errorf("got %v", got)
		}
	})
	t.Run("no editor, or one that fails", func(t *testing.T) {
		t.Parallel()
		f := &fakeDaemon{approval: shellApproval()}
		d := f.serve(t)
		has(t, d.runWith(t, at(newTypist()), "approve", "3f2a", "8", "--edit").must(t, exitFailure).err, "there is no editor", "hint: set EDITOR")
		has(t, d.runWith(t, at(newTypist(), "EDITOR", "false"), "approve", "3f2a", "8", "--edit").must(t, exitFailure).err, "the editor false failed")
		if len(f.answers()) != 0 {
			t.Errorf("got %v", f.answers())
		}
	})
}

func TestApproveWithAGrant(t *testing.T) {
	t.Parallel()
	f := &fakeDaemon{approval: shellApproval()}
	d := f.serve(t)
	has(t, d.run(t, "approvals").must(t, exitOK).out, "runnerd approve 3f2a 8 --grant tool   and do not ask again for box/sh, whatever its arguments",
		`runnerd approve 3f2a 8 --grant prefix   and do not ask again for box/sh running the single command "git"`)
	r := d.run(t, "approve", "3f2a", "8", "--grant", "tool").must(t, exitOK)
	has(t, r.err, "and does not ask again for box/sh, whatever its arguments")
	has(t, r.out, "grant 9 for box/sh, whatever its arguments (runnerd grants revoke 3f2a 9)")
	if got := f.answers()[0]; got.GetGrant() != runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL {
		t.Errorf("got %v", got)
	}
}

// Nobody approves what they cannot see; everybody may deny it.
func TestWhatIsCutIsNotApproved(t *testing.T) {
	t.Parallel()
	cut := shellApproval()
	cut.ArgumentsCut, cut.ArgumentsSize, cut.ArgumentsJson = true, 4<<20, "{\"command\":\"git ⋯ not shown ⋯ rm\x1b\"}"
	f := &fakeDaemon{approval: cut}
	d := f.serve(t)
	r := d.run(t, "approve", "3f2a", "8", "--yes").must(t, exitFailure)
	has(t, r.err, "arguments, 4194304 bytes, cut:", `text | {"command":"git ⋯ not shown ⋯ rm\u001b"}`, "nobody can approve what they cannot see", "hint: runnerd deny 3f2a 8")
	if len(f.answers()) != 0 {
		t.Fatalf("got %v", f.answers())
	}
	d.run(t, "deny", "3f2a", "8", "--yes").must(t, exitOK)
	if len(f.answers()) != 1 {
		t.Errorf("got %v", f.answers())
	}
}
