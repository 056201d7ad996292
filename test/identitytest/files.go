package identitytest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// documented is the folder of the credentials in the examples of the documentation.
const documented = "/etc/runnerd/"

// Localize returns an example of a configuration with the files that it names in /etc/runnerd/ in a folder of the test,
// where they exist: *-ca.pem, *-key.pem beside its *.pem, and *.token.
func Localize(t testing.TB, example string) string {
	t.Helper()
	dir, ca := t.TempDir(), NewCA(t)
	for name := range strings.FieldsFuncSeq(example, func(r rune) bool { return strings.ContainsRune(" \n,}\"'", r) }) {
		name, ok := strings.CutPrefix(name, documented)
		if !ok {
			continue
		}
		file := filepath.Join(dir, name)
		switch {
		case strings.HasSuffix(name, "-ca.pem"):
			copyFile(t, ca.File, file)
		case strings.HasSuffix(name, "-key.pem"):
			pair := ca.Issue(t, nil)
			copyFile(t, pair.KeyFile, file)
			copyFile(t, pair.CertFile, strings.TrimSuffix(file, "-key.pem")+".pem")
		case strings.HasSuffix(name, ".token"):
			if err := os.WriteFile(file, []byte("c2VjcmV0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return strings.ReplaceAll(example, documented, dir+"/")
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}
