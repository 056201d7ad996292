package harness

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Main runs the tests of a package: it is all that its TestMain does. It builds the daemon first, once, and fails where
// something that is kept for all tests does not end well.
func Main(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code) //nolint:forbidigo // all that a TestMain does
}

func runAll(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "runnerd-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := build(dir); err != nil {
		return 1, err
	}
	if err := parallel(); err != nil {
		return 1, err
	}
	code = m.Run()

	exits.Lock()
	defer exits.Unlock()
	var errs []error
	for _, v := range slices.Backward(exits.funcs) {
		errs = append(errs, v())
	}
	return code, errors.Join(errs...)
}

// parallel lets more tests run at a time than there are processors: they wait most of the time.
func parallel() error {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if given {
		return nil
	}
	return flag.Set("test.parallel", "32")
}

// binary is the path of the daemon once Main has built it.
var binary string

var exits struct {
	sync.Mutex
	funcs []func() error
}

// AtExit calls f after all tests of the package, the last given first. Its error fails the package.
func AtExit(f func() error) {
	exits.Lock()
	defer exits.Unlock()
	exits.funcs = append(exits.funcs, f)
}

// build builds the daemon into dir, race-checked if the tests are.
func build(dir string) error {
	root, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	binary = filepath.Join(dir, "runnerd")
	args := append([]string{"build", "-o", binary}, buildFlags...)
	cmd := exec.Command("go", append(args, "./cmd/runnerd")...) // #nosec G204 -- fixed arguments
	cmd.Dir = filepath.Dir(strings.TrimSpace(string(root)))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the daemon: %w\n%s", err, out)
	}
	return nil
}

// Binary is the path of the built daemon.
func Binary() string { return binary }
