package runner

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"iter"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// saltSize is the size in bytes of the salt in the digest of a private part: whoever has the public part only cannot
// find out by trying what the private part is.
const saltSize = 16

// pageSize is how many events are read at a time.
const pageSize = 256

// encoder turns the events of a turn into records. Its buffer is used again for the next turn, once the append that
// holds the records has returned.
type encoder struct{ buf []byte }

// maxKeptBuffer bounds what an idle encoder holds.
const maxKeptBuffer = 64 << 10

// records encodes events, each exactly once. The records are valid until the next call.
func (c *encoder) records(events []*runnerdv1.Event) ([]auditstore.Record, error) {
	if cap(c.buf) > maxKeptBuffer {
		c.buf = nil
	}
	c.buf = c.buf[:0]
	out := make([]auditstore.Record, len(events))
	for i, ev := range events {
		if err := c.record(ev, &out[i]); err != nil {
			return nil, fmt.Errorf("encode %s, sequence %d: %w", ev.GetType(), ev.GetSequence(), err)
		}
	}
	return out, nil
}

// record encodes one event. The public part is what redaction leaves; if it took something, the whole payload is kept
// beside it and bound to it by a digest.
func (c *encoder) record(ev *runnerdv1.Event, rec *auditstore.Record) error {
	rec.Sequence = ev.GetSequence()
	public := runstate.Redact(ev)
	if public != ev {
		private, err := c.marshal(&runnerdv1.Event{Payload: ev.Payload})
		if err != nil {
			return err
		}
		salt := make([]byte, saltSize)
		rand.Read(salt) // never fails
		rec.Private, rec.Salt = private, salt
		digest := privateDigest(salt, private)
		public.PrivateDigest = digest[:]
	}
	var err error
	rec.Public, err = c.marshal(public)
	return err
}

// marshal appends a message to the buffer. A buffer that is too small is left to the records that are in it.
func (c *encoder) marshal(m proto.Message) ([]byte, error) {
	begin := len(c.buf)
	buf, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(c.buf, m)
	if err != nil {
		return nil, err
	}
	c.buf = buf
	return buf[begin:len(buf):len(buf)], nil
}

func privateDigest(salt, private []byte) [sha256.Size]byte {
	h := sha256.New()
	h.Write(salt)
	h.Write(private)
	return [sha256.Size]byte(h.Sum(nil))
}

// decode returns the whole event of a record: with its private part where there is one, and its place in the log. What
// runs are folded from is held against its hash: a bit that fell over must not let something run.
func decode(rec *auditstore.Record) (*runnerdv1.Event, error) {
	if auditstore.Hash(rec.PrevHash, rec.Public) != rec.Hash {
		return nil, corrupt(rec, "the event does not have the hash of its record")
	}
	ev, err := decodePublic(rec)
	if err != nil {
		return nil, err
	}
	if rec.Private == nil {
		return ev, nil
	}
	if digest := privateDigest(rec.Salt, rec.Private); !bytes.Equal(digest[:], ev.GetPrivateDigest()) {
		return nil, corrupt(rec, "the private part does not have the digest in the public part")
	}
	whole := new(runnerdv1.Event)
	if err := proto.Unmarshal(rec.Private, whole); err != nil {
		return nil, corrupt(rec, "private part: "+err.Error())
	}
	ev.Payload = whole.Payload
	return ev, nil
}

// decodePublic returns the public part of a record's event, with its place in the log.
func decodePublic(rec *auditstore.Record) (*runnerdv1.Event, error) {
	ev := new(runnerdv1.Event)
	if err := proto.Unmarshal(rec.Public, ev); err != nil {
		return nil, corrupt(rec, err.Error())
	}
	if ev.GetSequence() != rec.Sequence || ev.GetRunId() != rec.Run {
		return nil, corrupt(rec, fmt.Sprintf("it holds event %d of run %q", ev.GetSequence(), ev.GetRunId()))
	}
	ev.Position = uint64(rec.Position)
	ev.PrevHash, ev.Hash = rec.PrevHash[:], rec.Hash[:]
	return ev, nil
}

func corrupt(rec *auditstore.Record, problem string) error {
	return &auditstore.CorruptError{Run: rec.Run, Sequence: rec.Sequence, Position: rec.Position, Problem: problem}
}

// records yields the records of a run after a sequence up to the head.
func (s *store) records(ctx context.Context, run string, after uint64) iter.Seq2[*auditstore.Record, error] {
	return func(yield func(*auditstore.Record, error) bool) {
		at := auditstore.Cursor{Sequence: after}
		for {
			page, next, err := s.log.Read(ctx, auditstore.Scope{Run: run}, at, pageSize)
			if err != nil {
				yield(nil, fmt.Errorf("read run %s after %d: %w", run, at.Sequence, err))
				return
			}
			if len(page) == 0 {
				return
			}
			for i := range page {
				if !yield(&page[i], nil) {
					return
				}
			}
			at = next
		}
	}
}

// recordAt returns one record of a run; ok is false past the head.
func (s *store) recordAt(ctx context.Context, run string, sequence uint64) (rec *auditstore.Record, ok bool, err error) {
	if sequence == 0 {
		return nil, false, nil
	}
	at := auditstore.Cursor{Sequence: sequence - 1}
	page, _, err := s.log.Read(ctx, auditstore.Scope{Run: run}, at, 1)
	if err != nil {
		return nil, false, fmt.Errorf("read run %s at %d: %w", run, sequence, err)
	}
	if len(page) == 0 {
		return nil, false, nil
	}
	return &page[0], true, nil
}

// Events yields the events of a run after a sequence up to the head, each with its private part where there is one.
func (r *Runner) Events(ctx context.Context, runID string, after uint64) iter.Seq2[*runnerdv1.Event, error] {
	return func(yield func(*runnerdv1.Event, error) bool) {
		for rec, err := range r.store.records(ctx, runID, after) {
			var ev *runnerdv1.Event
			if err == nil {
				ev, err = decode(rec)
			}
			if !yield(ev, err) || err != nil {
				return
			}
		}
	}
}

// Event returns one event of a run with its private part where there is one, or an error with reason PAST_HEAD.
func (r *Runner) Event(ctx context.Context, runID string, sequence uint64) (*runnerdv1.Event, error) {
	rec, ok, err := r.store.recordAt(ctx, runID, sequence)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errorf(runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD, "run %q has no event %d", runID, sequence)
	}
	return decode(rec)
}
