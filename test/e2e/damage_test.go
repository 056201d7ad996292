package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/bbolt"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// edit changes the file of a log that no daemon has open.
func edit(t *testing.T, data string, change func(*bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(data, "log.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(change); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}

// storedAppend is one append as it lies in the file.
type storedAppend struct {
	key, value []byte
	first      uint64 // sequence of its first event
}

// appendsOf returns the appends of a run, in their order.
func appendsOf(tx *bbolt.Tx, run string) (found []storedAppend, err error) {
	err = tx.Bucket([]byte("appends")).ForEach(func(k, v []byte) error {
		header := v[8:] // behind checksum and length
		size, n := binary.Uvarint(header)
		name := header[n : n+int(size)]
		if first, _ := binary.Uvarint(header[n+len(name):]); string(name) == run {
			found = append(found, storedAppend{bytes.Clone(k), bytes.Clone(v), first})
		}
		return nil
	})
	return found, err
}

// TestDamagedLog changes the log behind the back of a stopped daemon.
func TestDamagedLog(t *testing.T) {
	t.Parallel()
	w := own(t)
	var runs []string
	for range 2 {
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("put", "{}"), harness.Answer("done")))
		w.Done(t, run)
		runs = append(runs, run)
	}
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(w.Dir, "data")
	run := runs[0]

	for name, change := range map[string]func(*bbolt.Bucket, []storedAppend) (event uint64, err error){
		"nothing": func(*bbolt.Bucket, []storedAppend) (uint64, error) { return 0, nil },
		"a flipped bit": func(b *bbolt.Bucket, a []storedAppend) (uint64, error) {
			last := len(a[2].value) - 1 // of the last event of the append
			a[2].value[last] ^= 1
			return a[3].first - 1, b.Put(a[2].key, a[2].value)
		},
		"a lost append": func(b *bbolt.Bucket, a []storedAppend) (uint64, error) { return a[3].first, b.Delete(a[2].key) },
		"an append that is there twice": func(b *bbolt.Bucket, a []storedAppend) (uint64, error) {
			last, _ := b.Cursor().Last()
			return a[2].first, b.Put(binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(last)+1), a[2].value)
		},
		"two appends that changed places": func(b *bbolt.Bucket, a []storedAppend) (uint64, error) {
			if err := b.Put(a[1].key, a[2].value); err != nil {
				return 0, err
			}
			return a[2].first, b.Put(a[2].key, a[1].value)
		},
	} {
		t.Run("T-177 found and named: "+name, func(t *testing.T) {
			t.Parallel()
			damaged := filepath.Join(t.TempDir(), "data")
			if err := os.CopyFS(damaged, os.DirFS(data)); err != nil {
				t.Fatal(err)
			}
			var event uint64
			edit(t, damaged, func(tx *bbolt.Tx) error {
				appends, err := appendsOf(tx, run)
				if err != nil || len(appends) < 5 {
					return fmt.Errorf("%d appends: %w", len(appends), err)
				}
				event, err = change(tx.Bucket([]byte("appends")), appends)
				return err
			})
			// #nosec G204 -- the binary that was built
			out, err := exec.CommandContext(harness.Context(t), harness.Binary(), "audit", "verify", "--data-dir", damaged).CombinedOutput()
			if event == 0 {
				if err != nil {
					t.Errorf("a good log does not verify: %v\n%s", err, out)
				}
				return
			}
			where := strings.ReplaceAll(string(out), " sequence ", ", event ") // of what cannot be opened
			if named := fmt.Sprintf("run %s, event %d", run, event); err == nil || !strings.Contains(where, named) {
				t.Errorf("%q is not in what is said (%v):\n%s", named, err, out)
			}
			if strings.Contains(string(out), runs[1]) {
				t.Errorf("the good run is named too:\n%s", out)
			}
		})
	}
}

// TestDamagedRows damages what lists and starts are made from: one bad run stops no other.
func TestDamagedRows(t *testing.T) {
	t.Parallel()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	if w.Daemon, err = harness.Launch(t.TempDir(), w.cfg); err != nil {
		t.Fatal(err)
	}
	// The daemon says in its log that rows are damaged; it is not asked whether its log is clean.
	start := func(step harness.Step) string {
		req := &runnerdv1.StartRunRequest{RunId: w.RunID(t), Agent: "std"}
		w.brain.Script(req.GetRunId(), step)
		if _, err := w.Runs.StartRun(harness.Context(t), req); err != nil {
			t.Fatal(err)
		}
		return req.GetRunId()
	}
	good := start(asking())
	done := start(harness.Steps(harness.Answer("done")))
	waiting := start(asking())
	w.Idle(t, good)
	w.Done(t, done)
	w.Idle(t, waiting)
	deciding := start(harness.Hang)
	w.UntilType(t, deciding, "iteration_started")
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	bad := []string{done, waiting, deciding}
	edit(t, filepath.Join(w.Dir, "data"), func(tx *bbolt.Tx) error {
		rows := tx.Bucket([]byte("rows"))
		for _, run := range bad {
			row := bytes.Clone(rows.Get([]byte(run)))
			row[len(row)-1] ^= 1
			if err := rows.Put([]byte(run), row); err != nil {
				return err
			}
		}
		return nil
	})
	w.Restart(t)
	t.Cleanup(w.Kill)

	t.Run("T-188 damaged runs are listed as such", func(t *testing.T) {
		for _, agent := range []string{"", "std"} {
			list, err := w.Runs.ListRuns(harness.Context(t), &runnerdv1.ListRunsRequest{Agent: agent})
			if err != nil || len(list.GetRuns()) != 4 {
				t.Fatalf("listed %v, %v", list, err)
			}
			for _, run := range list.GetRuns() {
				equal(t, run.GetRunId()+" is damaged", strings.Contains(run.GetErrorMessage(), "damaged"), run.GetRunId() != good)
			}
		}
		findings, summary := w.verify(t, "")
		equal(t, "runs that VerifyAudit read", summary.GetVerified().GetRuns(), 4)
		named := map[string]bool{}
		for _, f := range findings {
			named[f.GetRunId()] = true
		}
		equal(t, "runs that VerifyAudit names", len(named), len(bad))
		equal(t, "the good run is named", named[good], false)
	})

	t.Run("T-188 the others go on", func(t *testing.T) {
		w.Approve(t, good, approve)
		ended(t, w.Done(t, good), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		another := start(harness.Steps(harness.Answer("done")))
		ended(t, w.Done(t, another), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})
}
