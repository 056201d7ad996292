package main

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// allCommands walks a tree of commands, without those that cobra adds.
func allCommands(cmd *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) { walkCommands(cmd, yield) }
}

func walkCommands(cmd *cobra.Command, yield func(*cobra.Command) bool) bool {
	if cmd.Name() == "help" || cmd.Name() == "completion" {
		return true
	}
	if !yield(cmd) {
		return false
	}
	for _, child := range cmd.Commands() {
		if !walkCommands(child, yield) {
			return false
		}
	}
	return true
}

// runnerdCommands finds the runnerd command lines in a line of shell: the words
// after runnerd up to what ends a command. It knows quotes and comments, which
// is all that the documentation uses.
func runnerdCommands(line string) [][]string {
	var all [][]string
	var words []string
	end := func() {
		if i := slices.IndexFunc(words, func(w string) bool { return w == "runnerd" || strings.HasSuffix(w, "/runnerd") }); i >= 0 {
			all = append(all, words[i+1:])
		}
		words = nil
	}
	for rest := strings.TrimSpace(line); rest != ""; rest = strings.TrimLeft(rest, " \t\n") {
		if rest[0] == '#' {
			break
		}
		if i := strings.IndexAny(rest[:1], "|&;><()"); i == 0 {
			end()
			rest = rest[1:]
			continue
		}
		var word strings.Builder
		for rest != "" && !strings.ContainsAny(rest[:1], " \t\n|&;><)") {
			switch rest[0] {
			case '\'', '"':
				quote := rest[:1]
				inside, after, _ := strings.Cut(rest[1:], quote)
				word.WriteString(inside)
				rest = after
			case '(': // answer=$(runnerd ...)
				word.Reset()
				rest = rest[1:]
			default:
				word.WriteByte(rest[0])
				rest = rest[1:]
			}
		}
		words = append(words, word.String())
	}
	end()
	return all
}

func TestRunnerdCommandsAreFound(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][][]string{
		`runnerd run "say hello"`:                         {{"run", "say hello"}},
		`git diff | runnerd run -f - --label a=b`:         {{"run", "-f", "-", "--label", "a=b"}},
		`answer=$(runnerd run --follow "what time?")`:     {{"run", "--follow", "what time?"}},
		`.bin/runnerd resume x && .bin/runnerd watch x`:   {{"resume", "x"}, {"watch", "x"}},
		`runnerd audit export > log.jsonl`:                {{"audit", "export"}},
		`runnerd runs -o json | jq -r '.run_id|tostring'`: {{"runs", "-o", "json"}},
		`grpcurl list # runnerd run`:                      nil,
	} {
		got := runnerdCommands(line)
		if !slices.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}
