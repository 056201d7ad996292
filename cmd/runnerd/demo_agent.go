package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
)

const demoTask = "Which three packages of this project hold the most code, and what is the longest function in each? Write a report."

// demoReport is where the demo's agent writes.
const demoReport = "REPORT.md"

// demoBrain decides by what the tools found out: no model, but no fixed script either. It looks, picks the three
// biggest packages, looks closer, writes a report about what it saw, checks it, and answers.
func demoBrain(pace time.Duration) decide.Func {
	return func(ctx context.Context, req *runnerdv1.DecideRequest, text decide.TextSink) (*runnerdv1.Decision, error) {
		d, say := demoDecide(demoSeen(req.GetHistory()))
		for _, word := range strings.SplitAfter(say, " ") { // as a model writes: word by word
			text(word)
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pace):
			}
		}
		d.Text = say
		cost, in, out := 0.25, int64(100*len(req.GetHistory())+400), int64(len(say))
		d.Usage = &runnerdv1.Usage{CostCents: &cost, InputTokens: &in, OutputTokens: &out}
		return d, nil
	}
}

// demoSeen sorts what the tools said by tool.
func demoSeen(history []*runnerdv1.HistoryEntry) map[string][]*runnerdv1.Observation {
	seen := map[string][]*runnerdv1.Observation{}
	for _, e := range history {
		if o := e.GetObservation(); o.GetToolName() != "" {
			seen[o.GetToolName()] = append(seen[o.GetToolName()], o)
		}
	}
	return seen
}

func demoDecide(seen map[string][]*runnerdv1.Observation) (*runnerdv1.Decision, string) {
	switch {
	case len(seen["list_packages"]) == 0:
		return decide.Calls(decide.Call("list_packages", struct{}{})), "First I look at what packages there are."
	case len(seen["measure_package"]) == 0:
		var calls []*runnerdv1.ToolCall
		for _, p := range demoBiggest(seen["list_packages"][0]) {
			calls = append(calls, decide.Call("measure_package", map[string]string{"dir": p.Dir}))
		}
		if len(calls) == 0 {
			return decide.Answer("There are no Go packages here: " + seen["list_packages"][0].GetText()), ""
		}
		return decide.Calls(calls...), fmt.Sprintf("Now a closer look at the %d biggest, all at once.", len(calls))
	case len(seen["write_report"]) == 0:
		return decide.Calls(decide.Call("write_report", map[string]string{
			"path": demoReport, "content": demoText(seen["measure_package"]),
		})), "That is all I need. I write it down."
	case seen["write_report"][0].GetKind() != runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT:
		return decide.Answer(demoSummary(seen["measure_package"]) + " The report was not written: " +
			seen["write_report"][0].GetText() + "."), ""
	case len(seen["check_report"]) == 0:
		return decide.Calls(decide.Call("check_report", map[string]string{"path": demoReport})), "Is it there as I wrote it?"
	default:
		return decide.Answer(fmt.Sprintf("%s The report is %s: %s.", demoSummary(seen["measure_package"]), demoReport,
			seen["check_report"][0].GetText())), ""
	}
}

// demoBiggest picks the three packages with the most lines.
func demoBiggest(o *runnerdv1.Observation) []demoPackage {
	var packages []demoPackage
	if json.Unmarshal([]byte(o.GetStructuredJson()), &packages) != nil {
		return nil
	}
	slices.SortStableFunc(packages, func(a, b demoPackage) int { return b.Lines - a.Lines })
	return packages[:min(3, len(packages))]
}

func demoMeasures(observations []*runnerdv1.Observation) []demoMeasure {
	var all []demoMeasure
	for _, o := range observations {
		var m demoMeasure
		if json.Unmarshal([]byte(o.GetStructuredJson()), &m) == nil && m.Dir != "" {
			all = append(all, m)
		}
	}
	return all
}

func demoSummary(observations []*runnerdv1.Observation) string {
	var parts []string
	for _, m := range demoMeasures(observations) {
		parts = append(parts, fmt.Sprintf("%s (%d lines, longest %s with %d)", m.Dir, m.Lines, m.Longest, m.LongestLines))
	}
	return "The biggest packages are " + strings.Join(parts, ", ") + "."
}

func demoText(observations []*runnerdv1.Observation) string {
	var b strings.Builder
	b.WriteString("# The biggest packages\n\n")
	for i, m := range demoMeasures(observations) {
		fmt.Fprintf(&b, "%d. %s: %d lines in %d files, %d functions. The longest is %s with %d lines, at %s.\n\n",
			i+1, m.Dir, m.Lines, m.Files, m.Functions, m.Longest, m.LongestLines, m.At)
	}
	b.WriteString("Generated code and tests are left out.\n")
	return b.String()
}
