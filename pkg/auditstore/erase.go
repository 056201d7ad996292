package auditstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"
)

// Erasing and dropping remove this much in a transaction, so that the appends of
// other runs need not wait long.
const (
	removeKeys  = 1024
	removeBytes = 16 << 20
)

// Erase implements [Log]. A large run is erased in several transactions.
func (s *Store) Erase(ctx context.Context, run string) error {
	if err := CheckName("run", run); err != nil {
		return err
	}
	err := s.erasePrivate(ctx, run)
	if err == nil {
		err = s.removePrefix(ctx, bodies, runPrefix(run))
	}
	if err == nil {
		err = s.removePrefix(ctx, blobs, runPrefix(run))
	}
	if err != nil {
		return fmt.Errorf("erase run %s: %w", run, err)
	}
	return nil
}

// erasePrivate removes the private parts of a run, along its index.
func (s *Store) erasePrivate(ctx context.Context, run string) error {
	for next := uint64(1); ; {
		s.mu.RLock()
		tail := s.tails[run]
		s.mu.RUnlock()
		op := &removeOp{table: private}
		done := false
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			refs, err := lookup(tx, run, tail, next, removeKeys)
			if err != nil || len(refs) == 0 {
				done = true
				return err
			}
			parts := tx.Bucket(bucketPrivate)
			for _, r := range refs {
				if key := be64(uint64(r.pos)); parts.Get(key) != nil {
					op.keys = append(op.keys, key)
				}
			}
			last, err := getAppend(tx.Bucket(bucketAppends), run, refs[len(refs)-1].pos)
			if err != nil {
				return err
			}
			done = next > last.last() // lookup gives the append that ends before next, if it is the last
			next = last.last() + 1
			return nil
		})
		if err == nil && len(op.keys) > 0 {
			err = s.do(ctx, op)
		}
		if err != nil || done {
			return err
		}
	}
}

// removePrefix removes all keys of a bucket that begin with a prefix.
func (s *Store) removePrefix(ctx context.Context, t table, prefix []byte) error {
	for {
		op := &removeOp{table: t}
		err := s.view(ctx, func(tx *bbolt.Tx) error {
			c, size := tx.Bucket(tableNames[t]).Cursor(), 0
			for k, v := c.Seek(prefix); bytes.HasPrefix(k, prefix) && len(op.keys) < removeKeys && size < removeBytes; k, v = c.Next() {
				op.keys = append(op.keys, bytes.Clone(k))
				size += len(v)
			}
			return nil
		})
		if err != nil || len(op.keys) == 0 {
			return err
		}
		if err := s.do(ctx, op); err != nil {
			return err
		}
	}
}

// removeOp deletes keys that were collected before: bbolt skips keys if a cursor
// deletes as it goes. It needs no space to speak of, and makes some.
type removeOp struct {
	table table
	keys  [][]byte
}

func (op *removeOp) size() int     { return 0 }
func (op *removeOp) reserve() bool { return true }

func (op *removeOp) apply(b *batch) error {
	for _, key := range op.keys {
		b.delete(op.table, key)
		if op.table == private {
			b.erased = append(b.erased, Position(binary.BigEndian.Uint64(key)))
		}
	}
	return nil
}
