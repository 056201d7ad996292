package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// smallDisk is a file system of a given size, or skips the test where none can be mounted.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		harness.Skip(t, fmt.Sprintf("cannot mount a small file system: %v", err))
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// ballast fills a small disk.
type ballast struct{ path string }

func (b ballast) fill(t *testing.T) {
	t.Helper()
	file, err := os.Create(b.path)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 1<<20); err == nil; {
		_, err = file.Write(block)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func (b ballast) drop(t *testing.T) {
	t.Helper()
	if err := os.Remove(b.path); err != nil {
		t.Error(err)
	}
}

var servingMetrics = regexp.MustCompile(`serving metrics" address=(\S+)`)

// metrics is what the daemon shows of itself.
func (w *world) metrics(t *testing.T) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(w.Dir, "daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	address := servingMetrics.FindSubmatch(log)
	if address == nil {
		t.Fatalf("no address of metrics in %s", log)
	}
	req, err := http.NewRequestWithContext(harness.Context(t), http.MethodGet, fmt.Sprintf("http://%s/metrics", address[1]), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestFullDisk needs to mount a small file system.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	dir := smallDisk(t, "64m")
	w.cfg.MetricsListen = "127.0.0.1:0"
	if w.Daemon, err = harness.Launch(dir, w.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	disk := ballast{filepath.Join(dir, "ballast")}

	t.Run("T-179 nothing starts that cannot be recorded, and runs go on once there is space", func(t *testing.T) {
		decided := newGate()
		run := w.play(t, "std", harness.Steps(
			harness.Step(func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
				decided.pass(s.Context())
				return harness.Send(s, harness.Calls("charge", "{}"))
			}), harness.Answer("done")))
		decided.await(t)
		waiting := w.play(t, "std", asking())
		w.Idle(t, waiting)
		a := w.open(t, waiting, 1)[0]
		ending := w.play(t, "std", harness.Steps(harness.Ask("which?")))
		w.Idle(t, ending)
		disk.fill(t)
		decided.open()

		_, err := w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{RunId: "refused", Agent: "std"})
		harness.Code(t, err, codes.ResourceExhausted, "DISK_FULL")
		_, err = w.submit(t, a, approve)
		harness.Code(t, err, codes.ResourceExhausted, "DISK_FULL")
		harness.Eventually(t, "the decision has come", func() bool { return w.brain.InFlight(run) == 0 })
		w.Cancel(t, ending, runnerdv1.CancelMode_CANCEL_MODE_STOP) // has a reserve
		ended(t, w.Done(t, ending), runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
		has(t, w.metrics(t), "\nrunnerd_store_full 1\n")
		harness.Eventually(t, "health says so", func() bool { return !w.Serving(harness.Context(t)) })
		equal(t, "calls of a run that cannot be recorded", len(w.hands.Calls(run)), 0)
		equal(t, "calls of the approval that could not be recorded", len(w.hands.Calls(waiting)), 0)
		equal(t, "events that were recorded", w.Run(t, run).GetHeadSequence(), 3)

		disk.drop(t)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "calls once there is space", len(w.hands.Calls(run)), 1)
		w.vote(t, a, approve)
		ended(t, w.Done(t, waiting), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		has(t, w.metrics(t), "\nrunnerd_store_full 0\n")
		harness.Eventually(t, "health is well again", func() bool { return w.Serving(harness.Context(t)) })
		_, err = w.Runs.GetRun(harness.Context(t), &runnerdv1.GetRunRequest{RunId: "refused"})
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})
}
