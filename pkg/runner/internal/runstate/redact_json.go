package runstate

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// A key that contains one of these names a secret, in lower case and with _ for -.
var secretKeys = [...]string{"api_key", "authorization", "credential", "password", "secret", "token"}

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
	if public, ok := redactJSON(text, argumentKeys, 0); ok {
		return cutJSON(public)
	}
	return hidden
}

// redactResult gives the public part of the result of a call, which may be JSON or text.
func redactResult(text string) string { return redactTextOrJSON(text, resultKeys, 0) }

// redactMetadata gives the public part of JSON that is neither arguments nor result.
func redactMetadata(text string) string { return redactTextOrJSON(text, nil, 0) }

// redactTextOrJSON gives the public part of a text that may be JSON. Doing it again changes nothing.
func redactTextOrJSON(text string, keys []string, level int) string {
	if public, ok := redactJSON(text, keys, level); ok {
		return cutJSON(public)
	}
	public := RedactText(text)
	if public != text { // without the secret it may be JSON
		if again, ok := redactJSON(public, keys, level); ok {
			return cutJSON(again)
		}
	}
	return public
}

// redactJSON gives the public part of JSON text, an object or an array: numbers, blanks, order and duplicate keys stay
// as they are. Under keys that name secrets, and under those of keys, no string, object or array is shown. All other
// strings are text, which may be JSON itself. It is not ok if text is something else.
func redactJSON(text string, keys []string, level int) (public string, ok bool) {
	if !looksLikeJSON(text) || text == hidden || text == cutMark {
		return "", false
	}
	if level == maxJSONInJSON {
		return hidden, true
	}
	w := walkJSON(text)
	defer w.release()
	under := false // a key under which nothing is shown
	for first := true; first || w.dec.StackDepth() > 0; first = false {
		isKey := w.atKey()
		kind := w.dec.PeekKind()
		from := w.next()
		if opens := kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray; under && (opens || kind == jsontext.KindString) ||
			opens && w.dec.StackDepth() >= maxRedactDepth {
			if w.dec.SkipValue() != nil {
				return "", false
			}
			if value := w.text[from:w.at()]; value != `"`+hidden+`"` && value != `"`+cutMark+`"` {
				w.replace(from, hidden)
			}
			under = false
			continue
		}
		if _, err := w.dec.ReadToken(); err != nil {
			return "", false
		}
		under = false
		if kind != jsontext.KindString {
			continue
		}
		value := unquoteJSON(w.text[from:w.at()])
		var shown string
		if isKey {
			under = keepsSecret(value, keys)
			shown = RedactText(value)
		} else {
			shown = redactTextOrJSON(value, keys, level+1)
		}
		if shown != value {
			w.replace(from, shown)
		}
	}
	if _, err := w.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return "", false
	}
	return w.result(), true
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

	public strings.Builder // what is made of text[:done]
	done   int
}

var jsonWalks = sync.Pool{New: func() any { return new(jsonWalk) }}

// maxKeptWalk bounds the buffer of a walk that nobody uses.
const maxKeptWalk = 64 << 10

func walkJSON(text string) *jsonWalk {
	w := jsonWalks.Get().(*jsonWalk) //nolint:errcheck,forcetypeassert // there is nothing else in it
	w.text, w.done = text, 0
	w.public.Reset()
	w.buf.Reset()
	w.buf.WriteString(text)
	w.dec.Reset(&w.buf, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return w
}

func (w *jsonWalk) release() {
	w.text = ""
	w.public.Reset()
	if w.buf.Cap() <= maxKeptWalk {
		jsonWalks.Put(w)
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
	w.public.WriteString(w.text[w.done:from])
	w.public.Write(quoteJSON(text))
	w.done = w.at()
}

// result is the text with all that was replaced.
func (w *jsonWalk) result() string {
	if w.done == 0 {
		return w.text
	}
	w.public.WriteString(w.text[w.done:])
	return w.public.String()
}
