package runstate

import (
	"slices"
	"strings"
	"unicode"
)

// writeWords are what a description that speaks of writing holds, and what the name of a tool that writes begins with.
var writeWords = []string{
	"write", "save", "create", "delete", "remove", "modify", "update", "edit", "append", "overwrite", "truncate", "mkdir",
	"touch", "chmod", "chown",
}

var (
	// destroyWords are verbs of names after which something is gone.
	destroyWords = []string{"delete", "remove", "overwrite", "truncate", "drop", "destroy", "erase", "purge", "wipe", "rm"}
	// shellWords in a name tell of a shell, unless its verb only looks at one.
	shellWords = []string{"sh", "bash", "zsh", "shell", "powershell", "pwsh", "terminal", "cmd"}
	runWords   = []string{"run", "exec", "execute", "spawn", "eval"}
	ranWords   = []string{"command", "commands", "script", "code", "process", "program"}
	lookWords  = []string{"get", "list", "read", "show", "view", "find", "search", "describe", "check", "count", "fetch"}
)

// speaksOfWriting returns the first write-like word that a text holds, be it part of another word; empty: none.
func speaksOfWriting(text string) string {
	text = strings.ToLower(text)
	for _, word := range writeWords {
		if strings.Contains(text, word) {
			return word
		}
	}
	return ""
}

// nameKind is what the name of a tool plainly says that the tool does.
type nameKind int

const (
	namesNothing nameKind = iota
	namesWrite
	namesDestruction
	namesShell
)

// kindOfName judges the name of a tool by its words: the verb it begins with, or a shell anywhere in it. What comes
// before a dot, a slash or a colon names where the tool belongs and is not looked at.
func kindOfName(name string) nameKind {
	words := wordsOf(name[strings.LastIndexAny(name, "./:")+1:])
	if len(words) == 0 {
		return namesNothing
	}
	verb := words[0]
	among := func(list []string) func(string) bool {
		return func(word string) bool { return slices.Contains(list, word) }
	}
	switch {
	case slices.Contains(destroyWords, verb):
		return namesDestruction
	case slices.Contains(writeWords, verb):
		return namesWrite
	case slices.Contains(lookWords, verb):
		return namesNothing
	case slices.ContainsFunc(words, among(shellWords)),
		slices.Contains(runWords, verb) && (len(words) == 1 || slices.ContainsFunc(words[1:], among(ranWords))):
		return namesShell
	}
	return namesNothing
}

// wordsOf splits a name at all that is no letter or digit, and where camel case begins a word; in lower case.
func wordsOf(name string) []string {
	var words []string
	var word strings.Builder
	end := func() {
		if word.Len() > 0 {
			words = append(words, strings.ToLower(word.String()))
			word.Reset()
		}
	}
	lower := false
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			end()
			lower = false
			continue
		}
		if unicode.IsUpper(r) && lower {
			end()
		}
		lower = !unicode.IsUpper(r)
		word.WriteRune(r)
	}
	end()
	return words
}
