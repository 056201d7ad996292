package auditstore

import (
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// batch is one transaction in the making. Nothing outside of it knows of its
// changes before publish.
type batch struct {
	s       *Store
	tx      *bbolt.Tx
	opened  [len(tableNames)]*bbolt.Bucket
	next    Position
	heads   map[string]head // changed
	added   []*appendOp
	erased  []Position
	indexed Position // 0: the index was not written
	wrote   bool
	err     error // a put failed: nothing of this batch can be kept
	key     []byte
}

// table names a bucket that batches write to.
type table int

const (
	appends table = iota
	private
	rows
	keys
	bodies
	shared
	blobs
)

var tableNames = [...][]byte{bucketAppends, bucketPrivate, bucketRows, bucketKeys, bucketBodies, bucketShared, bucketBlobs}

func newBatch(s *Store, tx *bbolt.Tx) *batch {
	return &batch{s: s, tx: tx, next: s.head + 1, heads: make(map[string]head, 8)}
}

func (b *batch) bucket(t table) *bbolt.Bucket {
	if b.opened[t] == nil {
		b.opened[t] = b.tx.Bucket(tableNames[t])
		if t == appends || t == private {
			b.opened[t].FillPercent = 0.95 // they only grow at the right edge
		}
	}
	return b.opened[t]
}

func (b *batch) put(t table, key, value []byte) {
	b.wrote = true
	if err := b.bucket(t).Put(key, value); err != nil && b.err == nil {
		b.err = fmt.Errorf("put into %s: %w", tableNames[t], err)
	}
}

func (b *batch) delete(t table, key []byte) {
	b.wrote = true
	if err := b.bucket(t).Delete(key); err != nil && b.err == nil {
		b.err = fmt.Errorf("delete from %s: %w", tableNames[t], err)
	}
}

// writeIndex brings bucket index up to the appends committed so far.
func (b *batch) writeIndex() {
	b.wrote, b.indexed = true, b.s.head
	err := writeIndex(b.tx.Bucket(bucketIndex), b.s.tails, b.s.indexed)
	if err == nil {
		err = b.tx.Bucket(bucketMeta).Put(metaIndexed, be64(uint64(b.indexed)))
	}
	if err != nil {
		b.err = fmt.Errorf("write the index: %w", err)
	}
}

// head returns where a run stands within this batch.
func (b *batch) head(run string) (head, error) {
	if h, ok := b.heads[run]; ok {
		return h, nil
	}
	b.s.mu.RLock()
	h, ok := b.s.heads[run]
	b.s.mu.RUnlock()
	if ok {
		return h, nil
	}
	return loadHead(b.tx, run, b.s.tails[run])
}

// publish shows a committed batch to readers.
func (s *Store) publish(b *batch, took time.Duration) {
	for _, a := range b.added {
		a.enc.place(a.pos)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.wrote {
		s.stats.commit(took)
	}
	for _, a := range b.added {
		pos := a.pos
		s.tails.add(a.claim.Run, ref{a.in.Records[0].Sequence, pos})
		s.ring.push(pos, a.enc.records)
		s.stats.Appends++
		s.stats.Events += uint64(len(a.enc.records))
		s.stats.Bytes += uint64(len(a.enc.value) + len(a.enc.private))
	}
	for _, pos := range b.erased {
		s.ring.erase(pos)
	}
	s.head = b.next - 1
	s.remember(b.heads)
	if b.indexed > 0 {
		s.indexed = b.indexed
		s.tails.trim(min(s.indexed, s.ring.first-1))
	}
	if len(b.added) > 0 && s.wake != nil {
		close(s.wake)
		s.wake = nil
	}
}
