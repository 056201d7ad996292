package peers

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestNode(t *testing.T) {
	t.Parallel()
	packages := modules(t)
	set, _ := describe(t)
	play(t, peer{
		env:    []string{"NODE_PATH=" + packages},
		client: []string{"node", "client.js", set},
		host:   []string{"node", "host.js", set},
	})
}

// modules is the folder of the packages that the install script installed, or skips the test where they are not there.
func modules(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("node"); err != nil {
		harness.Skip(t, fmt.Sprintf("it needs Node: %v", err))
	}
	tools := os.Getenv("RUNNERD_TOOLS")
	if tools == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		tools = filepath.Join(cache, "runnerd-tools")
	}
	lock, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(tools, fmt.Sprintf("peers-%x", sha256.Sum256(lock))[:len("peers-")+16], "node_modules")
	if _, err := os.Stat(dir); err != nil {
		harness.Skip(t, fmt.Sprintf("its packages are not installed (test/peers/install does): %v", err))
	}
	return dir
}
