package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
)

// row is one line of the result.
type row struct {
	name      string
	value     float64
	unit      string
	reference float64 // a floor's figure of the same run, or an absolute target
	target    target
}

// target bounds the ratio of a row. The zero value is no target.
type target struct {
	least, most float64 // 0: no bound
	zero        bool    // the value has to be 0, whatever the ratio
}

func atLeast(ratio float64) target { return target{least: ratio} }
func atMost(ratio float64) target  { return target{most: ratio} }

// ratio returns value ÷ reference; 1 where both are 0, since they are the same.
func (r row) ratio() float64 {
	switch {
	case r.reference != 0:
		return r.value / r.reference
	case r.value == 0:
		return 1
	default:
		return math.Inf(1)
	}
}

// String returns the line without its end: name, value, unit, reference and ratio between tabs.
func (r row) String() string {
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", r.name, figure(r.value), r.unit, figure(r.reference), figure(r.ratio()))
}

// verdict says whether the target is met; empty if there is none.
func (r row) verdict() string {
	t, ratio := r.target, r.ratio()
	say := func(met bool, want string) string {
		if met {
			return "met: " + want
		}
		return "MISSED: " + want
	}
	switch {
	case t.zero:
		return say(r.value == 0, "must be 0")
	case t.least != 0:
		return say(ratio >= t.least, "at least "+figure(t.least)+" of the reference")
	case t.most != 0:
		return say(ratio <= t.most, "at most "+figure(t.most)+" of the reference")
	default:
		return ""
	}
}

// figure prints a number with four significant digits and never in exponents, so that every tool reads it.
func figure(v float64) string {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	decimals := max(0, 3-int(math.Floor(math.Log10(math.Abs(v)))))
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// report writes rows as they come and remembers the targets they miss.
type report struct {
	out, notes io.Writer
	wanted     func(name string) bool
	declared   []string // rows of the measurement that is being made
	missed     []string
}

// add writes a row if it is wanted. It has to be declared: rows are chosen by name before anything is measured.
func (r *report) add(v row) {
	if !slices.Contains(r.declared, v.name) {
		panic("row " + v.name + " is not declared")
	}
	if !r.wanted(v.name) {
		return
	}
	fmt.Fprintln(r.out, v)
	if verdict := v.verdict(); verdict != "" {
		r.note("%s: %s", v.name, verdict)
		if verdict[0] == 'M' {
			r.missed = append(r.missed, v.name)
		}
	}
}

// note writes a comment.
func (r *report) note(format string, args ...any) {
	fmt.Fprintf(r.notes, "# "+format+"\n", args...)
}

// median returns the middle of the values, the lower one of two; 0 of none.
func median[T cmp.Ordered](values []T) T {
	return quantile(values, 0.5)
}

// quantile returns the smallest of the values that at least the part q of them do not exceed; 0 of none.
func quantile[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var none T
		return none
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(q*float64(len(sorted))))-1))]
}

// pick collects one figure of each of several results.
func pick[R any](results []R, of func(R) float64) []float64 {
	all := make([]float64, len(results))
	for i, r := range results {
		all[i] = of(r)
	}
	return all
}
