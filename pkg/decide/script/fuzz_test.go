package script

import (
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// A script is refused, or has an answer for every request, whatever stands in it.
func FuzzParse(f *testing.F) {
	f.Add(Example(), uint32(1))
	f.Add("decisions: [{repeat: forever, steps: [{cases: [{answer: a}]}]}]", uint32(7))
	f.Add("runs: {'*': [{template: true, text: '{{.Last}}', usage: {cost_cents: .nan}}]}", uint32(0))
	f.Fuzz(func(t *testing.T, text string, iteration uint32) {
		s, err := Parse("s", []byte(text))
		if err != nil {
			return
		}
		req := &runnerdv1.DecideRequest{RunId: "r", Iteration: iteration}
		st, ok := s.find(req)
		if !ok {
			return
		}
		if st.Size > 1<<20 {
			return // long, and of no interest
		}
		if st, err = st.fill(req); err != nil {
			return
		}
		if st.decision() == nil {
			t.Error("no decision")
		}
	})
}
