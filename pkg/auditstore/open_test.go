package auditstore_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// refused expects that a directory cannot be opened, for a reason and with a
// message that has all of the words.
func refused(t *testing.T, dir string, want error, words ...string) {
	t.Helper()
	s, err := auditstore.Open(dir, &auditstore.Options{LockTimeout: 10 * time.Millisecond, Logger: quiet})
	if err == nil {
		shut(t, s)
	}
	if !errors.Is(err, want) {
		t.Fatalf("open: %v, want %v", err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("message %q does not say %q", err, w)
		}
	}
}

func TestSecondOpenerIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, auditstore.Options{})
	refused(t, dir, auditstore.ErrLocked, filepath.Join(dir, "lock"), fmt.Sprintf("process %d", os.Getpid()))
	if _, err := auditstore.OpenReadOnly(dir); !errors.Is(err, auditstore.ErrLocked) {
		t.Errorf("reading beside a writer: %v", err)
	}
	appendN(t, s, claim(t, s, "a"), 1) // the first is none the worse
	shut(t, s)

	// A program that knows only bbolt's own lock is kept out, and noticed.
	db, err := bbolt.Open(filepath.Join(dir, "log.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, dir, auditstore.ErrLocked, "log.db")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, auditstore.Options{})
}

func TestModes(t *testing.T) {
	t.Parallel()
	t.Run("T-178 files are owner-only", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "new", "data")
		open(t, dir, auditstore.Options{})
		for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, "log.db": 0o600, "format": 0o600, "lock": 0o600} {
			if path != dir {
				path = filepath.Join(dir, path)
			}
			info, err := os.Lstat(path)
			if err != nil || info.Mode() != want {
				t.Errorf("%s: %v %v, want %v", path, info.Mode(), err, want)
			}
		}
	})
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := func(name string) string { return filepath.Join(root, name) }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.Mkdir(path("real"), 0o700))
	check(os.Symlink(path("real"), path("link")))
	refused(t, path("link"), auditstore.ErrUnsafe, "symbolic link")

	check(os.Mkdir(path("open"), 0o700))
	check(os.Chmod(path("open"), 0o770))
	refused(t, path("open"), auditstore.ErrUnsafe, "0770", "chmod")

	check(os.WriteFile(path("file"), nil, 0o600))
	if _, err := auditstore.Open(path("file"), nil); err == nil {
		t.Error("a file was taken for a directory")
	}

	shut(t, open(t, path("linked-file"), auditstore.Options{}))
	check(os.Rename(path("linked-file/log.db"), path("elsewhere.db")))
	check(os.Symlink(path("elsewhere.db"), path("linked-file/log.db")))
	refused(t, path("linked-file"), auditstore.ErrUnsafe, "not a plain file")

	shut(t, open(t, path("writable-file"), auditstore.Options{}))
	check(os.Chmod(path("writable-file/log.db"), 0o620))
	refused(t, path("writable-file"), auditstore.ErrUnsafe, "0620")
}

func TestTornCreation(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]map[string][]byte{
		"empty file":            {"log.db": nil},
		"unreadable file":       {"log.db": bytes.Repeat([]byte("torn"), 5000)},
		"unfinished other name": {"log.db.new": bytes.Repeat([]byte{0}, 10000)},
		"unfinished mark":       {"format.new": []byte("runn")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, content := range left {
				if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s := open(t, dir, auditstore.Options{})
			appendN(t, s, claim(t, s, "a"), 1)
			if _, err := os.Stat(filepath.Join(dir, "log.db.new")); err == nil {
				t.Error("an unfinished file was left")
			}
		})
	}
	t.Run("file without its mark", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		s := open(t, dir, auditstore.Options{})
		id := s.LogID()
		appendN(t, s, claim(t, s, "a"), 1)
		shut(t, s)
		if err := os.Remove(filepath.Join(dir, "format")); err != nil {
			t.Fatal(err)
		}
		again := open(t, dir, auditstore.Options{})
		if again.LogID() != id || verified(t, again) != 1 {
			t.Error("a good file was created anew")
		}
	})
}

func TestALostFileIsNoNewLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shut(t, open(t, dir, auditstore.Options{}))
	file := filepath.Join(dir, "log.db")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(nil)
	refused(t, dir, auditstore.ErrCorrupt, "is empty", "backup")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	refused(t, dir, auditstore.ErrCorrupt, "is gone", "backup")
	write(bytes.Repeat([]byte("garbage!"), 4096))
	refused(t, dir, auditstore.ErrCorrupt, "surgery")
	write(good[:len(good)/4])
	refused(t, dir, auditstore.ErrCorrupt)

	other := t.TempDir()
	shut(t, open(t, other, auditstore.Options{}))
	foreign, err := os.ReadFile(filepath.Join(other, "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	write(foreign)
	refused(t, dir, auditstore.ErrCorrupt, "put back")
	write(good)
	open(t, dir, auditstore.Options{})
}

// edit changes a closed log behind the store's back.
func edit(t *testing.T, dir string, f func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, "log.db"), 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(f), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOtherFormatsAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shut(t, open(t, dir, auditstore.Options{}))
	edit(t, dir, func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte{0, 0, 0, 2})
	})
	refused(t, dir, auditstore.ErrFormat, "format 2", "format 1", "newer")
	edit(t, dir, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("meta")) })
	refused(t, dir, auditstore.ErrFormat, "not a log")
}

// TestEditedAppends changes stored appends, as a damaged disk or a forger would,
// and expects Verify to name the place, for all runs and for the one.
func TestEditedAppends(t *testing.T) {
	t.Parallel()
	const victim = 4 // position; run a has sequences 1..2, 3..4, 5..6, 7..8 at positions 1, 3, 4, 6
	key := binary.BigEndian.AppendUint64(nil, victim)
	for _, tt := range []struct {
		name    string
		edit    func(value []byte) []byte // nil result: delete
		found   int                       // findings in the run
		problem string
	}{
		{"public byte", func(v []byte) []byte { v[len(v)-3] ^= 1; return v }, 1, "hash is not that of the stored bytes"},
		{"header byte", func(v []byte) []byte { v[12] ^= 1; return v }, 1, "header damaged"},
		{"cut short", func(v []byte) []byte { return v[:len(v)-1] }, 1, "sizes damaged"},
		{"nothing left", func([]byte) []byte { return []byte{} }, 1, "header damaged"},
		{"append missing", func([]byte) []byte { return nil }, 1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, auditstore.Options{})
			a, b := claim(t, s, "a"), claim(t, s, "b")
			for _, c := range []*auditstore.Claim{a, b, a, a, b, a} {
				appendN(t, s, c, 2)
			}
			shut(t, s)
			edit(t, dir, func(tx *bbolt.Tx) error {
				appends := tx.Bucket([]byte("appends"))
				if v := tt.edit(bytes.Clone(appends.Get(key))); v != nil {
					return appends.Put(key, v)
				}
				return appends.Delete(key)
			})
			s = open(t, dir, auditstore.Options{})
			for _, scope := range []string{"", "a"} {
				findings, err := auditstore.Verify(t.Context(), s, scope, auditstore.Cursor{}, nil)
				if err != nil || len(findings) == 0 || !strings.Contains(findings[0].Problem, tt.problem) {
					t.Fatalf("scope %q: findings %v, error %v", scope, findings, err)
				}
				for _, f := range findings {
					if f.Position != victim && f.Position != 6 || f.Run == "b" {
						t.Errorf("scope %q: finding at the wrong place: %v", scope, f)
					}
				}
			}
			if findings, err := auditstore.Verify(t.Context(), s, "b", auditstore.Cursor{}, nil); err != nil || len(findings) > 0 {
				t.Errorf("another run: %v %v", findings, err)
			}
		})
	}
}

func TestVerifyFromTheMiddle(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), auditstore.Options{})
	c := claim(t, s, "a")
	for range 5 {
		appendN(t, s, c, 2)
	}
	seen := 0
	count := func(page []auditstore.Record) error { seen += len(page); return nil }
	findings, err := auditstore.Verify(t.Context(), s, "a", auditstore.Cursor{Sequence: 3}, count)
	if err != nil || len(findings) > 0 || seen != 7 {
		t.Errorf("run: %v %v, %d events", findings, err, seen)
	}
	findings, err = auditstore.Verify(t.Context(), s, "", auditstore.Cursor{Position: 2}, count)
	if err != nil || len(findings) > 0 || seen != 13 {
		t.Errorf("all: %v %v, %d events", findings, err, seen)
	}
	stop := errors.New("stop")
	if _, err := auditstore.Verify(t.Context(), s, "", auditstore.Cursor{}, func([]auditstore.Record) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of progress: %v", err)
	}
}

// TestDamagedOtherValues damages values that no hash chain covers.
func TestDamagedOtherValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, auditstore.Options{})
	c := claim(t, s, "a")
	records := auditstoretest.Events(c, 1)
	records[0].Private = []byte("secret")
	value := []byte("a value that is shared")
	digest := sha256.Sum256(value)
	if _, err := s.Append(t.Context(), c, auditstore.Append{
		Records: records, Row: []byte("row"), Body: []byte("body"),
		Shared: map[auditstore.Digest][]byte{digest: value},
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), "a", "x", 0, []byte("chunk")); err != nil {
		t.Fatal(err)
	}
	shut(t, s)
	edit(t, dir, func(tx *bbolt.Tx) error {
		for _, name := range []string{"private", "rows", "bodies", "shared", "blobs"} {
			bucket := tx.Bucket([]byte(name))
			k, v := bucket.Cursor().First()
			v = bytes.Clone(v)
			v[len(v)-1] ^= 4
			if err := bucket.Put(bytes.Clone(k), v); err != nil {
				return err
			}
		}
		return nil
	})
	s = open(t, dir, auditstore.Options{})
	ctx := t.Context()
	_, _, private := s.Read(ctx, auditstore.Scope{Run: "a"}, auditstore.Cursor{}, 0)
	rows := damagedRow(t, s)
	_, _, body := s.Body(ctx, "a", 1)
	_, shared := s.Shared(ctx, digest)
	_, blob := s.Get(ctx, "a", "x", 0)
	_, claimed := s.Claim(ctx, "a", "owner", c.Epoch)
	for what, err := range map[string]error{"private": private, "rows": rows, "body": body, "shared": shared, "blob": blob, "claim": claimed} {
		if !errors.Is(err, auditstore.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// damagedRow returns the damage of the only row.
func damagedRow(t *testing.T, s *auditstore.Store) error {
	t.Helper()
	rows, err := s.Rows(t.Context(), nil, nil, 0)
	if err != nil || len(rows) != 1 || rows[0].Run != "a" || rows[0].Row != nil {
		t.Fatalf("rows %+v, %v", rows, err)
	}
	return rows[0].Damage
}

// TestRandomDamage flips bits anywhere in the file. Whatever they hit, opening and
// reading must end with an answer, never with a crash.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, auditstore.Options{IndexEvery: 16})
	for i := range 60 {
		c := claim(t, s, fmt.Sprintf("run-%d", i%7))
		records := auditstoretest.Events(c, 3)
		records[1].Private = bytes.Repeat([]byte("secret"), 100)
		if _, err := s.Append(t.Context(), c, auditstore.Append{Records: records, Row: []byte("row"), Body: make([]byte, 300)}); err != nil {
			t.Fatal(err)
		}
	}
	clean := t.TempDir()
	shut(t, s)
	// The mark of an open log makes the next open check all pages.
	edit(t, dir, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("open"), []byte{1}) })
	good, err := os.ReadFile(filepath.Join(dir, "log.db"))
	if err != nil {
		t.Fatal(err)
	}
	mark, err := os.ReadFile(filepath.Join(dir, "format"))
	if err != nil {
		t.Fatal(err)
	}
	used := bytes.TrimRight(good, "\x00")
	rng := rand.New(rand.NewPCG(1, 2))
	outcomes := map[string]int{}
	for i := range 60 {
		bad := bytes.Clone(good)
		for range 1 + i%3 {
			bad[rng.IntN(len(used))] ^= 1 << rng.IntN(8)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(clean, "log.db"), bad, 0o600), os.WriteFile(filepath.Join(clean, "format"), mark, 0o600)); err != nil {
			t.Fatal(err)
		}
		outcomes[examine(clean)]++
	}
	t.Log(outcomes)
	if outcomes["refused"] == 0 || outcomes["found"] == 0 {
		t.Errorf("damage was never noticed: %v", outcomes)
	}
}

// examine opens and reads all of a log that may be damaged.
func examine(dir string) string {
	s, err := auditstore.Open(dir, &auditstore.Options{Logger: quiet})
	if err != nil {
		return "refused"
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	findings, err := auditstore.Verify(ctx, s, "", auditstore.Cursor{}, nil)
	result := "unnoticed"
	if err != nil || len(findings) > 0 {
		result = "found"
	}
	for i := range 7 {
		run := fmt.Sprintf("run-%d", i)
		findings, err := auditstore.Verify(ctx, s, run, auditstore.Cursor{}, nil)
		_, _, bodyErr := s.Body(ctx, run, 1000)
		if err != nil || len(findings) > 0 || bodyErr != nil {
			result = "found"
		}
	}
	rows, err := s.Rows(ctx, nil, nil, 0)
	if err != nil {
		return "found"
	}
	for _, r := range rows {
		c, err := s.Claim(ctx, r.Run, "owner", r.Epoch)
		if err == nil {
			_, err = s.Append(ctx, c, auditstore.Append{Records: auditstoretest.Events(c, 1), Row: []byte("new")})
		}
		if err != nil {
			result = "found"
		}
	}
	return result
}
