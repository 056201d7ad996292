package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
	decidescript "github.com/runnerd/runnerd/pkg/decide/script"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// startDev starts a dev command and returns the address of its first line. It is stopped, and must end well, at the
// end of the test, or by stop.
func startDev(t *testing.T, stdin string, args ...string) (addr string, stop func()) {
	t.Helper()
	var out, errs lockedBuffer
	p := testProgram(&out, &errs, nil)
	p.in = strings.NewReader(stdin)
	ctx, cancel := context.WithCancel(context.Background())
	exited := make(chan int, 1)
	go func() { exited <- p.run(ctx, append([]string{"dev"}, args...)) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if code := <-exited; code != exitOK {
			t.Errorf("runnerd dev %s ended with %d:\n%s", args[0], code, errs.String())
		}
	}
	t.Cleanup(stop)
	waitFor(t, func() bool { return strings.Contains(out.String(), "\n") || errs.String() != "" })
	line, _, _ := strings.Cut(out.String(), "\n")
	addr, ok := strings.CutPrefix(line, "listening on ")
	if !ok {
		t.Fatalf("first line %q\n%s", line, errs.String())
	}
	return addr, stop
}

// example is a script that a dev command prints.
func exampleScript(t *testing.T, command string) string {
	t.Helper()
	var out, errs lockedBuffer
	if code := testProgram(&out, &errs, nil).run(t.Context(), []string{"dev", command, "--example"}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	return out.String()
}

func TestDevDecide(t *testing.T) {
	t.Parallel()
	journal := filepath.Join(t.TempDir(), "journal")
	addr, stop := startDev(t, exampleScript(t, "decide"), "decide", "--script", "-", "--journal", journal)
	c, err := decide.NewClient(map[string]decide.Endpoint{"brain": {Address: addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Decide(t.Context(), "brain", &runnerdv1.DecideRequest{RunId: "r", Iteration: 1, Attempt: 1}, nil)
	if err != nil || d.GetToolCalls().GetCalls()[0].GetName() != "add" {
		t.Errorf("got %v, %v", d, err)
	}
	stop()
	entries, err := decidescript.ReadJournal(journal)
	if err != nil || len(entries) != 1 || entries[0].Request.GetRunId() != "r" {
		t.Errorf("journal %v, %v", entries, err)
	}
}

func TestDevTools(t *testing.T) {
	t.Parallel()
	file, ledger := filepath.Join(t.TempDir(), "hands.yaml"), filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(file, []byte(exampleScript(t, "tools")), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, stop := startDev(t, "", "tools", "--script", file, "--ledger", ledger, "--listen", "127.0.0.1:0")
	c, err := toolhost.NewClient(map[string]toolhost.Endpoint{"hands": {Address: addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := c.CallTool(t.Context(), "hands", &runnerdv1.CallToolRequest{
		RunId: "r", CallId: "1.0", IdempotencyKey: "r/1.0", Attempt: 1, Name: "notify", ArgumentsJson: "{}",
	}, 1<<20, nil)
	if err != nil || r.GetText() != "sent" {
		t.Errorf("got %v, %v", r, err)
	}
	stop()
	records, err := toolhost.ReadLedger(ledger)
	if err != nil || len(records) != 3 || records[1].Phase != toolhost.PhaseEffect {
		t.Errorf("ledger %v, %v", records, err)
	}
}

// Stopping does not wait for a decision that never comes.
func TestDevStopsWhatHangs(t *testing.T) {
	t.Parallel()
	addr, stop := startDev(t, "decisions: [{deltas: [begun], faults: [{hang: true}]}]", "decide", "--script", "-")
	c, err := decide.NewClient(map[string]decide.Endpoint{"brain": {Address: addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := c.Decide(t.Context(), "brain", &runnerdv1.DecideRequest{Iteration: 1}, func(string) { close(begun) })
		ended <- err
	}()
	<-begun
	start := time.Now()
	stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("stopping took %v", took)
	}
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("the decision ended with %v", err)
	}
}

func TestDevRefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"decide", "tools"} {
		for want, args := range map[string][]string{
			"at least one of the flags":       nil,
			"none of the others can be":       {"--script", "x", "--example"},
			"no such file":                    {"--script", "/nowhere"},
			"standard input: line 2: unknown": {"--script", "-"},
		} {
			t.Run(command+" "+want, func(t *testing.T) {
				t.Parallel()
				var out, errs lockedBuffer
				p := testProgram(&out, &errs, nil)
				p.in = strings.NewReader("\nnonsense: 1\n")
				code := p.run(t.Context(), append([]string{"dev", command}, args...))
				if code == exitOK || out.String() != "" {
					t.Errorf("exit code %d, output %q", code, out.String())
				}
				has(t, errs.String(), want)
			})
		}
	}
}
