package script

import (
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// A script is refused, or has a result for every call, whatever stands in it.
func FuzzParse(f *testing.F) {
	f.Add(Example(), "add", 0)
	f.Add("tools: [{name: t, results: [{cases: []}, {echo: true}]}]", "t", 3)
	f.Add("{tools: [{input_schema: {a: [1, .nan]}}], get_call: [ledger]}", "", 0)
	f.Fuzz(func(t *testing.T, text, tool string, n int) {
		s, err := Parse("s", []byte(text))
		if err != nil {
			return
		}
		req := &runnerdv1.CallToolRequest{Name: tool, Attempt: 1}
		if used, ok := s.tools[tool]; ok {
			if r, ok := used.result(max(n, 0), req); ok && r.Size < 1<<20 && len(r.Blobs) == 0 {
				if r.proto(req) == nil || r.fault(1) == nil {
					t.Error("no result")
				}
			}
		}
	})
}
