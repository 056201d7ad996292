package auditstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"go.etcd.io/bbolt"
)

// pageBytes ends a page: events after it come with the next one.
const pageBytes = 4 << 20

// page collects events up to its limits.
type page struct {
	records []Record
	limit   int
	bytes   int
}

func newPage(limit int) *page { return &page{limit: pageLimit(limit)} }

func pageLimit(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

func (p *page) full() bool { return len(p.records) >= p.limit || p.bytes >= pageBytes }

// add takes the records of one append with a sequence larger than after. A page of
// one append, which is what a reader at the head gets, shares them.
func (p *page) add(records []Record, after uint64) {
	for len(records) > 0 && records[0].Sequence <= after {
		records = records[1:]
	}
	for i := range records {
		p.bytes += len(records[i].Wire) + len(records[i].Private)
	}
	if len(p.records) == 0 {
		p.records = slices.Clip(records) // whatever follows makes a copy
		return
	}
	p.records = append(p.records, records...)
}

// end returns the page and the cursor after it.
func (p *page) end(after Cursor) ([]Record, Cursor, error) {
	if len(p.records) == 0 {
		return nil, after, nil
	}
	last := &p.records[len(p.records)-1]
	return p.records, Cursor{last.Position, last.Sequence}, nil
}

// Read implements [Log]. A page ends early at 4 MiB.
func (s *Store) Read(ctx context.Context, scope Scope, after Cursor, limit int) ([]Record, Cursor, error) {
	if err := s.check(ctx); err != nil {
		return nil, after, err
	}
	p := newPage(limit)
	var err error
	if scope.Run == "" {
		err = s.readAll(ctx, p, after.Position)
	} else if after.Sequence < math.MaxUint64 {
		err = s.readRun(ctx, p, scope.Run, after.Sequence)
	}
	if err != nil && len(p.records) == 0 {
		return nil, after, fmt.Errorf("read events: %w", err)
	}
	return p.end(after) // what was read is good; the error comes again with the next page
}

// readAll reads appends in the order of their positions.
func (s *Store) readAll(ctx context.Context, p *page, after Position) error {
	s.mu.RLock()
	if after >= s.head {
		s.mu.RUnlock()
		return nil
	}
	if newest, ok := s.ring.after(after); ok {
		defer s.mu.RUnlock()
		for _, records := range newest {
			if p.full() {
				break
			}
			p.add(records, 0)
		}
		return nil
	}
	s.mu.RUnlock()
	return s.view(ctx, func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketAppends).Cursor()
		for k, v := c.Seek(be64(uint64(after) + 1)); k != nil && !p.full(); k, v = c.Next() {
			pos := Position(binary.BigEndian.Uint64(k))
			h, ok := decodeHeader(v)
			if !ok {
				return &CorruptError{Position: pos, Problem: "header damaged"}
			}
			if err := p.addStored(tx, string(h.run), &h, pos, 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// readRun reads the events of one run.
func (s *Store) readRun(ctx context.Context, p *page, run string, after uint64) error {
	s.mu.RLock()
	version := s.head
	if h, ok := s.heads[run]; ok && after >= h.sequence {
		s.mu.RUnlock()
		return nil
	}
	tail := s.tails[run]
	if refs, covered := from(tail, after+1); covered && s.ring.at(refs[0].pos) != nil {
		defer s.mu.RUnlock()
		for _, r := range refs {
			if p.full() {
				break
			}
			p.add(s.ring.at(r.pos), after)
		}
		return nil
	}
	s.mu.RUnlock()
	return s.view(ctx, func(tx *bbolt.Tx) error {
		refs, err := lookup(tx, run, tail, after+1, p.limit+1)
		if err != nil {
			return err
		}
		appends := tx.Bucket(bucketAppends)
		for i, r := range refs {
			if p.full() {
				break
			}
			h, err := getAppend(appends, run, r.pos)
			if err == nil {
				err = p.addStored(tx, run, &h, r.pos, after)
			}
			if damage, ok := errors.AsType[*CorruptError](err); ok {
				damage.Sequence = r.first
				if i+1 < len(refs) {
					damage.Last = refs[i+1].first - 1
				}
			}
			if err != nil {
				return err
			}
		}
		if len(p.records) == 0 && len(refs) > 0 {
			return s.learn(tx, run, tail, version)
		}
		return nil
	})
}

// learn remembers the head of a run whose end was read, so that a reader who
// waits there is not sent to the file each time another run moves on. version is
// the newest position before the tail was taken: if that has changed, so may the
// head.
func (s *Store) learn(tx *bbolt.Tx, run string, tail []ref, version Position) error {
	h, err := loadHead(tx, run, tail)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.heads[run]; !known && s.head == version {
		s.remember(map[string]head{run: h})
	}
	return nil
}

// addStored takes an append out of the file.
func (p *page) addStored(tx *bbolt.Tx, run string, h *header, pos Position, after uint64) error {
	n := len(p.records)
	records, ok := h.records(p.records, run, pos, after)
	if !ok {
		return &CorruptError{Run: run, Sequence: h.first, Position: pos, Problem: "sizes damaged"}
	}
	p.records = records
	added := records[n:]
	if len(added) == 0 {
		return nil
	}
	if v := tx.Bucket(bucketPrivate).Get(be64(uint64(pos))); v != nil {
		all := make([]Record, h.count)
		if !decodePrivate(bytes.Clone(v), all) {
			p.records = records[:n]
			return &CorruptError{Run: run, Sequence: h.first, Position: pos, Problem: "private parts damaged"}
		}
		for i := range added {
			from := &all[h.count-len(added)+i]
			added[i].Private, added[i].Salt, added[i].Erased = from.Private, from.Salt, false
		}
	}
	for i := range added {
		p.bytes += len(added[i].Wire) + len(added[i].Private)
	}
	return nil
}

// Rows implements [Log].
func (s *Store) Rows(ctx context.Context, prefix, after []byte, limit int) ([]Row, error) {
	limit = pageLimit(limit)
	var found []Row
	err := s.view(ctx, func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketKeys).Cursor()
		start := prefix
		if bytes.Compare(after, prefix) >= 0 && after != nil {
			start = append(bytes.Clone(after), 0) // the next key there can be
		}
		size := 0
		for k, v := c.Seek(start); k != nil && bytes.HasPrefix(k, prefix) && len(found) < limit && size < pageBytes; k, v = c.Next() {
			run := string(v)
			row, ok, damage := getRow(tx, run)
			if !ok && damage == nil {
				damage = &CorruptError{Run: run, Problem: fmt.Sprintf("key %q leads to a run without a row", k)}
			}
			found = append(found, Row{Key: bytes.Clone(k), Run: run, Row: bytes.Clone(row.row), Epoch: row.epoch, Damage: damage})
			size += len(k) + len(row.row)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read rows under %q: %w", prefix, err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for i := range found { // claims that have not written anything yet
		found[i].Epoch = max(found[i].Epoch, s.heads[found[i].Run].epoch)
	}
	return found, nil
}

// Wait implements [Log].
func (s *Store) Wait(ctx context.Context, after Position) (Position, error) {
	for {
		if err := s.check(ctx); err != nil {
			return 0, err
		}
		s.mu.Lock()
		head := s.head
		if s.wake == nil {
			s.wake = make(chan struct{})
		}
		wake := s.wake
		s.mu.Unlock()
		if head > after {
			return head, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
		case <-s.closed:
		case <-s.poisoned:
		}
	}
}

// Head implements [Log].
func (s *Store) Head(ctx context.Context) (Position, error) {
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.head, nil
}

// Shared implements [Log].
func (s *Store) Shared(ctx context.Context, d Digest) (value []byte, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucketShared).Get(d[:])
		if v == nil {
			return ErrNotFound
		}
		value = append([]byte{}, v...)
		return nil
	})
	if err == nil && sha256.Sum256(value) != d {
		err = ErrCorrupt
	}
	if err != nil {
		return nil, fmt.Errorf("shared value %x: %w", d, err)
	}
	return value, nil
}

// Body implements [Log].
func (s *Store) Body(ctx context.Context, run string, atMost uint64) (sequence uint64, body []byte, err error) {
	err = s.view(ctx, func(tx *bbolt.Tx) error {
		prefix := runPrefix(run)
		k, v := seekAtMost(tx.Bucket(bucketBodies).Cursor(), prefix, runKey(run, atMost))
		if k == nil {
			return nil
		}
		sequence = binary.BigEndian.Uint64(k[len(prefix):])
		data, ok := sealed(v)
		if !ok {
			return &CorruptError{Run: run, Sequence: sequence, Problem: "checkpoint body damaged"}
		}
		body = append([]byte{}, data...)
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("checkpoint body of run %s at %d: %w", run, atMost, err)
	}
	return sequence, body, nil
}
