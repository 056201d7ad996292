//go:build race

package harness

// buildFlags make the daemon race-checked where its tests are.
var buildFlags = []string{"-race"}
