package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// results is what a test run says of the ids its tests name.
type results struct {
	of     map[string]outcome
	broken []string // packages that failed without one of their tests failing, sorted
}

// outcome is the first test of an id that ended each way; empty: none did.
type outcome struct {
	passed, failed, skipped string
}

func (o outcome) any() string {
	return strings.Join(slices.DeleteFunc([]string{o.failed, o.passed, o.skipped},
		func(s string) bool { return s == "" }), ", ")
}

// namedIDs is the run of ids at the start of a part of a test's name. The test
// runner writes blanks as underscores.
var (
	namedIDs = regexp.MustCompile(`^([TAE]-\d+([_,:]+|$))+`)
	oneID    = regexp.MustCompile(`[TAE]-\d+`)
)

// ids gives the feature ids that a test's name holds, each once.
func ids(test string) []string {
	var all []string
	for part := range strings.SplitSeq(test, "/") {
		for _, id := range oneID.FindAllString(namedIDs.FindString(part), -1) {
			if !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// readResults reads the output of go test -json. Lines that are no JSON, as a
// failing build prints them, are passed over.
func readResults(r io.Reader) (*results, error) {
	res := &results{of: map[string]outcome{}}
	failedTests := map[string]bool{} // packages with a failed test
	var failedPackages []string
	sawEvent := false

	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		var event struct{ Action, Package, Test string }
		if json.Unmarshal(line, &event) == nil {
			sawEvent = true
			switch {
			case event.Test != "":
				failedTests[event.Package] = failedTests[event.Package] || event.Action == "fail"
				res.add(event.Action, event.Package, event.Test)
			case event.Action == "fail":
				failedPackages = append(failedPackages, event.Package)
			}
		}
		if err != nil {
			break
		}
	}
	if !sawEvent {
		return nil, errors.New("no test event: want the output of go test -json")
	}
	for _, pkg := range failedPackages {
		if !failedTests[pkg] {
			res.broken = append(res.broken, pkg)
		}
	}
	slices.Sort(res.broken)
	return res, nil
}

// add notes how one test ended. Other actions than pass, fail and skip are no end.
func (r *results) add(action, pkg, test string) {
	name := fmt.Sprintf("%s %s", pkg, test)
	for _, id := range ids(test) {
		o := r.of[id]
		switch end := map[string]*string{"pass": &o.passed, "fail": &o.failed, "skip": &o.skipped}[action]; {
		case end == nil:
			continue
		case *end == "":
			*end = name
		}
		r.of[id] = o
	}
}
