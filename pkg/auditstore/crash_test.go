package auditstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// These variables of the environment make a child process of these tests write:
// in which directory, and how many appends to each run.
const (
	childDir     = "AUDITSTORE_TEST_CHILD_DIR"
	childAppends = "AUDITSTORE_TEST_CHILD_APPENDS"
	childWatches = "AUDITSTORE_TEST_CHILD_WATCHES" // set: see watchingChild
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		n, err := strconv.Atoi(os.Getenv(childAppends))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if os.Getenv(childWatches) != "" {
			watchingChild(dir, n)
		} else {
			child(dir, n)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child appends to a few runs until something fails or it is done, and reports on standard
// output what was acknowledged: "ack run sequence". Then it says what failed:
// "end unknown", "end full" or "end other", and whether the store is poisoned.
// After a full disk it goes on.
func child(dir string, most int) {
	s, err := auditstore.Open(dir, &auditstore.Options{Logger: quiet, IndexEvery: 64})
	if err != nil {
		fmt.Println("open", err)
		return
	}
	fmt.Println("opened")
	const runs = 4
	var wg sync.WaitGroup
	var out sync.Mutex
	say := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	for i := range runs {
		run := fmt.Sprintf("run-%d", i)
		wg.Go(func() {
			var from auditstore.Epoch
			rows, err := s.Rows(context.Background(), []byte("run/"+run), nil, 1)
			if err == nil && len(rows) == 1 {
				from = rows[0].Epoch
			}
			c, err := s.Claim(context.Background(), run, "child", from)
			for n := 0; n < most && err == nil; n++ {
				records := auditstoretest.Events(c, 1+n%3)
				records[0].Private = []byte("secret")
				_, err = s.Append(context.Background(), c, auditstore.Append{Records: records, Body: []byte("body")})
				if err == nil {
					say("ack %s %d", run, c.Head)
				}
				if errors.Is(err, auditstore.ErrFull) {
					say("end full")
					err = nil
				}
			}
			switch {
			case err == nil:
				say("done")
			case errors.Is(err, auditstore.ErrUnknown):
				say("end unknown")
			default:
				say("end other %v", err)
			}
		})
	}
	wg.Wait()
	select {
	case <-s.Poisoned():
		say("poisoned")
		_, _, err := s.Read(context.Background(), auditstore.Scope{}, auditstore.Cursor{}, 1)
		if !errors.Is(err, auditstore.ErrUnavailable) {
			say("a poisoned store reads: %v", err)
		}
	default:
	}
	if err := s.Close(); err != nil {
		say("close %v", err)
	}
}

// childCommand runs this test binary as a child, perhaps under strace.
func childCommand(t *testing.T, dir string, appends int, under ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(under, exe)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Env = append(os.Environ(), childDir+"="+dir, childAppends+"="+strconv.Itoa(appends))
	cmd.Stderr = os.Stderr
	return cmd
}

// heads checks what a crash left: every acknowledged event is there, whatever
// else is there follows without a gap, and every chain is good.
func heads(t *testing.T, dir string, acked map[string]uint64) {
	t.Helper()
	s := open(t, dir, auditstore.Options{IndexEvery: 64})
	defer shut(t, s)
	verified(t, s)
	for run, sequence := range acked {
		c := claim(t, s, run)
		if c.Head < sequence || c.Head > sequence+3 {
			t.Errorf("%s: head %d, acknowledged %d", run, c.Head, sequence)
		}
		if body, _, err := s.Body(t.Context(), run, c.Head); body != c.Head || err != nil {
			t.Errorf("%s: newest body is of %d with head %d: %v", run, body, c.Head, err)
		}
	}
}

func TestKilledProcess(t *testing.T) {
	t.Parallel()
	t.Run("A-133 what was acknowledged survives kill -9", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		acked := map[string]uint64{}
		for cycle := range 5 {
			cmd := childCommand(t, dir, 2000)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			acks := 0
			for lines.Scan() {
				var run string
				var sequence uint64
				if n, _ := fmt.Sscanf(lines.Text(), "ack %s %d", &run, &sequence); n == 2 {
					acked[run] = sequence
					acks++
				}
				if acks == 100+37*cycle {
					if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
						t.Fatal(err)
					}
				}
			}
			_ = cmd.Wait() // killed, or done before that
			if acks < 100 {
				t.Fatalf("cycle %d: only %d appends", cycle, acks)
			}
			heads(t, dir, acked)
		}
	})
}

// strace returns the command line for injecting faults, or skips the test.
func strace(t *testing.T, inject string) []string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err != nil {
		skip(t, "no strace")
	}
	if out, err := exec.CommandContext(t.Context(), path, "-o", "/dev/null", "-e", "trace=getpid", "true").CombinedOutput(); err != nil {
		skip(t, fmt.Sprintf("strace cannot trace: %v %s", err, out))
	}
	call, _, _ := strings.Cut(inject, ":")
	return []string{path, "-f", "-qq", "-o", "/dev/null", "-e", "trace=" + call, "-e", "signal=none", "-e", "inject=" + inject}
}

// TestFailingDisk has system calls fail under a writing process. strace counts
// calls per thread, so that the place where one fails differs from run to run.
func TestFailingDisk(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, inject string
		poisons      bool
	}{
		{"sync fails", "fdatasync:error=EIO:when=40+", true},
		{"sync finds no space", "fdatasync:error=ENOSPC:when=41+", true},
		{"write fails", "pwrite64:error=EIO:when=60+", true},
		{"write finds no space once", "pwrite64:error=ENOSPC:when=60", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			shut(t, open(t, dir, auditstore.Options{}))
			out, err := childCommand(t, dir, 300, strace(t, tt.inject)...).Output()
			if err != nil {
				t.Fatalf("child: %v", err)
			}
			acked := map[string]uint64{}
			said := map[string]int{}
			for line := range strings.Lines(string(out)) {
				var run string
				var sequence uint64
				if n, _ := fmt.Sscanf(line, "ack %s %d", &run, &sequence); n == 2 {
					acked[run] = sequence
				} else {
					said[strings.TrimSpace(line)]++
				}
			}
			if len(acked) == 0 {
				t.Errorf("nothing was acknowledged")
			}
			if tt.poisons && (said["poisoned"] != 1 || said["end unknown"] == 0) {
				t.Errorf("the store was not poisoned: %v", said)
			}
			if !tt.poisons && (said["poisoned"] != 0 || said["end full"] == 0 || said["done"] != 4) {
				t.Errorf("the store did not go on: %v", said)
			}
			heads(t, dir, acked)
		})
	}
}

// TestKilledCreation kills a process at system calls of the first creation. The
// next one must find a log, or none and create it.
func TestKilledCreation(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"pwrite64", "fdatasync", "fsync", "renameat"} {
		for n := 1; n <= 5; n++ {
			t.Run(fmt.Sprintf("%s %d", call, n), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "data")
				cmd := childCommand(t, dir, 1, strace(t, fmt.Sprintf("%s:signal=KILL:when=%d", call, n))...)
				if err := cmd.Run(); err == nil && n == 1 { // later ones may not come
					t.Errorf("%s was never called", call)
				}
				s := open(t, dir, auditstore.Options{})
				verified(t, s)
				c := claim(t, s, "after")
				appendN(t, s, c, 1)
			})
		}
	}
}

// watchingChild appends while it reads in every way there is, and says how long
// before its acknowledgement an event was seen.
func watchingChild(dir string, appends int) {
	ctx := context.Background()
	s, err := auditstore.Open(dir, &auditstore.Options{Logger: quiet})
	if err != nil {
		fmt.Println("open", err)
		return
	}
	c, err := s.Claim(ctx, "a", "child", 0)
	if err != nil {
		fmt.Println("claim", err)
		return
	}
	var mu sync.Mutex
	seen := map[uint64]time.Time{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	watch := func(newest func() uint64) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				n := newest()
				mu.Lock()
				if _, ok := seen[n]; !ok {
					seen[n] = time.Now()
				}
				mu.Unlock()
			}
		})
	}
	watch(func() uint64 { n, _, _ := s.Body(ctx, "a", 1<<60); return n })
	watch(func() uint64 { n, _ := s.Head(ctx); return uint64(n) })
	watch(func() uint64 { rows, _ := s.Rows(ctx, []byte("seen/"), nil, 0); return uint64(len(rows)) })
	watch(func() uint64 {
		page, _, _ := s.Read(ctx, auditstore.Scope{Run: "a"}, auditstore.Cursor{}, 0)
		return uint64(len(page))
	})
	for range appends {
		sequence := c.Head + 1
		_, err := s.Append(ctx, c, auditstore.Append{
			Records: auditstoretest.Events(c, 1), Body: []byte("body"), Put: [][]byte{fmt.Appendf(nil, "seen/%d", sequence)},
		})
		acked := time.Now()
		mu.Lock()
		at, early := seen[sequence]
		mu.Unlock()
		if early {
			fmt.Println("early", acked.Sub(at).Milliseconds())
		}
		fmt.Println("append", err)
	}
	close(stop)
	wg.Wait()
	fmt.Println("close", s.Close())
}

// TestNothingIsSeenBeforeItIsDurable makes every sync slow. bbolt shows a commit
// to readers while its last sync still runs; the store must not.
func TestNothingIsSeenBeforeItIsDurable(t *testing.T) {
	t.Parallel()
	const delay = 400 * time.Millisecond
	dir := t.TempDir()
	shut(t, open(t, dir, auditstore.Options{}))
	cmd := childCommand(t, dir, 3, strace(t, fmt.Sprintf("fdatasync:delay_enter=%d", delay.Microseconds()))...)
	cmd.Env = append(cmd.Env, childWatches+"=1")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "append <nil>"); n != 3 {
		t.Fatalf("child: %s", out)
	}
	for line := range strings.Lines(string(out)) {
		var early int64
		if n, _ := fmt.Sscanf(line, "early %d", &early); n == 1 && early > delay.Milliseconds()/2 {
			t.Errorf("an event was seen %d ms before it was acknowledged, with syncs of %v", early, delay)
		}
	}
}
