package runstate

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseArgumentsAccepts(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 127) + "{}" + strings.Repeat("}", 127)
	for name, tc := range map[string]struct{ raw, text, canonical string }{
		"CASE-01 empty":              {"", "{}", "{}"},
		"CASE-01 blanks":             {" \n\t\r", "{}", "{}"},
		"empty object":               {"{}", "{}", "{}"},
		"CASE-06 numbers as written": {`{"id":9007199254740993,"price":1.10,"n":1e2,"m":-0}`, `{"id":9007199254740993,"price":1.10,"n":1e2,"m":-0}`, `{"id":9007199254740993,"m":-0,"n":1e2,"price":1.10}`},
		"text is kept, keys sorted":  {" {\"b\" : 1 ,\n\"a\":[1, {\"z\":1,\"y\":2}]} ", " {\"b\" : 1 ,\n\"a\":[1, {\"z\":1,\"y\":2}]} ", `{"a":[1,{"y":2,"z":1}],"b":1}`},
		"escapes are one form":       {`{"\u0061":"\u00e9\/"}`, `{"\u0061":"\u00e9\/"}`, `{"a":"é/"}`},
		"surrogate pairs":            {`{"a":"\ud83d\ude00"}`, `{"a":"\ud83d\ude00"}`, `{"a":"😀"}`},
		"an escaped backslash":       {`{"a":"\\u0000"}`, `{"a":"\\u0000"}`, `{"a":"\\u0000"}`},
		"depth 128":                  {deep, deep, deep},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseArguments(tc.raw)
			if err != nil {
				t.Fatal(err)
			}
			if got.Text != tc.text || string(got.Canonical) != tc.canonical {
				t.Errorf("got %q, %q, want %q, %q", got.Text, got.Canonical, tc.text, tc.canonical)
			}
		})
	}
}

func TestParseArgumentsRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		raw    string
		reason string
		at     int
	}{
		"CASE-02 null":                 {"null", "arguments must be a JSON object, got null", 0},
		"CASE-02 array":                {`[{"old":"a"}]`, "arguments must be a JSON object, got array", 0},
		"CASE-02 number":               {" 42", "arguments must be a JSON object, got number", 0},
		"CASE-02 boolean":              {"true", "arguments must be a JSON object, got boolean", 0},
		"CASE-02 doubly encoded":       {`"{\"path\":\"a.txt\"}"`, "arguments must be a JSON object, got string", 0},
		"CASE-03 quote too many":       {`{"{"tagIds":[1]}`, "not valid JSON", 4},
		"CASE-03 single quotes":        {`{'path': 'a'}`, "not valid JSON", 1},
		"CASE-03 trailing text":        {`{"path":"a"} trailing`, "something follows", 13},
		"CASE-03 two objects":          {`{"path":"a"}{}`, "something follows", 12},
		"CASE-03 trailing comma":       {`{"a":1,}`, "not valid JSON", 6},
		"CASE-04 cut off":              {`{"path":"a.md","content":"# Tit`, "cut off", 31},
		"CASE-04 cut off after a name": {`{"path"`, "cut off", 7},
		"CASE-05 lone surrogate":       {`{"text":"\ud99c 보유"}`, "lone surrogate", 9},
		"CASE-05 low surrogate":        {`{"text":"\udc00"}`, "lone surrogate", 9},
		"CASE-05 lone surrogate, name": {`{"\ud99c":1}`, "lone surrogate", 2},
		"CASE-05 escaped NUL":          {`{"path":"a\u0000b"}`, "NUL", 10},
		"CASE-05 escaped NUL, name":    {`{"a\\\u0000b":1}`, "NUL", 5},
		"CASE-05 raw NUL":              {"{\"path\":\"a\x00b\"}", "NUL", 10},
		"CASE-05 not UTF-8":            {"{\"path\":\"a\xffb\"}", "not valid UTF-8", 10},
		"duplicate keys":               {`{"a":1,"a":2}`, `the key "a" twice`, 7},
		"duplicate keys, escaped":      {`{"a":1,"b":{"\u0061":1,"a":2}}`, `the key "a" twice`, 23},
		"depth 129":                    {strings.Repeat(`{"a":`, 128) + "{}" + strings.Repeat("}", 128), "nested deeper than 128", 640},
		"depth of a hostile text":      {`{"a":` + strings.Repeat("[", 1_000_000), "nested deeper than 128", 132},
		"exponent":                     {`{"a":1e1001}`, "too large", 5},
		"negative exponent":            {`{"a":[1E-1001]}`, "too large", 6},
		"long number":                  {`{"a":` + strings.Repeat("1", 1001) + `}`, "too long", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseArguments(tc.raw)
			var refused *ArgumentError
			if !errors.As(err, &refused) {
				t.Fatalf("got %v", err)
			}
			if !strings.Contains(refused.Reason, tc.reason) || refused.Position != tc.at {
				t.Errorf("got %q at %d, want %q at %d", refused.Reason, refused.Position, tc.reason, tc.at)
			}
			if n := utf8.RuneCountInString(refused.Preview); n > maxPreview || !utf8.ValidString(refused.Preview) {
				t.Errorf("preview of %d characters: %q", n, refused.Preview)
			}
			if len(err.Error()) > 400 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestArgumentErrorPreview(t *testing.T) {
	t.Parallel()
	t.Run("CASE-03 preview is bounded and shows the place", func(t *testing.T) {
		t.Parallel()
		raw := `{"a":"` + strings.Repeat("x", 2<<20) + "\" \x01oops}"
		_, err := ParseArguments(raw)
		var refused *ArgumentError
		if !errors.As(err, &refused) {
			t.Fatal(err)
		}
		if !strings.Contains(refused.Preview, "oops") || strings.ContainsRune(refused.Preview, '\x01') {
			t.Errorf("preview %q", refused.Preview)
		}
		if n := utf8.RuneCountInString(refused.Preview); n > maxPreview {
			t.Errorf("preview of %d characters", n)
		}
	})
	t.Run("CASE-03 a name of a megabyte twice", func(t *testing.T) {
		t.Parallel()
		name := strings.Repeat("n", 1<<20)
		_, err := ParseArguments(`{"` + name + `":1,"` + name + `":2}`)
		if err == nil || len(err.Error()) > 400 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
	})
}

func FuzzParseArguments(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"a":[1,{"b":"\u0000"}]}`, `{"a":1e5,"\ud800":2}`, `[1]`, "{\"a\":\"\xff\"}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := ParseArguments(raw)
		if err != nil {
			var refused *ArgumentError
			if !errors.As(err, &refused) {
				t.Fatalf("error of type %T", err)
			}
			if refused.Position < 0 || refused.Position > len(raw) || !utf8.ValidString(err.Error()) ||
				!utf8.ValidString(refused.Preview) || utf8.RuneCountInString(refused.Preview) > maxPreview {
				t.Fatalf("%+v", refused)
			}
			return
		}
		again, err := ParseArguments(string(got.Canonical))
		if err != nil || string(again.Canonical) != string(got.Canonical) {
			t.Fatalf("canonical form of %q is %q, and of that %q, %v", raw, got.Canonical, again.Canonical, err)
		}
	})
}
