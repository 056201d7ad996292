package main

import "testing"

func TestColumns(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]int{
		"": 0, "abc": 3, "größe": 5, "日本語": 6, "e\u0301": 1, "✅": 2, "❤\ufe0f": 1, "ａ": 2, "ｱ": 1, "→": 1,
	} {
		if got := columns(s); got != want {
			t.Errorf("columns(%q): got %d, want %d", s, got, want)
		}
	}
	for _, tc := range []struct {
		got, want string
	}{
		{cut("abcdef", 6), "abcdef"},
		{cut("abcdefg", 6), "abcde…"},
		{cut("日本語", 6), "日本語"},
		{cut("日本語日", 6), "日本…"},
		{cut("a日本語", 6), "a日本…"},
		{pad("日本", 6) + "|", "日本  |"},
		{pad("abc", 2), "abc"},
		{tail("abcdef", 3), "def"},
		{tail("abc", 5), "abc"},
		{tail("日本語", 5), "本語"},
		{tail("", 5), ""},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}
