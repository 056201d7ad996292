package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const table = `# Conformance

| id | what, in our words | reason if not offered | milestone |
| --- | --- | --- | --- |
| T-01 | run ids are unique | | 1 |
| T-02 | the first event is run_started | | 1 |
| T-27 | a scratchpad | runs have no use for it | 1 |
| A-05 | counters \| all of them | | 2 |
| E-01 | the result | | later |
`

// event is one line of go test -json.
func event(action, test string) string {
	return `{"Action":"` + action + `","Package":"example.com/p","Test":"` + test + `"}` + "\n"
}

// conformance runs the command on a table and results.
func conformance(t *testing.T, table, results string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "conformance.md")
	if err := os.WriteFile(path, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	err = run(append(args, path), strings.NewReader(results), &out, &errs)
	return out.String(), errs.String(), err
}

func TestReport(t *testing.T) {
	t.Parallel()
	results := event("run", "TestRuns/T-01_ids") +
		event("pass", "TestRuns/T-01_ids") +
		event("pass", "TestRuns/T-02_A-05_first_event_and_counters") +
		event("pass", "TestRuns")
	stdout, stderr, err := conformance(t, table, results)
	if err != nil {
		t.Fatalf("all due features are there, got %v", err)
	}
	want := "T-01\ttested\texample.com/p TestRuns/T-01_ids\n" +
		"T-02\ttested\texample.com/p TestRuns/T-02_A-05_first_event_and_counters\n" +
		"T-27\treasoned\truns have no use for it\n" +
		"A-05\ttested\texample.com/p TestRuns/T-02_A-05_first_event_and_counters\n" +
		"E-01\tmissing\tmilestone later\n"
	if stdout != want {
		t.Errorf("lines are\n%s\nwant\n%s", stdout, want)
	}
	if want := "5 features: 3 tested, 1 reasoned, 1 missing; due by milestone 1: 3, of these missing: 0"; !strings.Contains(stderr, want) {
		t.Errorf("summary is %q, want %q", stderr, want)
	}
}

func TestReportFails(t *testing.T) {
	t.Parallel()
	both := event("pass", "TestRuns/T-01_a") + event("pass", "TestRuns/T-02_b")
	tests := []struct {
		name, results string
		args          []string
		err, line     string
	}{
		{
			name:    "a due feature without a test",
			results: event("pass", "TestRuns/T-01_a"),
			err:     "1 due features are missing", line: "T-02\tmissing\tmilestone 1 (due)\n",
		},
		{
			name:    "a skipped test is no test",
			results: event("pass", "TestRuns/T-01_a") + event("skip", "TestRuns/T-02_b"),
			err:     "1 due features are missing", line: "T-02\tmissing\tskipped: example.com/p TestRuns/T-02_b (due)\n",
		},
		{
			name:    "one failing test outweighs a passing one",
			results: both + event("fail", "TestMore/T-01_c"),
			err:     "tests of 1 features failed", line: "T-01\tmissing\tfailed: example.com/p TestMore/T-01_c (due)\n",
		},
		{
			name:    "a failing test of a feature that is not due",
			results: both + event("fail", "TestMore/E-01_c"),
			err:     "tests of 1 features failed", line: "E-01\tmissing\tfailed: example.com/p TestMore/E-01_c\n",
		},
		{
			name:    "the next milestone",
			results: both, args: []string{"-milestone", "2"},
			err: "1 due features are missing", line: "A-05\tmissing\tmilestone 2 (due)\n",
		},
		{
			name:    "a test that names an unknown id",
			results: both + event("pass", "TestMore/T-999_typo"),
			err:     "T-999 is not in the table, but example.com/p TestMore/T-999_typo names it", line: "T-01\ttested\t",
		},
		{
			name:    "something else than test events",
			results: "ok  example.com/p 0.1s\n",
			err:     "no test event",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stdout, _, err := conformance(t, table, tt.results, tt.args...)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error is %v, want %q", err, tt.err)
			}
			if !strings.Contains(stdout, tt.line) {
				t.Errorf("lines are\n%s\nwant among them\n%s", stdout, tt.line)
			}
		})
	}
}

func TestBrokenPackagesAreNamed(t *testing.T) {
	t.Parallel()
	results := "# example.com/q\nq.go:1: syntax error\n" +
		event("pass", "TestRuns/T-01_a") + event("pass", "TestRuns/T-02_b") +
		event("fail", "TestOther") + event("fail", "") +
		`{"Action":"fail","Package":"example.com/q","FailedBuild":"example.com/q"}` // no newline at the end
	_, stderr, err := conformance(t, table, results)
	if err != nil {
		t.Errorf("a failure that concerns no feature is the test run's to report, got %v", err)
	}
	if !strings.Contains(stderr, "package example.com/q did not build") {
		t.Errorf("summary does not name the broken package: %q", stderr)
	}
	if strings.Contains(stderr, "package example.com/p") {
		t.Errorf("summary names a package whose tests failed: %q", stderr)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"TestX":                                 "",
		"TestX/T-32_cost_check_is_strict":       "T-32",
		"TestX/T-32":                            "T-32",
		"TestX/T-32_T-33_both":                  "T-32 T-33",
		"TestX/T-32,_A-09:_both":                "T-32 A-09",
		"TestX/T-32_outer/E-20_inner":           "T-32 E-20",
		"TestX/T-32_outer/T-32_again":           "T-32",
		"TestX/like_T-32":                       "",
		"TestX/CASE-05_lone_surrogates":         "",
		"TestX/T-32bis":                         "",
		"TestX/T-32_T-1x_only_the_first_is_one": "T-32",
	}
	for name, want := range tests {
		if got := strings.Join(ids(name), " "); got != want {
			t.Errorf("ids(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestReadFeaturesRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"| T-01 | a | | 1 |\n| T-01 | b | | 1 |": "line 2: T-01 stands there twice",
		"| T-01 | a |":                           "line 1: T-01 has 2 columns",
		"| T-01 | a | b | c | d |":               "line 1: T-01 has 5 columns",
		"| T-01 | | | 1 |":                       "line 1: T-01 does not say what it is",
		"| T-01 | a | | soon |":                  `line 1: milestone "soon" of T-01`,
		"no table":                               "no row begins with a feature id",
	}
	for text, want := range tests {
		if _, err := readFeatures(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v, want %q", text, err, want)
		}
	}
}

func TestReadFeatures(t *testing.T) {
	t.Parallel()
	got, err := readFeatures(strings.NewReader("text\n| id | what | reason |\n|---|---|---|\n| T-01 | a \\| b | |\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []feature{{id: "T-01", what: "a | b"}}
	if !slices.Equal(got, want) {
		t.Errorf("features are %+v, want %+v", got, want)
	}
	if !got[0].due(0) {
		t.Error("a feature without a milestone is always due")
	}
}

// The project's own table has to be readable, or the gate checks nothing.
func TestProjectTable(t *testing.T) {
	t.Parallel()
	features, err := readFile("../../docs/conformance.md", readFeatures)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range features {
		if len([]rune(f.what)) > 140 {
			t.Errorf("%s says what it is in more than 140 characters", f.id)
		}
		if f.milestone == "" {
			t.Errorf("%s has no milestone", f.id)
		}
	}
}
