package auditstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// Memory is a log and its blobs in memory. It keeps every rule of the port, and
// misbehaves as its [Faults] say, within what the port allows.
type Memory struct {
	faults Faults

	mu      sync.Mutex
	opens   auditstore.Epoch // after the first
	appends []entry          // position is index + 1
	runs    map[string]*memRun
	keys    map[string]string
	shared  map[auditstore.Digest][]byte
	wake    chan struct{}
	late    []lateAppend
	refused int
}

type entry struct {
	run     string
	records []auditstore.Record
}

type memRun struct {
	appends []int // indexes
	head    uint64
	hash    auditstore.Digest
	epoch   auditstore.Epoch
	owner   string
	from    auditstore.Epoch
	row     []byte
	bodies  map[uint64][]byte
	blobs   map[string][][]byte
}

type lateAppend struct {
	claim   auditstore.Claim
	append  auditstore.Append
	refused bool
}

var (
	_ auditstore.Log   = (*Memory)(nil)
	_ auditstore.Blobs = (*Memory)(nil)
)

// NewMemory returns an empty log. nil faults: none.
func NewMemory(faults Faults) *Memory {
	return &Memory{
		faults: faults,
		runs:   map[string]*memRun{},
		keys:   map[string]string{},
		shared: map[auditstore.Digest][]byte{},
		wake:   make(chan struct{}),
	}
}

// LateRefused returns how many late appends were refused.
func (m *Memory) LateRefused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused
}

// Steal claims a run for another owner, whatever its newest epoch is.
func (m *Memory) Steal(run, owner string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.steal(run, owner)
}

func (m *Memory) steal(run, owner string) {
	r := m.run(run)
	m.take(r, owner, r.epoch)
}

// Reopen is what the log sees when its process ends and another one begins: later
// claims belong to a later start. It loses nothing.
func (m *Memory) Reopen() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opens++
}

// take makes owner the newest to claim the run.
func (m *Memory) take(r *memRun, owner string, from auditstore.Epoch) {
	r.epoch, r.owner, r.from = max(r.epoch, (m.opens+1)<<32)+1, owner, from
}

func (m *Memory) run(name string) *memRun {
	r := m.runs[name]
	if r == nil {
		r = &memRun{bodies: map[uint64][]byte{}, blobs: map[string][][]byte{}}
		m.runs[name] = r
	}
	return r
}

// meet asks for the fault of a call, and returns the error if the call ends with it.
// Called with mu held.
func (m *Memory) meet(ctx context.Context, op Op, run string) (f Fault, err error) {
	if err := ctx.Err(); err != nil {
		return None, err
	}
	if m.faults != nil {
		f = m.faults(op, run)
	}
	if !f.meets(op) {
		f = None
	}
	switch f {
	case Unavailable:
		err = auditstore.ErrUnavailable
	case UnknownLost:
		err = auditstore.ErrUnknown
	case Stolen:
		m.steal(run, "thief")
		err = auditstore.ErrFenced
	default: // what the caller sees to
	}
	if err != nil {
		err = fmt.Errorf("%s %s: %w", op, run, err)
	}
	return f, err
}

// after is what a call answers that went through.
func after(f Fault, op Op, run string) error {
	if f == UnknownWritten {
		return fmt.Errorf("%s %s: %w", op, run, auditstore.ErrUnknown)
	}
	return nil
}

// Claim implements [auditstore.Log].
func (m *Memory) Claim(ctx context.Context, run, owner string, from auditstore.Epoch) (*auditstore.Claim, error) {
	if err := errors.Join(auditstore.CheckName("run", run), auditstore.CheckName("owner", owner)); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.meet(ctx, OpClaim, run)
	if err != nil {
		return nil, err
	}
	r := m.run(run)
	if from != r.epoch && (owner != r.owner || from != r.from) {
		return nil, fmt.Errorf("claim run %s from %#x: %w", run, uint64(from), auditstore.ErrFenced)
	}
	m.arrive(run, false)
	m.take(r, owner, from)
	m.arrive(run, true)
	if err := after(f, OpClaim, run); err != nil {
		return nil, err
	}
	return &auditstore.Claim{Run: run, Owner: owner, Epoch: r.epoch, Head: r.head, HeadHash: r.hash}, nil
}

// arrive lets the late appends of a run arrive that come before a claim, or after.
func (m *Memory) arrive(run string, afterClaim bool) {
	m.late = slices.DeleteFunc(m.late, func(l lateAppend) bool {
		if l.claim.Run != run || l.refused != afterClaim {
			return false
		}
		if _, err := m.write(&l.claim, &l.append); err != nil {
			m.refused++
		}
		return true
	})
}

// Append implements [auditstore.Log].
func (m *Memory) Append(ctx context.Context, c *auditstore.Claim, a auditstore.Append) (auditstore.Position, error) {
	if err := auditstore.CheckAppend(c, &a); err != nil {
		return 0, fmt.Errorf("append to run %s: %w", c.Run, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.meet(ctx, OpAppend, c.Run)
	if err != nil {
		return 0, err
	}
	switch f {
	case Full:
		if !a.Reserve {
			return 0, fmt.Errorf("append to run %s: %w", c.Run, auditstore.ErrFull)
		}
	case LateWritten, LateRefused:
		m.late = append(m.late, lateAppend{*c, cloneAppend(&a), f == LateRefused})
		return 0, fmt.Errorf("append to run %s: %w", c.Run, auditstore.ErrUnknown)
	case UnknownWritten:
		late := *c // the caller's claim must not move
		c = &late
	default: // it goes through
	}
	if c.Epoch.Start() != uint64(m.opens)+1 { // claimed by an earlier process
		return 0, fmt.Errorf("append to run %s: %w", c.Run, auditstore.ErrFenced)
	}
	pos, err := m.write(c, &a)
	if err != nil {
		return 0, fmt.Errorf("append to run %s: %w", c.Run, err)
	}
	return pos, after(f, OpAppend, c.Run)
}

// cloneAppend copies what the caller may change once its call has returned.
func cloneAppend(a *auditstore.Append) auditstore.Append {
	c := *a
	c.Records = slices.Clone(a.Records)
	for i := range c.Records {
		r := &c.Records[i]
		r.Public, r.Private, r.Salt = bytes.Clone(r.Public), bytes.Clone(r.Private), bytes.Clone(r.Salt)
	}
	c.Row, c.Body = bytes.Clone(a.Row), bytes.Clone(a.Body)
	c.Put, c.Del = cloneKeys(a.Put), cloneKeys(a.Del)
	c.Shared = maps.Clone(a.Shared)
	for d, v := range c.Shared {
		c.Shared[d] = bytes.Clone(v)
	}
	return c
}

func cloneKeys(keys [][]byte) [][]byte {
	keys = slices.Clone(keys)
	for i := range keys {
		keys[i] = bytes.Clone(keys[i])
	}
	return keys
}

// write appends if the claim holds, and moves it.
func (m *Memory) write(c *auditstore.Claim, a *auditstore.Append) (auditstore.Position, error) {
	r := m.run(c.Run)
	if c.Epoch != r.epoch {
		return 0, auditstore.ErrFenced
	}
	if c.Head != r.head || c.HeadHash != r.hash {
		return 0, auditstore.ErrConflict
	}
	if r.head == 0 {
		m.keys[auditstore.RunPrefix+c.Run] = c.Run
	}
	if len(a.Records) > 0 {
		m.writeRecords(c, r, a.Records)
	}
	if a.Row != nil {
		r.row = bytes.Clone(a.Row)
	}
	for _, k := range a.Del {
		if m.keys[string(k)] == c.Run {
			delete(m.keys, string(k))
		}
	}
	for _, k := range a.Put {
		m.keys[string(k)] = c.Run
	}
	if a.Body != nil {
		seq := a.BodySequence
		if seq == 0 {
			seq = r.head
		}
		r.bodies[seq] = bytes.Clone(a.Body)
	}
	for d, v := range a.Shared {
		if _, ok := m.shared[d]; !ok {
			m.shared[d] = bytes.Clone(v)
		}
	}
	return auditstore.Position(len(m.appends)), nil
}

func (m *Memory) writeRecords(c *auditstore.Claim, r *memRun, in []auditstore.Record) {
	pos := auditstore.Position(len(m.appends) + 1)
	records := make([]auditstore.Record, len(in))
	for i := range in {
		rec := &in[i]
		rec.Run, rec.Position = c.Run, pos
		rec.PrevHash, rec.Hash = r.hash, auditstore.Hash(r.hash, rec.Public)
		r.head, r.hash = rec.Sequence, rec.Hash

		out := *rec
		out.Wire = auditstore.AppendTrailer(bytes.Clone(rec.Public), pos, rec.PrevHash, rec.Hash)
		out.Public = out.Wire[:len(rec.Public):len(rec.Public)]
		out.Private, out.Salt = bytes.Clone(rec.Private), nil
		if len(rec.Salt) > 0 {
			out.Salt = bytes.Clone(rec.Salt)
		}
		records[i] = out
	}
	r.appends = append(r.appends, len(m.appends))
	m.appends = append(m.appends, entry{c.Run, records})
	c.Head, c.HeadHash = r.head, r.hash
	close(m.wake)
	m.wake = make(chan struct{})
}

// Read implements [auditstore.Log].
func (m *Memory) Read(ctx context.Context, s auditstore.Scope, from auditstore.Cursor, limit int) ([]auditstore.Record, auditstore.Cursor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.meet(ctx, OpRead, s.Run); err != nil {
		return nil, from, err
	}
	limit = pageLimit(limit)
	var page []auditstore.Record
	if s.Run == "" {
		for i := int(min(from.Position, auditstore.Position(len(m.appends)))); i < len(m.appends) && len(page) < limit; i++ {
			page = append(page, m.appends[i].records...)
		}
	} else if r := m.runs[s.Run]; r != nil {
		for _, i := range r.appends {
			for _, rec := range m.appends[i].records {
				if rec.Sequence > from.Sequence {
					page = append(page, rec)
				}
			}
			if len(page) >= limit {
				break
			}
		}
	}
	if len(page) == 0 {
		return nil, from, nil
	}
	last := &page[len(page)-1]
	return page, auditstore.Cursor{Position: last.Position, Sequence: last.Sequence}, nil
}

func pageLimit(limit int) int {
	if limit <= 0 || limit > auditstore.MaxPage {
		return auditstore.MaxPage
	}
	return limit
}

// Rows implements [auditstore.Log].
func (m *Memory) Rows(ctx context.Context, prefix, from []byte, limit int) ([]auditstore.Row, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.meet(ctx, OpRows, ""); err != nil {
		return nil, err
	}
	var rows []auditstore.Row
	for _, k := range slices.Sorted(maps.Keys(m.keys)) {
		if !strings.HasPrefix(k, string(prefix)) || k <= string(from) {
			continue
		}
		if len(rows) == pageLimit(limit) {
			break
		}
		r := m.runs[m.keys[k]]
		rows = append(rows, auditstore.Row{Key: []byte(k), Run: m.keys[k], Row: bytes.Clone(r.row), Epoch: r.epoch})
	}
	return rows, nil
}

// Wait implements [auditstore.Log].
func (m *Memory) Wait(ctx context.Context, from auditstore.Position) (auditstore.Position, error) {
	for first := true; ; first = false {
		m.mu.Lock()
		var f Fault
		err := ctx.Err()
		if first {
			f, err = m.meet(ctx, OpWait, "")
		}
		head, wake := auditstore.Position(len(m.appends)), m.wake
		m.mu.Unlock()
		if err != nil {
			return 0, err
		}
		if head > from || f == EarlyWake {
			return head, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
		}
	}
}

// Head implements [auditstore.Log].
func (m *Memory) Head(ctx context.Context) (auditstore.Position, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.meet(ctx, OpHead, ""); err != nil {
		return 0, err
	}
	return auditstore.Position(len(m.appends)), nil
}

// Shared implements [auditstore.Log].
func (m *Memory) Shared(ctx context.Context, d auditstore.Digest) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.meet(ctx, OpShared, ""); err != nil {
		return nil, err
	}
	v, ok := m.shared[d]
	if !ok {
		return nil, fmt.Errorf("shared value %x: %w", d, auditstore.ErrNotFound)
	}
	return bytes.Clone(v), nil
}

// Body implements [auditstore.Log].
func (m *Memory) Body(ctx context.Context, run string, atMost uint64) (uint64, []byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.meet(ctx, OpBody, run); err != nil {
		return 0, nil, err
	}
	var newest uint64
	r := m.runs[run]
	if r == nil {
		return 0, nil, nil
	}
	for seq := range r.bodies {
		if seq <= atMost {
			newest = max(newest, seq)
		}
	}
	return newest, bytes.Clone(r.bodies[newest]), nil
}

// Erase implements [auditstore.Log].
func (m *Memory) Erase(ctx context.Context, run string) error {
	if err := auditstore.CheckName("run", run); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := m.meet(ctx, OpErase, run)
	if err != nil {
		return err
	}
	if r := m.runs[run]; r != nil {
		for _, i := range r.appends {
			records := slices.Clone(m.appends[i].records) // readers may hold the old ones
			for j := range records {
				rec := &records[j]
				rec.Erased = rec.Erased || rec.Private != nil
				rec.Private, rec.Salt = nil, nil
			}
			m.appends[i].records = records
		}
		clear(r.bodies)
		clear(r.blobs)
	}
	return after(f, OpErase, run)
}
