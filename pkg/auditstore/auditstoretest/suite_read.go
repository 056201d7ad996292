//nolint:thelper // these are the tests themselves: a failure belongs to their own line
package auditstoretest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

func testReadAll(t *testing.T, f *fixture) {
	page, next := f.read(t, "", auditstore.Cursor{}, 10)
	if len(page) != 0 || next != (auditstore.Cursor{}) {
		t.Errorf("an empty log has %v, %v", page, next)
	}
	a, b := f.claim(t, "a"), f.claim(t, "b")
	f.append(t, a, 3)
	second := f.append(t, b, 3)
	f.append(t, a, 1)
	page, next = f.read(t, "", auditstore.Cursor{}, 4)
	same(t, "an append that passes the limit is whole", len(page), 6)
	same(t, "cursor", next, auditstore.Cursor{Position: second, Sequence: 3})
	page, next = f.read(t, "", next, 4)
	same(t, "the rest", sequences(page), span(4, 4))
	if page, again := f.read(t, "", next, 4); len(page) != 0 || again != next {
		t.Errorf("after the head: %v, %v", page, again)
	}
	same(t, "a limit of 0 is the largest", len(f.all(t, "", 0)), 7)
	same(t, "one by one", len(f.all(t, "", 1)), 7)
	far := auditstore.Cursor{Position: math.MaxUint64}
	if page, again := f.read(t, "", far, 4); len(page) != 0 || again != far {
		t.Errorf("far after the head: %v, %v", page, again)
	}
}

func testReadRun(t *testing.T, f *fixture) {
	if page, _ := f.read(t, "nobody", auditstore.Cursor{}, 10); len(page) != 0 {
		t.Errorf("an unknown run has %v", page)
	}
	a, b := f.claim(t, "a"), f.claim(t, "a2")
	for i := range 20 {
		f.append(t, a, 1+i%4)
		f.append(t, b, 1)
	}
	for _, limit := range []int{1, 2, 3, 7, 1000} {
		same(t, fmt.Sprintf("limit %d", limit), sequences(f.all(t, "a", limit)), span(1, a.Head))
	}
	for after := range a.Head {
		page, _ := f.read(t, "a", auditstore.Cursor{Sequence: after}, 1)
		if len(page) == 0 || page[0].Sequence != after+1 {
			t.Errorf("after %d: %v", after, sequences(page))
		}
	}
	if page, _ := f.read(t, "a", auditstore.Cursor{Sequence: math.MaxUint64}, 1); len(page) != 0 {
		t.Errorf("after the last sequence there can be: %v", sequences(page))
	}
	page, _ := f.read(t, "a", auditstore.Cursor{Position: 1, Sequence: a.Head - 1}, 1)
	same(t, "the position does not count in a run", sequences(page), span(a.Head, a.Head))
}

func testRows(t *testing.T, f *fixture) {
	for _, run := range []string{"b", "a", "c"} {
		c := f.claim(t, run)
		f.appendWith(t, c, auditstore.Append{Records: Events(c, 1), Row: []byte("row " + run), Put: [][]byte{
			[]byte("open/" + run), fmt.Appendf(nil, "wake/%d/%s", 9-len(run), run), []byte("zz"),
		}})
	}
	same(t, "all, in order", f.keys(t, "", "", 0),
		[]string{"open/a", "open/b", "open/c", "run/a", "run/b", "run/c", "wake/8/a", "wake/8/b", "wake/8/c", "zz"})
	same(t, "prefix", f.keys(t, "open/", "", 0), []string{"open/a", "open/b", "open/c"})
	same(t, "limit", f.keys(t, "open/", "", 2), []string{"open/a", "open/b"})
	same(t, "after", f.keys(t, "open/", "open/b", 2), []string{"open/c"})
	same(t, "after, before the prefix", f.keys(t, "open/", "a", 1), []string{"open/a"})
	same(t, "after, between keys", f.keys(t, "open/", "open/aa", 0), []string{"open/b", "open/c"})
	same(t, "after the prefix", f.keys(t, "open/", "p", 0), []string(nil))
	same(t, "after the last", f.keys(t, "open/", "open/c", 0), []string(nil))
	same(t, "prefix is a key", f.keys(t, "zz", "", 0), []string{"zz"})
	same(t, "after the prefix that is a key", f.keys(t, "zz", "zz", 0), []string(nil))
}

func testRowValues(t *testing.T, f *fixture) {
	row := func(key string) auditstore.Row {
		t.Helper()
		rows, err := f.log.Rows(t.Context(), []byte(key), nil, 1)
		if err != nil || len(rows) != 1 {
			t.Fatalf("row %s: %v, %v", key, rows, err)
		}
		return rows[0]
	}
	a, b := f.claim(t, "a"), f.claim(t, "b")
	f.append(t, a, 1)
	if r := row("run/a"); r.Row != nil || r.Run != "a" || r.Epoch != a.Epoch {
		t.Errorf("run without a row: %+v", r)
	}
	f.appendWith(t, a, auditstore.Append{Records: Events(a, 1), Row: []byte("one"), Put: [][]byte{[]byte("k")}})
	f.append(t, a, 1)
	if r := row("k"); string(r.Row) != "one" || r.Run != "a" {
		t.Errorf("row stays: %+v", r)
	}
	newer, err := f.log.Claim(t.Context(), "a", "other", row("k").Epoch)
	if err != nil {
		t.Fatalf("claim from the epoch of the row: %v", err)
	}
	same(t, "epoch after a claim", row("k").Epoch, newer.Epoch)
	f.append(t, newer, 1)
	if r := row("k"); string(r.Row) != "one" || r.Epoch != newer.Epoch {
		t.Errorf("row after an append of the new owner: %+v", r)
	}

	f.appendWith(t, b, auditstore.Append{Records: Events(b, 1), Row: []byte("of b"), Del: [][]byte{[]byte("k")}})
	same(t, "a key of another run is not deleted", row("k").Run, "a")
	f.appendWith(t, b, auditstore.Append{Records: Events(b, 1), Put: [][]byte{[]byte("k")}})
	if r := row("k"); r.Run != "b" || string(r.Row) != "of b" {
		t.Errorf("key taken over: %+v", r)
	}
	f.appendWith(t, b, auditstore.Append{Records: Events(b, 1), Del: [][]byte{[]byte("k"), []byte("none")}, Put: [][]byte{[]byte("k2")}})
	same(t, "keys", f.keys(t, "k", "", 0), []string{"k2"})
	f.appendWith(t, b, auditstore.Append{Records: Events(b, 1), Del: [][]byte{[]byte("k2")}, Put: [][]byte{[]byte("k2")}})
	same(t, "deleted and put at once", f.keys(t, "k", "", 0), []string{"k2"})
}

func testWait(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	first := f.append(t, c, 1)
	if pos, err := f.log.Wait(t.Context(), 0); err != nil || pos != first {
		t.Errorf("something is there: %d, %v", pos, err)
	}
	// It may return early, but must return once there is something.
	woken := make(chan auditstore.Position)
	go func() {
		for {
			pos, err := f.log.Wait(context.Background(), first)
			if err != nil {
				t.Error(err)
			}
			if pos > first || err != nil {
				woken <- pos
				return
			}
		}
	}()
	second := f.append(t, c, 1)
	same(t, "position", <-woken, second)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		for {
			if _, err := f.log.Wait(ctx, second); err != nil {
				ended <- err
				return
			}
		}
	}()
	cancel()
	wantError(t, "wait with an ended context", <-ended, context.Canceled)
}

func testBodies(t *testing.T, f *fixture) {
	c, other := f.claim(t, "a"), f.claim(t, "a2")
	f.appendWith(t, c, auditstore.Append{Records: Events(c, 2), Body: []byte("at 2")})
	f.append(t, c, 3)
	f.appendWith(t, c, auditstore.Append{Records: Events(c, 2), Body: []byte("at 6"), BodySequence: 6})
	f.appendWith(t, other, auditstore.Append{Records: Events(other, 1), Body: []byte("of another run")})
	f.appendWith(t, c, auditstore.Append{Records: Events(c, 1), Body: []byte{}})
	for _, tt := range []struct {
		atMost, want uint64
		body         string
	}{{0, 0, ""}, {1, 0, ""}, {2, 2, "at 2"}, {5, 2, "at 2"}, {6, 6, "at 6"}, {7, 6, "at 6"}, {8, 8, ""}, {math.MaxUint64, 8, ""}} {
		seq, body, err := f.log.Body(t.Context(), "a", tt.atMost)
		if seq != tt.want || string(body) != tt.body || err != nil {
			t.Errorf("at most %d: %d %q %v", tt.atMost, seq, body, err)
		}
	}
	if seq, _, err := f.log.Body(t.Context(), "nobody", 5); seq != 0 || err != nil {
		t.Errorf("unknown run: %d %v", seq, err)
	}
}

func testShared(t *testing.T, f *fixture) {
	value := []byte("a run spec")
	digest := sha256.Sum256(value)
	for _, run := range []string{"a", "b"} {
		c := f.claim(t, run)
		f.appendWith(t, c, auditstore.Append{Records: Events(c, 1), Shared: map[auditstore.Digest][]byte{digest: value}})
	}
	got, err := f.log.Shared(t.Context(), digest)
	if string(got) != "a run spec" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, err = f.log.Shared(t.Context(), auditstore.Digest{1})
	wantError(t, "unknown digest", err, auditstore.ErrNotFound)
}

func testBlobs(t *testing.T, f *fixture) {
	ctx := t.Context()
	put := func(run, id string, n int, chunk string) {
		t.Helper()
		if err := f.blobs.Put(ctx, run, id, n, []byte(chunk)); err != nil {
			t.Fatal(err)
		}
	}
	put("a", "x", 0, "0123456789")
	put("a", "x", 1, "abc")
	put("a", "x", 2, "XYZ")
	put("a", "x", 1, "abc") // repeated, as after an unknown outcome
	put("a", "x2", 0, "another")
	put("b", "x", 0, "of b")
	for offset, want := range map[int64]string{0: "0123456789", 9: "9", 10: "abc", 12: "c", 13: "XYZ", 15: "Z"} {
		got, err := f.blobs.Get(ctx, "a", "x", offset)
		if string(got) != want || err != nil {
			t.Errorf("at %d: %q %v, want %q", offset, got, err, want)
		}
	}
	for _, offset := range []int64{16, 17, 1 << 40} {
		if got, err := f.blobs.Get(ctx, "a", "x", offset); !errors.Is(err, io.EOF) {
			t.Errorf("at %d: %q %v", offset, got, err)
		}
	}
	_, err := f.blobs.Get(ctx, "a", "x", -1)
	wantError(t, "negative offset", err, auditstore.ErrInvalid)
	_, err = f.blobs.Get(ctx, "a", "y", 0)
	wantError(t, "unknown blob", err, auditstore.ErrNotFound)
	wantError(t, "gap", f.blobs.Put(ctx, "a", "y", 1, nil), auditstore.ErrConflict)
	wantError(t, "negative chunk", f.blobs.Put(ctx, "a", "y", -1, nil), auditstore.ErrInvalid)
	put("a", "empty", 0, "")
	if _, err := f.blobs.Get(ctx, "a", "empty", 0); !errors.Is(err, io.EOF) {
		t.Errorf("empty blob: %v", err)
	}
	for range 2 { // dropping is repeatable
		if err := f.blobs.Drop(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"x", "x2", "empty"} {
		_, err := f.blobs.Get(ctx, "a", id, 0)
		wantError(t, "dropped blob "+id, err, auditstore.ErrNotFound)
	}
	if got, err := f.blobs.Get(ctx, "b", "x", 0); string(got) != "of b" || err != nil {
		t.Errorf("blob of another run: %q %v", got, err)
	}
}

func testErase(t *testing.T, f *fixture) {
	ctx := t.Context()
	c, other := f.claim(t, "a"), f.claim(t, "b")
	secret := func(c *auditstore.Claim) auditstore.Append {
		records := Events(c, 3)
		records[1].Private, records[1].Salt = []byte("secret"), []byte("salt")
		return auditstore.Append{Records: records, Body: []byte("secret body")}
	}
	f.appendWith(t, c, secret(c))
	f.appendWith(t, other, secret(other))
	f.append(t, c, 1)
	f.appendWith(t, c, secret(c))
	if err := f.blobs.Put(ctx, "a", "x", 0, []byte("secret")); err != nil {
		t.Fatal(err)
	}
	before := f.all(t, "a", 0)
	for range 2 { // erasing is repeatable
		if err := f.log.Erase(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if string(before[1].Private) != "secret" {
		t.Error("erasing changed a record that had been read")
	}
	check := func(run string) {
		t.Helper()
		for _, r := range f.all(t, run, 0) {
			had := r.Run == "a" && (r.Sequence == 2 || r.Sequence == 6)
			if r.Erased != had || r.Run == "a" && (r.Private != nil || r.Salt != nil) {
				t.Errorf("run %s sequence %d: private %q, salt %q, erased %v", r.Run, r.Sequence, r.Private, r.Salt, r.Erased)
			}
			if r.Run == "b" && r.Sequence == 2 && string(r.Private) != "secret" {
				t.Error("another run lost its private part")
			}
			if !bytes.Equal(r.Public, event(r.Run, r.Sequence)) {
				t.Errorf("run %s sequence %d: public part changed", r.Run, r.Sequence)
			}
		}
	}
	check("a")
	check("")
	if seq, _, err := f.log.Body(ctx, "a", 100); seq != 0 || err != nil {
		t.Errorf("body after erasing: %d %v", seq, err)
	}
	if seq, _, err := f.log.Body(ctx, "b", 100); seq != 3 || err != nil {
		t.Errorf("body of another run: %d %v", seq, err)
	}
	_, err := f.blobs.Get(ctx, "a", "x", 0)
	wantError(t, "blob after erasing", err, auditstore.ErrNotFound)
	if err := f.log.Erase(ctx, "nobody"); err != nil {
		t.Errorf("erasing an unknown run: %v", err)
	}
	if f.reopen != nil {
		f.log, f.blobs = f.reopen(t)
		check("a")
		check("")
	}
}

func testContext(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	f.append(t, c, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.log.Append(ctx, c, auditstore.Append{Records: Events(c, 1)})
	wantError(t, "append", err, context.Canceled)
	_, err = f.log.Claim(ctx, "a", "other", c.Epoch)
	wantError(t, "claim", err, context.Canceled)
	_, _, err = f.log.Read(ctx, auditstore.Scope{}, auditstore.Cursor{}, 0)
	wantError(t, "read", err, context.Canceled)
	_, err = f.log.Rows(ctx, nil, nil, 0)
	wantError(t, "rows", err, context.Canceled)
	wantError(t, "put", f.blobs.Put(ctx, "a", "x", 0, nil), context.Canceled)
	f.append(t, c, 1)
	same(t, "events", sequences(f.all(t, "a", 0)), span(1, 2))
}

func testReopen(t *testing.T, f *fixture) {
	if f.reopen == nil {
		t.Log("the store does not outlive its process: nothing to reopen")
		return
	}
	ctx := t.Context()
	c := f.claim(t, "a")
	value := []byte("shared")
	records := Events(c, 3)
	records[2].Private, records[2].Salt = []byte("secret"), []byte("salt")
	f.appendWith(t, c, auditstore.Append{
		Records: records, Row: []byte("row"), Put: [][]byte{[]byte("open/a")}, Body: []byte("body"),
		Shared: map[auditstore.Digest][]byte{sha256.Sum256(value): value},
	})
	if err := f.blobs.Put(ctx, "a", "x", 0, []byte("blob")); err != nil {
		t.Fatal(err)
	}
	before, head := f.all(t, "", 0), f.head(t)

	f.log, f.blobs = f.reopen(t)
	same(t, "head", f.head(t), head)
	same(t, "all events", f.all(t, "", 0), before)
	same(t, "events of the run", f.all(t, "a", 0), before)
	if seq, body, err := f.log.Body(ctx, "a", 3); seq != 3 || string(body) != "body" || err != nil {
		t.Errorf("body: %d %q %v", seq, body, err)
	}
	if v, err := f.log.Shared(ctx, sha256.Sum256(value)); string(v) != "shared" || err != nil {
		t.Errorf("shared: %q %v", v, err)
	}
	if v, err := f.blobs.Get(ctx, "a", "x", 0); string(v) != "blob" || err != nil {
		t.Errorf("blob: %q %v", v, err)
	}
	rows, err := f.log.Rows(ctx, []byte("open/"), nil, 0)
	if err != nil || len(rows) != 1 || string(rows[0].Row) != "row" {
		t.Fatalf("rows: %v %v", rows, err)
	}
	_, err = f.log.Append(ctx, c, auditstore.Append{Records: Events(c, 1)})
	wantError(t, "append with a claim of the earlier process", err, auditstore.ErrFenced)
	next, err := f.log.Claim(ctx, "a", "owner", rows[0].Epoch)
	if err != nil {
		t.Fatal(err)
	}
	if next.Epoch.Start() <= c.Epoch.Start() || next.Head != 3 || next.HeadHash != c.HeadHash {
		t.Errorf("claim %+v after %+v", next, c)
	}
	f.append(t, next, 2)
	same(t, "events", sequences(f.all(t, "a", 0)), span(1, 5))
}
