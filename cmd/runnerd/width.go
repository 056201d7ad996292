package main

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// columns is how many columns of a terminal a text takes. It is for text that
// is safe already.
func columns(s string) int {
	n := 0
	for _, r := range s {
		n += runeColumns(r)
	}
	return n
}

func runeColumns(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) || r == 0xfe0e || r == 0xfe0f {
		return 0
	}
	switch width.LookupRune(r).Kind() { //nolint:exhaustive // all others are narrow
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// pad fills s up to n columns.
func pad(s string, n int) string {
	return s + strings.Repeat(" ", max(n-columns(s), 0))
}

// cut shortens s to at most n columns, with a mark where something is missing.
func cut(s string, n int) string {
	if columns(s) <= n {
		return s
	}
	used := 0
	for i, r := range s {
		if used += runeColumns(r); used > n-1 { // one for the mark
			return s[:i] + "…"
		}
	}
	return s
}

// tail is the end of s, at most n columns of it.
func tail(s string, n int) string {
	runes := []rune(s)
	from := len(runes)
	for used := 0; from > 0; from-- {
		if used += runeColumns(runes[from-1]); used > n {
			break
		}
	}
	return string(runes[from:])
}
