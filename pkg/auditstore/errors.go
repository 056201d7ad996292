package auditstore

import (
	"errors"
	"fmt"
)

// What a store answers, beside success. All are wrapped with the ids at hand.
var (
	// ErrFenced: a newer claim of the run exists. The claim is worth nothing any more.
	ErrFenced = errors.New("fenced by a newer claim")
	// ErrConflict: the head of the run is not that of the claim.
	ErrConflict = errors.New("head moved")
	// ErrTooLarge: over a limit of the port. Repeating it is useless.
	ErrTooLarge = errors.New("too large")
	// ErrFull: no space on the disk, or none outside the reserve. Nothing was
	// written; the same call may be repeated and succeeds once there is space.
	ErrFull = errors.New("no space for the log")
	// ErrUnavailable: surely nothing was written, the same claim may try again.
	ErrUnavailable = errors.New("store unavailable")
	// ErrUnknown: it may have been written or not. Only reading tells.
	ErrUnknown = errors.New("outcome unknown")
	// ErrNotFound: there is no such value.
	ErrNotFound = errors.New("not found")
	// ErrLocked: another process has the store open.
	ErrLocked = errors.New("in use by another process")
	// ErrCorrupt: stored bytes are not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store closed")
	// ErrInvalid: the call breaks the rules of the port, which is a bug of the
	// caller. Nothing was written.
	ErrInvalid = errors.New("invalid call")
	// ErrFormat: the file has a format this program does not know.
	ErrFormat = errors.New("unknown file format")
	// ErrUnsafe: the data directory or a file in it cannot be trusted to keep or
	// to guard the log.
	ErrUnsafe = errors.New("unsafe data directory")
)

// CorruptError says where stored bytes are not what was written. It is an
// [ErrCorrupt].
type CorruptError struct {
	Run      string   // empty if it cannot be told
	Sequence uint64   // first sequence concerned, 0 if it cannot be told
	Last     uint64   // last sequence concerned, 0 if it cannot be told
	Position Position // append concerned, 0 if it is not one
	Problem  string
}

func (e *CorruptError) Error() string {
	if e.Run == "" {
		return fmt.Sprintf("position %d: %s", e.Position, e.Problem)
	}
	return fmt.Sprintf("run %s sequence %d position %d: %s", e.Run, e.Sequence, e.Position, e.Problem)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }
