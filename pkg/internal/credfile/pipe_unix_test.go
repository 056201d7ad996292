//go:build unix

package credfile_test

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/runnerd/runnerd/pkg/internal/credfile"
)

// TestPipe reads a pipe that nobody writes to: it is refused and not waited for.
func TestPipe(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "token")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := credfile.ReadPrivate(path); err == nil {
		t.Error("a pipe is read")
	}
}
