package credfile_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/runnerd/runnerd/pkg/internal/credfile"
)

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestPrivateFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	for mode, good := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o620: false, 0o644: false, 0o601: false} {
		write(t, path, "secret", mode)
		data, err := credfile.ReadPrivate(path)
		if (err == nil) != good || good && string(data) != "secret" {
			t.Errorf("mode %o: %q, %v", mode, data, err)
		}
		if err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%q does not name the file", err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := credfile.ReadPrivate(t.TempDir()); err == nil {
		t.Error("a folder is read")
	}
	write(t, path, strings.Repeat("a", 1<<20+1), 0o600)
	if _, err := credfile.Read(path); err == nil {
		t.Error("a file without end is read")
	}
	link := filepath.Join(t.TempDir(), "link") // as secrets are mounted
	write(t, path, "open", 0o644)
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := credfile.ReadPrivate(link); err == nil {
		t.Error("a link hides that others can read the file")
	}
}

func TestFileIsReadAgain(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	reads := 0
	load := func() (string, error) {
		reads++
		data, err := credfile.Read(path)
		if err == nil && len(data) == 0 {
			err = errors.New("empty")
		}
		return string(data), err
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := credfile.Open(log, load, path); err == nil {
		t.Error("a file that is not there is opened")
	}
	write(t, path, "one", 0o600)
	f, err := credfile.Open(log, load, path)
	if err != nil {
		t.Fatal(err)
	}
	want := func(text string, times int) {
		t.Helper()
		if got := f.Get(); got != text || reads != times {
			t.Errorf("got %q after %d reads, want %q after %d", got, reads, text, times)
		}
	}
	reads = 0
	want("one", 0)
	write(t, path, "three", 0o600)
	want("three", 1)
	want("three", 1)
	write(t, path, "", 0o600) // half written
	want("three", 2)
	want("three", 2) // it is not tried again and again
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("three", 3)
	write(t, path, "four!", 0o600)
	want("four!", 4)
	if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil { // of the same size
		t.Fatal(err)
	}
	want("four!", 5)
}
