package auditstoretest

import (
	"math/rand/v2"
	"slices"
)

// Op names a method of the port.
type Op string

// The methods of [auditstore.Log] and [auditstore.Blobs].
const (
	OpClaim  Op = "claim"
	OpAppend Op = "append"
	OpRead   Op = "read"
	OpRows   Op = "rows"
	OpWait   Op = "wait"
	OpHead   Op = "head"
	OpShared Op = "shared"
	OpBody   Op = "body"
	OpErase  Op = "erase"
	OpPut    Op = "put"
	OpGet    Op = "get"
	OpDrop   Op = "drop"
)

// Fault is what a call meets instead of plain success. A fault that an operation
// cannot meet is ignored.
type Fault int

const (
	// None lets the call go through.
	None Fault = iota
	// Unavailable makes nothing happen: ErrUnavailable. Any operation.
	Unavailable
	// Full makes nothing happen: ErrFull. An append with Reserve goes through. Append,
	// Put.
	Full
	// UnknownWritten lets it happen, but the caller gets ErrUnknown and its claim does
	// not move. Whatever writes.
	UnknownWritten
	// UnknownLost makes nothing happen, and the caller gets ErrUnknown. Whatever
	// writes.
	UnknownLost
	// LateWritten gives the caller ErrUnknown and nothing can be seen; the append
	// arrives when the run is claimed next, just before the claim. Append.
	LateWritten
	// LateRefused is the same, but it arrives just after the claim and is refused.
	// Append.
	LateRefused
	// Stolen means that another owner has claimed the run: ErrFenced. Claim, Append.
	Stolen
	// EarlyWake returns at once although nothing happened. Wait.
	EarlyWake
)

var writes = []Op{OpClaim, OpAppend, OpErase, OpPut, OpDrop}

// meets reports whether the operation can meet the fault.
func (f Fault) meets(op Op) bool {
	switch f {
	case Unavailable:
		return true
	case Full:
		return op == OpAppend || op == OpPut
	case UnknownWritten, UnknownLost:
		return slices.Contains(writes, op)
	case LateWritten, LateRefused:
		return op == OpAppend
	case Stolen:
		return op == OpClaim || op == OpAppend
	case EarlyWake:
		return op == OpWait
	case None:
	}
	return false
}

// Faults says what each call meets. It is called once per call, before anything
// happens, never by two calls at once; run is empty where there is none. nil
// means none.
type Faults func(op Op, run string) Fault

// Script gives each operation a queue of faults, one per call; then there are no
// more.
func Script(queues map[Op][]Fault) Faults {
	left := map[Op][]Fault{}
	for op, q := range queues {
		left[op] = slices.Clone(q)
	}
	return func(op Op, _ string) Fault {
		q := left[op]
		if len(q) == 0 {
			return None
		}
		left[op] = q[1:]
		return q[0]
	}
}

// Seeded draws faults at random: each call meets one of those its operation can
// meet with the given probability. The same seed and calls give the same faults.
func Seeded(seed uint64, rates map[Fault]float64) Faults {
	rng := rand.New(rand.NewPCG(seed, seed))
	faults := make([]Fault, 0, len(rates))
	for f := range rates {
		faults = append(faults, f)
	}
	slices.Sort(faults)
	return func(op Op, _ string) Fault {
		for _, f := range faults {
			if f.meets(op) && rng.Float64() < rates[f] {
				return f
			}
		}
		return None
	}
}
