package auditstore

import (
	"bytes"
	"encoding/binary"
	"slices"

	"go.etcd.io/bbolt"
)

// ref is one append in the index of its run.
type ref struct {
	first uint64 // sequence of its first event
	pos   Position
}

// chunkRefs is the most appends one value of bucket index holds: few enough that
// finding an event costs the same in a long run as in a short one.
const chunkRefs = 256

// tails is the index of the newest appends, by run: all that are not in bucket
// index yet, and those the ring holds. A slice in it is never changed, only
// extended or replaced, so that a reader may go on with the slice it took.
type tails map[string][]ref

// add notes an append.
func (t tails) add(run string, r ref) { t[run] = append(t[run], r) }

// trim forgets the appends at or before a position.
func (t tails) trim(floor Position) {
	for run, refs := range t {
		i, _ := slices.BinarySearchFunc(refs, floor+1, func(r ref, p Position) int { return compare(r.pos, p) })
		switch {
		case i == len(refs):
			delete(t, run)
		case i > 0:
			t[run] = slices.Clone(refs[i:])
		}
	}
}

func compare[T uint64 | Position](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// from returns the refs of the appends that hold the sequence and what follows.
// covered is false if an earlier append, not in refs, may hold it.
func from(refs []ref, sequence uint64) (_ []ref, covered bool) {
	i, exact := slices.BinarySearchFunc(refs, sequence, func(r ref, s uint64) int { return compare(r.first, s) })
	if exact {
		return refs[i:], true
	}
	if i == 0 {
		return refs, false
	}
	return refs[i-1:], true
}

// writeIndex puts all appends after the mark into bucket index.
func writeIndex(index *bbolt.Bucket, t tails, mark Position) error {
	for run, refs := range t {
		i, _ := slices.BinarySearchFunc(refs, mark+1, func(r ref, p Position) int { return compare(r.pos, p) })
		for chunk := range slices.Chunk(refs[i:], chunkRefs) {
			if err := index.Put(runKey(run, chunk[0].first), encodeChunk(chunk)); err != nil {
				return err
			}
		}
	}
	return nil
}

func encodeChunk(refs []ref) []byte {
	v := make([]byte, sumSize, sumSize+4*len(refs)+binary.MaxVarintLen64)
	v = binary.AppendUvarint(v, uint64(refs[0].pos))
	for i := 1; i < len(refs); i++ {
		v = binary.AppendUvarint(v, refs[i].first-refs[i-1].first)
		v = binary.AppendUvarint(v, uint64(refs[i].pos-refs[i-1].pos))
	}
	return seal(v)
}

// decodeChunk appends the refs of a chunk to dst.
func decodeChunk(dst []ref, first uint64, value []byte) ([]ref, bool) {
	data, ok := sealed(value)
	if !ok {
		return dst, false
	}
	d := decoder{data, true}
	r := ref{first, Position(d.uvarint())}
	dst = append(dst, r)
	for len(d.data) > 0 {
		r.first += d.uvarint()
		r.pos += Position(d.uvarint())
		dst = append(dst, r)
	}
	return dst, d.ok
}

// lookup returns up to limit refs of a run, from the append that holds the
// sequence, out of bucket index and then out of its tail. The tail must have been
// taken before the transaction began: what has left it since is in the bucket.
func lookup(tx *bbolt.Tx, run string, tail []ref, sequence uint64, limit int) ([]ref, error) {
	rest, covered := from(tail, sequence)
	if covered {
		return rest[:min(limit, len(rest))], nil
	}
	var refs []ref
	prefix := runPrefix(run)
	c := tx.Bucket(bucketIndex).Cursor()
	k, v := seekAtMost(c, prefix, runKey(run, sequence))
	if k == nil {
		k, v = c.Seek(prefix)
	}
	for ; bytes.HasPrefix(k, prefix); k, v = c.Next() {
		first := binary.BigEndian.Uint64(k[len(prefix):])
		if len(tail) > 0 && first >= tail[0].first {
			break
		}
		if len(refs) >= limit+chunkRefs { // the first chunk may begin that far ahead of the sequence
			tail = nil
			break
		}
		var ok bool
		if refs, ok = decodeChunk(refs, first, v); !ok {
			return nil, &CorruptError{Run: run, Sequence: first, Problem: "index entry damaged"}
		}
	}
	if len(tail) > 0 { // a chunk written since the tail was taken may reach into it
		i, _ := slices.BinarySearchFunc(refs, tail[0].first, func(r ref, s uint64) int { return compare(r.first, s) })
		refs = append(refs[:i], tail...)
	}
	refs, _ = from(refs, sequence)
	return refs[:min(limit, len(refs))], nil
}

// seekAtMost finds the largest key that is at most key and has the prefix.
func seekAtMost(c *bbolt.Cursor, prefix, key []byte) (k, v []byte) {
	k, v = c.Seek(key)
	if k == nil {
		k, v = c.Last()
	} else if !bytes.Equal(k, key) {
		k, v = c.Prev()
	}
	if len(k) != len(key) || !bytes.HasPrefix(k, prefix) {
		return nil, nil
	}
	return k, v
}

// lastRef returns the newest append of a run, false if it has none.
func lastRef(tx *bbolt.Tx, run string, tail []ref) (ref, bool, error) {
	if len(tail) > 0 {
		return tail[len(tail)-1], true, nil
	}
	prefix := runPrefix(run)
	k, v := seekAtMost(tx.Bucket(bucketIndex).Cursor(), prefix, runKey(run, 1<<64-1))
	if k == nil {
		return ref{}, false, nil
	}
	first := binary.BigEndian.Uint64(k[len(prefix):])
	refs, ok := decodeChunk(nil, first, v)
	if !ok {
		return ref{}, false, &CorruptError{Run: run, Sequence: first, Problem: "index entry damaged"}
	}
	return refs[len(refs)-1], true, nil
}
