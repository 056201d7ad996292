package main

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestSafeText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, in, line string }{
		{"plain", "hello, world", "hello, world"},
		{"umlauts", "Größe 10 µm", "Größe 10 µm"},
		{"CJK", "任务完成", "任务完成"},
		{"Arabic", "مرحبا", "مرحبا"},
		{"Devanagari with marks", "हिन्दी", "हिन्दी"},
		{"emoji", "done ✅ ❤️", "done ✅ ❤️"},
		{"backslash stands", `C:\new`, `C:\new`},
		{"no-break space stands", "a\u00a0b", "a\u00a0b"},
		{"newline", "a\nb", `a\nb`},
		{"carriage return", "safe\rrm -rf /", `safe\rrm -rf /`},
		{"tab", "a\tb", `a\tb`},
		{"NUL", "a\x00b", `a\u0000b`},
		{"bell", "\a", `\u0007`},
		{"backspace", "rm\b\bls", `rm\u0008\u0008ls`},
		{"DEL", "\x7f", `\u007f`},
		{"colour", "\x1b[31mred\x1b[0m", `\u001b[31mred\u001b[0m`},
		{"clear screen", "\x1b[2J\x1b[H", `\u001b[2J\u001b[H`},
		{"window title", "\x1b]0;pwned\x07", `\u001b]0;pwned\u0007`},
		{"hyperlink", "\x1b]8;;http://evil\x1b\\x\x1b]8;;\x1b\\", `\u001b]8;;http://evil\u001b\x\u001b]8;;\u001b\`},
		{"clipboard", "\x1b]52;c;cm0gLXJm\x07", `\u001b]52;c;cm0gLXJm\u0007`},
		{"C1 as a character", "\u009b31m", `\u009b31m`},
		{"C1 as a byte", "\x9b31m", `\x9b31m`},
		{"invalid UTF-8", "a\xc3(", `a\xc3(`},
		{"surrogate as bytes", "\xed\xa0\x80", `\xed\xa0\x80`},
		{"right to left override", "gpj.\u202eexe", `gpj.\u202eexe`},
		{"isolates", "\u2066x\u2069", `\u2066x\u2069`},
		{"marks of direction", "\u200e\u200f\u061c", `\u200e\u200f\u061c`},
		{"zero width space", "a\u200bb", `a\u200bb`},
		{"zero width joiner", "a\u200db", `a\u200db`},
		{"word joiner", "a\u2060b", `a\u2060b`},
		{"soft hyphen", "a\u00adb", `a\u00adb`},
		{"byte order mark", "\ufeffx", `\ufeffx`},
		{"line separator", "a\u2028b", `a\u2028b`},
		{"paragraph separator", "a\u2029b", `a\u2029b`},
		{"next line", "a\u0085b", `a\u0085b`},
		{"tag characters", "x\U000e0041", `x\udb40\udc41`},
		{"variation selector", "x\U000e0100\ufe00", `x\udb40\udd00\ufe00`},
		{"Hangul filler", "\u3164", `\u3164`},
		{"braille blank", "\u2800", `\u2800`},
		{"private use", "\ue000", `\ue000`},
		{"unassigned", "\U000effff", `\udb7f\udfff`},
		{"noncharacter", "\uffff", `\uffff`},
		{"too many marks", "a" + strings.Repeat("\u0301", 8), "a" + strings.Repeat("\u0301", 6) + `\u0301\u0301`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := safeLine(tc.in); got != tc.line {
				t.Errorf("safeLine(%+q)\n got %s\nwant %s", tc.in, got, tc.line)
			}
			block := strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(tc.line)
			if strings.Contains(tc.in, `\n`) {
				block = tc.line
			}
			if got := safeBlock(tc.in); got != block {
				t.Errorf("safeBlock(%+q)\n got %s\nwant %s", tc.in, got, block)
			}
		})
	}
}

// Every rune there is comes out visible, on one line, and without a control.
func TestSafeTextOfEveryRune(t *testing.T) {
	t.Parallel()
	for r := rune(0); r <= unicode.MaxRune; r++ {
		in := "a" + string(r) + "z"
		out := safeLine(in)
		for _, o := range out {
			if !visible(o) || unicode.IsControl(o) || unicode.In(o, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Bidi_Control) {
				t.Fatalf("%U: %+q lets %U through", r, out, o)
			}
		}
		if !strings.HasPrefix(out, "a") || !strings.HasSuffix(out, "z") {
			t.Fatalf("%U: %+q lost what stands around it", r, out)
		}
	}
	for b := range 256 {
		if out := safeLine("a" + string([]byte{byte(b)}) + "z"); !utf8.ValidString(out) {
			t.Errorf("byte %#x: %+q is no UTF-8", b, out)
		}
	}
}

// What is escaped inside JSON text stays the same JSON.
func TestSafeTextKeepsJSON(t *testing.T) {
	t.Parallel()
	value := "a\u202eb\u200b\U000e0041\u009b\ufeff\u2028日本"
	raw := `{"` + value + `":"` + value + `"}`
	var got map[string]string
	if err := json.Unmarshal([]byte(safeLine(raw)), &got); err != nil {
		t.Fatal(err)
	}
	if got[value] != value {
		t.Errorf("got %+q, want %+q", got[value], value)
	}
}

func TestShortLine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   string
		n    int
		want string
	}{
		{"short", 10, "short"},
		{"exactly ten", 11, "exactly ten"},
		{"a bit too long", 5, "a bi…"},
		{"日本語日本語", 4, "日本語…"},
		{"a\x1bb", 8, `a\u001bb`},
		{"a\x1bb", 5, "a…"},
		{strings.Repeat("x", 1<<20), 3, "xx…"},
		{"x\xff\xff\xff\xff", 6, `x\xff…`},
		{"", 3, ""},
	} {
		if got := shortLine(tc.in, tc.n); got != tc.want {
			t.Errorf("shortLine(%.20q, %d): got %q, want %q", tc.in, tc.n, got, tc.want)
		}
	}
}

func FuzzSafeLine(f *testing.F) {
	f.Add("a\x1b[31m\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range safeLine(s) {
			if !visible(r) {
				t.Fatalf("%+q lets %U through", s, r)
			}
		}
	})
}
