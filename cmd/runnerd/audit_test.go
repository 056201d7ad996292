package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAudit(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	for _, id := range []string{"a", "b"} {
		d.run(t, "run", "--id", id, "say "+id).must(t, exitOK)
		d.idle(t, id)
	}
	has(t, d.run(t, "audit", "verify").must(t, exitOK).out, "ok: 2 runs, 20 events")
	has(t, d.run(t, "audit", "verify", "a").must(t, exitOK).out, "ok: 1 run, 10 events")
	has(t, d.run(t, "audit", "verify", "nosuch").must(t, exitFailure).err, "no run")
	has(t, d.run(t, "audit", "head", "a").must(t, exitOK).out, "run a sequence 10 hash ")
	has(t, d.run(t, "audit", "verify", "--data-dir", d.dir).must(t, exitStoreLocked).err, "hint: stop the other daemon")

	lines := strings.Count(d.run(t, "audit", "export", "a").must(t, exitOK).out, "\n")
	if lines != 10 {
		t.Errorf("export: %d lines", lines)
	}
	has(t, d.anonymous(t, "audit", "export").must(t, exitFailure).err, "error: ")
	file := filepath.Join(t.TempDir(), "export.jsonl")
	d.run(t, "audit", "export", "--private", "--file", file).must(t, exitOK)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() == 0 {
		t.Errorf("export: %v, %v", info, err)
	}

	if code := d.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	offline := func(args ...string) result {
		var out, errs lockedBuffer
		code := testProgram(&out, &errs, nil).run(t.Context(), append([]string{"audit", "verify", "--data-dir", d.dir}, args...))
		return result{code, out.String(), errs.String()}
	}
	has(t, offline().must(t, exitOK).out, "ok: 2 runs, 20 events")
	has(t, offline("b").must(t, exitOK).out, "ok: 1 run, 10 events")
	has(t, offline("nosuch").must(t, exitFailure).err, "no run")

	tamper(t, filepath.Join(d.dir, "log.db"), "echo: say a", "echo: say z")
	r := offline().must(t, exitFailure)
	has(t, r.out+r.err, "run a", "not ok")
}

// tamper changes stored bytes behind the back of the store.
func tamper(t *testing.T, file, from, to string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(from)) {
		t.Fatalf("%s does not hold %q", file, from)
	}
	if err := os.WriteFile(file, bytes.ReplaceAll(data, []byte(from), []byte(to)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A log that was put back, or is another one, is told by a head that was kept.
func TestAuditWitness(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "a", "announce it").must(t, exitOK)
	d.idle(t, "a")
	early, late := filepath.Join(t.TempDir(), "early"), filepath.Join(t.TempDir(), "late")
	keep := func(file string) {
		t.Helper()
		head := d.run(t, "audit", "head", "a", "-o", "json").must(t, exitOK).out
		if err := os.WriteFile(file, []byte(head), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	keep(early)
	if code := d.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	old, err := os.ReadFile(filepath.Join(d.dir, "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	dir := d.dir
	d = startDaemon(t, dir, "127.0.0.1:0")
	d.run(t, "deny", "a", "6").must(t, exitOK)
	d.idle(t, "a")
	keep(late)
	for _, file := range []string{early, late} {
		has(t, d.run(t, "audit", "verify", "a", "--witness", file).must(t, exitOK).out, "ok: 1 run")
	}
	has(t, d.run(t, "audit", "verify", "--witness", early).must(t, exitUsage).err, "name that run")
	has(t, d.run(t, "audit", "verify", "a", "--witness", "/nowhere").must(t, exitUsage).err, "--witness")

	other := startDaemon(t, "", "127.0.0.1:0")
	other.run(t, "run", "--id", "a", "announce it").must(t, exitOK)
	other.idle(t, "a")
	has(t, other.run(t, "audit", "verify", "a", "--witness", early).must(t, exitFailure).err, "the witness is of log")

	if code := d.stop(); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
	offline := func(witness string) result {
		var out, errs lockedBuffer
		args := []string{"audit", "verify", "a", "--data-dir", dir, "--witness", witness}
		code := testProgram(&out, &errs, nil).run(t.Context(), args)
		return result{code, out.String(), errs.String()}
	}
	offline(late).must(t, exitOK)
	if err := os.WriteFile(filepath.Join(dir, "log.db"), old, 0o600); err != nil {
		t.Fatal(err)
	}
	offline(early).must(t, exitOK)
	has(t, offline(late).must(t, exitFailure).err, "it is gone")

	again := startDaemon(t, dir, "127.0.0.1:0")
	has(t, again.run(t, "audit", "verify", "a", "--witness", late).must(t, exitFailure).err, "it is gone")
	again.run(t, "approve", "a", "6").must(t, exitOK)
	if run := again.idle(t, "a"); run.GetHeadSequence() < 9 {
		t.Fatalf("got %v", run)
	}
	has(t, again.run(t, "audit", "verify", "a", "--witness", late).must(t, exitFailure).err, "not the event that the witness has seen")
}
