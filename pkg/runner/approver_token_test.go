package runner

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestApproverToken(t *testing.T) {
	t.Parallel()
	t.Run("is made once, for its owner only", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		first, err := LoadOrCreateApproverToken(dir)
		if err != nil {
			t.Fatal(err)
		}
		if raw, err := base64.RawURLEncoding.DecodeString(first); err != nil || len(raw) != 32 {
			t.Errorf("token %q: %v", first, err)
		}
		info, err := os.Stat(filepath.Join(dir, "approver.token"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("file %v: %v", info, err)
		}
		second, err := LoadOrCreateApproverToken(dir)
		if err != nil || second != first {
			t.Errorf("second %q, first %q: %v", second, first, err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("left over: %v, %v", entries, err)
		}
	})
	t.Run("is one for all who start together", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		tokens := make([]string, 16)
		var all sync.WaitGroup
		for i := range tokens {
			all.Go(func() { tokens[i], _ = LoadOrCreateApproverToken(dir) })
		}
		all.Wait()
		for _, token := range tokens {
			if token == "" || token != tokens[0] {
				t.Fatalf("tokens %q", tokens)
			}
		}
	})
	refused := func(name, problem string, prepare func(t *testing.T, path string)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			prepare(t, filepath.Join(dir, "approver.token"))
			token, err := LoadOrCreateApproverToken(dir)
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("token %q, error %v, want one about %q", token, err, problem)
			}
		})
	}
	good := base64.RawURLEncoding.EncodeToString(make([]byte, 32))
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		refused("is refused with mode "+mode.String(), "lets others read it", func(t *testing.T, path string) {
			t.Helper()
			writeFile(t, path, good, mode)
		})
	}
	refused("is refused if it is a link", "not a regular file", func(t *testing.T, path string) {
		t.Helper()
		writeFile(t, path+".real", good, 0o600)
		if err := os.Symlink(path+".real", path); err != nil {
			t.Fatal(err)
		}
	})
	refused("is refused if it is a folder", "not a regular file", func(t *testing.T, path string) {
		t.Helper()
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
	})
	for name, text := range map[string]string{"empty": "", "short": good[:20], "text": "not a token at all, not even close to it!!!"} {
		refused("is refused if it is "+name, "not 32 bytes", func(t *testing.T, path string) {
			t.Helper()
			writeFile(t, path, text, 0o600)
		})
	}
	t.Run("needs its folder", func(t *testing.T) {
		t.Parallel()
		if _, err := LoadOrCreateApproverToken(filepath.Join(t.TempDir(), "none")); err == nil {
			t.Error("a token in a folder that is not there")
		}
	})
}

func writeFile(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask
		t.Fatal(err)
	}
}
