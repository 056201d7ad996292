// Command conformance says which features of docs/conformance.md the tests cover.
//
// Usage: conformance [-milestone N] TABLE [RESULTS]
//
// TABLE is the markdown file, RESULTS the output of go test -json (default: standard
// input). A test covers the feature ids that one of its name's parts begins with:
// TestLimits/T-32_T-33_cost_cap covers T-32 and T-33 when it passes. For each id one
// line goes to standard output, its fields separated by tabs:
//
//	id  tested|reasoned|missing  the test, or the reason
//
// The exit status is 1 when a due id is missing, when a test of any id failed, and
// when a test names an id that the table does not have. An id is due when its
// milestone is at most N, or when it names none.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	milestone := flags.Int("milestone", 1, "the milestone that has to be complete")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 && flags.NArg() != 2 {
		return errors.New("usage: conformance [-milestone N] TABLE [RESULTS]")
	}

	features, err := readFile(flags.Arg(0), readFeatures)
	if err != nil {
		return err
	}
	var results *results
	if flags.NArg() == 2 {
		results, err = readFile(flags.Arg(1), readResults)
	} else {
		results, err = readResults(stdin)
	}
	if err != nil {
		return err
	}
	return report(features, results, *milestone, stdout, stderr)
}

// readFile reads a whole file with read.
func readFile[T any](path string, read func(io.Reader) (T, error)) (T, error) {
	var none T
	f, err := os.Open(path)
	if err != nil {
		return none, err
	}
	defer f.Close()
	v, err := read(f)
	if err != nil {
		return none, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// report writes the line of each feature to stdout and a summary to stderr. Its
// error says what has to change.
func report(features []feature, results *results, milestone int, stdout, stderr io.Writer) error {
	out := bufio.NewWriter(stdout)
	counts := map[string]int{}
	var due, dueMissing, failed int
	for _, f := range features {
		status, why := f.status(results.of[f.id])
		counts[status]++
		if results.of[f.id].failed != "" {
			failed++
		}
		if f.due(milestone) {
			due++
			if status == missing {
				dueMissing++
				why += " (due)"
			}
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", f.id, status, why)
		delete(results.of, f.id)
	}
	if err := out.Flush(); err != nil {
		return err
	}

	for _, pkg := range results.broken {
		fmt.Fprintf(stderr, "conformance: package %s did not build or failed outside a test\n", pkg)
	}
	fmt.Fprintf(stderr, "conformance: %d features: %d tested, %d reasoned, %d missing; due by milestone %d: %d, of these missing: %d\n",
		len(features), counts[tested], counts[reasoned], counts[missing], milestone, due, dueMissing)

	var problems []error
	if dueMissing > 0 {
		problems = append(problems, fmt.Errorf("%d due features are missing", dueMissing))
	}
	if failed > 0 {
		problems = append(problems, fmt.Errorf("tests of %d features failed", failed))
	}
	for _, id := range sortedIDs(results.of) { // what is left has no row
		problems = append(problems, fmt.Errorf("%s is not in the table, but %s names it", id, results.of[id].any()))
	}
	return errors.Join(problems...)
}
