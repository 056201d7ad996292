package runstate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// quickly takes facts into the run without the checks after every turn, which fold it from its beginning.
func (w *world) quickly(facts ...Fact) {
	turn, err := Advance(w.st, facts, w.now)
	if err != nil {
		w.t.Fatalf("advance: %v", err)
	}
	w.events = append(w.events, turn.Events...)
}

// longRun is a run whose iterations each bring a text, reasoning, a big argument and a result.
func longRun(t *testing.T, iterations, thought, argument, result int) *world {
	t.Helper()
	spec := newSpec()
	spec.Budget.MaxIterations, spec.Budget.MaxToolCalls = new(uint32(1000)), new(uint32(1000))
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	for i := range iterations {
		w.quickly(Decided{Iteration: w.st.Iteration(), Attempt: 1, Decision: &runnerdv1.Decision{
			Text: fmt.Sprint("round ", i), Reasoning: strings.Repeat("t", thought), ProviderState: []byte(strings.Repeat("p", 2<<10)),
			Next: &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{Calls: []*runnerdv1.ToolCall{
				{Name: "read", ArgumentsJson: fmt.Sprintf(`{"path":"%s"}`, strings.Repeat("a", argument))},
			}}},
		}})
		w.quickly(CallFinished{CallID: fmt.Sprintf("%d.1", i+1), Attempt: 1, Result: Result{Text: strings.Repeat("r", result)}})
	}
	return w
}

// TestRequestStaysWithinItsBound: the oldest results are cut first, then the oldest decisions; the newest of both are
// whole, and what was cut can be read.
func TestRequestStaysWithinItsBound(t *testing.T) {
	t.Parallel()
	for name, sizes := range map[string][4]int{
		"small":                  {20, 100, 100, 1000},
		"big results":            {100, 100, 100, 49_000},
		"big decisions":          {150, 20 << 10, 40 << 10, 100},
		"both":                   {150, 10 << 10, 10 << 10, 20_000},
		"very many small rounds": {500, 900, 900, 900},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := longRun(t, sizes[0], sizes[1], sizes[2], sizes[3])
			req, fetch := w.st.DecideRequest()
			if len(fetch) != 0 {
				t.Errorf("%d parts are fetched, none stands in an artifact", len(fetch))
			}
			if size := proto.Size(req); size > 3<<20 {
				t.Fatalf("the request has %d bytes", size)
			}
			all := w.st.History()
			if len(req.GetHistory()) != len(all) {
				t.Fatalf("%d entries of %d", len(req.GetHistory()), len(all))
			}
			for i := len(all) - 2; i < len(all); i++ {
				if !proto.Equal(req.GetHistory()[i], all[i]) {
					t.Errorf("entry %d of %d is not whole", i, len(all))
				}
			}
			decisions, results := 0, 0
			for i, e := range req.GetHistory() {
				if proto.Equal(e, all[i]) {
					continue
				}
				if e.GetDecision() != nil {
					decisions++
				} else {
					results++
				}
				for _, ref := range refsIn(e) {
					part, ok := ParseInlinePart(ref.GetArtifactId())
					if !ok {
						t.Fatalf("%q is no part", ref.GetArtifactId())
					}
					text, ok := part.In(w.events[part.Sequence-1])
					if sum := sha256.Sum256([]byte(text)); !ok || hex.EncodeToString(sum[:]) != ref.GetSha256() {
						t.Fatalf("%q does not lead to the part: %t, %d bytes", ref.GetArtifactId(), ok, len(text))
					}
				}
			}
			if decisions > 0 && sizes[3] > shortResult && results < sizes[0]-2 {
				t.Errorf("%d decisions are cut while only %d results are", decisions, results)
			}
			if whole := proto.Size(&runnerdv1.DecideRequest{History: all}); whole < 3<<20/2 && decisions+results > 0 {
				t.Errorf("%d entries are cut of %d bytes", decisions+results, whole)
			}
		})
	}
}

func refsIn(e *runnerdv1.HistoryEntry) []*runnerdv1.ArtifactRef {
	refs := e.GetObservation().GetArtifacts()
	for _, p := range refsOf(e) {
		refs = append(refs, p.ref)
	}
	return refs
}

// TestRequestFetchesNewestParts: what stands in artifacts is put into a request as far as there is room.
func TestRequestFetchesNewestParts(t *testing.T) {
	t.Parallel()
	spec := newSpec()
	spec.Budget.MaxIterations, spec.Budget.MaxToolCalls = new(uint32(1000)), new(uint32(1000))
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	for i := range 30 {
		w.quickly(Decided{
			Iteration: w.st.Iteration(), Attempt: 1,
			Decision: &runnerdv1.Decision{
				Next: &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{Calls: []*runnerdv1.ToolCall{{Name: "read", ArgumentsJson: "{}"}}}},
			},
			Refs: DecisionRefs{Arguments: []*runnerdv1.ArtifactRef{{ArtifactId: fmt.Sprint(i), Size: 200 << 10}}},
		})
		w.quickly(CallFinished{CallID: fmt.Sprintf("%d.1", i+1), Attempt: 1, Result: Result{Text: strings.Repeat("r", 2000)}})
	}
	req, fetch := w.st.DecideRequest()
	size := proto.Size(req)
	for _, f := range fetch {
		size += int(f.Ref.GetSize())
	}
	if size > maxRequest || size < maxRequest-(300<<10) {
		t.Errorf("the request will have %d bytes", size)
	}
	if len(fetch) == 0 || fetch[0].Ref.GetArtifactId() != "29" {
		t.Errorf("the newest part is not fetched: %v", fetch)
	}
	if last := req.GetHistory()[len(req.GetHistory())-1]; len(last.GetObservation().GetText()) != 2000 {
		t.Errorf("the newest result is cut: %v", last)
	}
}
