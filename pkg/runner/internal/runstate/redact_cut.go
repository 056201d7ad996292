package runstate

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxPublicText = 20000 // characters of a public text
	cutMark       = "[truncated]"
)

// cutPublic cuts text that is longer than 20000 characters.
func cutPublic(text string) string {
	if len(text) <= maxPublicText {
		return text
	}
	if strings.HasSuffix(text, cutMark) && utf8.RuneCountInString(text) <= maxPublicText+len(cutMark) {
		return text
	}
	end := prefix(text, maxPublicText, func(rune) int { return 1 })
	if end == len(text) {
		return text
	}
	return text[:end] + cutMark
}

// prefix gives the end of what of text costs at most room. It lies in no mark and after no backslash, so that what is
// cut off there, and marked, is redacted to itself.
func prefix(text string, room int, cost func(rune) int) int {
	for at, r := range text {
		if room -= cost(r); room >= 0 {
			continue
		}
		for _, mark := range []string{hidden, hiddenJWT} {
			for n := 1; n < len(mark); n++ {
				if strings.HasSuffix(text[:at], mark[:n]) && strings.HasPrefix(text[at:], mark[n:]) {
					at -= n
					break
				}
			}
		}
		return len(strings.TrimRight(text[:at], `\`))
	}
	return len(text)
}

// cutJSON cuts JSON text, an object or array, to at most 20000 characters so that it stays JSON: the string at the cut
// ends with the mark, or the mark stands in the place of what does not fit, and what is open there is closed.
func cutJSON(text string) string {
	if len(text) <= maxPublicText || utf8.RuneCountInString(text) <= maxPublicText {
		return text
	}
	text = strings.Trim(text, " \t\r\n")
	if utf8.RuneCountInString(text) <= maxPublicText {
		return text
	}
	w := walkJSON(text)
	defer w.release()
	var open []byte // what closes the objects and arrays that are open
	for used := 0; ; {
		isKey, inObject := w.atKey(), w.inObject()
		kind := w.dec.PeekKind()
		from := w.next()
		if _, err := w.dec.ReadToken(); err != nil {
			return hidden // no JSON
		}
		chars := utf8.RuneCountInString(text[w.done:w.at()])
		if used+chars+w.dec.StackDepth()+cutReserve <= maxPublicText {
			used += chars
			w.done = w.at()
			switch kind {
			case jsontext.KindBeginObject:
				open = append(open, '}')
			case jsontext.KindBeginArray:
				open = append(open, ']')
			case jsontext.KindEndObject, jsontext.KindEndArray:
				open = open[:len(open)-1]
			default:
			}
			continue
		}
		value := `"` + cutMark + `"`
		if kind == jsontext.KindString && !isKey {
			value = cutQuoted(text[from:w.at()], maxPublicText-used-len(open)-cutReserve)
		}
		return text[:w.done] + cutEnd(text[:w.done], isKey, inObject, value) + closing(open)
	}
}

// cutReserve is how many characters a mark takes at most that is a member of its own, or ends a string.
const cutReserve = len(`,"` + cutMark + `":null`)

// inObject says whether the next token is a key or value of an object.
func (w *jsonWalk) inObject() bool {
	kind, _ := w.dec.StackIndex(w.dec.StackDepth())
	return kind == jsontext.KindBeginObject
}

// cutEnd is what stands at the cut after what is kept.
func cutEnd(kept string, isKey, inObject bool, value string) string {
	comma := ","
	if last := kept[len(kept)-1]; last == '{' || last == '[' {
		comma = ""
	}
	switch {
	case isKey:
		return comma + `"` + cutMark + `":null`
	case inObject:
		return ":" + value
	default:
		return comma + value
	}
}

// brokenMark ends JSON that is no JSON any more. Its first character cannot stand between values, so that what reads it
// again ends before it.
const brokenMark = "…" + cutMark

// cutBroken cuts what was read of values that are not whole, or are several: if they are longer than 20000 characters
// together, or if there was more, which is not shown. The last one stands as far as it fits if it has keys, and is left
// out otherwise: what has none is taken for text.
func cutBroken(head string, more bool) string {
	fits := len(head) <= maxPublicText || utf8.RuneCountInString(head) <= maxPublicText
	if fits {
		if more {
			return head + brokenMark
		}
		return head
	}
	w := walkJSON(head)
	defer w.release()
	keyed := false
	for used, begin := 0, 0; ; {
		if w.dec.StackDepth() == 0 {
			begin, keyed = w.done, false
		}
		isKey, kind := w.atKey(), w.dec.PeekKind()
		_, err := w.dec.ReadToken()
		if err == nil {
			used += utf8.RuneCountInString(head[w.done:w.at()])
		}
		if err != nil || used > maxPublicText {
			if !keyed {
				w.done = begin
			}
			return head[:w.done] + brokenMark
		}
		keyed = keyed || isKey && kind == jsontext.KindString
		w.done = w.at()
	}
}

// cutQuoted cuts a JSON string, whose text costs at most room characters then. JSON in it is left out as a whole: cut
// it would not be JSON any more, and read otherwise.
func cutQuoted(quoted string, room int) string {
	text := unquoteJSON(quoted)
	if looksLikeJSON(text) {
		text = ""
	}
	text = text[:prefix(text, room, quotedSize)]
	return string(quoteJSON(text + cutMark))
}

// quotedSize is how many characters a character is in a JSON string.
func quotedSize(r rune) int {
	switch {
	case r == '"' || r == '\\' || r == '\b' || r == '\f' || r == '\n' || r == '\r' || r == '\t':
		return 2
	case r < ' ':
		return len(`\u0000`)
	default:
		return 1
	}
}

// closing closes what is open, the innermost first.
func closing(open []byte) string {
	var out strings.Builder
	for _, bracket := range slices.Backward(open) {
		out.WriteByte(bracket)
	}
	return out.String()
}
