package runstate

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

const (
	maxCommand = 64 << 10 // bytes of the longest arguments that are looked at
	maxProgram = 256      // bytes of the longest name of a program
)

// shellRunners are the builtins of a shell that run, or evaluate as code, what they are given: eval and its like, those
// that take callbacks, and those that take names of variables, whose subscripts may be substitutions even where the
// argument is quoted.
var shellRunners = []string{
	".", "alias", "bind", "builtin", "command", "compgen", "complete", "enable", "eval", "exec", "fc", "getopts", "jobs",
	"mapfile", "printf", "read", "readarray", "source", "test", "trap", "unset", "wait",
}

// commandProgram returns the argument that holds a command line and the program that it runs, where the line is a
// single plain command; an empty program: it is not. Argument is the operator's word; empty: command, or cmd.
func commandProgram(argument, arguments string) (name, program string) {
	if len(arguments) > maxCommand {
		return "", ""
	}
	var all map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &all) != nil {
		return "", ""
	}
	name = argument
	if name == "" {
		_, command := all["command"]
		_, cmd := all["cmd"]
		switch {
		case command == cmd: // none, or two of which nobody says which one is run
			return "", ""
		case command:
			name = "command"
		default:
			name = "cmd"
		}
	}
	var line *string
	if json.Unmarshal(all[name], &line) != nil || line == nil {
		return "", ""
	}
	return name, programOf(*line)
}

// programOf returns the program that a command line runs; empty: the line is not a single plain command. It is strict,
// as what it lets through may run without a person: whatever a shell, or another one than bash, could take for more
// than one command, or for a program that is only known when it runs, is not plain.
func programOf(line string) string {
	line = strings.TrimRight(line, "\r\n")
	if !utf8.ValidString(line) || strings.ContainsFunc(line, unseen) || strings.HasSuffix(line, `\`) ||
		nesting(line) > maxNesting {
		return ""
	}
	// A comment is none to every shell, so they are kept to be refused.
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true)).Parse(strings.NewReader(line), "")
	if err != nil || len(file.Stmts) != 1 || len(file.Last) > 0 {
		return ""
	}
	st := file.Stmts[0]
	call, plain := st.Cmd.(*syntax.CallExpr)
	if !plain || st.Negated || st.Background || st.Coprocess || st.Disown || st.Semicolon.IsValid() ||
		len(st.Redirs) > 0 || len(st.Comments) > 0 || len(call.Assigns) > 0 || len(call.Args) == 0 {
		return ""
	}
	for _, word := range call.Args {
		if !literal(word.Parts) {
			return ""
		}
	}
	program := textOf(call.Args[0].Parts)
	if program == "" || len(program) > maxProgram || strings.TrimSpace(program) != program || strings.ContainsAny(program, "*?[]{}~=!^\\$`#&|;<>()\"'%") ||
		slices.Contains(shellRunners, program) {
		return ""
	}
	return program
}

// unseen reports whether a character could hide or end a command: line breaks, control characters, and those that have
// no shape of their own or turn the direction of text.
func unseen(r rune) bool { return r != '\t' && unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) }

// maxNesting is how many brackets that open something a line may have: a parser goes as deep as they do.
const maxNesting = 256

func nesting(line string) (n int) {
	for _, bracket := range []string{"(", "{", "[", "`", "$"} {
		n += strings.Count(line, bracket)
	}
	return n
}

// literal reports whether nothing in a word is replaced by what something else says when it runs. Names that are made
// from patterns and braces are: they stay arguments.
func literal(parts []syntax.WordPart) bool {
	for _, part := range parts {
		switch p := part.(type) {
		case *syntax.Lit:
		case *syntax.SglQuoted:
			if p.Dollar {
				return false
			}
		case *syntax.DblQuoted:
			if p.Dollar || !literal(p.Parts) {
				return false
			}
		default: // an expansion, a substitution, or an extended pattern
			return false
		}
	}
	return true
}

// textOf is a literal word without its quotes.
func textOf(parts []syntax.WordPart) string {
	var text strings.Builder
	for _, part := range parts {
		switch p := part.(type) {
		case *syntax.Lit:
			text.WriteString(p.Value)
		case *syntax.SglQuoted:
			text.WriteString(p.Value)
		case *syntax.DblQuoted:
			text.WriteString(textOf(p.Parts))
		}
	}
	return text.String()
}
