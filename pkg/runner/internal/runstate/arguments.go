package runstate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxArgumentDepth = 128  // objects and arrays in each other, the outermost included
	maxNumberLength  = 1000 // characters
	maxExponent      = 1000 // absolute
	maxPreview       = 120  // characters
)

// Arguments are the arguments of a call in the forms that runnerd works with.
type Arguments struct {
	Text      string // exactly what is gated, digested and sent: the model's text, "{}" for a blank one
	Canonical []byte // sorted keys, no blanks, number text as written: the same for texts that say the same
}

// ArgumentError says why arguments can't be passed on.
type ArgumentError struct {
	Reason   string // for the model and for people
	Position int    // byte offset in the text at which it shows, from 0
	Preview  string // at most 120 characters around the position, safe to print
}

func (e *ArgumentError) Error() string {
	return fmt.Sprintf("%s (at byte %d)", e.Reason, e.Position)
}

// ParseArguments checks that raw is exactly one JSON object that every party reads in the same way, and gives its
// forms. Blank text is taken as {}. Nothing else is guessed, repaired or unwrapped. Errors are of type *ArgumentError.
//
// Refused are: what is not JSON, anything after the object, other values than an object, duplicate keys, nesting over
// 128, bytes that are not UTF-8, lone surrogates, NUL, and numbers of over 1000 characters or with an exponent beyond
// ±1000, which cost time and memory out of all proportion wherever they are read exactly.
func ParseArguments(raw string) (Arguments, error) {
	if strings.TrimSpace(raw) == "" {
		return Arguments{Text: "{}", Canonical: []byte("{}")}, nil
	}
	if err := checkArguments(raw); err != nil {
		return Arguments{}, err
	}
	canonical, err := canonicalJSON(raw)
	if err != nil {
		return Arguments{}, argumentError(raw, 0, "arguments are not valid JSON: %v", err)
	}
	return Arguments{Text: raw, Canonical: canonical}, nil
}

// canonicalJSON gives the canonical form of a JSON text.
func canonicalJSON(text string) ([]byte, error) {
	value := jsontext.Value(text)
	err := value.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	return value, err
}

// checkArguments reads the text once, token by token.
func checkArguments(raw string) error {
	if at := strings.IndexByte(raw, 0); at >= 0 {
		return argumentError(raw, at, "arguments hold a NUL byte")
	}
	dec := jsontext.NewDecoder(strings.NewReader(raw))
	for first := true; first || dec.StackDepth() > 0; first = false {
		before := int(dec.InputOffset())
		token, err := dec.ReadToken()
		if err != nil {
			return syntaxError(raw, err)
		}
		if first && token.Kind() != jsontext.KindBeginObject {
			// Whether the rest is valid is of no interest: it can't be an object.
			return argumentError(raw, 0, "arguments must be a JSON object, got %s", kindName(token.Kind()))
		}
		if dec.StackDepth() > maxArgumentDepth {
			return argumentError(raw, int(dec.InputOffset())-1, "arguments are nested deeper than %d", maxArgumentDepth)
		}
		switch token.Kind() {
		case jsontext.KindString:
			if at := escapedNUL(raw[before:dec.InputOffset()]); at >= 0 {
				return argumentError(raw, before+at, `arguments hold a NUL character (\u0000)`)
			}
		case jsontext.KindNumber:
			if number := token.String(); !sensibleNumber(number) {
				return argumentError(raw, int(dec.InputOffset())-len(number),
					"arguments hold a number that is too long or too large")
			}
		default: // nothing more to check
		}
	}
	end := int(dec.InputOffset())
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		end += len(raw[end:]) - len(strings.TrimLeft(raw[end:], " \t\r\n"))
		return argumentError(raw, end, "arguments must be one JSON object, but something follows it")
	}
	return nil
}

// syntaxError turns an error of the reader into one that says what is wrong and where.
func syntaxError(raw string, err error) error {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		return argumentError(raw, len(raw), "arguments are not valid JSON: cut off in the middle")
	}
	at := int(syntax.ByteOffset)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return argumentError(raw, at, "arguments hold the key %s twice", cutText(strconv.Quote(syntax.JSONPointer.LastToken()), maxPreview))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return argumentError(raw, len(raw), "arguments are not valid JSON: cut off in the middle")
	case invalidUTF8(raw[min(at, len(raw)):]):
		return argumentError(raw, at, "arguments are not valid UTF-8")
	case strings.Contains(syntax.Err.Error(), "surrogate"):
		return argumentError(raw, at, "arguments hold a lone surrogate, which no text can")
	default:
		return argumentError(raw, at, "arguments are not valid JSON: %v", syntax.Err)
	}
}

// invalidUTF8 says whether text begins with bytes that are no character.
func invalidUTF8(text string) bool {
	r, size := utf8.DecodeRuneInString(text)
	return r == utf8.RuneError && size == 1
}

// escapedNUL finds \u0000 in valid JSON text; -1 if there is none.
func escapedNUL(text string) int {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if strings.HasPrefix(text[i:], `\u0000`) {
			return i
		}
		i++ // what is escaped is not itself the begin of an escape
	}
	return -1
}

// sensibleNumber says whether a JSON number is of a size that can be read exactly without harm.
func sensibleNumber(number string) bool {
	if len(number) > maxNumberLength {
		return false
	}
	at := strings.IndexAny(number, "eE")
	if at < 0 {
		return true
	}
	exponent, err := strconv.Atoi(number[at+1:])
	return err == nil && -maxExponent <= exponent && exponent <= maxExponent
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case jsontext.KindNull:
		return "null"
	case jsontext.KindTrue, jsontext.KindFalse:
		return "boolean"
	case jsontext.KindString:
		return "string"
	case jsontext.KindNumber:
		return "number"
	case jsontext.KindBeginArray:
		return "array"
	default:
		return kind.String()
	}
}

func argumentError(raw string, at int, format string, args ...any) error {
	at = min(max(at, 0), len(raw))
	return &ArgumentError{Reason: fmt.Sprintf(format, args...), Position: at, Preview: previewAround(raw, at)}
}

// previewAround gives the text around a position, printable, at most 120 characters.
func previewAround(raw string, at int) string {
	const before, after = maxPreview / 2, maxPreview / 2
	from := at
	for range before {
		_, size := utf8.DecodeLastRuneInString(raw[:from])
		from -= size
	}
	var preview bytes.Buffer
	for n := 0; n < before+after && from < len(raw); n++ {
		r, size := utf8.DecodeRuneInString(raw[from:])
		if !unicode.IsPrint(r) {
			r = utf8.RuneError
			if unicode.IsSpace(rune(raw[from])) {
				r = ' '
			}
		}
		preview.WriteRune(r)
		from += size
	}
	return preview.String()
}

// cutText cuts text to at most n bytes, on a character.
func cutText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
