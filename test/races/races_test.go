// Package races lets many people answer the same approvals at the same moment, while runs are cancelled, deadlines pass,
// grants are given and revoked and calls start, and checks afterwards that each approval was used at most once and that
// everybody was told the truth.
package races

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	defaultRaces = 300 // RUNNERD_RACES sets another number
	concurrent   = 32  // runs at a time
	mostCalls    = 8   // of a run
)

func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestRaces plays runs whose calls must be approved until so many approvals were raced for.
func TestRaces(t *testing.T) {
	races := int64(number(t, "RUNNERD_RACES", defaultRaces))
	seed := number(t, "RUNNERD_SEED", rand.Uint64())
	t.Logf("RUNNERD_RACES=%d RUNNERD_SEED=%d", races, seed)
	w := newWorld(t)
	began := time.Now()
	var raced, runs atomic.Int64
	var told tally
	var workers sync.WaitGroup
	for i := range concurrent {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i))) // #nosec G404 -- what is drawn only has to vary
			for raced.Load() < races && !t.Failed() {
				p := draw(random, fmt.Sprintf("run-%d", runs.Add(1)))
				log, answers := w.play(t, p)
				raced.Add(int64(check(t, w, p, log, answers, &told)))
			}
		})
	}
	workers.Wait()
	w.stop(t)
	for key, n := range w.hands.twice() {
		t.Errorf("the call %s came to the host %d times", key, n)
	}
	t.Logf("%d races in %d runs took %s\n%s", raced.Load(), runs.Load(), time.Since(began).Round(time.Millisecond), &told)
}

// tally counts how approvals were closed and what voters were told.
type tally struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *tally) add(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = make(map[string]int)
	}
	c.counts[what]++
}

func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(c.counts)) {
		fmt.Fprintf(&b, "%8d %s\n", c.counts[what], what)
	}
	return b.String()
}

// plot is what is to happen in one run.
type plot struct {
	run    string
	agent  string
	calls  int
	votes  []vote // all given at once
	wait   time.Duration
	cancel runnerdv1.CancelMode // unspecified: it is not cancelled
	revoke bool                 // each grant, as soon as it is given
}

// vote is one verdict on the n-th call of a run.
type vote struct {
	call    int
	verdict runnerdv1.ApprovalVerdict
	edit    string // empty: none
	grant   runnerdv1.GrantScope
	wrong   bool // about another digest
}

func (v vote) refusedEdit() bool { return v.edit == badEdit }

// badEdit breaks the schema of the tool.
const badEdit = `{"n":"x"}`

// argumentsOf are those that the model writes for its n-th call.
func argumentsOf(call int) string { return fmt.Sprintf(`{"n":%d,"command":"make all"}`, call) }

func draw(r *rand.Rand, run string) plot {
	p := plot{run: run, agent: "patient", calls: 1 + r.IntN(mostCalls), revoke: r.IntN(2) == 0}
	if r.IntN(4) == 0 {
		p.agent, p.wait = "brief", time.Duration(r.Int64N(int64(2*briefly)))
	}
	switch r.IntN(8) {
	case 0:
		p.cancel = runnerdv1.CancelMode_CANCEL_MODE_STOP
	case 1:
		p.cancel = runnerdv1.CancelMode_CANCEL_MODE_ABORT
	}
	for call := range p.calls {
		for range 2 + r.IntN(4) {
			v := vote{call: call, verdict: approve, wrong: r.IntN(12) == 0}
			switch r.IntN(8) {
			case 0, 1:
				v.verdict = deny
			case 2:
				v.edit = `{"n":7,"command":"make test"}`
			case 3:
				v.edit = fmt.Sprintf(`{"n":%d.0,"command":"make all"}`, call) // another text of the same number
			case 4:
				v.grant = runPrefix
			case 5:
				v.grant = []runnerdv1.GrantScope{0, 0, runTool}[r.IntN(3)]
			case 6:
				if r.IntN(4) == 0 {
					v.edit = badEdit
				}
			}
			p.votes = append(p.votes, v)
		}
	}
	r.Shuffle(len(p.votes), func(i, j int) { p.votes[i], p.votes[j] = p.votes[j], p.votes[i] })
	return p
}

const (
	approve   = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	deny      = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
	runTool   = runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL
	runPrefix = runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX
)
