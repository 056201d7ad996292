package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal: what is written to the first file is typed at
// the second.
func openTerminal(t *testing.T) (person, terminal *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return person, terminal
}

// typed types a text and waits for its echo: then the terminal has it.
func typed(t *testing.T, person *os.File, text string) {
	t.Helper()
	if _, err := person.WriteString(text); err != nil {
		t.Fatal(err)
	}
	var echo []byte
	for want := strings.ReplaceAll(text, "\n", "\r\n"); string(echo) != want; {
		buf := make([]byte, len(want)-len(echo))
		n, err := person.Read(buf)
		if err != nil || !strings.HasPrefix(want, string(append(echo, buf[:n]...))) {
			t.Fatalf("the echo of %q is %q, %v", text, append(echo, buf[:n]...), err)
		}
		echo = append(echo, buf[:n]...)
	}
}

func TestTerminalKeyboard(t *testing.T) {
	t.Parallel()
	person, terminal := openTerminal(t)
	p := testProgram(&bytes.Buffer{}, &bytes.Buffer{}, nil)
	p.in, p.terminal = terminal, terminalWidth
	k, ok := p.keys().(*terminalKeyboard)
	if !ok {
		t.Fatal("a terminal is not taken for one")
	}

	typed(t, person, "first\nsecond\n")
	for _, want := range []string{"first", "second"} {
		if got, err := k.line(t.Context()); got != want || err != nil {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}

	// What was typed ahead is dropped, also half a line.
	typed(t, person, "yes\n")
	typed(t, person, "ye")
	k.drop()
	typed(t, person, "no\n")
	if got, err := k.line(t.Context()); got != "no" || err != nil {
		t.Fatalf("got %q, %v after what was typed ahead", got, err)
	}

	// Waiting ends with its context, and says why.
	why := errors.New("answered by somebody else")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := k.line(ctx); !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}

	// The person goes away.
	if _, err := person.WriteString("\x04"); err != nil {
		t.Fatal(err)
	}
	if _, err := k.line(t.Context()); err == nil {
		t.Error("the end of the input is no error")
	}
}

// A whole approval at a real terminal: the answer that was typed before the
// question was seen does not count, the one behind it does.
func TestApprovedAtARealTerminal(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "pty", "announce it").must(t, exitOK)
	d.idle(t, "pty")
	person, terminal := openTerminal(t)
	typed(t, person, "y\ny\n") // ahead

	var out lockedBuffer
	p := testProgram(&out, terminal, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir, "TERM": "xterm"})
	p.in, p.terminal = terminal, terminalWidth
	done := make(chan int, 1)
	go func() { done <- p.run(t.Context(), []string{"approve", "pty"}) }()
	var screen lockedBuffer
	go func() {
		for buf := make([]byte, 4096); ; {
			n, err := person.Read(buf)
			if err != nil {
				return
			}
			if _, err := screen.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	waitFor(t, func() bool { return strings.Contains(screen.String(), "approve? [y/N]") })
	if _, err := person.WriteString("n\n"); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != exitFailure {
		t.Errorf("exit code %d:\n%s", code, screen.String())
	}
	if run := d.idle(t, "pty"); len(run.GetApprovals()) != 1 {
		t.Errorf("the approval does not stay open: %v", run)
	}
}
