package auditstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// operation is something for the writer to do within a transaction. apply may be
// called again if the transaction has to be repeated without others. An operation
// that returns an error has changed nothing.
type operation interface {
	apply(*batch) error
	size() int     // bytes it adds, roughly
	reserve() bool // it may use the disk reserve, or needs no space
}

const (
	waiting int32 = iota
	taken
	withdrawn
)

// request is an operation with a caller who waits for its answer.
type request struct {
	op    operation
	err   error
	done  chan struct{}
	state atomic.Int32
}

// queue holds the requests that wait for the writer.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	closed  bool
	ready   chan struct{} // holds one if there may be something to take
}

func (q *queue) add(r *request) bool {
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return false
	}
	q.waiting = append(q.waiting, r)
	q.mu.Unlock()
	q.wake()
	return true
}

func (q *queue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.wake()
}

// take waits for requests and returns all of them up to a sum of bytes, in the
// order they came. open is false once the queue is closed; what it returns then
// is what was left.
func (q *queue) take(limit int) (reqs []*request, open bool) {
	<-q.ready
	// Callers that were answered just now want to go on: let those that are ready
	// to run queue their next request, so that it shares this commit.
	runtime.Gosched()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		reqs, q.waiting = q.waiting, nil
		return reqs, false
	}
	n, bytes := 0, 0
	for n < len(q.waiting) && (n == 0 || bytes+q.waiting[n].op.size() <= limit) {
		bytes += q.waiting[n].op.size()
		n++
	}
	if n == len(q.waiting) {
		reqs, q.waiting = q.waiting, nil
		return reqs, true
	}
	reqs, q.waiting = q.waiting[:n:n], q.waiting[n:]
	q.wake()
	return reqs, true
}

// do has the writer do an operation and waits until its outcome is known. A
// context that ends before the writer took the operation withdraws it.
func (s *Store) do(ctx context.Context, op operation) error {
	if err := s.check(ctx); err != nil {
		return err
	}
	if s.readOnly {
		return fmt.Errorf("opened for reading only: %w", ErrUnavailable)
	}
	r := &request{op: op, done: make(chan struct{})}
	if !s.queue.add(r) {
		return ErrClosed
	}
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		if r.state.CompareAndSwap(waiting, withdrawn) {
			return fmt.Errorf("%w: %w", ctx.Err(), ErrUnavailable)
		}
		<-r.done
		return r.err
	}
}

// write is the writer: the only goroutine that changes the file.
func (s *Store) write() {
	defer close(s.done)
	for {
		reqs, open := s.queue.take(s.opts.BatchBytes)
		live := reqs[:0]
		for _, r := range reqs {
			if r.state.CompareAndSwap(waiting, taken) {
				live = append(live, r)
			}
		}
		switch {
		case !open:
			answer(live, ErrClosed)
			return
		case s.usable() != nil:
			answer(live, s.usable())
		case len(live) > 0:
			s.serve(live)
		}
	}
}

// answer ends requests that have no error of their own yet.
func answer(reqs []*request, err error) {
	for _, r := range reqs {
		if r.err == nil {
			r.err = err
		}
		close(r.done)
	}
}

// serve does the requests in one transaction. If that fails for want of space, it
// tries once more with those alone that may use the reserve.
func (s *Store) serve(reqs []*request) {
	err := s.attempt(reqs, false)
	if errors.Is(err, ErrFull) {
		s.tooLittle.Store(s.space() + 1)
		var again []*request
		for _, r := range reqs {
			if r.op.reserve() {
				again = append(again, r)
			} else {
				answer([]*request{r}, err)
			}
		}
		if reqs = again; len(reqs) > 0 {
			err = s.attempt(reqs, true)
		}
	}
	answer(reqs, err)
}

// attempt runs the requests in one transaction and commits it. low says that the
// space is known to be short. Each request's own refusal is left in its err; the
// error returned is that of all others.
func (s *Store) attempt(reqs []*request, low bool) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var tx *bbolt.Tx
	defer func() {
		if p := recover(); p != nil {
			s.stuck.Store(true)
			s.setPoison(fmt.Errorf("writing the file failed: %v: %w", p, ErrCorrupt))
			err = fmt.Errorf("%v: %w", p, ErrUnknown)
		}
	}()
	if tx, err = s.db.Begin(true); err != nil {
		s.setPoison(err)
		return fmt.Errorf("begin to write: %w: %w", err, ErrUnavailable)
	}
	s.pages.Store(tx.Size())
	low = low || s.space() < s.opts.Reserve
	b := newBatch(s, tx)
	if !low && s.head-s.indexed >= Position(s.opts.IndexEvery) { // it can wait, what may use the reserve cannot
		b.writeIndex()
	}
	for _, r := range reqs {
		if r.err = nil; low && !r.op.reserve() {
			r.err = fmt.Errorf("less than the reserve of %d bytes is left: %w", s.opts.Reserve, ErrFull)
			continue
		}
		r.err = r.op.apply(b)
	}
	if b.err != nil {
		_ = tx.Rollback()
		if noSpace(b.err) {
			return fmt.Errorf("%w: %w", b.err, ErrFull)
		}
		s.setPoison(b.err)
		return fmt.Errorf("%w: %w", b.err, ErrUnavailable)
	}
	if !b.wrote {
		if err := tx.Rollback(); err != nil {
			s.setPoison(err)
			return fmt.Errorf("%w: %w", err, ErrUnavailable)
		}
		s.publish(b, 0)
		return nil
	}
	began := time.Now()
	if err := s.commit(tx); err != nil {
		return err
	}
	s.tooLittle.Store(0)
	s.publish(b, time.Since(began))
	return nil
}

// commit makes a transaction durable. No reader begins meanwhile, since it might
// see what is not.
func (s *Store) commit(tx *bbolt.Tx) error {
	id := tx.ID()
	s.durable.Lock()
	defer s.durable.Unlock()
	err := tx.Commit()
	if err == nil {
		return nil
	}
	if noSpace(err) && s.invisible(id) {
		return fmt.Errorf("%w: %w", err, ErrFull)
	}
	s.setPoison(fmt.Errorf("commit: %w", err))
	return fmt.Errorf("commit: %w: %w", err, ErrUnknown)
}

// invisible reports whether nothing of a failed transaction can be seen: the file
// still shows the one before it.
func (s *Store) invisible(id int) bool {
	tx, err := s.db.Begin(false)
	if err != nil {
		return false
	}
	newest := tx.ID()
	return tx.Rollback() == nil && newest < id
}
