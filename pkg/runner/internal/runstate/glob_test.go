package runstate

import (
	"slices"
	"strings"
	"testing"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// A host must not get round a rule by the name that it gives to a tool.
func TestGlobsOverNamesWithSlashes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		glob, name string
		want       bool
	}{
		{"*", "x/exec", true},
		{"tool:*", "x/exec", true},
		{"git_*", "git_/push", true},
		{"*exec", "a/b/exec", true},
		{"x/*", "x/a/b", true},
		{"x/**", "x/a/b", true},
		{"**/b", "x/a/b", true},
		{"**", "x/a/b", true},
		{"x?exec", "x/exec", true},
		{"x/exec", "x/exec", true},
		{"{a,x}/e*", "x/exec", true},
		{"y/*", "x/exec", false},
		{"exec", "x/exec", false},
		{"x", "x/exec", false},
		{"fs/**", "fs", true},
	} {
		for _, tool := range []*runnerdv1.Tool{
			{Name: tc.name, OfferedName: "0" + tc.name}, {Name: "0" + tc.name, OfferedName: tc.name},
		} {
			if got := matchesTool(tc.glob, &Tool{Tool: tool}); got != tc.want {
				t.Errorf("%q means %q offered as %q: %v, want %v", tc.glob, tool.GetName(), tool.GetOfferedName(), got, tc.want)
			}
		}
	}
}

// A caller's glob must not take longer to match than anybody can wait.
func TestGlobsAreBounded(t *testing.T) {
	t.Parallel()
	for glob, want := range map[string]string{
		"*.{key,pem}": "", "{a,b}{c,d}{e,{f,g}}": "", `\{` + strings.Repeat(",", 250): "", strings.Repeat("{a}", 85): "",
		"": "", "[x": `"[x" is not a glob`, "{": `"{" is not a glob`,
		"{" + strings.Repeat(",", 63) + "}":     "",
		strings.Repeat("{,}", 6):                "",
		strings.Repeat("{,}", 7):                "the braces of",
		strings.Repeat("{,*}", 64):              "the braces of",
		"{a,{b,{c,{d,{e,{f,{g,{h,{i,j}}}}}}}}}": "the braces of",
	} {
		err := CheckGlob(glob)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", glob, err, want)
		}
	}
	// The worst that is accepted, with all else in it that has to be tried.
	begin := time.Now()
	for _, glob := range []string{
		strings.Repeat("{*a,*}", 6) + "b", strings.Repeat("{,*}", 6) + strings.Repeat("*a", 100) + "b", strings.Repeat("**/{a,*}/", 6) + "b",
	} {
		if CheckGlob(glob) != nil || matchesGlob(glob, strings.Repeat("a", 128)) || matchesGlob(glob, strings.Repeat("a/", 2047)) {
			t.Errorf("%q is no glob, or matches", glob)
		}
	}
	globs := slices.Repeat([]string{strings.Repeat("{,*}", 6) + "[b]"}, 8)
	if err := CheckSensitive(globs); err != nil {
		t.Errorf("got %v", err)
	}
	if CheckSensitive(append(globs, "one more")) == nil {
		t.Error("sensitive globs that stand for too many together are accepted")
	}
	layer := &runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Sensitive: globs}}
	if o := sensitiveGate(layer, aPath(t, "to", strings.Repeat("aaaaaaaa/", 5000))); o != nil {
		t.Errorf("got %+v", o)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}
