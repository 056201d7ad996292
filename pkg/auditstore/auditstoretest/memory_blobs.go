package auditstoretest

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// Put implements [auditstore.Blobs].
func (m *Memory) Put(ctx context.Context, run, id string, n int, chunk []byte) error {
	if err := auditstore.CheckChunk(run, id, n, chunk); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.meet(ctx, OpPut, run)
	if err != nil {
		return err
	}
	r := m.run(run)
	chunks := r.blobs[id]
	switch {
	case f == Full:
		return fmt.Errorf("put blob %s of run %s: %w", id, run, auditstore.ErrFull)
	case n > len(chunks):
		return fmt.Errorf("put blob %s of run %s: chunk %d is not there: %w", id, run, n-1, auditstore.ErrConflict)
	case n == len(chunks):
		r.blobs[id] = append(chunks, bytes.Clone(chunk))
	default:
		chunks[n] = bytes.Clone(chunk)
	}
	return after(f, OpPut, run)
}

// Get implements [auditstore.Blobs].
func (m *Memory) Get(ctx context.Context, run, id string, offset int64) ([]byte, error) {
	if offset < 0 {
		return nil, fmt.Errorf("offset %d of blob %s: %w", offset, id, auditstore.ErrInvalid)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.meet(ctx, OpGet, run); err != nil {
		return nil, err
	}
	r := m.runs[run]
	if r == nil || r.blobs[id] == nil {
		return nil, fmt.Errorf("blob %s of run %s: %w", id, run, auditstore.ErrNotFound)
	}
	for _, chunk := range r.blobs[id] {
		if offset < int64(len(chunk)) {
			return bytes.Clone(chunk[offset:]), nil
		}
		offset -= int64(len(chunk))
	}
	return nil, io.EOF
}

// Drop implements [auditstore.Blobs].
func (m *Memory) Drop(ctx context.Context, run string) error {
	if err := auditstore.CheckName("run", run); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.meet(ctx, OpDrop, run)
	if err != nil {
		return err
	}
	if r := m.runs[run]; r != nil {
		clear(r.blobs)
	}
	return after(f, OpDrop, run)
}
