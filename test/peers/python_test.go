package peers

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/runnerd/runnerd/test/e2e/harness"
)

// python is Debian's interpreter, which has the grpc of Debian.
const python = "/usr/bin/python3"

func TestPython(t *testing.T) {
	t.Parallel()
	play(t, peer{
		env:    []string{"PYTHONPATH=" + stubs(t)},
		client: []string{python, "client.py"},
		host:   []string{python, "host.py"},
	})
}

// stubs generates the Python code of the API, or skips the test where what it needs is not installed.
func stubs(t *testing.T) (dir string) {
	t.Helper()
	_, errProtoc := exec.LookPath("protoc")
	plugin, errPlugin := exec.LookPath("grpc_python_plugin")
	errGRPC := exec.CommandContext(t.Context(), python, "-c", "import grpc, google.protobuf").Run()
	if err := errors.Join(errProtoc, errPlugin, errGRPC); err != nil {
		harness.Skip(t, "it needs python3-grpcio, python3-protobuf, protobuf-compiler and protobuf-compiler-grpc of Debian: "+
			strings.ReplaceAll(err.Error(), "\n", ", "))
	}
	set, files := describe(t)
	dir = t.TempDir()
	args := []string{
		"--descriptor_set_in=" + set, "--python_out=" + dir, "--grpc_python_out=" + dir,
		"--plugin=protoc-gen-grpc_python=" + plugin,
	}
	for _, file := range files {
		if !strings.HasPrefix(file, "google/protobuf/") { // these come with python3-protobuf
			args = append(args, file)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "protoc", args...).CombinedOutput(); err != nil { // #nosec G204 -- fixed arguments
		t.Fatalf("protoc: %v\n%s", err, out)
	}
	return dir
}
