package auditstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
)

// Claim implements [Log]. It writes nothing: the number of the open in the epoch
// fences whatever an earlier process claimed.
func (s *Store) Claim(ctx context.Context, run, owner string, from Epoch) (*Claim, error) {
	if err := errFirst(CheckName("run", run), CheckName("owner", owner)); err != nil {
		return nil, err
	}
	op := &claimOp{run: run, owner: owner, from: from}
	if err := s.do(ctx, op); err != nil {
		return nil, fmt.Errorf("claim run %s: %w", run, err)
	}
	return &op.claim, nil
}

type claimOp struct {
	run, owner string
	from       Epoch
	claim      Claim
}

func (*claimOp) size() int     { return 0 }
func (*claimOp) reserve() bool { return true }

func (op *claimOp) apply(b *batch) error {
	h, err := b.head(op.run)
	if err != nil {
		return err
	}
	repeated := h.owner == op.owner && h.from == op.from
	if op.from != h.epoch && !repeated {
		return fmt.Errorf("from epoch %#x, newest is %#x: %w", uint64(op.from), uint64(h.epoch), ErrFenced)
	}
	next := Epoch(b.s.start)<<32 + 1
	if h.epoch.Start() == b.s.start {
		next = h.epoch + 1
	}
	h.epoch, h.owner, h.from = next, op.owner, op.from
	b.heads[op.run] = h
	op.claim = Claim{Run: op.run, Owner: op.owner, Epoch: next, Head: h.sequence, HeadHash: h.hash}
	return nil
}

// Append implements [Log].
func (s *Store) Append(ctx context.Context, c *Claim, a Append) (Position, error) {
	if err := CheckAppend(c, &a); err != nil {
		return 0, fmt.Errorf("append to run %s: %w", c.Run, err)
	}
	op := &appendOp{claim: c, in: &a}
	if len(a.Records) > 0 {
		op.enc = encode(c.Run, c.HeadHash, a.Records)
	}
	if err := s.do(ctx, op); err != nil {
		return 0, fmt.Errorf("append to run %s after %d: %w", c.Run, c.Head, err)
	}
	for i := range op.enc.records {
		in, out := &a.Records[i], &op.enc.records[i]
		in.Run, in.Position, in.PrevHash, in.Hash = out.Run, out.Position, out.PrevHash, out.Hash
		c.Head, c.HeadHash = out.Sequence, out.Hash
	}
	return op.pos, nil
}

type appendOp struct {
	claim *Claim
	in    *Append
	enc   encoded
	pos   Position
}

func (op *appendOp) size() int {
	n := len(op.enc.value) + len(op.enc.private) + len(op.in.Row) + len(op.in.Body)
	for _, v := range op.in.Shared {
		n += len(v)
	}
	return n
}

func (op *appendOp) reserve() bool { return op.in.Reserve }

func (op *appendOp) apply(b *batch) error {
	c, a := op.claim, op.in
	h, err := b.head(c.Run)
	if err != nil {
		return err
	}
	switch {
	case c.Epoch != h.epoch || c.Epoch.Start() != b.s.start:
		return fmt.Errorf("epoch %#x, newest is %#x: %w", uint64(c.Epoch), uint64(h.epoch), ErrFenced)
	case c.Head != h.sequence || c.HeadHash != h.hash:
		return fmt.Errorf("head is %d: %w", h.sequence, ErrConflict)
	}
	row := a.Row
	if row == nil && h.saved != h.epoch { // the first under this claim: its epoch goes beside the row
		old, _, err := getRow(b.tx, c.Run)
		if err != nil {
			return err
		}
		row = old.row
	}
	if a.Row != nil || h.saved != h.epoch {
		b.put(rows, []byte(c.Run), encodeRow(h.epoch, row))
		h.saved = h.epoch
	}
	if h.sequence == 0 {
		b.put(keys, []byte(RunPrefix+c.Run), []byte(c.Run))
	}
	op.pos = b.next - 1
	if len(op.enc.records) > 0 {
		op.pos = b.next
		b.next++
		b.key = binary.BigEndian.AppendUint64(b.key[:0], uint64(op.pos))
		b.put(appends, b.key, op.enc.value)
		if op.enc.private != nil {
			b.put(private, b.key, op.enc.private)
		}
		last := &op.enc.records[len(op.enc.records)-1]
		h.sequence, h.hash = last.Sequence, last.Hash
		b.added = append(b.added, op)
	}
	op.putRest(b, h.sequence)
	b.heads[c.Run] = h
	return nil
}

// putRest writes keys, body and shared values.
func (op *appendOp) putRest(b *batch, sequence uint64) {
	a, run := op.in, []byte(op.claim.Run)
	for _, key := range a.Del {
		if bytes.Equal(b.bucket(keys).Get(key), run) {
			b.delete(keys, key)
		}
	}
	for _, key := range a.Put {
		b.put(keys, key, run)
	}
	if a.Body != nil {
		if a.BodySequence != 0 {
			sequence = a.BodySequence
		}
		b.put(bodies, runKey(op.claim.Run, sequence), seal(append(make([]byte, sumSize, sumSize+len(a.Body)), a.Body...)))
	}
	for digest, value := range a.Shared {
		if b.bucket(shared).Get(digest[:]) == nil {
			b.put(shared, digest[:], value)
		}
	}
}

// CheckName refuses a run id, blob id or owner that no store takes: empty, longer
// than [MaxName], or with a zero byte in it.
func CheckName(what, name string) error {
	if name == "" || len(name) > MaxName || strings.IndexByte(name, 0) >= 0 {
		return fmt.Errorf("%s %q: must be 1 to %d bytes without zero bytes: %w", what, name, MaxName, ErrInvalid)
	}
	return nil
}

// CheckAppend refuses an append that breaks a rule of the port whatever the state
// of the run: with [ErrInvalid], or [ErrTooLarge] over a limit. Every
// implementation applies it before anything else.
func CheckAppend(c *Claim, a *Append) error {
	if err := CheckName("run", c.Run); err != nil {
		return err
	}
	size := len(a.Row) + len(a.Body)
	last := c.Head
	for i := range a.Records {
		r := &a.Records[i]
		if r.Run != "" && r.Run != c.Run {
			return fmt.Errorf("record %d is of run %q: %w", i, r.Run, ErrInvalid)
		}
		if last++; r.Sequence != last {
			return fmt.Errorf("record %d has sequence %d, not %d: %w", i, r.Sequence, last, ErrInvalid)
		}
		size += len(r.Public) + len(r.Private) + len(r.Salt)
	}
	if last == 0 {
		return fmt.Errorf("a run starts with an event: %w", ErrInvalid)
	}
	if a.BodySequence > last || a.BodySequence != 0 && a.Body == nil {
		return fmt.Errorf("body of sequence %d, head %d: %w", a.BodySequence, last, ErrInvalid)
	}
	if n := len(a.Put) + len(a.Del); n > MaxKeys {
		return fmt.Errorf("%d keys, at most %d: %w", n, MaxKeys, ErrTooLarge)
	}
	for _, set := range [][][]byte{a.Put, a.Del} {
		for _, key := range set {
			if len(key) > MaxKey {
				return fmt.Errorf("key of %d bytes, at most %d: %w", len(key), MaxKey, ErrTooLarge)
			}
			if len(key) == 0 || bytes.HasPrefix(key, []byte(RunPrefix)) {
				return fmt.Errorf("key %q is not for appends: %w", key, ErrInvalid)
			}
			size += len(key)
		}
	}
	for digest, value := range a.Shared {
		if sha256.Sum256(value) != digest {
			return fmt.Errorf("shared value is not that of digest %x: %w", digest, ErrInvalid)
		}
		size += len(value)
	}
	if size > MaxAppend {
		return fmt.Errorf("%d bytes, at most %d: %w", size, MaxAppend, ErrTooLarge)
	}
	return nil
}

func errFirst(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
