package auditstoretest

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// Harness is one fresh store under test.
type Harness struct {
	Log   auditstore.Log
	Blobs auditstore.Blobs
	// Reopen closes the store and opens it again on the same data. nil: the store
	// does not outlive its process.
	Reopen func(t *testing.T) (auditstore.Log, auditstore.Blobs)
}

// Run runs the suite. open returns a fresh, empty store; it registers what closes
// it with t.Cleanup. After each test the hash chains of all runs are verified.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	tests := []struct {
		name string
		test func(*testing.T, *fixture)
	}{
		{"claim hands out growing epochs", testClaim},
		{"claim fences an older owner", testFence},
		{"claim fences an append in flight", testFenceInFlight},
		{"append moves the head and fills the records", testAppend},
		{"append after a moved head conflicts", testConflict},
		{"append is all or nothing", testAllOrNothing},
		{"append refuses broken calls", testInvalid},
		{"append keeps within its limits", testLimits},
		{"append without records changes the rest", testNoRecords},
		{"append copies what it is given", testCopies},
		{"private parts come back as they were", testPrivate},
		{"positions order all runs", testPositions},
		{"read pages through all runs", testReadAll},
		{"read pages through one run", testReadRun},
		{"rows come by key", testRows},
		{"rows follow their run", testRowValues},
		{"wait returns after an append", testWait},
		{"bodies are found by sequence", testBodies},
		{"shared values are kept once", testShared},
		{"blobs come in chunks", testBlobs},
		{"erase keeps the chain", testErase},
		{"an ended context changes nothing", testContext},
		{"reopening loses nothing", testReopen},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			f := &fixture{h.Log, h.Blobs, h.Reopen}
			defer f.verify(t) // before anything is closed
			tt.test(t, f)
		})
	}
}

// fixture is the store of one test with what tests do to it.
type fixture struct {
	log    auditstore.Log
	blobs  auditstore.Blobs
	reopen func(t *testing.T) (auditstore.Log, auditstore.Blobs)
}

// verify fails the test if a chain is broken, whatever the test did.
func (f *fixture) verify(t *testing.T) {
	t.Helper()
	findings, err := auditstore.Verify(context.Background(), f.log, "", auditstore.Cursor{}, nil)
	if err != nil {
		t.Errorf("verify: %v", err)
	}
	for _, finding := range findings {
		t.Errorf("verify: %v", finding)
	}
}

func (f *fixture) claim(t *testing.T, run string) *auditstore.Claim {
	t.Helper()
	c, err := f.log.Claim(t.Context(), run, "owner", 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// append adds n events and fails the test if it cannot.
func (f *fixture) append(t *testing.T, c *auditstore.Claim, n int) auditstore.Position {
	t.Helper()
	return f.appendWith(t, c, auditstore.Append{Records: Events(c, n)})
}

func (f *fixture) appendWith(t *testing.T, c *auditstore.Claim, a auditstore.Append) auditstore.Position {
	t.Helper()
	pos, err := f.log.Append(t.Context(), c, a)
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

func (f *fixture) head(t *testing.T) auditstore.Position {
	t.Helper()
	pos, err := f.log.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return pos
}

// read returns one page.
func (f *fixture) read(t *testing.T, run string, after auditstore.Cursor, limit int) ([]auditstore.Record, auditstore.Cursor) {
	t.Helper()
	page, next, err := f.log.Read(t.Context(), auditstore.Scope{Run: run}, after, limit)
	if err != nil {
		t.Fatal(err)
	}
	return page, next
}

// all reads everything in a scope, page by page.
func (f *fixture) all(t *testing.T, run string, limit int) []auditstore.Record {
	t.Helper()
	var all []auditstore.Record
	for after := (auditstore.Cursor{}); ; {
		page, next := f.read(t, run, after, limit)
		if len(page) == 0 {
			if next != after {
				t.Errorf("an empty page moved the cursor from %v to %v", after, next)
			}
			return all
		}
		all, after = append(all, page...), next
	}
}

// keys returns the keys of a page of rows.
func (f *fixture) keys(t *testing.T, prefix, after string, limit int) []string {
	t.Helper()
	var from []byte
	if after != "" {
		from = []byte(after)
	}
	rows, err := f.log.Rows(t.Context(), []byte(prefix), from, limit)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, r := range rows {
		keys = append(keys, string(r.Key))
	}
	return keys
}

// Events returns the n records that come next for a claim, each with the bytes of
// a small protobuf message.
func Events(c *auditstore.Claim, n int) []auditstore.Record {
	records := make([]auditstore.Record, n)
	for i := range records {
		seq := c.Head + 1 + uint64(i)
		records[i] = auditstore.Record{Sequence: seq, Public: event(c.Run, seq)}
	}
	return records
}

func event(run string, seq uint64) []byte {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, fmt.Sprintf("event %d of run %s", seq, run))
	b = protowire.AppendTag(b, 2, protowire.VarintType)
	return protowire.AppendVarint(b, seq)
}

// same fails the test if two values differ.
func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// sequences returns the sequences of records.
func sequences(records []auditstore.Record) []uint64 {
	var s []uint64
	for _, r := range records {
		s = append(s, r.Sequence)
	}
	return s
}

// span returns the numbers from a to b.
func span(a, b uint64) []uint64 {
	var s []uint64
	for i := a; i <= b; i++ {
		s = append(s, i)
	}
	return s
}
