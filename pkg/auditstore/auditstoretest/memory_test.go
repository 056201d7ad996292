package auditstoretest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	auditstoretest.Run(t, func(*testing.T) auditstoretest.Harness {
		m := auditstoretest.NewMemory(nil)
		return auditstoretest.Harness{Log: m, Blobs: m, Reopen: func(*testing.T) (auditstore.Log, auditstore.Blobs) {
			m.Reopen()
			return m, m
		}}
	})
}

// started returns a memory log with one run of one event, claimed.
func started(t *testing.T, faults auditstoretest.Faults) (*auditstoretest.Memory, *auditstore.Claim) {
	t.Helper()
	armed := false
	m := auditstoretest.NewMemory(func(op auditstoretest.Op, run string) auditstoretest.Fault {
		if !armed {
			return auditstoretest.None
		}
		return faults(op, run)
	})
	c, err := m.Claim(t.Context(), "a", "owner", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Append(t.Context(), c, auditstore.Append{Records: auditstoretest.Events(c, 1)}); err != nil {
		t.Fatal(err)
	}
	armed = true
	return m, c
}

func count(t *testing.T, m *auditstoretest.Memory) int {
	t.Helper()
	page, _, err := m.Read(t.Context(), auditstore.Scope{Run: "a"}, auditstore.Cursor{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return len(page)
}

func TestAppendFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name        string
		fault       auditstoretest.Fault
		want        error
		seen, later int // events at once, and after the run was claimed again
		refused     int
	}{
		{"unavailable", auditstoretest.Unavailable, auditstore.ErrUnavailable, 1, 1, 0},
		{"full", auditstoretest.Full, auditstore.ErrFull, 1, 1, 0},
		{"unknown and written", auditstoretest.UnknownWritten, auditstore.ErrUnknown, 2, 2, 0},
		{"unknown and lost", auditstoretest.UnknownLost, auditstore.ErrUnknown, 1, 1, 0},
		{"late and written", auditstoretest.LateWritten, auditstore.ErrUnknown, 1, 2, 0},
		{"late and refused", auditstoretest.LateRefused, auditstore.ErrUnknown, 1, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m, c := started(t, auditstoretest.Script(map[auditstoretest.Op][]auditstoretest.Fault{auditstoretest.OpAppend: {tt.fault}}))
			_, err := m.Append(t.Context(), c, auditstore.Append{Records: auditstoretest.Events(c, 1)})
			if !errors.Is(err, tt.want) || c.Head != 1 {
				t.Errorf("got %v with head %d, want %v", err, c.Head, tt.want)
			}
			if got := count(t, m); got != tt.seen {
				t.Errorf("%d events at once, want %d", got, tt.seen)
			}
			again, err := m.Claim(t.Context(), "a", "owner", c.Epoch)
			if err != nil {
				t.Fatal(err)
			}
			if got := count(t, m); got != tt.later || again.Head != uint64(tt.later) || m.LateRefused() != tt.refused {
				t.Errorf("%d events and head %d after the claim, %d refused; want %d and %d", got, again.Head, m.LateRefused(), tt.later, tt.refused)
			}
			if _, err := m.Append(t.Context(), again, auditstore.Append{Records: auditstoretest.Events(again, 1)}); err != nil {
				t.Errorf("the next append: %v", err)
			}
		})
	}
}

func TestOtherFaults(t *testing.T) {
	t.Parallel()
	m, c := started(t, auditstoretest.Script(map[auditstoretest.Op][]auditstoretest.Fault{
		auditstoretest.OpAppend: {auditstoretest.Full, auditstoretest.Stolen},
		auditstoretest.OpWait:   {auditstoretest.EarlyWake},
		auditstoretest.OpRead:   {auditstoretest.Full, auditstoretest.Unavailable},
	}))
	if _, err := m.Append(t.Context(), c, auditstore.Append{Records: auditstoretest.Events(c, 1), Reserve: true}); err != nil {
		t.Errorf("append into the reserve of a full store: %v", err)
	}
	if _, err := m.Append(t.Context(), c, auditstore.Append{Records: auditstoretest.Events(c, 1)}); !errors.Is(err, auditstore.ErrFenced) {
		t.Errorf("append with a stolen claim: %v", err)
	}
	if pos, err := m.Wait(t.Context(), 2); pos != 2 || err != nil {
		t.Errorf("early wake: %d %v", pos, err)
	}
	if count(t, m) != 2 {
		t.Error("a fault that reading cannot meet was not ignored")
	}
	if _, _, err := m.Read(context.Background(), auditstore.Scope{}, auditstore.Cursor{}, 0); !errors.Is(err, auditstore.ErrUnavailable) {
		t.Errorf("unavailable read: %v", err)
	}
}

func TestSeededFaultsRepeat(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) (got []auditstoretest.Fault) {
		f := auditstoretest.Seeded(seed, map[auditstoretest.Fault]float64{
			auditstoretest.Unavailable: 0.2, auditstoretest.UnknownLost: 0.2, auditstoretest.EarlyWake: 0.5,
		})
		for range 200 {
			got = append(got, f(auditstoretest.OpAppend, "a"), f(auditstoretest.OpRead, "a"))
		}
		return got
	}
	one, two, other := draw(1), draw(1), draw(2)
	same, differ, faults := true, false, 0
	for i := range one {
		same = same && one[i] == two[i]
		differ = differ || one[i] != other[i]
		if one[i] != auditstoretest.None {
			faults++
		}
		if one[i] == auditstoretest.EarlyWake || i%2 == 1 && one[i] == auditstoretest.UnknownLost {
			t.Errorf("call %d met fault %d, which it cannot meet", i, one[i])
		}
	}
	if !same || !differ || faults == 0 || faults == len(one) {
		t.Errorf("same seed same faults: %v, other seed other faults: %v, %d of %d calls", same, differ, faults, len(one))
	}
}
