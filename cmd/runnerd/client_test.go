package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIsLocal(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"127.0.0.1:7780":               true,
		"127.1.2.3:7780":               true,
		"[::1]:7780":                   true,
		"localhost:7780":               true,
		"dns:///localhost:7780":        true,
		"passthrough:///127.0.0.1:1":   true,
		"unix:///run/runnerd.sock":     true,
		"unix:runnerd.sock":            true,
		"0.0.0.0:7780":                 false,
		"192.0.2.1:7780":               false,
		"localhost.example.com:7780":   false,
		"dns://192.0.2.1/localhost:1":  false, // asks a name server of its own
		"passthrough:///example.com:1": false,
		"7780":                         false,
		"":                             false,
	} {
		if got := isLocal(addr); got != want {
			t.Errorf("isLocal(%q): got %v", addr, got)
		}
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		flag string
		tty  bool
		env  map[string]string
		want bool
	}{
		{"auto", true, nil, true},
		{"auto", false, nil, false},
		{"auto", true, map[string]string{"NO_COLOR": "1"}, false},
		{"auto", true, map[string]string{"TERM": "dumb"}, false},
		{"always", false, map[string]string{"NO_COLOR": "1"}, true},
		{"never", true, nil, false},
	} {
		p := testProgram(io.Discard, io.Discard, tc.env)
		p.terminal = func(any) (int, bool) { return 80, tc.tty }
		got, err := p.style(&output{color: tc.flag}, io.Discard)
		if err != nil || got.color != tc.want {
			t.Errorf("--color %s, terminal %v, %v: got %v, %v", tc.flag, tc.tty, tc.env, got.color, err)
		}
	}
	if _, err := testProgram(io.Discard, io.Discard, nil).style(&output{color: "pink"}, io.Discard); err == nil {
		t.Error("--color pink was taken")
	}
}

func TestReadText(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(file, []byte("from a file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := testProgram(io.Discard, io.Discard, nil)
	p.in = strings.NewReader("from standard input")
	for _, tc := range []struct{ argument, file, want string }{
		{"as it is", "", "as it is"},
		{"", file, "from a file\n"},
		{"", "-", "from standard input"},
	} {
		if got, err := p.readText(tc.argument, tc.file); got != tc.want || err != nil {
			t.Errorf("readText(%q, %q): got %q, %v", tc.argument, tc.file, got, err)
		}
	}
	p.in = io.LimitReader(endless{}, maxInput+1)
	if _, err := p.readText("", "-"); err == nil {
		t.Error("an input without end was taken")
	}
}

// endless is zeros without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
