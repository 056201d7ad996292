package runstate

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// subjectOf is a call of a tool with arguments.
func subjectOf(t testing.TB, tool *runnerdv1.Tool, arguments string) *subject {
	t.Helper()
	parsed, err := ParseArguments(arguments)
	if err != nil {
		t.Fatal(err)
	}
	return &subject{tool: &Tool{Tool: tool}, arguments: parsed}
}

func TestMatchesText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pattern, text string
		want          bool
	}{
		{"rm -rf", "rm -rf /", false},
		{"rm -rf*", "rm -rf /", true},
		{"rm -rf*", "rm -rf", true},
		{"*rm -rf*", "sudo rm -rf /", true},
		{"*a*b*c", "xaybzc", true},
		{"*a*b*c", "xaybz", false},
		{"a*a", "a", false},
		{"?", "", false},
		{"?", "é", true},
		{"??", "é", false},
		{"a?c*", "aéc", true},
		{`\*`, "*", true},
		{`\*`, "x", false},
		{`a\?`, "a?", true},
		{`a\?`, "ab", false},
		{`\\`, `\`, true},
		{`a\`, `a\`, true},
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"**", "a\nb", true},
		{"*x", strings.Repeat("x", 5000) + "y", false},
		{"日*語", "日本語", true},
		{"*本?", "日本本語", true},
		{"*ab?c", "ababc", false},
		{"*ab?c", "abababxc", true},
		{`*a\*b`, "aa*aa*b", true},
		{"*ab*ab", "ab", false},
		{"*ab*ab", "abab", true},
		{"*aab", "aaab", true},
	} {
		if got := matchesText(tc.pattern, tc.text); got != tc.want {
			t.Errorf("%q matches %q: %v, want %v", tc.pattern, tc.text[:min(len(tc.text), 40)], got, tc.want)
		}
	}
}

// Text is searched for in jumps, which finds what a step at a time would.
func TestMatchesTextAsDefined(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.SampledFrom([]rune("aabé?*")), 0, 10, -1)
	pattern := rapid.StringOfN(rapid.SampledFrom([]rune(`aabé**?\\`)), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		pattern, text := pattern.Draw(t, "pattern"), text.Draw(t, "text")
		var expression strings.Builder
		escaped := false
		for i, r := range pattern {
			switch {
			case !escaped && r == '\\' && i+1 < len(pattern):
				escaped = true
				continue
			case !escaped && r == '*':
				expression.WriteString(".*")
			case !escaped && r == '?':
				expression.WriteString(".")
			default:
				expression.WriteString(regexp.QuoteMeta(string(r)))
			}
			escaped = false
		}
		want := regexp.MustCompile("(?s)^(?:" + expression.String() + ")$").MatchString(text)
		if got := matchesText(pattern, text); got != want {
			t.Errorf("%q matches %q: %v, want %v", pattern, text, got, want)
		}
	})
}

// Globs are looked at in ways of our own before they are read as patterns, which changes nothing of what they match.
func TestMatchesGlob(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"keys", "keys/a", "deploy/keys", "deploy/keys/a/b"} {
		if !matchesGlob("**/keys/**", name) {
			t.Errorf("**/keys/** does not match %q", name)
		}
	}
	glob := rapid.StringOfN(rapid.SampledFrom([]rune("aab/**?[]{,}\\")), 0, 6, -1)
	name := rapid.StringOfN(rapid.SampledFrom([]rune("aab/")), 0, 6, -1)
	rapid.Check(t, func(t *rapid.T) {
		glob, name := glob.Draw(t, "glob"), name.Draw(t, "name")
		if !doublestar.ValidatePattern(glob) {
			t.Skip("no glob")
		}
		if got, want := matchesGlob(glob, name), doublestar.MatchUnvalidated(glob, name); got != want {
			t.Errorf("%q matches %q: %v, want %v", glob, name, got, want)
		}
	})
}

// A text that is made to be slow to look at is not let past a rule.
func TestMatchesTextIsBounded(t *testing.T) {
	t.Parallel()
	pattern := "*" + strings.Repeat("a", 1000) + "?b"
	begin := time.Now()
	if !matchesText(pattern, strings.Repeat("a", 1<<20)) {
		t.Error("a text that takes too many steps does not count as a match")
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestDenyRules(t *testing.T) {
	t.Parallel()
	tool := &runnerdv1.Tool{Host: "h", Name: "run", OfferedName: "h_run", Tier: 3}
	const call = `{"command":"rm -rf /","n":1.50,"on":true,"off":null,"list":[1,{"b":2,"a":"é"}],"o":{"x/y":{"~":"deep"}},"":"blank"}`
	for name, tc := range map[string]struct {
		rule *runnerdv1.DenyRule
		want bool
	}{
		"nothing named matches all":    {&runnerdv1.DenyRule{}, true},
		"own name":                     {&runnerdv1.DenyRule{Tools: "run"}, true},
		"offered name":                 {&runnerdv1.DenyRule{Tools: "h_*"}, true},
		"tool:":                        {&runnerdv1.DenyRule{Tools: "tool:ru?"}, true},
		"tool: is no part of the name": {&runnerdv1.DenyRule{Tools: "t*"}, false},
		"another tool":                 {&runnerdv1.DenyRule{Tools: "ru"}, false},
		"text":                         {&runnerdv1.DenyRule{Arguments: map[string]string{"command": "rm *"}}, true},
		"whole text":                   {&runnerdv1.DenyRule{Arguments: map[string]string{"command": "rm"}}, false},
		"number as written":            {&runnerdv1.DenyRule{Arguments: map[string]string{"n": "1.50"}}, true},
		"number otherwise":             {&runnerdv1.DenyRule{Arguments: map[string]string{"n": "1.5"}}, false},
		"true":                         {&runnerdv1.DenyRule{Arguments: map[string]string{"on": "true"}}, true},
		"null":                         {&runnerdv1.DenyRule{Arguments: map[string]string{"off": "null"}}, true},
		"canonical":                    {&runnerdv1.DenyRule{Arguments: map[string]string{"list": `[1,{"a":"é","b":2}]`}}, true},
		"absent":                       {&runnerdv1.DenyRule{Arguments: map[string]string{"absent": "*"}}, false},
		"one absent of two":            {&runnerdv1.DenyRule{Arguments: map[string]string{"command": "*", "absent": "*"}}, false},
		"one other of two":             {&runnerdv1.DenyRule{Arguments: map[string]string{"command": "*", "n": "2"}}, false},
		"blank name":                   {&runnerdv1.DenyRule{Arguments: map[string]string{"/": "blank"}}, true},
		"pointer into a list":          {&runnerdv1.DenyRule{Arguments: map[string]string{"/list/1/b": "2"}}, true},
		"pointer past a list":          {&runnerdv1.DenyRule{Arguments: map[string]string{"/list/2": "*"}}, false},
		"pointer with a sign":          {&runnerdv1.DenyRule{Arguments: map[string]string{"/list/-1": "*"}}, false},
		"pointer with zeros":           {&runnerdv1.DenyRule{Arguments: map[string]string{"/list/01": "*"}}, false},
		"pointer into text":            {&runnerdv1.DenyRule{Arguments: map[string]string{"/command/0": "*"}}, false},
		"escaped pointer":              {&runnerdv1.DenyRule{Arguments: map[string]string{"/o/x~1y/~0": "deep"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.rule.Id = "r-1"
			o := denyGate(&runnerdv1.PolicyLayer{Deny: []*runnerdv1.DenyRule{tc.rule}}, subjectOf(t, tool, call))
			if (o != nil) != tc.want {
				t.Fatalf("denied: %v, want %v", o != nil, tc.want)
			}
			if o != nil && (o.verdict != block || o.rule != "deny:r-1" || o.message != "not run: denied by rule r-1" ||
				o.reason != runnerdv1.CallReason_CALL_REASON_FILE_POLICY_DENIED) {
				t.Errorf("got %+v", o)
			}
		})
	}
	t.Run("the first rule that matches gives the message", func(t *testing.T) {
		t.Parallel()
		layer := &runnerdv1.PolicyLayer{Deny: []*runnerdv1.DenyRule{
			{Id: "other", Tools: "x", Message: "no"}, {Id: "first", Message: "ask Ann"}, {Id: "second", Message: "never"},
		}}
		if o := denyGate(layer, subjectOf(t, tool, "{}")); o == nil || o.rule != "deny:first" || o.message != "ask Ann" {
			t.Errorf("got %+v", o)
		}
	})
}

// Many members are found as quickly as few, and the same.
func TestManyMembers(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for i := range 100 {
		text.WriteString(`"k` + strings.Repeat("x", i) + `":` + strings.Repeat("1", i+1) + ",")
	}
	v := subjectOf(t, &runnerdv1.Tool{}, "{"+text.String()+`"last":"é"}`).root()
	if got := v.member("kxxx"); got == nil || got.text != "1111" {
		t.Errorf("got %+v", got)
	}
	if got := v.member("last"); got == nil || got.text != "é" || v.member("none") != nil {
		t.Errorf("got %+v", got)
	}
}
