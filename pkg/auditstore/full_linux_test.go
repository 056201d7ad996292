package auditstore_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// small mounts a file system of a given size, or skips the test.
func small(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		skip(t, "cannot mount a small tmpfs: "+err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, reserve := range map[string]int64{
		"noticed before": 6 << 20,
		"hit by a write": 1, // the reserve is never reached: the write itself fails
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := small(t, "32m")
			ballast := filepath.Join(dir, "ballast")
			if err := os.WriteFile(ballast, make([]byte, 16<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			s := open(t, dir, auditstore.Options{Reserve: reserve})
			c := claim(t, s, "a")
			plain := fill(t, s, c, false, 1000)
			if !s.Full() {
				t.Error("a full store does not say so")
			}
			reserved := fill(t, s, c, true, 1000)
			if reserve > 1 && reserved < 30 {
				t.Errorf("%d appends without the reserve, only %d of it", plain, reserved)
			}
			healthy(t, s)
			stale := *c
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			if s.Full() {
				t.Error("still full with 16 MiB free")
			}
			for range 20 {
				appendN(t, s, c, 1) // the same claim goes on
			}
			if s.Full() {
				t.Error("still full after appends went through")
			}
			if stale.Head == c.Head {
				t.Error("nothing was appended")
			}
			healthy(t, s)
			events := verified(t, s)
			shut(t, s)
			s = open(t, dir, auditstore.Options{Reserve: reserve})
			if n := verified(t, s); n != events {
				t.Errorf("%d events after reopening, %d before", n, events)
			}
		})
	}
}
