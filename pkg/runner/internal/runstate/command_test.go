package runstate

import (
	"encoding/json"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"
	"pgregory.net/rapid"
)

func TestProgramOf(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"pytest":                     "pytest",
		"pytest -q tests":            "pytest",
		"  pytest\t-q \n":            "pytest",
		`'pytest' -q`:                "pytest",
		`"py"test -q`:                "pytest",
		`py'te'"st"`:                 "pytest",
		"./run.sh a":                 "./run.sh",
		`"/opt/my tools/x" a`:        "/opt/my tools/x",
		"git log --format='%h; %s'":  "git",
		`grep '$HOME & co' "a | b"`:  "grep",
		"ls *.go src/{a,b} ~/x":      "ls",
		"python3.12 -m pytest":       "python3.12",
		"make CC=gcc all":            "make",
		`echo a\ b \; c`:             "echo",
		"größe 1":                    "größe",
		"c++ a.c":                    "c++",
		`sed -n "1,2p" 'a b'`:        "sed",
		"find . -exec rm {} +":       "find",
		"":                           "",
		"   ":                        "",
		"\n":                         "",
		"# nothing":                  "",
		"a # and a comment":          "",
		"FOO=1 x":                    "",
		"FOO=1":                      "",
		"a; b":                       "",
		"a;":                         "",
		"a ;; b":                     "",
		"a && b":                     "",
		"a || b":                     "",
		"a & b":                      "",
		"a &":                        "",
		"a &!":                       "",
		"a | b":                      "",
		"a |& b":                     "",
		"a\nb":                       "",
		"a\r\nb":                     "",
		"a \\\nb":                    "",
		"a 'x\ny'":                   "",
		"a\x00b":                     "",
		"a\u2028b":                   "",
		"a\u0085b":                   "",
		"a \u202eb":                  "",
		"py\u200btest":               "",
		"a\xffb":                     "",
		"$(x)":                       "",
		"a $(x)":                     "",
		`a "$(x)"`:                   "",
		"`x`":                        "",
		"a `x`":                      "",
		"a \"`x`\"":                  "",
		"$x":                         "",
		"a $x":                       "",
		"a ${x}":                     "",
		"a ${x@P}":                   "",
		`a "$x"`:                     "",
		"a $((1+1))":                 "",
		"a $[1+1]":                   "",
		"a <(b)":                     "",
		"a >(b)":                     "",
		"a > b":                      "",
		"a 2>&1":                     "",
		"a < b":                      "",
		"a <<< b":                    "",
		"a << E\nb\nE":               "",
		"a <<E":                      "",
		"> b":                        "",
		"{ a; }":                     "",
		"(a)":                        "",
		"((a))":                      "",
		"[[ a ]]":                    "",
		"[ a ]":                      "",
		"! a":                        "",
		"time a":                     "",
		"coproc a":                   "",
		"f() { a; }":                 "",
		"function f { a; }":          "",
		"if a; then b; fi":           "",
		"for x in a; do b; done":     "",
		"while a; do b; done":        "",
		"case a in b) c;; esac":      "",
		"select x in a; do b; done":  "",
		"let x=1":                    "",
		"declare -x A=1":             "",
		"export A=1":                 "",
		"local a":                    "",
		"eval 'a; b'":                "",
		"'eval' a":                   "",
		"exec a":                     "",
		"command a":                  "",
		". a":                        "",
		"source a":                   "",
		"trap a EXIT":                "",
		"test -v 'a[$(x)]'":          "",
		"l* a":                       "",
		"l? a":                       "",
		"[l]s a":                     "",
		"{ls,a}":                     "",
		"~/ls":                       "",
		`\ls`:                        "",
		`l\s`:                        "",
		`"l*" a`:                     "",
		`$'ls'`:                      "",
		`a $'b'`:                     "",
		`$"ls"`:                      "",
		`a $"b"`:                     "",
		"a @(b|c)":                   "",
		"a 'b":                       "",
		`a "b`:                       "",
		`a \`:                        "",
		"a )":                        "",
		"'' a":                       "",
		`" a" b`:                     "",
		"%COMSPEC% a":                "",
		"a ^& b":                     "",
		strings.Repeat("$((", 9000):  "",
		strings.Repeat("${a:-", 900): "",
		strings.Repeat("`\\`", 9000): "",
		strings.Repeat("{ ", 30_000): "",
	} {
		if got := programOf(line); got != want {
			t.Errorf("%q runs %q, want %q", line[:min(len(line), 60)], got, want)
		}
	}
}

func TestCommandProgram(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ argument, arguments, name, program string }{
		{"", `{"command":"pytest -q"}`, "command", "pytest"},
		{"", `{"cmd":"pytest -q","cwd":"/x"}`, "cmd", "pytest"},
		{"", `{"cmd":"pytest","command":"rm x"}`, "", ""},
		{"", `{"line":"pytest"}`, "", ""},
		{"line", `{"line":"pytest","command":"rm x"}`, "line", "pytest"},
		{"line", `{"command":"pytest"}`, "", ""},
		{"", `{"command":["pytest","-q"]}`, "", ""},
		{"", `{"command":null}`, "", ""},
		{"", `{"command":1}`, "", ""},
		{"", `{"command":"a; b"}`, "command", ""},
		{"", `{"command":"a\nb"}`, "command", ""},
		{"", `{"command":"pytest \u0026 b"}`, "command", ""},
		{"", `{}`, "", ""},
		{"", ``, "", ""},
		{"", `[]`, "", ""},
		{"", `{"command":"pytest ` + strings.Repeat("x", maxCommand) + `"}`, "", ""},
	} {
		if name, program := commandProgram(tc.argument, tc.arguments); name != tc.name || program != tc.program {
			t.Errorf("%q of %s: %q runs %q, want %q, %q", tc.argument, cutText(tc.arguments, 80), name, program, tc.name, tc.program)
		}
	}
}

// TestProgramOfQuotedWords writes commands as a careful caller would, and expects the program that was meant; with
// anything more behind it, none.
func TestProgramOfQuotedWords(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		program := rapid.StringMatching(`[a-z./][a-zA-Z0-9_./+-]{0,12}`).Filter(func(s string) bool {
			return !syntax.IsKeyword(s) && programOf("'"+s+"'") != ""
		}).Draw(t, "program")
		line := "'" + program + "'"
		for range rapid.IntRange(0, 4).Draw(t, "words") {
			word, err := syntax.Quote(rapid.StringMatching(`[ -~äß]{0,12}`).Draw(t, "word"), syntax.LangPOSIX)
			if err != nil {
				t.Fatal(err)
			}
			line += " " + word
		}
		if nesting(line) > maxNesting {
			t.Skip()
		}
		if got := programOf(line); got != program {
			t.Fatalf("%q runs %q, want %q", line, got, program)
		}
		more := rapid.SampledFrom([]string{
			"; x", " & x", " && x", " || x", " | x", "\nx", "\rx", " $(x)", " `x`", " > x", " < x", " <(x)", ` "$(x)"`, " $x", " # x", "\x00",
		}).Draw(t, "more")
		if got := programOf(line + more); got != "" {
			t.Fatalf("%q runs %q and more", line+more, got)
		}
	})
}

// FuzzCommandProgram holds what is taken for a plain command against a reader of quotes that knows no grammar.
func FuzzCommandProgram(f *testing.F) {
	for _, line := range []string{"pytest -q", "a; b", `"a b" 'c' \d`, "a\nb", "$(x)", "`x`", `a "b\"c" 'd'`, "a <<E\nE", "((a))"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		arguments, err := json.Marshal(map[string]string{"command": line})
		if err != nil {
			t.Skip()
		}
		if _, program := commandProgram("", string(arguments)); program == "" {
			return
		}
		line = strings.ToValidUTF8(line, "\uFFFD") // as it stands in JSON
		if bare := unquoted(strings.TrimRight(line, "\r\n")); strings.ContainsAny(bare, ";&|<>()$`\n\r") {
			t.Errorf("%q is taken for a plain command, and has %q outside of quotes", line, bare)
		}
	})
}

// unquoted is a line without what is quoted or escaped; of double quotes what a shell looks into is left.
func unquoted(line string) string {
	var bare strings.Builder
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '\\':
			i++
		case '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return line
			}
			i += end + 1
		case '"':
			for i++; i < len(line) && line[i] != '"'; i++ {
				switch {
				case line[i] == '\\':
					i++
				case line[i] == '`' || expands(line[i:]):
					bare.WriteByte(line[i])
				}
			}
		default:
			if line[i] != '$' || expands(line[i:]) {
				bare.WriteByte(line[i])
			}
		}
	}
	return bare.String()
}

// expands reports whether a text begins with an expansion. A dollar with nothing to expand behind it is only itself.
func expands(text string) bool {
	return len(text) > 1 && text[0] == '$' && (strings.IndexByte("({[@*#?-$!_", text[1]) >= 0 || text[1] >= '0' && text[1] <= '9' ||
		text[1] >= 'A' && text[1] <= 'Z' || text[1] >= 'a' && text[1] <= 'z')
}
