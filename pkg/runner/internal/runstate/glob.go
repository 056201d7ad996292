package runstate

import (
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// matchesGlob matches a whole name against a glob. Most globs do not match most names, which their literal ends show
// without reading them as patterns.
func matchesGlob(glob, name string) bool {
	head, tail := literalEnds(glob)
	if len(name) < max(len(head), len(tail)) || name[:len(head)] != head || name[len(name)-len(tail):] != tail {
		return false
	}
	return len(head) == len(glob) && head == name || len(head) < len(glob) && doublestar.MatchUnvalidated(glob, name)
}

// literalEnds returns how a glob begins and ends without any pattern; both are the whole glob if it is a plain name.
func literalEnds(glob string) (head, tail string) {
	from := strings.IndexAny(glob, `*?[]{}\`)
	if from < 0 {
		return glob, glob
	}
	return glob[:from], glob[strings.LastIndexAny(glob, `*?[]{}\`)+1:]
}

// matchesText matches a whole text against a pattern of a deny rule: * stands for any characters, ? for one, \ takes
// the next as it is. Text that takes too many steps counts as a match, because a rule that blocks must not be got
// round by text that is hard to look at.
func matchesText(pattern, text string) bool {
	steps := stepsPerByte * (len(pattern) + len(text) + 1)
	star, again := -1, 0 // where the last * stands, and from where on it is tried with one more character
	p, t := 0, 0
	for t < len(text) || p < len(pattern) {
		if steps--; steps < 0 {
			return true
		}
		if p < len(pattern) {
			switch {
			case pattern[p] == '*':
				star, again = p, t
				p++
				continue
			case pattern[p] == '?':
				if t < len(text) {
					_, size := utf8.DecodeRuneInString(text[t:])
					p, t = p+1, t+size
					continue
				}
			default:
				literal := p
				if pattern[p] == '\\' && p+1 < len(pattern) {
					literal++
				}
				if t < len(text) && text[t] == pattern[literal] {
					p, t = literal+1, t+1
					continue
				}
			}
		}
		if star < 0 || t >= len(text) { // with a longer * even less text is left
			return false
		}
		_, size := utf8.DecodeRuneInString(text[again:])
		again += size
		p, t = star+1, again
	}
	return true
}

// stepsPerByte bounds the work of matchesText in the length of pattern and text.
const stepsPerByte = 16
