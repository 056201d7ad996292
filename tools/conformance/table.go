package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What a line says of a feature.
const (
	tested   = "tested"
	reasoned = "reasoned"
	missing  = "missing"
)

// later is the milestone of a feature that no milestone has taken up yet.
const later = "later"

// feature is one row of the table.
type feature struct {
	id        string
	what      string
	reason    string // why it is not offered; empty: it has a test
	milestone string // a number, later, or empty: always due
}

// due reports whether the feature has to be there once milestone n is complete.
func (f feature) due(n int) bool {
	if f.milestone == "" {
		return true
	}
	own, err := strconv.Atoi(f.milestone)
	return err == nil && own <= n
}

// status gives the feature's word and what stands behind it.
func (f feature) status(o outcome) (status, why string) {
	switch {
	case o.failed != "":
		return missing, "failed: " + o.failed
	case f.reason != "":
		return reasoned, f.reason
	case o.passed != "":
		return tested, o.passed
	case o.skipped != "":
		return missing, "skipped: " + o.skipped
	case f.milestone != "":
		return missing, "milestone " + f.milestone
	}
	return missing, "no test"
}

var idPattern = regexp.MustCompile(`^[TAE]-\d+$`)

// readFeatures reads the rows | id | what | reason | milestone | of all tables in a
// markdown text. The milestone column may be left out.
func readFeatures(r io.Reader) ([]feature, error) {
	var features []feature
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		cells, ok := cells(lines.Text())
		if !ok || !idPattern.MatchString(cells[0]) {
			continue
		}
		if len(cells) < 3 || len(cells) > 4 {
			return nil, fmt.Errorf("line %d: %s has %d columns, want id, what, reason and perhaps milestone", n, cells[0], len(cells))
		}
		f := feature{id: cells[0], what: cells[1], reason: cells[2]}
		if len(cells) == 4 {
			f.milestone = cells[3]
		}
		if seen[f.id] {
			return nil, fmt.Errorf("line %d: %s stands there twice", n, f.id)
		}
		if f.what == "" {
			return nil, fmt.Errorf("line %d: %s does not say what it is", n, f.id)
		}
		if _, err := strconv.Atoi(f.milestone); err != nil && f.milestone != "" && f.milestone != later {
			return nil, fmt.Errorf("line %d: milestone %q of %s is neither a number nor %q", n, f.milestone, f.id, later)
		}
		seen[f.id] = true
		features = append(features, f)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(features) == 0 {
		return nil, errors.New("no row begins with a feature id")
	}
	return features, nil
}

// cells splits a markdown table row. A bar written as \| belongs to its cell.
func cells(line string) ([]string, bool) {
	line = strings.TrimSpace(line)
	if len(line) < 2 || line[0] != '|' || line[len(line)-1] != '|' {
		return nil, false
	}
	const bar = "\x00"
	line = strings.ReplaceAll(line[1:len(line)-1], `\|`, bar)
	all := strings.Split(line, "|")
	for i, cell := range all {
		all[i] = strings.ReplaceAll(strings.TrimSpace(cell), bar, "|")
	}
	return all, true
}

// sortedIDs gives the ids in the order a reader looks for them: T-9 before T-10.
func sortedIDs[V any](m map[string]V) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		na, _ := strconv.Atoi(a[2:])
		nb, _ := strconv.Atoi(b[2:])
		return cmp.Or(strings.Compare(a[:2], b[:2]), cmp.Compare(na, nb))
	})
}
