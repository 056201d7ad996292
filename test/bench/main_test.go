package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The stubs and floors are this binary: under test, the test's.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestRow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		row           row
		line, verdict string
	}{
		{row{"a/64/rate", 4217.3, "1/s", 7377, atLeast(0.5)}, "a/64/rate\t4217\t1/s\t7377\t0.5717", "met: at least 0.5000 of the reference"},
		{row{"a/64/cpu", 0.3, "s", 0.1, atMost(2.2)}, "a/64/cpu\t0.3000\ts\t0.1000\t3.000", "MISSED: at most 2.200 of the reference"},
		{row{"a/size", 123456789, "B", 1e9, target{}}, "a/size\t123456789\tB\t1000000000\t0.1235", ""},
		{row{"a/small", 0.0000123, "s", 1, target{}}, "a/small\t0.00001230\ts\t1.000\t0.00001230", ""},
		{row{"a/twice", 0, "1", 0, target{zero: true}}, "a/twice\t0\t1\t0\t1.000", "met: must be 0"},
		{row{"a/twice", 3, "1", 0, target{zero: true}}, "a/twice\t3.000\t1\t0\t+Inf", "MISSED: must be 0"},
	} {
		if got := test.row.String(); got != test.line {
			t.Errorf("line %q, want %q", got, test.line)
		}
		if got := test.row.verdict(); got != test.verdict {
			t.Errorf("%s: verdict %q, want %q", test.row.name, got, test.verdict)
		}
	}
}

func TestStatistics(t *testing.T) {
	t.Parallel()
	if got := median([]float64{9, 1, 5}); got != 5 {
		t.Errorf("median of three is %v, want 5", got)
	}
	if got := median([]float64(nil)); got != 0 {
		t.Errorf("median of none is %v, want 0", got)
	}
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[len(hundred)-1-i] = i + 1
	}
	for q, want := range map[float64]int{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v of 1 to 100 is %d, want %d", q, got, want)
		}
	}
	if hundred[0] != 100 {
		t.Error("the values were sorted in place")
	}
	loud := []time.Duration{900, 300, 600, 601}
	if got := only([]string{"a", "b", "c", "d"}, quiet(loud)); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("quiet rounds are %v, want b and c", got)
	}
	if got := (row{value: 1}).ratio(); !math.IsInf(got, 1) {
		t.Errorf("ratio to nothing is %v, want infinite", got)
	}
	if got, want := histogram([]int64{int64(31 * time.Microsecond), int64(32 * time.Microsecond), int64(200 * time.Microsecond)}),
		"<32µs:1 <64µs:1 <128µs:0 <256µs:1"; got != want {
		t.Errorf("histogram %q, want %q", got, want)
	}
}

func TestTaskCarriesWork(t *testing.T) {
	t.Parallel()
	want := work{Iterations: 10, Pace: 25 * time.Millisecond, Hold: true, Files: true}
	got, err := parseTask(want.task())
	if err != nil || got != want {
		t.Errorf("parsed %+v, %v, want %+v", got, err, want)
	}
	if pace, err := paceOf(want.arguments(3)); err != nil || pace != want.Pace {
		t.Errorf("pace %v, %v, want %v", pace, err, want.Pace)
	}
	if got := want.arguments(3); len(got) != argumentBytes || !json.Valid([]byte(got)) {
		t.Errorf("arguments of %d bytes, want valid JSON of %d: %s", len(got), argumentBytes, got)
	}
	if len(toolResult) != resultBytes {
		t.Errorf("a result has %d bytes, want %d", len(toolResult), resultBytes)
	}
	if d := want.decide(10); len(d.GetToolCalls().GetCalls()) != 1 {
		t.Errorf("decision 10 is %v, want one call", d)
	}
	if d := want.decide(11); d.GetAnswer() == nil {
		t.Errorf("decision 11 is %v, want an answer", d)
	}
}

// Every measure runs against the real daemon, and gives exactly the rows it declares.
func TestQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("starts daemons for half a minute")
	}
	runnerd, rules := filepath.Join(t.TempDir(), "runnerd"), filepath.Join(t.TempDir(), "rules.test")
	for _, build := range [][]string{
		{"build", "-o", runnerd, "../../cmd/runnerd"},
		{"test", "-c", "-o", rules, "../../pkg/runner/internal/runstate"},
	} {
		if out, err := exec.CommandContext(t.Context(), "go", build...).CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", build, err, out)
		}
	}
	var out, notes bytes.Buffer
	err := run(t.Context(), []string{"-quick", "-runnerd", runnerd, "-rules", rules, "-dir", t.TempDir()}, nil, &out, &notes)
	t.Logf("%s", notes.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 5 {
			t.Errorf("line %q has %d fields, want 5", line, len(fields))
			continue
		}
		got[fields[0]] = true
		if fields[0] == "crash/64/calls_run_twice" && fields[1] != "0" {
			t.Errorf("%s calls were executed twice", fields[1])
		}
	}
	for _, m := range new(bench).measures() {
		for _, name := range m.rows {
			if !got[name] {
				t.Errorf("no line for %s", name)
			}
		}
	}
}
