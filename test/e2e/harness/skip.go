package harness

import (
	"fmt"
	"os"
	"testing"
)

// Skip says why a test cannot run on this machine, in a form that can be counted. Where everything has to run
// (RUNNERD_REQUIRE_ALL=1) the test fails instead.
func Skip(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("RUNNERD_REQUIRE_ALL") == "1" {
		t.Fatalf("cannot run here, but everything has to: %s", reason)
	}
	fmt.Printf("SKIP-COUNTED %s: %s\n", t.Name(), reason) //nolint:forbidigo // counted in the output of the tests
	t.SkipNow()
}
