package credfile

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
)

// File is a value that is made of files, and made again when one of them has changed. It is safe for concurrent use.
type File[T any] struct {
	paths []string
	load  func() (T, error)
	log   *slog.Logger

	mu    sync.Mutex
	seen  []os.FileInfo // as they were when value was made, or last tried to be made
	value T
}

// Open makes a value of files. The load function reads all of them. The logger is told when they were replaced, and when
// they cannot be read any more.
func Open[T any](log *slog.Logger, load func() (T, error), paths ...string) (*File[T], error) {
	f := &File[T]{paths: paths, load: load, log: log}
	f.seen = f.look()
	var err error
	if f.value, err = load(); err != nil {
		return nil, err
	}
	return f, nil
}

// Get returns the value of the files as they are. While they cannot be used, as when one of two was replaced and the
// other not yet, that is the value they had.
func (f *File[T]) Get() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.look()
	if same(f.seen, now) {
		return f.value
	}
	f.seen = now // before it is read: a change meanwhile is seen the next time
	value, err := f.load()
	if err != nil {
		f.log.Warn("changed files cannot be used, what they held before is", "files", f.paths, "error", err)
		return f.value
	}
	f.log.Info("files were read again", "files", f.paths)
	f.value = value
	return value
}

// look returns how the files are; nil for one that is not there.
func (f *File[T]) look() []os.FileInfo {
	infos := make([]os.FileInfo, len(f.paths))
	for i, path := range f.paths {
		if info, err := os.Stat(path); err == nil {
			infos[i] = info
		}
	}
	return infos
}

func same(before, now []os.FileInfo) bool {
	for i := range before {
		a, b := before[i], now[i]
		if (a == nil) != (b == nil) {
			return false
		}
		if a != nil && (!os.SameFile(a, b) || !a.ModTime().Equal(b.ModTime()) || a.Size() != b.Size()) {
			return false
		}
	}
	return true
}

// maxSize bounds what is read of a file, in bytes.
const maxSize = 1 << 20

// Read returns what a file holds. A file over 1 MiB, or that is no regular file, is an error.
func Read(path string) ([]byte, error) {
	return read(path, func(os.FileInfo) error { return nil })
}

// ReadPrivate is Read for a secret: a file that others than its owner can read, or change, is an error.
func ReadPrivate(path string) ([]byte, error) {
	return read(path, func(info os.FileInfo) error {
		if perm := info.Mode().Perm(); othersMay(perm) {
			return fmt.Errorf("%s: mode %04o lets others read it; chmod 600 it", path, perm)
		}
		return nil
	})
}

func read(path string, check func(os.FileInfo) error) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // to open a pipe is to wait for who writes it
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat() // of what was opened, not of what has the name now
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxSize:
		return nil, fmt.Errorf("%s: over %d bytes", path, maxSize)
	}
	if err := check(info); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, maxSize))
}
