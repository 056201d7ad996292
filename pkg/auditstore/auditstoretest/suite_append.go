//nolint:thelper // these are the tests themselves: a failure belongs to their own line
package auditstoretest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func testClaim(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	if c.Run != "a" || c.Owner != "owner" || c.Epoch == 0 || c.Epoch.Start() == 0 || c.Head != 0 || c.HeadHash != (auditstore.Digest{}) {
		t.Errorf("claim of a new run: %+v", c)
	}
	f.append(t, c, 3)
	if _, err := f.log.Claim(t.Context(), "a", "other", 0); !errors.Is(err, auditstore.ErrFenced) {
		t.Errorf("claim from an old epoch: %v", err)
	}
	d, err := f.log.Claim(t.Context(), "a", "other", c.Epoch)
	if err != nil {
		t.Fatal(err)
	}
	if d.Epoch <= c.Epoch || d.Head != 3 || d.HeadHash != c.HeadHash {
		t.Errorf("claim after %+v: %+v", c, d)
	}
	again, err := f.log.Claim(t.Context(), "a", "other", c.Epoch)
	if err != nil || again.Epoch <= d.Epoch {
		t.Errorf("an owner repeats its claim: %+v, %v", again, err)
	}
	own, err := f.log.Claim(t.Context(), "a", "other", again.Epoch)
	if err != nil || own.Epoch <= again.Epoch {
		t.Errorf("an owner claims again from its own epoch: %+v, %v", own, err)
	}
	if _, err := f.log.Claim(t.Context(), "a", "owner", c.Epoch); !errors.Is(err, auditstore.ErrFenced) {
		t.Errorf("the old owner claims from its old epoch: %v", err)
	}
	for _, name := range []string{"", "zero\x00byte", string(make([]byte, auditstore.MaxName+1))} {
		_, err := f.log.Claim(t.Context(), name, "owner", 0)
		wantError(t, fmt.Sprintf("claim of run %.10q", name), err, auditstore.ErrInvalid)
	}
}

func testFence(t *testing.T, f *fixture) {
	old := f.claim(t, "a")
	f.append(t, old, 1)
	before := *old
	if _, err := f.log.Claim(t.Context(), "a", "other", old.Epoch); err != nil {
		t.Fatal(err)
	}
	_, err := f.log.Append(t.Context(), old, auditstore.Append{Records: Events(old, 1), Row: []byte("stolen")})
	wantError(t, "append of the old owner", err, auditstore.ErrFenced)
	same(t, "claim after a refused append", *old, before)
	same(t, "events", sequences(f.all(t, "a", 0)), span(1, 1))
}

func testFenceInFlight(t *testing.T, f *fixture) {
	old := f.claim(t, "a")
	f.append(t, old, 1)
	epoch := old.Epoch
	stopped := make(chan error)
	started := make(chan struct{})
	go func() {
		for i := 0; ; i++ {
			if _, err := f.log.Append(context.Background(), old, auditstore.Append{Records: Events(old, 1)}); err != nil {
				stopped <- err
				return
			}
			if i == 3 {
				close(started)
			}
		}
	}()
	<-started
	c, err := f.log.Claim(t.Context(), "a", "other", epoch)
	if err != nil {
		t.Fatal(err)
	}
	// Whatever the old owner had in flight, it is before the head of the claim or
	// nowhere: the next append of the new owner must not conflict.
	f.append(t, c, 1)
	wantError(t, "the old owner", <-stopped, auditstore.ErrFenced)
	if old.Head+1 != c.Head {
		t.Errorf("the old owner was told its event %d is durable, the new one appended %d", old.Head, c.Head)
	}
	same(t, "events", sequences(f.all(t, "a", 0)), span(1, c.Head))
}

func testAppend(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	records := Events(c, 3)
	pos := f.appendWith(t, c, auditstore.Append{Records: records})
	if c.Head != 3 || c.HeadHash != records[2].Hash {
		t.Errorf("claim after an append: %+v", c)
	}
	got := f.all(t, "a", 0)
	same(t, "sequences", sequences(got), span(1, 3))
	prev := auditstore.Digest{}
	for i := range got {
		r := &got[i]
		if r.Run != "a" || r.Position != pos || r.PrevHash != prev || r.Hash != auditstore.Hash(prev, r.Public) || r.Erased {
			t.Errorf("record %d: %+v", i, r)
		}
		same(t, "public part", r.Public, event("a", r.Sequence))
		in := &records[i]
		if in.Run != r.Run || in.Position != r.Position || in.PrevHash != r.PrevHash || in.Hash != r.Hash {
			t.Errorf("the caller's record %d was not filled: %+v", i, in)
		}
		checkWire(t, r)
		prev = r.Hash
	}
}

// checkWire reads the wire form of a record as a client would.
func checkWire(t *testing.T, r *auditstore.Record) {
	t.Helper()
	if &r.Wire[0] != &r.Public[0] {
		t.Error("the public part does not alias the wire form")
	}
	b := r.Wire[len(r.Public):]
	var pos uint64
	fields := map[protowire.Number][]byte{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			t.Fatalf("trailer is not protobuf: %v", protowire.ParseError(n))
		}
		b = b[n:]
		if typ == protowire.VarintType {
			pos, n = protowire.ConsumeVarint(b)
			fields[num] = nil
		} else {
			fields[num], n = protowire.ConsumeBytes(b)
		}
		b = b[n:]
	}
	want := map[protowire.Number][]byte{
		auditstore.TrailerPosition: nil,
		auditstore.TrailerPrevHash: r.PrevHash[:],
		auditstore.TrailerHash:     r.Hash[:],
	}
	same(t, "trailer", fields, want)
	same(t, "position in the trailer", auditstore.Position(pos), r.Position)
}

func testConflict(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	stale := *c
	f.append(t, c, 2)
	_, err := f.log.Append(t.Context(), &stale, auditstore.Append{Records: Events(&stale, 1)})
	wantError(t, "append after an old head", err, auditstore.ErrConflict)
	forged := *c
	forged.HeadHash[0] ^= 1
	_, err = f.log.Append(t.Context(), &forged, auditstore.Append{Records: Events(&forged, 1)})
	wantError(t, "append after another hash", err, auditstore.ErrConflict)
	f.append(t, c, 1)
	same(t, "events", sequences(f.all(t, "a", 0)), span(1, 3))
}

func testAllOrNothing(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	stale := *c
	f.appendWith(t, c, auditstore.Append{Records: Events(c, 1), Row: []byte("row"), Put: [][]byte{[]byte("open/a")}})
	head := f.head(t)
	value := []byte("never stored")
	digest := sha256.Sum256(value)
	_, err := f.log.Append(t.Context(), &stale, auditstore.Append{
		Records: Events(&stale, 1), Row: []byte("other"), Body: []byte("body"),
		Put: [][]byte{[]byte("wake/a")}, Del: [][]byte{[]byte("open/a")},
		Shared: map[auditstore.Digest][]byte{digest: value},
	})
	wantError(t, "stale append", err, auditstore.ErrConflict)
	same(t, "head", f.head(t), head)
	same(t, "keys", f.keys(t, "", "", 0), []string{"open/a", "run/a"})
	rows, err := f.log.Rows(t.Context(), []byte("open/"), nil, 0)
	if err != nil || len(rows) != 1 || string(rows[0].Row) != "row" {
		t.Errorf("rows: %v, %v", rows, err)
	}
	if seq, body, err := f.log.Body(t.Context(), "a", 100); seq != 0 || body != nil || err != nil {
		t.Errorf("body: %d %q %v", seq, body, err)
	}
	_, err = f.log.Shared(t.Context(), digest)
	wantError(t, "shared value", err, auditstore.ErrNotFound)
}

func testInvalid(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	_, err := f.log.Append(t.Context(), c, auditstore.Append{Row: []byte("row")})
	wantError(t, "a run without an event", err, auditstore.ErrInvalid)
	f.append(t, c, 1)
	gap, twice, foreign := Events(c, 2), Events(c, 2), Events(c, 1)
	gap[1].Sequence++
	twice[1].Sequence--
	foreign[0].Run = "b"
	for name, a := range map[string]auditstore.Append{
		"gap in sequences":      {Records: gap},
		"sequence twice":        {Records: twice},
		"record of another run": {Records: foreign},
		"empty key":             {Records: Events(c, 1), Put: [][]byte{nil}},
		"key of the store":      {Records: Events(c, 1), Put: [][]byte{[]byte("run/b")}},
		"deletes run key":       {Records: Events(c, 1), Del: [][]byte{[]byte("run/a")}},
		"wrong digest":          {Records: Events(c, 1), Shared: map[auditstore.Digest][]byte{{1}: []byte("x")}},
		"body of the future":    {Records: Events(c, 1), Body: []byte("b"), BodySequence: 3},
	} {
		_, err := f.log.Append(t.Context(), c, a)
		wantError(t, name, err, auditstore.ErrInvalid)
	}
	f.append(t, c, 1)
	same(t, "events", sequences(f.all(t, "a", 0)), span(1, 2))
}

func testLimits(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	value := bytes.Repeat([]byte("s"), 64<<10)
	full := func() auditstore.Append {
		a := auditstore.Append{
			Records: Events(c, 2), Row: make([]byte, 100), Body: make([]byte, 64<<10),
			Shared: map[auditstore.Digest][]byte{sha256.Sum256(value): value},
		}
		for i := range auditstore.MaxKeys {
			a.Put = append(a.Put, fmt.Appendf(nil, "key/%02d", i))
		}
		size := len(a.Row) + len(a.Body) + len(value) + auditstore.MaxKeys*len(a.Put[0])
		a.Records[0].Private, a.Records[0].Salt = make([]byte, 64<<10), make([]byte, 16)
		size += len(a.Records[0].Public) + len(a.Records[0].Private) + len(a.Records[0].Salt)
		a.Records[1].Public = bytes.Repeat([]byte{1}, auditstore.MaxAppend-size)
		return a
	}
	over := full()
	over.Records[1].Public = append(over.Records[1].Public, 1)
	_, err := f.log.Append(t.Context(), c, over)
	wantError(t, "a byte over the largest append", err, auditstore.ErrTooLarge)
	over = full()
	over.Del = [][]byte{[]byte("k")}
	_, err = f.log.Append(t.Context(), c, over)
	wantError(t, "a key over the most", err, auditstore.ErrTooLarge)
	_, err = f.log.Append(t.Context(), c, auditstore.Append{Records: Events(c, 1), Put: [][]byte{make([]byte, auditstore.MaxKey+1)}})
	wantError(t, "a byte over the longest key", err, auditstore.ErrTooLarge)
	f.appendWith(t, c, full())
	if got := f.all(t, "a", 0); len(got) != 2 || len(got[1].Public) < auditstore.MaxAppend/2 {
		t.Errorf("read %d events back", len(got))
	}
	same(t, "number of keys", len(f.keys(t, "key/", "", 0)), auditstore.MaxKeys)
	f.appendWith(t, c, auditstore.Append{Records: Events(c, 1), Put: [][]byte{bytes.Repeat([]byte("k"), auditstore.MaxKey)}})

	wantError(t, "a byte over the largest chunk",
		f.blobs.Put(t.Context(), "a", "blob", 0, make([]byte, auditstore.MaxChunk+1)), auditstore.ErrTooLarge)
	if err := f.blobs.Put(t.Context(), "a", "blob", 0, make([]byte, auditstore.MaxChunk)); err != nil {
		t.Error(err)
	}
}

func testNoRecords(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	pos := f.append(t, c, 2)
	before := *c
	got := f.appendWith(t, c, auditstore.Append{Row: []byte("row"), Put: [][]byte{[]byte("wake/a")}, Body: []byte("body")})
	same(t, "position", got, pos)
	same(t, "claim", *c, before)
	same(t, "keys", f.keys(t, "wake/", "", 0), []string{"wake/a"})
	seq, body, err := f.log.Body(t.Context(), "a", 9)
	if seq != 2 || string(body) != "body" || err != nil {
		t.Errorf("body: %d %q %v", seq, body, err)
	}
}

func testCopies(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	a := auditstore.Append{
		Records: []auditstore.Record{{Sequence: 1, Public: []byte("public"), Private: []byte("private"), Salt: []byte("salt")}},
		Row:     []byte("row"), Put: [][]byte{[]byte("key/a")}, Body: []byte("body"),
	}
	f.appendWith(t, c, a)
	for _, b := range [][]byte{a.Records[0].Public, a.Records[0].Private, a.Records[0].Salt, a.Row, a.Put[0], a.Body} {
		clear(b)
	}
	got := f.all(t, "a", 0)
	if len(got) != 1 || string(got[0].Public) != "public" || string(got[0].Private) != "private" || string(got[0].Salt) != "salt" {
		t.Errorf("records changed with the caller's bytes: %+v", got)
	}
	same(t, "keys", f.keys(t, "key/", "", 0), []string{"key/a"})
	if _, body, _ := f.log.Body(t.Context(), "a", 1); string(body) != "body" {
		t.Errorf("body changed with the caller's bytes: %q", body)
	}
}

func testPrivate(t *testing.T, f *fixture) {
	c := f.claim(t, "a")
	records := Events(c, 4)
	records[1].Private, records[1].Salt = []byte("secret"), []byte("salt")
	records[2].Private = []byte{}
	f.appendWith(t, c, auditstore.Append{Records: records})
	f.append(t, c, 1)
	got := f.all(t, "a", 0)
	if len(got) != 5 {
		t.Fatalf("read %d events", len(got))
	}
	for i, want := range [][]byte{nil, []byte("secret"), {}, nil, nil} {
		if !bytes.Equal(got[i].Private, want) || (got[i].Private == nil) != (want == nil) || got[i].Erased {
			t.Errorf("private part %d: %q (nil %v), want %q (nil %v)", i, got[i].Private, got[i].Private == nil, want, want == nil)
		}
	}
	same(t, "salt", string(got[1].Salt), "salt")
}

func testPositions(t *testing.T, f *fixture) {
	const runs, each = 8, 25
	var wg sync.WaitGroup
	for i := range runs {
		c := f.claim(t, fmt.Sprintf("run-%d", i))
		wg.Go(func() {
			last := auditstore.Position(0)
			for n := range each {
				pos, err := f.log.Append(t.Context(), c, auditstore.Append{Records: Events(c, 1+n%3)})
				if err != nil {
					t.Error(err)
					return
				}
				if pos <= last {
					t.Errorf("position %d after %d", pos, last)
				}
				last = pos
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	// A reader beside the writers must see every append once and in order: what it
	// has passed must be complete.
	var seen []auditstore.Record
	after := auditstore.Cursor{}
	for finished := false; ; {
		page, next := f.read(t, "", after, 7)
		seen, after = append(seen, page...), next
		if len(page) > 0 {
			continue
		}
		if finished {
			break
		}
		select {
		case <-done:
			finished = true
		default:
		}
	}
	heads := map[string]uint64{}
	for i := range seen {
		r := &seen[i]
		if i > 0 && r.Position < seen[i-1].Position {
			t.Fatalf("position %d after %d", r.Position, seen[i-1].Position)
		}
		if i > 0 && r.Position == seen[i-1].Position && r.Run != seen[i-1].Run {
			t.Fatalf("two runs at position %d", r.Position)
		}
		if heads[r.Run]++; heads[r.Run] != r.Sequence {
			t.Fatalf("run %s: sequence %d, want %d", r.Run, r.Sequence, heads[r.Run])
		}
	}
	total := uint64(0)
	for n := range each {
		total += uint64(1 + n%3)
	}
	for run, n := range heads {
		same(t, "events of "+run, n, total)
	}
	same(t, "runs", len(heads), runs)
	same(t, "head", f.head(t), seen[len(seen)-1].Position)
	if !slices.IsSortedFunc(seen, func(a, b auditstore.Record) int { return int(a.Position) - int(b.Position) }) {
		t.Error("not in order of position")
	}
}
