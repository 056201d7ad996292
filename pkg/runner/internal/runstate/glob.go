package runstate

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// A glob with braces stands for several without, each of which may have to be tried. In a few bytes it stands for more
// than anybody has the time for, and sensitive ones are tried with every component of every path.
const (
	maxAlternatives          = 64  // of one glob
	maxSensitiveAlternatives = 512 // of all sensitive globs of a layer
)

// CheckGlob says why a text is no glob; nil: it is one.
func CheckGlob(glob string) error {
	switch {
	case !doublestar.ValidatePattern(glob):
		return fmt.Errorf("%q is not a glob", glob)
	case alternatives(glob) > maxAlternatives:
		return fmt.Errorf("the braces of %q stand for over %d alternatives", glob, maxAlternatives)
	}
	return nil
}

// CheckSensitive says why globs cannot be the sensitive ones of a layer, each of which is one by itself; nil: they can.
func CheckSensitive(globs []string) error {
	n := 0
	for _, glob := range globs {
		if n += alternatives(glob); n > maxSensitiveAlternatives {
			return fmt.Errorf("the globs stand for over %d alternatives together", maxSensitiveAlternatives)
		}
	}
	return nil
}

// alternatives is how many globs without braces a glob stands for, at most: braces in braces are counted as if each
// stood beside the others. Above maxAlternatives it may be any number.
func alternatives(glob string) int {
	n := 1
	var open []int // commas so far in the braces that are open
	for i := 0; i < len(glob) && n <= maxAlternatives; i++ {
		switch c := glob[i]; {
		case c == '\\':
			i++
		case c == '{':
			open = append(open, 1)
		case c == ',' && len(open) > 0:
			open[len(open)-1]++
		case c == '}' && len(open) > 0:
			n *= open[len(open)-1]
			open = open[:len(open)-1]
		}
	}
	return n
}

// anySlash makes a slash a character as any other.
var anySlash = strings.NewReplacer("/", "\x00")

// matchesName matches the name of a tool against a glob. A slash in it means nothing: where a rule says * a host must
// not get round it by the name that it gives to a tool.
func matchesName(glob, name string) bool {
	if strings.Contains(name, "/") {
		glob, name = anySlash.Replace(glob), anySlash.Replace(name)
	}
	return matchesGlob(glob, name)
}

// matchesGlob matches a whole name against a glob. Most globs do not match most names, which their literal ends show
// without reading them as patterns, and most have one *.
func matchesGlob(glob, name string) bool {
	if strings.Contains(glob, "**") {
		return doublestar.MatchUnvalidated(glob, name) // which takes a/** for a too, and **/a
	}
	head := 0
	for ; head < len(glob) && !isMeta(glob[head]); head++ {
		if head >= len(name) || glob[head] != name[head] {
			return false
		}
	}
	if head == len(glob) {
		return head == len(name)
	}
	last, end := len(glob)-1, len(name) // of the glob's patterns, and of what they have to match
	for ; !isMeta(glob[last]); last-- {
		if end--; end < 0 || glob[last] != name[end] {
			return false
		}
	}
	if last == head && glob[head] == '*' {
		return head <= end && strings.IndexByte(name[head:end], '/') < 0
	}
	return doublestar.MatchUnvalidated(glob, name)
}

// isMeta reports whether a character of a glob stands for others than itself.
func isMeta(c byte) bool {
	switch c {
	case '*', '?', '[', ']', '{', '}', '\\':
		return true
	}
	return false
}

// matchesText matches a whole text against a pattern of a deny rule: * stands for any characters, ? for one, \ takes
// the next as it is. Text that takes too many steps counts as a match, because a rule that blocks must not be got
// round by text that is hard to look at.
//
// Each rule is tried on every call. As a regular expression a pattern takes some 27 µs for 1 KiB, so that twenty rules
// would cost more than sending the call; and a matcher with a fixed bound would block long text that is harmless.
func matchesText(pattern, text string) bool {
	steps := stepsPerByte * (len(pattern) + len(text) + 1)
	star, again := -1, 0 // where the pattern goes on after the last *, and where in the text that is tried
	literal := ""        // what stands there in the pattern before the next * or ?
	p, t := 0, 0
	for t < len(text) || p < len(pattern) {
		if steps--; steps < 0 {
			return true
		}
		if p == star && literal != "" {
			skip := strings.Index(text[t:], literal)
			if skip < 0 {
				return false
			}
			steps -= skip + len(literal)
			again += skip
			p, t = p+len(literal), again+len(literal)
			continue
		}
		if p < len(pattern) {
			switch pattern[p] {
			case '*':
				if p++; p == len(pattern) {
					return true
				}
				star, again, literal = p, t, literalHead(pattern[p:])
				continue
			case '?':
				if t < len(text) {
					_, size := utf8.DecodeRuneInString(text[t:])
					p, t = p+1, t+size
					continue
				}
			default:
				at := p
				if pattern[p] == '\\' && p+1 < len(pattern) {
					at++
				}
				if t < len(text) && text[t] == pattern[at] {
					p, t = at+1, t+1
					continue
				}
			}
		}
		if star < 0 || t >= len(text) { // with a longer * even less text is left
			return false
		}
		_, size := utf8.DecodeRuneInString(text[again:])
		again += size
		p, t = star, again
	}
	return true
}

// literalHead returns how a pattern of a deny rule begins before all that stands for something else.
func literalHead(pattern string) string {
	if end := strings.IndexAny(pattern, `*?\`); end >= 0 {
		return pattern[:end]
	}
	return pattern
}

// stepsPerByte bounds the work of matchesText in the length of pattern and text.
const stepsPerByte = 16
