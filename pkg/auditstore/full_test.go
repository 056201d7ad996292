package auditstore_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// fill appends until an append is refused for want of space, and returns how many
// went through.
func fill(t *testing.T, s *auditstore.Store, c *auditstore.Claim, reserve bool, most int) int {
	t.Helper()
	for n := range most {
		records := auditstoretest.Events(c, 1)
		records[0].Public = bytes.Repeat([]byte{1}, 64<<10)
		_, err := s.Append(t.Context(), c, auditstore.Append{Records: records, Reserve: reserve})
		if errors.Is(err, auditstore.ErrFull) {
			return n
		}
		if err != nil {
			t.Fatalf("append %d: %v", n, err)
		}
	}
	t.Fatalf("%d appends of 64 KiB and no end", most)
	return 0
}

// healthy expects a store that a lack of space has not harmed.
func healthy(t *testing.T, s *auditstore.Store) {
	t.Helper()
	select {
	case <-s.Poisoned():
		t.Fatal("a lack of space poisoned the store")
	default:
	}
	verified(t, s)
}

func TestMaxSize(t *testing.T) {
	t.Parallel()
	const largest, reserve = 48 << 20, 8 << 20
	dir := t.TempDir()
	o := auditstore.Options{MaxSize: largest, Reserve: reserve}
	s := open(t, dir, o)
	c := claim(t, s, "a")
	if s.Full() {
		t.Error("an empty store is full")
	}
	plain := fill(t, s, c, false, 2000)
	if !s.Full() {
		t.Error("a full store does not say so")
	}
	if err := s.Put(t.Context(), "a", "x", 0, []byte("chunk")); !errors.Is(err, auditstore.ErrFull) {
		t.Errorf("blob in a full store: %v", err)
	}
	if _, err := s.Claim(t.Context(), "a", "owner", c.Epoch); err != nil {
		t.Errorf("claim in a full store: %v", err)
	}
	c = claim(t, s, "a")
	reserved := fill(t, s, c, true, 2000)
	if reserved < reserve/(2*64<<10) {
		t.Errorf("%d appends without the reserve, only %d of it", plain, reserved)
	}
	healthy(t, s)
	shut(t, s)
	if info, err := os.Stat(filepath.Join(dir, "log.db")); err != nil || info.Size() > largest {
		t.Errorf("file of %d bytes, at most %d: %v", info.Size(), largest, err)
	}
	o.MaxSize *= 2
	s = open(t, dir, o)
	appendN(t, s, claim(t, s, "a"), 1)
	healthy(t, s)

	if _, err := auditstore.Open(t.TempDir(), &auditstore.Options{MaxSize: 16 << 20}); !errors.Is(err, auditstore.ErrInvalid) {
		t.Errorf("a largest size that leaves no room: %v", err)
	}
}

// TestFullForSome fills the disk under two appends that share a commit: the one
// that may use the reserve must not fail for the other's sake.
func TestFullForSome(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), auditstore.Options{MaxSize: 40 << 20, Reserve: 8 << 20})
	a, b := claim(t, s, "a"), claim(t, s, "b")
	fill(t, s, a, false, 2000)
	plain := make(chan error)
	go func() {
		_, err := s.Append(context.Background(), a, auditstore.Append{Records: auditstoretest.Events(a, 1)})
		plain <- err
	}()
	if _, err := s.Append(t.Context(), b, auditstore.Append{Records: auditstoretest.Events(b, 1), Reserve: true}); err != nil {
		t.Errorf("append into the reserve: %v", err)
	}
	if err := <-plain; !errors.Is(err, auditstore.ErrFull) {
		t.Errorf("append beside it: %v", err)
	}
	healthy(t, s)
}
