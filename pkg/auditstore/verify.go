package auditstore

import (
	"context"
	"errors"
	"fmt"
)

// MaxFindings is how many findings [Verify] returns at most; it ends at the last.
const MaxFindings = 10_000

// Finding is something wrong with a log.
type Finding struct {
	Run      string // empty if it cannot be told
	Sequence uint64 // 0 if it cannot be told
	Position Position
	Problem  string
}

func (f Finding) String() string {
	return fmt.Sprintf("run %s sequence %d position %d: %s", f.Run, f.Sequence, f.Position, f.Problem)
}

// Verify reads the events of a run, or of all runs if run is empty, and checks
// that sequences have no gaps, that positions increase, and that every hash is
// that of the stored bytes and of the hash before. It goes on after a finding.
//
// after is where to begin; the first event of each run after it is trusted to
// follow what came before, unless it is the run's first. progress, if not nil,
// gets every page that was read, for checks of what the events mean; an error of
// it ends the verification. Whether events are missing at the end of a run only a
// hash kept elsewhere can tell.
//
// The error says why verification could not go on, not what it found. It keeps
// the newest hash of every run in memory.
func Verify(ctx context.Context, log Log, run string, after Cursor, progress func([]Record) error) ([]Finding, error) {
	v := verifier{ends: map[string]end{}, whole: after == Cursor{}}
	for len(v.findings) < MaxFindings {
		page, next, err := log.Read(ctx, Scope{Run: run}, after, MaxPage)
		if damage, ok := errors.AsType[*CorruptError](err); ok && len(page) == 0 {
			v.report(Finding{damage.Run, damage.Sequence, damage.Position, damage.Problem})
			if next, ok = beyond(damage, run, after); !ok {
				return v.findings, nil // there is no telling where the next event is
			}
			if damage.Run != "" {
				e := v.ends[damage.Run]
				e.gap = true
				v.ends[damage.Run] = e
			}
			after = next
			continue
		}
		if err != nil {
			return v.findings, fmt.Errorf("verify: %w", err)
		}
		if len(page) == 0 {
			return v.findings, nil
		}
		for i := range page {
			v.event(&page[i])
		}
		if progress != nil {
			if err := progress(page); err != nil {
				return v.findings, err
			}
		}
		after = next
	}
	return v.findings, nil
}

// beyond returns a cursor after damage that a read ran into.
func beyond(damage *CorruptError, run string, after Cursor) (Cursor, bool) {
	if run == "" {
		return Cursor{Position: damage.Position}, damage.Position > after.Position
	}
	return Cursor{Sequence: damage.Last}, damage.Last > after.Sequence
}

type verifier struct {
	ends     map[string]end
	newest   Position
	whole    bool // from the beginning: nothing is taken on trust
	findings []Finding
}

// end is where a run stands.
type end struct {
	sequence uint64
	hash     Digest
	gap      bool // what came between could not be read and was reported
}

func (v *verifier) report(f Finding) { v.findings = append(v.findings, f) }

func (v *verifier) event(r *Record) {
	found := func(format string, args ...any) {
		v.report(Finding{r.Run, r.Sequence, r.Position, fmt.Sprintf(format, args...)})
	}
	e, seen := v.ends[r.Run]
	unknown := e.gap || !seen && !v.whole // what came before is not known
	switch {
	case unknown && r.Sequence > max(e.sequence, 1):
	case r.Sequence != e.sequence+1:
		found("sequence follows %d", e.sequence)
	case !e.gap && r.PrevHash != e.hash:
		found("hash before is %x, but the event before has %x", r.PrevHash, e.hash)
	}
	if r.Position < v.newest {
		found("position is before %d", v.newest)
	}
	if Hash(r.PrevHash, r.Public) != r.Hash {
		found("hash is not that of the stored bytes")
	}
	v.newest = max(v.newest, r.Position)
	v.ends[r.Run] = end{sequence: r.Sequence, hash: r.Hash}
}
