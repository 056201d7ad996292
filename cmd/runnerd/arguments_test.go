package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestArgumentLines(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, want string }{
		{"fields in their order, numbers as written", `{"to":"bob","amount":9007199254740993.10,"dry":false,"note":null}`, `
to      "bob"
amount  9007199254740993.10
dry     false
note    null`},
		{"escapes are decoded", `{"command":"rm"}`, `command  "rm"`},
		{"what cannot be seen is escaped", "{\"to\":\"\u202eevil\u200b\x7f\"}", `to  "\u202eevil\u200b\u007f"`},
		{"an escape that is text is told from one that is not", `{"a":"\\u202e","b":"C:\\new \"x\""}`, `
a  "\\u202e"
b  "C:\\new \"x\""`},
		{"text of several lines", `{"content":"# Report\n\n| model says | approve\n","path":"a"}`, `
content  4 lines, 33 bytes:
  | # Report
  | 
  | | model says | approve
  | 
path     "a"`},
		{"names that could be misread", `{"a b":1,"model says |":2,"":3}`, `
"a b"           1
"model says |"  2
""              3`},
		{"nested and short", `{"env":{"A":"1","B":[1,2,{}]}}`, `env  {"A": "1", "B": [1, 2, {}]}`},
		{"nested and long", `{"list":["` + strings.Repeat("x", 70) + `",{"a":[]}]}`, `
list  [
        "` + strings.Repeat("x", 70) + `",
        {
          "a": []
        }
      ]`},
		{"nothing", ` { } `, `no arguments: {}`},
		{"no JSON", "{\"a\":1\nmodel says | x", "text | {\"a\":1\ntext | model says | x"},
		{"no object", `[1]`, `text | [1]`},
		{"two values", `{} {}`, `text | {} {}`},
		{"what is lost in decoding stays as it is", `{"a":"\ud800"}`, `text | {"a":"\\ud800"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(argumentLines(tc.in), "\n")
			if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Arguments that differ look different, whatever is in them.
func TestArgumentsThatDifferLookDifferent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.StringOf(rapid.SampledFrom([]rune("ab\n \"\\|:{}[],un0\u200b\u202e\ufffd\t"))), rapid.String())
		var drawn func(depth int) *rapid.Generator[string]
		drawn = func(depth int) *rapid.Generator[string] {
			return rapid.Custom(func(t *rapid.T) string {
				switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
				case kind == 0:
					return rapid.SampledFrom([]string{"1", "1.0", "1e0", "-0", "true", "false", "null"}).Draw(t, "scalar")
				case kind == 1 && depth < 3:
					return "[" + strings.Join(rapid.SliceOfN(drawn(depth+1), 0, 3).Draw(t, "items"), ",") + "]"
				case kind == 2 && depth < 3 || depth == 0:
					var fields []string
					for range rapid.IntRange(0, 3).Draw(t, "fields") {
						fields = append(fields, quote(text.Draw(t, "key"))+":"+drawn(depth+1).Draw(t, "value"))
					}
					return "{" + strings.Join(fields, ",") + "}"
				}
				return quote(text.Draw(t, "text"))
			})
		}
		a, b := drawn(0).Draw(t, "a"), drawn(0).Draw(t, "b")
		// quote gives one spelling to a value, so texts are equal where values are.
		if same := strings.Join(argumentLines(a), "\n") == strings.Join(argumentLines(b), "\n"); same != (a == b) {
			t.Fatalf("%s and %s look the same: %v", a, b, same)
		}
	})
}

func TestShortenKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint("line ", i))
	}
	got := shorten(append(many, strings.Repeat("x", 1<<20)+"end"))
	text := strings.Join(got, "\n")
	has(t, text, "line 0\n", "line 29\n", "⋯ 961 lines are not shown here ⋯", "line 999", "characters are not shown here ⋯ xxx", "xend")
	if len(got) != 41 || len(text) > 4000 {
		t.Errorf("got %d lines, %d bytes", len(got), len(text))
	}
	if short := []string{"a", "b"}; !cmp.Equal(shorten(short), short) {
		t.Errorf("a short list was changed: %q", shorten(short))
	}
}

func TestArgumentsAreCheckedWithTheirPlace(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"{\n  \"a\": 1,\n  b\n}": "line 3, column 3: invalid character 'b' looking for beginning of object key string",
		"{\"ä\":}":               "line 1, column 6: invalid character '}' looking for beginning of value",
		"":                       "line 1, column 1: unexpected end of JSON input",
		"[1]":                    "the arguments are no JSON object",
		"null":                   "the arguments are no JSON object",
	} {
		if err := checkArguments(in); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", in, err, want)
		}
	}
	if err := checkArguments(" {\"a\":1}\n"); err != nil {
		t.Error(err)
	}
}

func TestDifferenceLines(t *testing.T) {
	t.Parallel()
	got := differenceLines(`{"a":1,"b":2,"c":3,"d":4,"e":5,"text":"one\n\ntwo","g":7}`, `{"a":1,"b":2,"c":3,"x":"\u202e","e":5,"text":"one\n\ndue","g":7}`, style{})
	want := []string{
		`  b  2`, `  c  3`, `- d  4`, `+ x  "\u202e"`, `  e  5`, `  text  3 lines, 8 bytes:`, `    | one`, `    | `, `-   | two`, `+   | due`, `  g  7`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var big, other []string
	for i := range 3000 {
		big, other = append(big, fmt.Sprint(i)), append(other, fmt.Sprint("n", i))
	}
	gone, come := 0, 0
	changes(big, other, func(mark byte, _ string) {
		if mark == '-' {
			gone++
		} else {
			come++
		}
	})
	if gone != 3000 || come != 3000 {
		t.Errorf("of very many lines %d go and %d come", gone, come)
	}
}
