package auditstore_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// quiet keeps what tests provoke out of their output.
var quiet = slog.New(slog.DiscardHandler)

// skip says why a test cannot run on this machine, in a form that can be counted.
// Where everything has to run it fails instead.
func skip(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv("RUNNERD_REQUIRE_ALL") == "1" {
		tb.Fatalf("cannot run here, but everything has to: %s", reason)
	}
	fmt.Printf("SKIP-COUNTED %s: %s\n", tb.Name(), reason)
	tb.SkipNow()
}

// open opens a store, and at the end of the test closes it and checks that no
// read transaction was left open.
func open(tb testing.TB, dir string, o auditstore.Options) *auditstore.Store {
	tb.Helper()
	o.Logger = quiet
	s, err := auditstore.Open(dir, &o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { shut(tb, s) })
	return s
}

func shut(tb testing.TB, s *auditstore.Store) {
	tb.Helper()
	if n := s.Stats().OpenReads; n != 0 {
		tb.Errorf("%d read transactions left open", n)
	}
	if err := s.Close(); err != nil {
		tb.Errorf("close: %v", err)
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]auditstore.Options{
		"defaults": {},
		// Nothing stays in memory: everything is read from the file.
		"small memory": {RingAppends: 1, RingBytes: 1, IndexEvery: 2, Heads: 1, BatchBytes: 1},
		// The index is in the ring's part of memory for some appends only.
		"mixed memory": {RingAppends: 5, IndexEvery: 4, Heads: 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			auditstoretest.Run(t, func(t *testing.T) auditstoretest.Harness {
				t.Helper()
				dir := t.TempDir()
				s := open(t, dir, o)
				return auditstoretest.Harness{Log: s, Blobs: s, Reopen: func(t *testing.T) (auditstore.Log, auditstore.Blobs) {
					t.Helper()
					shut(t, s)
					s := open(t, dir, o)
					return s, s
				}}
			})
		})
	}
}

func claim(tb testing.TB, s auditstore.Log, run string) *auditstore.Claim {
	tb.Helper()
	var from auditstore.Epoch
	rows, err := s.Rows(context.Background(), []byte(auditstore.RunPrefix+run), nil, 1)
	if err != nil {
		tb.Fatal(err)
	}
	if len(rows) > 0 && rows[0].Run == run {
		from = rows[0].Epoch
	}
	c, err := s.Claim(context.Background(), run, "owner", from)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func appendN(tb testing.TB, s auditstore.Log, c *auditstore.Claim, n int) {
	tb.Helper()
	if _, err := s.Append(context.Background(), c, auditstore.Append{Records: auditstoretest.Events(c, n)}); err != nil {
		tb.Fatal(err)
	}
}

// verified fails the test unless the whole log verifies, and returns how many
// events it has.
func verified(tb testing.TB, s auditstore.Log) (events int) {
	tb.Helper()
	findings, err := auditstore.Verify(context.Background(), s, "", auditstore.Cursor{}, func(page []auditstore.Record) error {
		events += len(page)
		return nil
	})
	if err != nil || len(findings) > 0 {
		tb.Fatalf("verify: %v, %v", findings, err)
	}
	return events
}

func TestWritersShareCommits(t *testing.T) {
	t.Parallel()
	const writers, each = 64, 20
	s := open(t, t.TempDir(), auditstore.Options{})
	var claims []*auditstore.Claim
	for i := range writers {
		claims = append(claims, claim(t, s, fmt.Sprintf("run-%d", i)))
	}
	var wg sync.WaitGroup
	for _, c := range claims {
		wg.Go(func() {
			for range each {
				if _, err := s.Append(t.Context(), c, auditstore.Append{Records: auditstoretest.Events(c, 1)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	st := s.Stats()
	if st.Appends != writers*each || st.Events != writers*each {
		t.Errorf("%d appends, %d events, want %d", st.Appends, st.Events, writers*each)
	}
	if st.Commits*4 > st.Appends {
		t.Errorf("%d commits for %d appends: commits are not shared", st.Commits, st.Appends)
	}
	times := uint64(0)
	for _, n := range st.CommitTimes {
		times += n
	}
	if times != st.Commits || st.CommitTime <= 0 {
		t.Errorf("%d commit times for %d commits, %v in all", times, st.Commits, st.CommitTime)
	}
}

func TestClaimsAndRefusalsCommitNothing(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), auditstore.Options{})
	c := claim(t, s, "a")
	stale := *c
	appendN(t, s, c, 1)
	before := s.Stats().Commits
	claim(t, s, "b")
	if _, err := s.Append(t.Context(), &stale, auditstore.Append{Records: auditstoretest.Events(&stale, 1)}); !errors.Is(err, auditstore.ErrConflict) {
		t.Errorf("stale append: %v", err)
	}
	if n := s.Stats().Commits - before; n != 0 {
		t.Errorf("%d commits", n)
	}
}

// TestIndexBoundary appends across the writes of the index, with reads, crashes of
// memory (reopening) and claims at each step, and expects every event at its place.
func TestIndexBoundary(t *testing.T) {
	t.Parallel()
	const every = 8
	dir := t.TempDir()
	o := auditstore.Options{IndexEvery: every, RingAppends: 3}
	s := open(t, dir, o)
	heads := map[string]uint64{}
	runs := []string{"a", "b", "ab"}
	for i := range 5 * every {
		run := runs[i*i%3]
		c := claim(t, s, run)
		if c.Head != heads[run] {
			t.Fatalf("step %d: head of %s is %d, want %d", i, run, c.Head, heads[run])
		}
		appendN(t, s, c, 1+i%2)
		heads[run] = c.Head
		for _, run := range runs {
			for after := range heads[run] {
				page, _, err := s.Read(t.Context(), auditstore.Scope{Run: run}, auditstore.Cursor{Sequence: after}, 5)
				if err != nil || len(page) == 0 || page[0].Sequence != after+1 {
					t.Fatalf("step %d: %s after %d: %v %v", i, run, after, page, err)
				}
			}
		}
		if i%every >= every-2 || i%every <= 1 {
			shut(t, s)
			s = open(t, dir, o)
		}
	}
	if n := verified(t, s); uint64(n) != heads["a"]+heads["b"]+heads["ab"] {
		t.Errorf("%d events, want %v", n, heads)
	}
}

// TestLongRun reads at chunk borders of the index and pages through a run of many
// chunks beside other runs.
func TestLongRun(t *testing.T) {
	t.Parallel()
	const events = 1500
	s := open(t, t.TempDir(), auditstore.Options{IndexEvery: 350, RingAppends: 50})
	c, other := claim(t, s, "long"), claim(t, s, "other")
	for i := range events {
		appendN(t, s, c, 1)
		if i%100 == 0 {
			appendN(t, s, other, 1)
		}
	}
	for _, limit := range []int{1, 99, 255, 256, 257, 1000} {
		for after := uint64(0); after < events; after += 1 + uint64(limit)/2 {
			page, next, err := s.Read(t.Context(), auditstore.Scope{Run: "long"}, auditstore.Cursor{Sequence: after}, limit)
			want := min(uint64(limit), events-after)
			if err != nil || uint64(len(page)) != want || page[0].Sequence != after+1 || next.Sequence != after+want {
				t.Fatalf("limit %d after %d: %d events, next %v, %v", limit, after, len(page), next, err)
			}
			for i := range page {
				if page[i].Sequence != after+1+uint64(i) {
					t.Fatalf("limit %d after %d: sequence %d at %d", limit, after, page[i].Sequence, i)
				}
			}
		}
	}
	if n := verified(t, s); n != events+events/100 {
		t.Errorf("%d events", n)
	}
}

func TestReadersAtTheHeadShareRecords(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), auditstore.Options{})
	c := claim(t, s, "a")
	appendN(t, s, c, 1)
	read := func(scope auditstore.Scope) *byte {
		page, _, err := s.Read(t.Context(), scope, auditstore.Cursor{}, 1)
		if err != nil || len(page) != 1 {
			t.Fatalf("%v %v", page, err)
		}
		return &page[0].Wire[0]
	}
	if one := read(auditstore.Scope{}); one != read(auditstore.Scope{}) || one != read(auditstore.Scope{Run: "a"}) {
		t.Error("an event at the head was encoded more than once")
	}
}

func TestHeadsAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 16
	s := open(t, t.TempDir(), auditstore.Options{Heads: bound})
	var claims []*auditstore.Claim
	for i := range 5 * bound {
		c := claim(t, s, fmt.Sprintf("run-%d", i))
		appendN(t, s, c, 1)
		claims = append(claims, c)
	}
	if n := s.Stats().Heads; n > bound {
		t.Errorf("%d heads remembered, at most %d", n, bound)
	}
	for _, c := range claims { // forgotten heads are read again
		appendN(t, s, c, 1)
	}
	// A claim that has not written anything cannot be forgotten: the older one
	// would pass.
	for i, c := range claims {
		if _, err := s.Claim(t.Context(), c.Run, "other", c.Epoch); err != nil {
			t.Fatalf("claim %d: %v", i, err)
		}
	}
	for _, c := range claims {
		if _, err := s.Append(t.Context(), c, auditstore.Append{Records: auditstoretest.Events(c, 1)}); !errors.Is(err, auditstore.ErrFenced) {
			t.Errorf("append of the older claim of %s: %v", c.Run, err)
		}
	}
}

func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), auditstore.Options{})
	c := claim(t, s, "a")
	appendN(t, s, c, 1)
	waited := make(chan error)
	go func() {
		_, err := s.Wait(context.Background(), 1)
		waited <- err
	}()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	_, appendErr := s.Append(ctx, c, auditstore.Append{Records: auditstoretest.Events(c, 1)})
	_, _, readErr := s.Read(ctx, auditstore.Scope{}, auditstore.Cursor{}, 0)
	_, rowsErr := s.Rows(ctx, nil, nil, 0)
	for what, err := range map[string]error{
		"wait": <-waited, "append": appendErr, "read": readErr, "rows": rowsErr,
		"put": s.Put(ctx, "a", "x", 0, nil), "erase": s.Erase(ctx, "a"),
	} {
		if !errors.Is(err, auditstore.ErrClosed) {
			t.Errorf("%s on a closed store: %v", what, err)
		}
	}
}

func TestIdentityIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, auditstore.Options{})
	log := s.LogID()
	id, key := s.DigestKey()
	if len(log) != 32 || id == "" || len(key) != 32 || slices.Equal(key, make([]byte, 32)) {
		t.Errorf("log %q, key %q %x", log, id, key)
	}
	shut(t, s)
	again := open(t, dir, auditstore.Options{})
	id2, key2 := again.DigestKey()
	if again.LogID() != log || id2 != id || !slices.Equal(key, key2) {
		t.Error("identity changed with reopening")
	}
	other := open(t, t.TempDir(), auditstore.Options{})
	if _, key3 := other.DigestKey(); other.LogID() == log || slices.Equal(key, key3) {
		t.Error("two logs have the same identity")
	}
}

func TestReadOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, auditstore.Options{})
	c := claim(t, s, "a")
	appendN(t, s, c, 5)
	shut(t, s)
	for range 2 {
		r, err := auditstore.OpenReadOnly(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer shut(t, r)
		if n := verified(t, r); n != 5 {
			t.Errorf("%d events", n)
		}
		if _, err := r.Claim(t.Context(), "a", "owner", c.Epoch); !errors.Is(err, auditstore.ErrUnavailable) {
			t.Errorf("claim: %v", err)
		}
		if err := r.Put(t.Context(), "a", "x", 0, nil); !errors.Is(err, auditstore.ErrUnavailable) {
			t.Errorf("put: %v", err)
		}
	}
	if _, err := auditstore.OpenReadOnly(t.TempDir()); !errors.Is(err, auditstore.ErrNotFound) {
		t.Errorf("an empty directory: %v", err)
	}
	if _, err := auditstore.Open(dir, &auditstore.Options{LockTimeout: time.Millisecond, Logger: quiet}); !errors.Is(err, auditstore.ErrLocked) {
		t.Errorf("opening for writing beside readers: %v", err)
	}
}

// TestEndedContextWithdraws ends the context of appends that wait behind large
// ones: each is either written, or surely not and its claim is still good.
func TestEndedContextWithdraws(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), auditstore.Options{BatchBytes: 1})
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range 4 {
		c := claim(t, s, fmt.Sprintf("busy-%d", i))
		wg.Go(func() {
			for !stop.Load() {
				records := auditstoretest.Events(c, 1)
				records[0].Public = make([]byte, 200<<10)
				if _, err := s.Append(t.Context(), c, auditstore.Append{Records: records}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	c := claim(t, s, "a")
	withdrawn := 0
	for range 200 {
		if withdrawn == 3 {
			break
		}
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		head := c.Head
		_, err := s.Append(ctx, c, auditstore.Append{Records: auditstoretest.Events(c, 1)})
		switch {
		case err == nil && c.Head == head+1:
		case errors.Is(err, context.Canceled) && c.Head == head:
			if errors.Is(err, auditstore.ErrUnavailable) { // it had been waiting
				withdrawn++
			}
		default:
			t.Fatalf("head %d after %d, error %v", c.Head, head, err)
		}
	}
	stop.Store(true)
	wg.Wait()
	if withdrawn == 0 {
		t.Error("no append was withdrawn while it waited")
	}
	page, _, err := s.Read(t.Context(), auditstore.Scope{Run: "a"}, auditstore.Cursor{}, 0)
	if err != nil || uint64(len(page)) != c.Head {
		t.Errorf("%d events, the claim says %d: %v", len(page), c.Head, err)
	}
}
