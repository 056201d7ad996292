// Package pythonagent_test calls the Python services of this folder with runnerd's own clients.
package pythonagent_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
	"github.com/runnerd/runnerd/pkg/toolhost"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// python is Debian's interpreter, which has the grpc of Debian.
const python = "/usr/bin/python3"

// stubs generates the Python code of the protos, or skips the test where the tools for it are not installed.
func stubs(t *testing.T) string {
	t.Helper()
	plugin, err := exec.LookPath("grpc_python_plugin")
	deps, errDeps := filepath.Abs("../../.gen/proto-deps")
	_, errDone := os.Stat("../../.gen/proto-deps/.done")
	errGRPC := exec.CommandContext(t.Context(), python, "-c", "import grpc, google.protobuf").Run()
	if err := errors.Join(err, errDeps, errDone, errGRPC); err != nil {
		harness.Skip(t, fmt.Sprintf("the Python services cannot be tested (see the run script for what they need): %v", err))
	}
	dir := t.TempDir()
	protos, err := filepath.Glob("../../proto/runnerd/v1/*.proto")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-I", "../../proto", "-I", deps, "--python_out=" + dir, "--grpc_python_out=" + dir,
		"--plugin=protoc-gen-grpc_python=" + plugin, filepath.Join(deps, "buf/validate/validate.proto"),
	}
	if out, err := exec.CommandContext(t.Context(), "protoc", append(args, protos...)...).CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, out)
	}
	return dir
}

// start starts a Python service and returns its address and a function that kills it.
func start(t *testing.T, stubs, file string) (addr string, kill func()) {
	t.Helper()
	addr = "unix://" + filepath.Join(t.TempDir(), "s")
	cmd := exec.CommandContext(t.Context(), python, file, addr)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+stubs)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it says that the process was killed
		}
	}
	t.Cleanup(kill)
	return addr, kill
}

// untilSent repeats a call that was not sent because the service is not up yet.
func untilSent[R any](t *testing.T, call func() (R, error)) (R, error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		r, err := call()
		var e interface{ NotSent() bool }
		if !errors.As(err, &e) || !e.NotSent() || time.Now().After(deadline) {
			return r, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestPythonTools(t *testing.T) {
	t.Parallel()
	addr, kill := start(t, stubs(t), "tools.py")
	c, err := toolhost.NewClient(map[string]toolhost.Endpoint{"hands": {Address: addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	list, err := untilSent(t, func() (*runnerdv1.ToolHostServiceListToolsResponse, error) { return c.ListTools(t.Context(), "hands") })
	if err != nil || len(list.GetTools()) != 1 {
		t.Fatalf("list: %v, %v", list, err)
	}
	if def := list.GetTools()[0]; !def.GetAnnotations().GetReadOnly() || def.GetAnnotations().Idempotent != nil {
		t.Errorf("definition %v", def)
	}
	req := &runnerdv1.CallToolRequest{Name: "count_words", ArgumentsJson: `{"text": "zwölf Bären 🐻"}`}
	if r, err := c.CallTool(t.Context(), "hands", req, 1<<20, nil); err != nil || r.GetText() != "3" {
		t.Errorf("call: %v, %v", r, err)
	}
	// An exception leaves the outcome open.
	req.ArgumentsJson = `{}`
	if _, err := c.CallTool(t.Context(), "hands", req, 1<<20, nil); status.Code(err) != codes.Unknown {
		t.Errorf("exception: %v", err)
	}
	if _, err := c.GetCall(t.Context(), "hands", &runnerdv1.GetCallRequest{}, 1<<20); status.Code(err) != codes.Unimplemented {
		t.Errorf("GetCall: %v", err)
	}
	kill()
	if _, err := c.CallTool(t.Context(), "hands", req, 1<<20, nil); status.Code(err) != codes.Unavailable {
		t.Errorf("after the kill: %v", err)
	}
}

func TestPythonDecide(t *testing.T) {
	t.Parallel()
	addr, _ := start(t, stubs(t), "decide.py")
	c, err := decide.NewClient(map[string]decide.Endpoint{"brain": {Address: addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	var text strings.Builder
	req := &runnerdv1.DecideRequest{Task: `say "hi"`}
	d, err := untilSent(t, func() (*runnerdv1.Decision, error) {
		return c.Decide(t.Context(), "brain", req, func(s string) { text.WriteString(s) })
	})
	if err != nil || text.String() != "Let me count. " || d.GetToolCalls().GetCalls()[0].GetArgumentsJson() != `{"text": "say \"hi\""}` {
		t.Errorf("first decision %v, %v, text %q", d, err, text.String())
	}
	req.History = []*runnerdv1.HistoryEntry{{Entry: &runnerdv1.HistoryEntry_Observation{Observation: &runnerdv1.Observation{Text: "2"}}}}
	if d, err := c.Decide(t.Context(), "brain", req, nil); err != nil || d.GetAnswer().GetContent() != "Words: 2" {
		t.Errorf("second decision %v, %v", d, err)
	}
}
