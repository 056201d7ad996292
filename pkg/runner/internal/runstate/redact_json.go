package runstate

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// A key that contains one of these names a secret, in lower case and with _ for -.
var secretKeys = [...]string{"api_key", "apikey", "authorization", "credential", "password", "secret", "token"}

// Keys, in the same form, under which stand things that are not for everyone.
var (
	argumentKeys = []string{"command", "content", "new", "old"}
	resultKeys   = []string{"content", "stderr", "stdout", "text"}
)

const (
	maxRedactDepth = maxArgumentDepth // objects and arrays in each other; what is deeper is not shown
	maxJSONInJSON  = 8                // JSON in strings of JSON; what is deeper is not shown
)

// redactArguments gives the public part of the arguments of a call. Nobody can say what stands in arguments that are
// neither object nor array, so they are not shown; blank ones are.
func redactArguments(text string) string {
	if strings.TrimSpace(text) == "" {
		if len(text) > maxPublicText {
			return ""
		}
		return text
	}
	if !looksLikeJSON(text) {
		return hidden
	}
	w := walkJSON(text)
	defer w.release()
	if w.redact(argumentKeys, 0); !w.whole {
		return hidden
	}
	return cutJSON(w.public())
}

// redactResult gives the public part of the result of a call, which may be JSON or text.
func redactResult(text string) string { return redactTextOrJSON(text, resultKeys, 0) }

// redactMetadata gives the public part of JSON that is neither arguments nor result.
func redactMetadata(text string) string { return redactTextOrJSON(text, nil, 0) }

// redactTextOrJSON gives the public part of a text that may be JSON: an object or an array, or several one after the
// other. Of JSON that is broken the rest is not shown: nobody can say under which key it stands. What has no key, or
// comes behind, is text. Doing it again changes nothing.
func redactTextOrJSON(text string, keys []string, level int) string {
	if !looksLikeJSON(text) || text == hidden || text == cutMark {
		return RedactText(text)
	}
	if level == maxJSONInJSON {
		return hidden
	}
	w := walkJSON(text)
	w.redact(keys, level)
	head, rest := w.public(), text[w.good:]
	whole, broken := w.whole, w.broken
	w.release()
	switch {
	case whole:
		return cutJSON(head)
	case broken:
		return cutBroken(head, true)
	}
	public := RedactText(rest)
	if public != rest { // without the secret it may be JSON
		return redactTextOrJSON(head+public, keys, level)
	}
	if cut := cutBroken(head, false); cut != head {
		return cut
	}
	return cutPublic(head + rest)
}

// looksLikeJSON says whether text begins as an object or array does.
func looksLikeJSON(text string) bool {
	at := run(text, blank)
	return at < len(text) && (text[at] == '{' || text[at] == '[')
}

// keepsSecret says whether what stands under a key is not shown.
func keepsSecret(key string, keys []string) bool {
	key = strings.ReplaceAll(strings.ToLower(key), "-", "_")
	for _, secret := range secretKeys {
		if strings.Contains(key, secret) {
			return true
		}
	}
	return slices.Contains(keys, key)
}

// unquoteJSON gives the text of a valid JSON string. Lone surrogates, which no text can have, become U+FFFD.
func unquoteJSON(quoted string) string {
	if inner := quoted[1 : len(quoted)-1]; strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // it tells of surrogates only
	return string(text)
}

// quoteJSON gives the JSON string of a text.
func quoteJSON(text string) []byte {
	quoted, _ := jsontext.AppendQuote(nil, text) // it tells of bytes that are no UTF-8 only, and shows them as U+FFFD
	return quoted
}

// A jsonWalk reads JSON text token by token. It takes what anybody may take for JSON: duplicate keys and lone
// surrogates, too.
type jsonWalk struct {
	text string
	dec  jsontext.Decoder
	buf  bytes.Buffer // the text, for the decoder

	out  []byte // what is made of text[:done]
	done int

	// As out and done were when the value began that is being read.
	outBefore, doneBefore int

	good   int  // text[:good] is JSON: what was read, up to the value that is broken
	keyed  bool // the value that is being read has keys
	whole  bool // the text is one value
	broken bool // it ends at good in the middle of a value that has keys
}

var jsonWalks = sync.Pool{New: func() any { return new(jsonWalk) }}

// maxKeptWalk bounds the buffer of a walk that nobody uses.
const maxKeptWalk = 64 << 10

func walkJSON(text string) *jsonWalk {
	w := jsonWalks.Get().(*jsonWalk) //nolint:errcheck,forcetypeassert // there is nothing else in it
	w.text, w.out, w.done, w.good = text, w.out[:0], 0, 0
	w.keyed, w.whole, w.broken = false, false, false
	w.buf.Reset()
	w.buf.WriteString(text)
	w.dec.Reset(&w.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return w
}

func (w *jsonWalk) release() {
	w.text = ""
	if max(w.buf.Cap(), cap(w.out)) <= maxKeptWalk {
		jsonWalks.Put(w)
	}
}

// redact reads values, as long as there are any, and replaces what is not shown: numbers, blanks, order and duplicate
// keys stay as they are. Under keys that name secrets, and under those of keys, no string, object or array is shown. All
// other strings are text, which may be JSON itself.
func (w *jsonWalk) redact(keys []string, level int) {
	values := 0
	for under := false; ; { // under a key under which nothing is shown
		if w.dec.StackDepth() == 0 {
			w.good, w.keyed = w.at(), false
			w.outBefore, w.doneBefore = len(w.out), w.done
			if !looksLikeJSON(w.text[w.good:]) {
				break // the end, or text
			}
			values++
		}
		isKey, before, kind := w.atKey(), w.at(), w.dec.PeekKind()
		from := w.next()
		opens := kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray
		if under && (opens || kind == jsontext.KindString) || opens && w.dec.StackDepth() >= maxRedactDepth {
			if w.dec.SkipValue() != nil {
				w.breaks(before)
				return
			}
			if value := w.text[from:w.at()]; value != `"`+hidden+`"` && value != `"`+cutMark+`"` {
				w.replace(from, hidden)
			}
			under = false
			continue
		}
		if _, err := w.dec.ReadToken(); err != nil {
			w.breaks(before)
			return
		}
		under = false
		if kind != jsontext.KindString {
			continue
		}
		value := unquoteJSON(w.text[from:w.at()])
		var shown string
		if isKey {
			w.keyed = true
			under = keepsSecret(value, keys)
			shown = RedactText(value)
		} else {
			shown = redactTextOrJSON(value, keys, level+1)
		}
		if shown != value {
			w.replace(from, shown)
		}
	}
	if run(w.text[w.good:], blank) == len(w.text)-w.good {
		w.good = len(w.text)
		w.whole = values == 1
	}
}

// breaks ends a walk in a value that is broken after before. Without keys it was none.
func (w *jsonWalk) breaks(before int) {
	if w.keyed {
		w.good, w.broken = before, true
	} else {
		w.out, w.done = w.out[:w.outBefore], w.doneBefore
	}
}

// at is where the last token ends.
func (w *jsonWalk) at() int { return int(w.dec.InputOffset()) }

// next is where the next token begins.
func (w *jsonWalk) next() int {
	at := w.at()
	return at + run(w.text[at:], betweenTokens)
}

func betweenTokens(c byte) bool { return blank(c) || c == ',' || c == ':' }

// atKey says whether the next token is a key of an object, or its end.
func (w *jsonWalk) atKey() bool {
	kind, length := w.dec.StackIndex(w.dec.StackDepth())
	return kind == jsontext.KindBeginObject && length%2 == 0
}

// replace puts a string in the place of what was read since from.
func (w *jsonWalk) replace(from int, text string) {
	w.out = append(w.out, w.text[w.done:from]...)
	w.out = append(w.out, quoteJSON(text)...)
	w.done = w.at()
}

// public is what is made of text[:good].
func (w *jsonWalk) public() string {
	if w.done == 0 {
		return w.text[:w.good]
	}
	w.out = append(w.out, w.text[w.done:w.good]...)
	w.done = w.good
	return string(w.out)
}
