package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Everything that models, tools, people and errors say is hostile to a
// terminal: it may move the cursor, rewrite what stands above, turn the order
// of characters around, or hide some. Every such string is printed through one
// of the two functions below, and they share one encoder.
//
// The escapes are those of JSON. So escaped JSON text is still the same JSON:
// what an approver reads is the exact arguments, and --output json is safe to
// look at and exact to parse.

// safeLine makes s printable on one line: line ends and tabs are escaped, too.
func safeLine(s string) string { return encode(s, "") }

// safeBlock makes s printable on several lines. Line ends stand, and tabs.
func safeBlock(s string) string { return encode(s, "\n\t") }

// maxMarks is how many combining marks may stand on one character. Writing
// systems need a few; more paint over the lines above and below.
const maxMarks = 6

// encode escapes all that is not plainly visible, but for the characters in keep.
func encode(s, keep string) string {
	var out strings.Builder
	marks := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, s[i]) // no UTF-8; JSON has no word for it
		case strings.ContainsRune(keep, r):
			out.WriteRune(r)
		case !visible(r):
			writeEscape(&out, r)
		case unicode.In(r, unicode.Mn, unicode.Me):
			if marks++; marks > maxMarks {
				writeEscape(&out, r)
				break
			}
			out.WriteRune(r)
		default:
			marks = 0
			out.WriteRune(r)
		}
		i += size
	}
	return out.String()
}

// visible says whether a rune shows itself and nothing else: no control (C0,
// DEL, C1), no format character (bidi, zero width, tags, byte order mark), no
// line or paragraph separator, nothing private or unassigned.
func visible(r rune) bool {
	return unicode.IsGraphic(r) && !unicode.Is(invisible, r)
}

// invisible are the graphic characters that cannot be seen: joiners, fillers,
// and variation selectors, in which text can be hidden; U+FE0E and U+FE0F only
// choose how an emoji looks.
var invisible = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x034f, Hi: 0x034f, Stride: 1}, // combining grapheme joiner
		{Lo: 0x115f, Hi: 0x1160, Stride: 1}, // Hangul fillers
		{Lo: 0x17b4, Hi: 0x17b5, Stride: 1}, // Khmer inherent vowels
		{Lo: 0x180b, Hi: 0x180f, Stride: 1}, // Mongolian variation selectors and vowel separator
		{Lo: 0x2800, Hi: 0x2800, Stride: 1}, // braille blank
		{Lo: 0x3164, Hi: 0x3164, Stride: 1}, // Hangul filler
		{Lo: 0xfe00, Hi: 0xfe0d, Stride: 1}, // variation selectors
		{Lo: 0xffa0, Hi: 0xffa0, Stride: 1}, // halfwidth Hangul filler
		{Lo: 0xfffc, Hi: 0xfffc, Stride: 1}, // object replacement character
	},
	R32: []unicode.Range32{
		{Lo: 0xe0100, Hi: 0xe01ef, Stride: 1}, // variation selectors
	},
}

func writeEscape(out *strings.Builder, r rune) {
	switch r {
	case '\n':
		out.WriteString(`\n`)
	case '\r':
		out.WriteString(`\r`)
	case '\t':
		out.WriteString(`\t`)
	default:
		if high, low := utf16.EncodeRune(r); high != unicode.ReplacementChar {
			fmt.Fprintf(out, `\u%04x\u%04x`, high, low)
			return
		}
		fmt.Fprintf(out, `\u%04x`, r)
	}
}

// shortLine is safeLine of the beginning of s: at most n characters, escapes
// never cut in two.
func shortLine(s string, n int) string {
	const most = 4 // bytes a character has at most
	whole := len(s) <= n*most
	if !whole {
		s = s[:n*most] // the rest cannot be shown anyway
	}
	if safe := safeLine(s); whole && utf8.RuneCountInString(safe) <= n {
		return safe
	}
	for utf8.RuneCountInString(safeLine(s)) > n-1 { // one for the mark
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return safeLine(s) + "…"
}
