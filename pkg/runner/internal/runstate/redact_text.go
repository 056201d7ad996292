package runstate

import (
	"strings"
	"unicode/utf8"
)

const hiddenJWT = "[redacted-JWT]"

// RedactText gives the public part of free text: known shapes of secrets are replaced and what is longer than 20000
// characters is cut and marked. Doing it again changes nothing.
//
// The shapes are: bearer tokens of at least 8 characters, whose word is kept; sk-…; the values of api_key=, token=,
// secret= and password=, also as JSON members, whose names are kept; three parts of at least 20 characters joined by
// dots (JWT); AKIA and 16 more; ghp_ or github_pat_ and at least 20 more.
func RedactText(text string) string {
	var public strings.Builder
	done := 0
	for i := 0; i < len(text); {
		from, to, mark := secretAt(text, i, done)
		if to == 0 {
			i++
			continue
		}
		public.WriteString(text[done:from])
		public.WriteString(mark)
		done, i = to, to
	}
	if done > 0 {
		public.WriteString(text[done:])
		text = public.String()
	}
	return cutPublic(text)
}

// secretAt says what of text is to be replaced, and by what, if a secret or the word before it begins at i; to is 0 if
// none does. Words begin also at done, where the secret before ends: without that they would. It looks at the first
// byte before anything else: this runs over all text of all events.
func secretAt(text string, i, done int) (from, to int, mark string) {
	switch text[i] | 0x20 { // lower case
	case 'a':
		if to := token(text, i, done, "AKIA", upperDigit, 16); to > 0 {
			return i, to, hidden
		}
		if from, to := pair(text, i, "api_key", "api-key", "apikey"); to > 0 {
			return from, to, hidden
		}
	case 'b':
		if from, to := bearer(text, i, done); to > 0 {
			return from, to, hidden
		}
	case 'g':
		if to := max(token(text, i, done, "ghp_", alphanumeric, 20), token(text, i, done, "github_pat_", word, 20)); to > 0 {
			return i, to, hidden
		}
	case 'p':
		if from, to := pair(text, i, "password"); to > 0 {
			return from, to, hidden
		}
	case 's':
		if to := token(text, i, done, "sk-", tokenChar, 6); to > 0 {
			return i, to, hidden
		}
		if from, to := pair(text, i, "secret"); to > 0 {
			return from, to, hidden
		}
	case 't':
		if from, to := pair(text, i, "token"); to > 0 {
			return from, to, hidden
		}
	}
	if tokenChar(text[i]) && (i == done || !tokenChar(text[i-1])) {
		if n := jwt(text[i:]); n > 0 {
			return i, i + n, hiddenJWT
		}
	}
	return 0, 0, ""
}

// token finds the end of prefix and at least n characters of a class after it, at the begin of a word.
func token(text string, i, done int, prefix string, class func(byte) bool, n int) int {
	if !strings.HasPrefix(text[i:], prefix) || !wordBegins(text, i, done) {
		return 0
	}
	from := i + len(prefix)
	if to := from + run(text[from:], class); to-from >= n {
		return to
	}
	return 0
}

// bearer finds a token of at least 8 characters after the word bearer.
func bearer(text string, i, done int) (from, to int) {
	if !hasPrefixFold(text[i:], "bearer") || !wordBegins(text, i, done) {
		return 0, 0
	}
	from = i + len("bearer")
	blanks := run(text[from:], blank)
	from += blanks
	to = from + run(text[from:], bearerChar)
	if blanks == 0 || to-from < 8 {
		return 0, 0
	}
	return from, to
}

// pair finds the value in name=value, "name": "value" and what lies between them. The name may end a longer one.
func pair(text string, i int, names ...string) (from, to int) {
	for _, name := range names {
		if !hasPrefixFold(text[i:], name) {
			continue
		}
		at := i + len(name)
		if at < len(text) && text[at] == '\\' { // JSON in JSON
			at++
		}
		quoted := at < len(text) && (text[at] == '"' || text[at] == '\'')
		if quoted {
			at++
		}
		at += run(text[at:], blank)
		if at >= len(text) || text[at] != '=' && (text[at] != ':' || !quoted) {
			continue
		}
		at++
		at += run(text[at:], blank)
		return value(text, at)
	}
	return 0, 0
}

// value finds the value of a pair: up to its closing quote, or up to a blank or separator. What was replaced and cut
// before is none.
func value(text string, at int) (from, to int) {
	if at >= len(text) {
		return 0, 0
	}
	if _, to := bearer(text, at, at); to > 0 {
		return at, to
	}
	if strings.HasPrefix(text[at:], `\"`) { // JSON in JSON
		at += 2
		if n := strings.Index(text[at:], `\"`); n >= 0 {
			to = at + n
		} else {
			to = len(text)
		}
	} else if quote := text[at]; quote == '"' || quote == '\'' {
		at++
		for to = at; to < len(text) && text[to] != quote; to++ {
			if text[to] == '\\' {
				to++
			}
		}
		to = min(to, len(text))
	} else {
		to = at + run(text[at:], valueChar)
		if to > at && to < len(text) && text[to-1] == '\\' && (text[to] == '"' || text[to] == '\'') {
			to-- // it belongs to the quote
		}
	}
	if rest := strings.TrimSuffix(text[at:to], cutMark); rest == "" || rest == hidden {
		return 0, 0
	}
	return at, to
}

// jwt is the length of three parts of at least 20 characters joined by dots, at the begin of text.
func jwt(text string) int {
	n := 0
	for part := range 3 {
		if part > 0 {
			if n >= len(text) || text[n] != '.' {
				return 0
			}
			n++
		}
		length := run(text[n:], tokenChar)
		if length < 20 {
			return 0
		}
		n += length
	}
	return n
}

// run counts the bytes of a class at the begin of text.
func run(text string, class func(byte) bool) int {
	n := 0
	for n < len(text) && class(text[n]) {
		n++
	}
	return n
}

func wordBegins(text string, i, done int) bool { return i == done || !word(text[i-1]) }

// hasPrefixFold is strings.HasPrefix for lower-case ASCII prefixes, in whatever case text is.
func hasPrefixFold(text, prefix string) bool {
	return len(text) >= len(prefix) && strings.EqualFold(text[:len(prefix)], prefix)
}

func blank(c byte) bool        { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }
func alphanumeric(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' }
func upperDigit(c byte) bool   { return 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }
func word(c byte) bool         { return alphanumeric(c) || c == '_' }
func tokenChar(c byte) bool    { return word(c) || c == '-' }
func bearerChar(c byte) bool   { return tokenChar(c) || strings.IndexByte(".~+/=", c) >= 0 }

// valueChar holds for all bytes of other than ASCII characters too: a value is never cut inside one.
func valueChar(c byte) bool {
	return c >= utf8.RuneSelf || c > ' ' && strings.IndexByte("\"'&,;", c) < 0
}
