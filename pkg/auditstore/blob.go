package auditstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"go.etcd.io/bbolt"
)

func blobPrefix(run, id string) []byte { return append(append(runPrefix(run), id...), 0) }

func blobKey(run, id string, n int) []byte {
	return binary.BigEndian.AppendUint32(blobPrefix(run, id), uint32(n))
}

// Put implements [Blobs].
func (s *Store) Put(ctx context.Context, run, id string, n int, chunk []byte) error {
	if err := CheckChunk(run, id, n, chunk); err != nil {
		return err
	}
	op := &putOp{run: run, id: id, n: n}
	op.value = seal(append(make([]byte, sumSize, sumSize+len(chunk)), chunk...))
	if err := s.do(ctx, op); err != nil {
		return fmt.Errorf("put chunk %d of blob %s of run %s: %w", n, id, run, err)
	}
	return nil
}

// CheckChunk refuses a chunk that no store takes, with [ErrInvalid] or
// [ErrTooLarge].
func CheckChunk(run, id string, n int, chunk []byte) error {
	if err := errFirst(CheckName("run", run), CheckName("blob", id)); err != nil {
		return err
	}
	if n < 0 || n > math.MaxInt32 {
		return fmt.Errorf("chunk %d of blob %s: %w", n, id, ErrInvalid)
	}
	if len(chunk) > MaxChunk {
		return fmt.Errorf("chunk of %d bytes, at most %d: %w", len(chunk), MaxChunk, ErrTooLarge)
	}
	return nil
}

type putOp struct {
	run, id string
	n       int
	value   []byte
}

func (op *putOp) size() int     { return len(op.value) }
func (op *putOp) reserve() bool { return false }

func (op *putOp) apply(b *batch) error {
	if op.n > 0 && b.bucket(blobs).Get(blobKey(op.run, op.id, op.n-1)) == nil {
		return fmt.Errorf("chunk %d is not there: %w", op.n-1, ErrConflict)
	}
	b.put(blobs, blobKey(op.run, op.id, op.n), op.value)
	return nil
}

// Get implements [Blobs].
func (s *Store) Get(ctx context.Context, run, id string, offset int64) (rest []byte, err error) {
	if offset < 0 {
		return nil, fmt.Errorf("offset %d of blob %s: %w", offset, id, ErrInvalid)
	}
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		prefix := blobPrefix(run, id)
		c := tx.Bucket(bucketBlobs).Cursor()
		k, v := c.Seek(prefix)
		if !bytes.HasPrefix(k, prefix) {
			return ErrNotFound
		}
		// Finding the chunk looks at the lengths of those before it, not at their bytes.
		for left := offset; bytes.HasPrefix(k, prefix); k, v = c.Next() {
			if size := int64(len(v) - sumSize); left >= size {
				left -= size
				continue
			}
			data, ok := sealed(v)
			if !ok {
				return ErrCorrupt
			}
			rest = append([]byte{}, data[left:]...)
			return nil
		}
		return io.EOF
	})
	if errors.Is(err, io.EOF) {
		return nil, io.EOF // as readers expect it, bare
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s of run %s at %d: %w", id, run, offset, err)
	}
	return rest, nil
}

// Drop implements [Blobs]. A large run is dropped in several transactions.
func (s *Store) Drop(ctx context.Context, run string) error {
	if err := CheckName("run", run); err != nil {
		return err
	}
	if err := s.removePrefix(ctx, blobs, runPrefix(run)); err != nil {
		return fmt.Errorf("drop blobs of run %s: %w", run, err)
	}
	return nil
}
