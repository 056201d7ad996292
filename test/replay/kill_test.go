package replay

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"

	"github.com/runnerd/runnerd/test/e2e/harness"
)

func point(phase string, n int) string { return fmt.Sprintf("%s %d", phase, n) }

// points are the moments of a play at which its daemon can be killed, in their order: a Decide in progress, a call of
// each decision in progress, a question that is open. Calls that the table of differences says are not executed have none.
func points(p *play, table []string) []string {
	differs := func(kind, where string, args ...any) bool {
		return slices.Contains(table, p.ID+"\t"+kind+": "+fmt.Sprintf(where, args...))
	}
	var all []string
	for i, d := range p.decisions {
		all = append(all, point("decide", i))
		var executed []string // they may run together, so that one of them is as good as the other
		for n := range d.ToolCalls {
			ordinal := d.first + n
			c := p.calls[ordinal]
			if c.offered && !differs(schemaMismatch, "call %d", ordinal) && !differs(schemaInvalid, "%s", c.Name) {
				executed = append(executed, point("call", ordinal))
			}
		}
		if n := len(executed); n > 0 {
			all = append(all, executed[n/2])
		}
		if d.question {
			all = append(all, point("reply", i))
		}
	}
	return all
}

// holdPoints chooses a point for each kill, later ones later; a short run has none for some of the kills.
func holdPoints(all []string, id string, kills int, seed uint64) []string {
	var chosen []string
	for round := range kills {
		part := all[len(all)*round/kills : len(all)*(round+1)/kills]
		if len(part) == 0 {
			chosen = append(chosen, "")
			continue
		}
		h := fnv.New64a()
		fmt.Fprintf(h, "%d/%s/%d", seed, id, round)
		chosen = append(chosen, part[h.Sum64()%uint64(len(part))])
	}
	return chosen
}

// hold waits at the point of the round for the kill.
func (w *world) hold(r *run, at string) {
	r.mu.Lock()
	for r.round < len(r.holds) && r.holds[r.round] == "" {
		r.round++
	}
	if r.round >= len(r.holds) || r.holds[r.round] != at {
		r.mu.Unlock()
		return
	}
	round := r.round
	r.round++
	r.hits++
	r.mu.Unlock()
	close(r.arrive[round])
	<-w.killed[round]
}

// held waits until every run is at its point of the round.
func (w *world) held(ctx context.Context, t *testing.T, round int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, harness.Limit)
	defer cancel()
	for _, r := range w.runs {
		if r.holds[round] == "" {
			continue
		}
		select {
		case <-r.arrive[round]:
			continue
		case <-ctx.Done():
		}
		select {
		case <-r.arrive[round]: // before the time was up for another run
		default:
			t.Errorf("run %s did not come to %q, its point of kill %d; its events:\n%s",
				r.ID, r.holds[round], round+1, harness.Lines(w.daemon.Events(t, r.ID)))
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func TestHoldPointsLieInEveryPartOfARun(t *testing.T) {
	t.Parallel()
	p := staged(t)
	want := []string{"decide 0", "call 0", "decide 1", "reply 1", "decide 2", "decide 3", "decide 4", "call 2", "decide 5"}
	all := points(p, nil)
	if !slices.Equal(all, want) {
		t.Fatalf("points are %q, want %q", all, want)
	}
	if n := len(points(p, []string{"odd\t" + schemaInvalid + ": look"})); n != len(want)-1 {
		t.Errorf("%d points where a call is not executed, want %d", n, len(want)-1)
	}
	chosen := holdPoints(all, "odd", 3, 7)
	for round, at := range chosen {
		if i := slices.Index(all, at); i/3 != round {
			t.Errorf("kill %d is at %q, point %d of %d", round+1, at, i, len(all))
		}
	}
	if !slices.Equal(chosen, holdPoints(all, "odd", 3, 7)) {
		t.Error("the same seed chooses other points")
	}
	short := holdPoints([]string{"decide 0"}, "short", 3, 7)
	if n := len(slices.DeleteFunc(short, func(at string) bool { return at == "" })); n != 1 {
		t.Errorf("a run with one point is held %d times", n)
	}
}
