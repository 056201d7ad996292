package auditstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// maxPageCheck is the largest file whose pages are all checked after a crash;
// that takes about half a second. A larger one is opened without: its newest
// appends are checked, and damage elsewhere is found when it is read.
const maxPageCheck = 1 << 30

// advice is what an operator can do about a damaged file.
const advice = "restore a backup, or look at it with 'bbolt check'; if only the last commit is damaged, " +
	"'bbolt surgery revert-meta-page' on a copy goes back to the one before"

func boltOpenError(path string, err error) error {
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%s: a process that ignores the lock file has it open, stop that one first: %w", path, ErrLocked)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		return fmt.Errorf("%s: %w; %s: %w", path, err, advice, ErrCorrupt)
	}
	return fmt.Errorf("%s: %w", path, err)
}

// checkFormat refuses a file that this version did not write, and returns the
// bucket meta of one that it did.
func checkFormat(tx *bbolt.Tx) (*bbolt.Bucket, error) {
	meta := tx.Bucket(bucketMeta)
	if meta == nil {
		return nil, fmt.Errorf("not a log of runs: %w", ErrFormat)
	}
	v := meta.Get(metaFormat)
	if len(v) != 4 {
		return nil, fmt.Errorf("not a log of runs: %w", ErrFormat)
	}
	if n := binary.BigEndian.Uint32(v); n != formatVersion {
		return nil, fmt.Errorf("the file has format %d, this program knows format %d, use the program that wrote it or a newer one: %w",
			n, formatVersion, ErrFormat)
	}
	for _, name := range buckets {
		if tx.Bucket(name) == nil {
			return nil, fmt.Errorf("bucket %s is missing; %s: %w", name, advice, ErrCorrupt)
		}
	}
	return meta, nil
}

// recoverTails reads the appends that are not in bucket index, checks their
// chains and notes them. It finds the newest position.
func (s *Store) recoverTails(tx *bbolt.Tx) error {
	type end struct {
		sequence uint64
		hash     Digest
	}
	ends := map[string]end{}
	s.head = s.indexed
	var records []Record
	c := tx.Bucket(bucketAppends).Cursor()
	for k, v := c.Seek(be64(uint64(s.indexed) + 1)); k != nil; k, v = c.Next() {
		if len(k) != 8 || Position(binary.BigEndian.Uint64(k)) != s.head+1 {
			return fmt.Errorf("position %d is missing; %s: %w", s.head+1, advice, ErrCorrupt)
		}
		pos := s.head + 1
		h, ok := decodeHeader(v)
		if !ok {
			return &CorruptError{Position: pos, Problem: "header damaged; " + advice}
		}
		run := string(h.run)
		e, seen := ends[run]
		if !seen {
			old, err := loadHead(tx, run, nil)
			if err != nil {
				return err
			}
			e = end{old.sequence, old.hash}
		}
		if records, ok = h.records(records[:0], run, pos, 0); !ok || h.first != e.sequence+1 || h.prev != e.hash {
			return &CorruptError{Run: run, Sequence: h.first, Position: pos, Problem: "does not follow the event before; " + advice}
		}
		for i := range records {
			r := &records[i]
			if Hash(r.PrevHash, r.Public) != r.Hash {
				return &CorruptError{Run: run, Sequence: r.Sequence, Position: pos, Problem: "hash is wrong; " + advice}
			}
			e = end{r.Sequence, r.Hash}
		}
		ends[run] = e
		s.tails.add(run, ref{h.first, pos})
		s.head = pos
	}
	if s.head > s.indexed {
		return nil
	}
	if k, _ := c.Last(); k == nil && s.indexed > 0 || k != nil && Position(binary.BigEndian.Uint64(k)) != s.indexed {
		return fmt.Errorf("the newest append should be at position %d; %s: %w", s.indexed, advice, ErrCorrupt)
	}
	return nil
}
