package toolhost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// maxRemembered bounds the results that a ledger in memory keeps, in bytes. The oldest go first.
const maxRemembered = 64 << 20

// LocalLedger is the Ledger of one process, in memory or in a file.
type LocalLedger struct {
	mu    sync.Mutex
	calls map[string]*ledgerCall

	file *os.File // nil: in memory
	size int64    // of the whole lines in the file
	bad  error    // why the file can take no more lines

	finished   []string // keys with a result in memory, oldest first
	remembered int      // bytes of these results
}

// ledgerCall is what is known of one key.
type ledgerCall struct {
	state     CallState
	refusedTo uint32        // attempts up to this one are never executed
	done      chan struct{} // closed when a running call ends
	result    *Result       // in memory
	offset    int64         // of the line with the result, in a file
	length    int64
}

// NewMemoryLedger makes a ledger that is lost with the process. It tells of running and finished calls, the latest
// 64 MiB of results, and repeats their outcomes. It cannot promise that a call was not executed, since it does not
// know what a process before it did.
func NewMemoryLedger() *LocalLedger {
	return &LocalLedger{calls: make(map[string]*ledgerCall)}
}

// OpenLedger opens or creates a ledger in a file of JSON lines, see Record. Each line is on the disk before what it
// tells of counts, so the ledger knows all calls that ever began, also after a kill. The file grows for ever; a new
// one may be begun when no run is left whose calls it has. One process at a time may have it open.
func OpenLedger(path string) (*LocalLedger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	l := &LocalLedger{calls: make(map[string]*ledgerCall), file: f}
	if err := l.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("ledger %s: %w", path, err), f.Close())
	}
	return l, nil
}

func (l *LocalLedger) load() error {
	if err := lockFile(l.file); err != nil {
		return fmt.Errorf("in use by another process: %w", err)
	}
	var err error
	if l.size, err = scanLedger(l.file, l.replay); err != nil {
		return err
	}
	// A line that was cut by a crash told of nothing that counts.
	if err := l.file.Truncate(l.size); err != nil {
		return err
	}
	return syncDir(filepath.Dir(l.file.Name()))
}

// replay folds one line into what is known.
func (l *LocalLedger) replay(r Record, offset, length int64) error {
	c := l.call(r.Key)
	switch r.Phase {
	case PhaseBegin:
		c.state = CallOpen
	case PhaseRefuse:
		c.refusedTo = max(c.refusedTo, r.Attempt)
	case PhaseEnd:
		i := slices.Index(endStates, r.State)
		if i < 0 {
			return fmt.Errorf("state %q is not known", r.State)
		}
		c.state, c.offset, c.length = CallState(i), offset, length
	}
	return nil
}

// endStates are the names of the states in which a call may end.
var endStates = []string{CallOpen: "open", CallUnseen: "not_executed", CallRunning: "-", CallFinished: "finished"}

// Close closes the file. The ledger must not be used afterwards.
func (l *LocalLedger) Close() error {
	if l.file == nil {
		return nil
	}
	return errors.Join(unlockFile(l.file), l.file.Close())
}

func (l *LocalLedger) call(key string) *ledgerCall {
	c, ok := l.calls[key]
	if !ok {
		c = &ledgerCall{state: CallUnseen}
		l.calls[key] = c
	}
	return c
}

// Begin implements Ledger.
func (l *LocalLedger) Begin(ctx context.Context, call *runnerdv1.CallToolRequest) (Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		c := l.call(call.GetIdempotencyKey())
		switch {
		case call.GetAttempt() <= c.refusedTo:
			return Entry{State: CallRefused}, l.write(record(PhaseReject, call))
		case c.state == CallRunning:
			done := c.done
			l.mu.Unlock()
			select {
			case <-done:
			case <-ctx.Done():
			}
			l.mu.Lock()
			if err := ctx.Err(); err != nil {
				return Entry{}, err
			}
		case c.state == CallFinished:
			result, err := l.result(c)
			if err != nil {
				return Entry{}, err
			}
			return Entry{State: CallFinished, Result: result}, l.write(record(PhaseRepeat, call))
		default:
			if err := l.write(record(PhaseBegin, call)); err != nil {
				return Entry{}, err
			}
			before := Entry{State: c.state}
			c.state, c.done = CallRunning, make(chan struct{})
			return before, nil
		}
	}
}

// End implements Ledger.
func (l *LocalLedger) End(_ context.Context, call *runnerdv1.CallToolRequest, entry Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.call(call.GetIdempotencyKey())
	if c.state != CallRunning {
		return fmt.Errorf("call %q did not begin", call.GetIdempotencyKey())
	}
	defer close(c.done)
	c.state = CallOpen // unless the end can be noted
	r := record(PhaseEnd, call)
	r.Arguments, r.State = "", endStates[entry.State]
	if entry.State == CallFinished {
		var err error
		if r.Result, err = protojson.Marshal(entry.Result); err != nil {
			return err
		}
	}
	offset := l.size
	if err := l.write(r); err != nil {
		return err
	}
	c.state, c.offset, c.length = entry.State, offset, l.size-offset
	switch {
	case l.file != nil:
	case entry.State == CallFinished:
		l.remember(call.GetIdempotencyKey(), c, entry.Result)
	default:
		delete(l.calls, call.GetIdempotencyKey()) // nothing is known, as of any other key
	}
	return nil
}

// Get implements Ledger.
func (l *LocalLedger) Get(_ context.Context, req *runnerdv1.GetCallRequest) (Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil && l.calls[req.GetIdempotencyKey()] == nil {
		return Entry{State: CallOpen}, nil
	}
	c := l.call(req.GetIdempotencyKey())
	switch {
	case c.state == CallFinished:
		result, err := l.result(c)
		return Entry{State: CallFinished, Result: result}, err
	case c.state != CallUnseen:
		return Entry{State: c.state}, nil
	case l.file == nil:
		return Entry{State: CallOpen}, nil
	case req.GetAttempt() <= c.refusedTo:
		return Entry{State: CallRefused}, nil
	}
	err := l.write(Record{
		Phase: PhaseRefuse, Key: req.GetIdempotencyKey(), Attempt: req.GetAttempt(),
		RunID: req.GetRunId(), CallID: req.GetCallId(), Tool: req.GetName(),
	})
	if err != nil {
		return Entry{}, err
	}
	c.refusedTo = req.GetAttempt()
	return Entry{State: CallRefused}, nil
}

// Effect notes that the effect of a call that began is about to happen. It is for hosts whose file is to be a witness
// of what really happened; the ledger itself needs it for nothing.
func (l *LocalLedger) Effect(call *runnerdv1.CallToolRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(record(PhaseEffect, call))
}

func record(phase string, call *runnerdv1.CallToolRequest) Record {
	return Record{
		Phase: phase, Key: call.GetIdempotencyKey(), Attempt: call.GetAttempt(), RunID: call.GetRunId(),
		CallID: call.GetCallId(), Tool: call.GetName(), Arguments: call.GetArgumentsJson(),
	}
}

// write appends one line and brings it to the disk.
func (l *LocalLedger) write(r Record) error {
	if l.file == nil {
		return nil
	}
	if l.bad != nil {
		return l.bad
	}
	r.Time = time.Now().UTC()
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	_, err = l.file.WriteAt(line, l.size)
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		// After a failed sync nobody knows what is on the disk, so nothing more may be promised.
		l.bad = fmt.Errorf("ledger failed before: %w", err)
		return err
	}
	l.size += int64(len(line))
	return nil
}

// result is the result of a finished call.
func (l *LocalLedger) result(c *ledgerCall) (*Result, error) {
	if l.file == nil {
		return c.result, nil
	}
	line := make([]byte, c.length)
	if _, err := l.file.ReadAt(line, c.offset); err != nil {
		return nil, err
	}
	var r Record
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, err
	}
	result := new(Result)
	if err := protojson.Unmarshal(r.Result, result); err != nil {
		return nil, err
	}
	return result, nil
}

// remember keeps a result in memory and forgets the oldest calls for it.
func (l *LocalLedger) remember(key string, c *ledgerCall, result *Result) {
	c.result = result
	l.finished = append(l.finished, key)
	l.remembered += proto.Size(result)
	for l.remembered > maxRemembered && len(l.finished) > 1 {
		oldest := l.finished[0]
		l.finished = l.finished[1:]
		l.remembered -= proto.Size(l.calls[oldest].result)
		delete(l.calls, oldest)
	}
}
