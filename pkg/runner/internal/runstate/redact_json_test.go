package runstate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestRedactJSON(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":`, 200) + `"password=abc"` + strings.Repeat("}", 200)
	for name, tc := range map[string]struct {
		redact     func(string) string
		text, want string
	}{
		"T-182 sensitive keys in any spelling": {
			redactMetadata,
			`{"api-key":"x","API_KEY":"x","xApiKey":"x","Authorization":["x"],"my_credentials":{"a":"x"},"dbPassword":"","x-secret-x":"x","access_token":"x"}`,
			`{"api-key":"[redacted]","API_KEY":"[redacted]","xApiKey":"[redacted]","Authorization":"[redacted]","my_credentials":"[redacted]","dbPassword":"[redacted]","x-secret-x":"[redacted]","access_token":"[redacted]"}`,
		},
		"T-182 counters stay": {
			redactResult, `{"input_tokens": 12, "token_ok": true, "secret": null}`, `{"input_tokens": 12, "token_ok": true, "secret": null}`,
		},
		"T-182 at any depth": {
			redactResult, `{"a":[1,{"b":{"password":"x"}}]}`, `{"a":[1,{"b":{"password":"[redacted]"}}]}`,
		},
		"T-182 an escaped key": {redactResult, `{"pass\u0077ord":"x"}`, `{"pass\u0077ord":"[redacted]"}`},
		"T-182 numbers, blanks, order and duplicate keys stay": {
			redactResult, ` { "n" : 1.50e+3, "b":2 ,"a":-0, "a":"token=x" } `, ` { "n" : 1.50e+3, "b":2 ,"a":-0, "a":"token=[redacted]" } `,
		},
		"T-182 metadata shows what arguments and results hide": {
			redactMetadata, `{"command":"ls","content":"c","text":"t"}`, `{"command":"ls","content":"c","text":"t"}`,
		},
		"T-182 metadata that is no JSON": {redactMetadata, "a word, secret=x", "a word, secret=[redacted]"},
		"T-182 JSON in JSON": {
			redactResult, `{"body":"{\"password\":\"x\",\"n\":1}"}`, `{"body":"{\"password\":\"[redacted]\",\"n\":1}"}`,
		},
		"T-182 JSON in JSON in JSON": {
			redactResult, `["[\"{\\\"password\\\":\\\"x\\\"}\"]"]`, `["[\"{\\\"password\\\":\\\"[redacted]\\\"}\"]"]`,
		},
		"T-183 arguments": {
			redactArguments,
			`{"path":"a.go","content":"x","edits":[{"old":"a","new":"b","line":3}],"Command":["rm","-rf"]}`,
			`{"path":"a.go","content":"[redacted]","edits":[{"old":"[redacted]","new":"[redacted]","line":3}],"Command":"[redacted]"}`,
		},
		"T-183 items of lists have no key": {redactArguments, `{"files":["content","new"]}`, `{"files":["content","new"]}`},
		"T-183 keys that only contain one": {redactArguments, `{"newest":"a","contents":"b"}`, `{"newest":"a","contents":"b"}`},
		"T-183 results hide others":        {redactArguments, `{"stdout":"x","text":"y"}`, `{"stdout":"x","text":"y"}`},
		"T-183 no JSON":                    {redactArguments, `{"content":"x"`, "[redacted]"},
		"T-183 more than JSON":             {redactArguments, `{"a":1} {"content":"x"}`, "[redacted]"},
		"T-183 no object":                  {redactArguments, `"content"`, "[redacted]"},
		"T-183 blank":                      {redactArguments, " \n", " \n"},
		"T-183 a lone surrogate":           {redactArguments, `{"a":"\ud800","content":"x"}`, `{"a":"\ud800","content":"[redacted]"}`},
		"T-184 results": {
			redactResult, `{"stdout":"x","stderr":"y","exit":0,"content":[{"type":"text","text":"z"}],"text":"t"}`,
			`{"stdout":"[redacted]","stderr":"[redacted]","exit":0,"content":"[redacted]","text":"[redacted]"}`,
		},
		"T-184 arguments hide others": {redactResult, `{"command":"x","old":"y"}`, `{"command":"x","old":"y"}`},
		"T-184 lines of JSON": {
			redactResult, "{\"stdout\":\"x\"}\n{\"stdout\":\"y\",\"n\":1}\n", "{\"stdout\":\"[redacted]\"}\n{\"stdout\":\"[redacted]\",\"n\":1}\n",
		},
		"T-184 JSON and text":                  {redactResult, `{"stdout":"x"} token=x`, `{"stdout":"[redacted]"} token=[redacted]`},
		"T-184 JSON that ends early":           {redactResult, `{"exit":0,"stdout":"a long`, `{"exit":0,"stdout"…[truncated]`},
		"T-184 JSON that ends early, in items": {redactResult, `{"exit":0,"list":[{"text":"x"},"y`, `{"exit":0,"list":[{"text":"[redacted]"}…[truncated]`},
		"T-184 JSON that is broken":            {redactResult, `{"exit":0,stdout:"x"}`, `{"exit":0…[truncated]`},
		"T-184 text that begins as JSON does":  {redactResult, "[INFO] password=x", "[INFO] password=[redacted]"},
		"T-184 text that begins with a list":   {redactResult, "[2026-01-01] secret=x", "[2026-01-01] secret=[redacted]"},
		"T-184 broken without a key":           {redactResult, `["token=x" password=y]`, `["token=[redacted]" password=[redacted]`},
		"T-184 text":                           {redactResult, "done, password=x", "done, password=[redacted]"},
		"T-185 in strings": {
			redactArguments, `{"url":"https://h/?token=abc&x=1","key\"s":["sk-abcdefgh"],"say":"\u0042earer abcdefgh"}`,
			`{"url":"https://h/?token=[redacted]&x=1","key\"s":["[redacted]"],"say":"Bearer [redacted]"}`,
		},
		"T-185 in keys":           {redactResult, `{"ghp_0123456789abcdefghij":1}`, `{"[redacted]":1}`},
		"T-185 what becomes JSON": {redactResult, `["password=\q",{"content":"x"}]`, `["password=[redacted]",{"content":"[redacted]"}]`},
		"objects deeper than is bound": {
			redactResult, deep, strings.Repeat(`{"a":`, 128) + `"[redacted]"` + strings.Repeat("}", 128),
		},
		"JSON in JSON deeper than is bound": {redactResult, nest(`{"password":"x"}`, 10), nest(`[redacted]`, 8)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := tc.redact(tc.text)
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if again := tc.redact(got); again != got {
				t.Errorf("done again: %s", again)
			}
		})
	}
}

// nest puts text into JSON strings in lists, so often.
func nest(text string, levels int) string {
	for range levels {
		text = `[` + string(quoteJSON(text)) + `]`
	}
	return text
}

func TestCutJSON(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä\n", 15_000)
	for name, value := range map[string]any{
		"a long string":               map[string]any{"a": 1, "output": long, "z": 2},
		"many members":                numbers(5000),
		"many items":                  map[string]any{"list": strings.Split(long, "ä")},
		"many strings":                strings.Split(strings.Repeat("token=abc,", 4000), ","),
		"many objects":                many(map[string]any{"password": "x", "a": []int{1, 2}}, 3000),
		"long JSON in JSON":           map[string]any{"a": string(must(json.Marshal(numbers(5000))))},
		"JSON in JSON at the cut":     many(`{"password":12,"content":"x"}`, 1000),
		"marks at the cut":            many("password=\"x\"", 3000),
		"a long string under secrets": []any{map[string]any{"secret": long}, strings.Repeat("x", 19_950), map[string]any{"secret": "x"}},
	} {
		t.Run("T-186 "+name, func(t *testing.T) {
			t.Parallel()
			text := string(must(json.Marshal(value)))
			for _, redact := range []func(string) string{redactMetadata, redactArguments, redactResult} {
				got := redact(text)
				if n := utf8.RuneCountInString(got); n > 20_000 || !json.Valid([]byte(got)) {
					t.Fatalf("%d characters, end %s", n, got[len(got)-100:])
				}
				if name != "a long string under secrets" && utf8.RuneCountInString(got) < 9_000 && name != "long JSON in JSON" {
					t.Errorf("only %d characters are left", utf8.RuneCountInString(got))
				}
				if !strings.Contains(got, `[truncated]`) {
					t.Errorf("no mark, end %s", got[len(got)-100:])
				}
				if again := redact(got); again != got {
					t.Errorf("done again: %s", again[len(again)-100:])
				}
			}
		})
	}
	t.Run("T-186 at every length", func(t *testing.T) {
		t.Parallel()
		for n := 19_900; n < 20_010; n++ {
			text := fmt.Sprintf(`{"a":[%q],"token":"x","b":{"c":[{}]}, "token":12}`, strings.Repeat("x", n))
			got := redactResult(text)
			if utf8.RuneCountInString(got) > 20_000 || !json.Valid([]byte(got)) || redactResult(got) != got {
				t.Fatalf("%d: end %s", n, got[len(got)-60:])
			}
		}
	})
	t.Run("T-186 several values", func(t *testing.T) {
		t.Parallel()
		for _, text := range []string{
			strings.Repeat(`{"stdout":"x","a":[1,2]}`+"\n", 1500), `{"a":1}` + strings.Repeat(" [1, 2]", 5000), "[" + strings.Repeat(`{"text":"x"},`, 3000),
			`{"a":1} and ` + strings.Repeat("more ", 5000),
		} {
			got := redactResult(text)
			if n := utf8.RuneCountInString(got); n > 20_012 || !strings.HasSuffix(got, "[truncated]") {
				t.Errorf("%d characters, end %s", n, got[len(got)-60:])
			}
			if again := redactResult(got); again != got {
				t.Errorf("done again: %s", again[len(again)-60:])
			}
		}
	})
	t.Run("T-186 only blanks are too much", func(t *testing.T) {
		t.Parallel()
		if got := redactResult(strings.Repeat(" ", 30_000) + "{}\n"); got != "{}" {
			t.Errorf("got %q", got)
		}
		if got := redactArguments(strings.Repeat(" ", 30_000)); got != "" {
			t.Errorf("got %q", got)
		}
	})
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func numbers(n int) map[string]any {
	m := make(map[string]any, n)
	for i := range n {
		m[fmt.Sprint("name", i)] = i
	}
	return m
}

func many(v any, n int) (list []any) {
	for range n {
		list = append(list, v)
	}
	return list
}

// secretsOf finds what stands under keys of secrets in JSON, also in strings that are JSON.
func secretsOf(v any, keys []string, under bool, found func(any)) {
	switch v := v.(type) {
	case map[string]any:
		if under {
			found(v)
		}
		for key, member := range v {
			secretsOf(member, keys, keepsSecret(key, keys), found)
		}
	case []any:
		if under {
			found(v)
		}
		for _, item := range v {
			secretsOf(item, keys, false, found)
		}
	case string:
		if under {
			found(v)
		}
		var inner any
		if looksLikeJSON(v) && json.Unmarshal([]byte(v), &inner) == nil {
			secretsOf(inner, keys, false, found)
		}
	}
}

func FuzzRedactJSON(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":["x",{"password":"y"}]}`, `{"body":"{\"token\":\"\\u0078\"}"}`, `[{"content":{"a":[]}},"sk-abcdefgh"]`,
		`{"a":1,"a":"\ud800","text":"t"}`, `{"password":"\q","content":"x"}`, " [1.50, -0, 1e400, true, null] ", `{"a"`, "[redacted]",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// A secret is put beside what comes: into the same JSON if it is JSON, and into JSON around it.
		const canary = "kanarienvogel"
		for _, text := range []string{text, fmt.Sprintf(`{"a":%s,"x_Secret":%q}`, text, canary), fmt.Sprintf(`[{"a":%s,"old-password":[{"b":%q}]}]`, quoteJSON(text), canary)} {
			for _, kind := range []struct {
				redact func(string) string
				keys   []string
			}{{redactArguments, argumentKeys}, {redactResult, resultKeys}, {redactMetadata, nil}} {
				got := kind.redact(text)
				if utf8.ValidString(text) && !utf8.ValidString(got) {
					t.Fatalf("%q becomes %q", text, got)
				}
				if again := kind.redact(got); again != got {
					t.Fatalf("%q becomes %q, and %q when done again", text, got, again)
				}
				if utf8.RuneCountInString(got) > maxPublicText+utf8.RuneCountInString(brokenMark) {
					t.Fatalf("%d characters", utf8.RuneCountInString(got))
				}
				var v any
				if json.Unmarshal([]byte(text), &v) != nil {
					continue
				}
				if strings.Contains(got, canary) {
					t.Fatalf("%q becomes %q", text, got)
				}
				if text[0] != '{' && text[0] != '[' {
					continue
				}
				if err := json.Unmarshal([]byte(got), &v); err != nil {
					t.Fatalf("%q becomes %q, which is no JSON: %v", text, got, err)
				}
				secretsOf(v, kind.keys, false, func(secret any) {
					if secret != hidden && secret != cutMark {
						t.Fatalf("%q becomes %q, which shows %v", text, got, secret)
					}
				})
			}
		}
	})
}

func BenchmarkRedactJSON(b *testing.B) {
	plain := func(n int) string {
		return string(must(json.Marshal(map[string]any{"path": "src/main.go", "n": 12, "lines": strings.Repeat("a line of tokens, ", n/18)})))
	}
	for name, tc := range map[string]struct {
		redact func(string) string
		text   string
	}{
		"arguments, 1 KiB, nothing to hide": {redactArguments, plain(960)},
		"result, 1 KiB, nothing to hide":    {redactResult, plain(960)},
		"result, 1 KiB, of text":            {redactResult, strings.Repeat("a line of tokens, ", 57)},
		"arguments, 1 KiB, content":         {redactArguments, `{"path":"src/main.go","content":` + string(quoteJSON(plain(900))) + `}`},
		"result, 1 KiB, many members":       {redactResult, string(must(json.Marshal(numbers(64))))},
		"result, 60 KiB":                    {redactResult, plain(60 << 10)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(tc.text)))
			for b.Loop() {
				tc.redact(tc.text)
			}
		})
	}
	ev := event(5, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallRequested{ToolCallRequested: &runnerdv1.ToolCallRequested{CallId: "1.1", ArgumentsRaw: `{"path":"a"}`}}})
	b.Run("event, small arguments", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Redact(ev)
		}
	})
}
