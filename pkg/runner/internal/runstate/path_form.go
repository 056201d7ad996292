package runstate

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

const (
	maxPath     = 4096 // bytes, as on Linux
	maxPathName = 255  // bytes of one component
)

// reading is one way in which a tool may read the text of a path.
type reading struct {
	rooted  bool     // begins at the root of a file system
	foreign bool     // begins at another place: a home folder, a drive, a host, the target of a URL
	exact   bool     // as Linux reads it
	parts   []string // without empty ones and "."
}

// readings returns the ways in which a path may be read. The first is that of Linux. Where it holds what some party
// reads in another way (backslashes, look-alikes, percent signs, dots and blanks at ends), there are further ones, and
// what is asked of a path must hold for all of them.
func readings(path string, byName bool) []reading {
	first := readAs(path, byName)
	first.exact = true
	if plainPath(path) {
		return []reading{first}
	}
	all := []reading{first}
	add := func(text string) {
		r := readAs(lookAlikes(text), byName)
		for i, part := range r.parts {
			if climbs(part) {
				r.parts[i] = ".."
			}
		}
		if !slices.ContainsFunc(all, func(have reading) bool { return have.same(r) }) {
			all = append(all, r)
		}
	}
	add(path)
	if alike := lookAlikes(path); strings.Contains(alike, "%") {
		add(decodePercent(alike))
	}
	return all
}

func (r reading) same(other reading) bool {
	return r.rooted == other.rooted && r.foreign == other.foreign && slices.Equal(r.parts, other.parts)
}

// readAs splits a path at its slashes.
func readAs(path string, byName bool) reading {
	return reading{rooted: strings.HasPrefix(path, "/"), foreign: isForeign(path, byName), parts: components(path)}
}

// components are the parts of a path that say something.
func components(path string) []string {
	parts := make([]string, 0, strings.Count(path, "/")+1)
	for part := range strings.SplitSeq(path, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return parts
}

// plainPath reports whether everybody reads a path in the same way.
func plainPath(path string) bool {
	for i := range len(path) {
		switch c := path[i]; {
		case c >= utf8.RuneSelf, c == '\\', c == '%':
			return false
		case i > 0 && (c == '.' && path[i-1] == ' ' || c == ' ' && path[i-1] == '.'):
			return false
		}
	}
	return true
}

// climbs reports whether a component leads up where blanks do not count. Three dots are a name.
func climbs(part string) bool {
	return part == ".." ||
		strings.Contains(part, " ") && strings.Count(part, ".") >= 2 && strings.Trim(part, ". ") == ""
}

// separators are what is or looks like a slash or a backslash, and stays so in NFKC.
var separators = strings.NewReplacer(
	`\`, "/", "\u2044", "/", "\u2215", "/", "\u29F8", "/", "\u2571", "/", "\u2216", "/", "\u29F5", "/", "\u29F9", "/",
	"\u2572", "/", "\u1735", "/", "\u2CC6", "/", "\u3033", "/", "\U0001D23A", "/",
)

// lookAlikes writes a path with what its characters look like: full-width letters, leaders and ligatures as ASCII, and
// everything like a slash as one.
func lookAlikes(path string) string {
	return separators.Replace(norm.NFKC.String(path))
}

// decodePercent decodes percent-encoding once. What is none stays as it is. A dot or slash in too many bytes is one
// here, as for a careless reader.
func decodePercent(path string) string {
	if !strings.Contains(path, "%") {
		return path
	}
	var out strings.Builder
	for i := 0; i < len(path); i++ {
		if high, low := hexDigit(path, i+1), hexDigit(path, i+2); path[i] == '%' && high >= 0 && low >= 0 {
			out.WriteByte(byte(high<<4 | low))
			i += 2
			continue
		}
		out.WriteByte(path[i])
	}
	return strings.ToValidUTF8(overlong.Replace(out.String()), "\uFFFD")
}

var overlong = strings.NewReplacer(
	"\xc0\xae", ".", "\xe0\x80\xae", ".", "\xf0\x80\x80\xae", ".", "\xc0\xaf", "/", "\xe0\x80\xaf", "/", "\xf0\x80\x80\xaf", "/",
	"\xc1\x9c", `\`, "\xe0\x81\x9c", `\`,
)

func hexDigit(text string, at int) int {
	if at >= len(text) {
		return -1
	}
	switch c := text[at]; {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

// isForeign reports whether a path begins at a place that is not in the file system as its slashes show it: a home
// folder, a drive, a host, or where a URL leads. A text that is only taken for a path because of its slashes may be
// any URL but one of a file.
func isForeign(path string, byName bool) bool {
	if strings.HasPrefix(path, "//") && !strings.HasPrefix(path, "///") {
		return true
	}
	for {
		if strings.HasPrefix(path, "~") {
			return true
		}
		scheme, rest, ok := strings.Cut(path, ":")
		switch {
		case !ok || !isScheme(scheme):
			return false
		case len(scheme) == 1, strings.EqualFold(scheme, "file"), byName && strings.HasPrefix(rest, "/"):
			return true
		}
		path = rest // view-source:file:…
	}
}

func isScheme(text string) bool {
	for i := range len(text) {
		c := text[i] | 0x20
		switch letter := 'a' <= c && c <= 'z'; {
		case letter:
		case i == 0, !('0' <= text[i] && text[i] <= '9' || strings.IndexByte("+-.", text[i]) >= 0):
			return false
		}
	}
	return text != ""
}

// isURL reports whether a text is a URL with a host.
func isURL(text string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && isScheme(scheme)
}

// looksLikePath reports whether a text of an argument that says nothing about itself is taken for a path: it holds no
// blanks and a slash, written in whichever way, or it leads up.
func looksLikePath(text string) bool {
	if strings.IndexFunc(text, unicode.IsSpace) >= 0 {
		return false
	}
	if strings.Contains(text, "/") {
		return true
	}
	if plainPath(text) {
		return text == ".."
	}
	alike := lookAlikes(decodePercent(lookAlikes(text)))
	if !strings.Contains(text, `\`) {
		return strings.Contains(alike, "/")
	}
	// A backslash is as likely to be an escape: it makes a path only of what leads up, or to another root.
	return isForeign(alike, false) || slices.ContainsFunc(components(alike), climbs)
}

// unclear says why a path is not one that every party reads in the same way; empty: it is. What is only taken for a
// path because of its slashes may be as long as it likes.
func unclear(path string, byName bool) string {
	if r := hiddenRune(path); r >= 0 {
		return fmt.Sprintf("holds the character %U, which cannot be seen", r)
	}
	if !byName {
		return ""
	}
	if r := hiddenRune(decodePercent(path)); r >= 0 {
		return fmt.Sprintf("holds the encoded character %U, which cannot be seen", r)
	}
	if len(path) > maxPath {
		return fmt.Sprintf("has over %d bytes", maxPath)
	}
	for part := range strings.SplitSeq(path, "/") {
		if len(part) > maxPathName {
			return fmt.Sprintf("holds a name of over %d bytes", maxPathName)
		}
	}
	return ""
}

// hiddenRune returns the first control, format or other character that is not shown, -1 if there is none.
func hiddenRune(text string) rune {
	for _, r := range text {
		switch {
		case r < ' ' || r == 0x7f:
			return r
		case r < utf8.RuneSelf:
		case r == utf8.RuneError, unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp,
			unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
			return r
		}
	}
	return -1
}

// foldName is by which names are compared where upper and lower case, and look-alikes, are the same, and dots and
// blanks at the end and a stream after a colon do not count.
func foldName(part string) string {
	part = foldCase(part)
	part, _, _ = strings.Cut(part, ":")
	if trimmed := strings.TrimRight(part, ". "); trimmed != "" {
		part = trimmed
	}
	return part
}

// foldCase writes text so that two that differ in upper and lower case, or look alike, are the same.
func foldCase(text string) string {
	for i := range len(text) {
		if c := text[i]; c >= utf8.RuneSelf || 'A' <= c && c <= 'Z' {
			return strings.ToLower(strings.ToUpper(norm.NFKC.String(text))) // some letters have several lower cases, and one upper
		}
	}
	return text
}
