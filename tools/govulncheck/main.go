// Command govulncheck fails when runnerd calls a function of a third-party module
// that has a known vulnerability. It needs no vulnerability server: the database
// is a Go module, pinned below and fetched like any other.
//
// Findings in the standard library are listed and do not fail: they are fixed by
// the Go release that builds runnerd, not by a change here. Neither do vulnerable
// functions that nothing calls.
//
// Usage: govulncheck DIR
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/vuln/scan"
)

// database is the module that holds the Go vulnerability database, one OSV file an
// entry. Raise it to look for what was found since.
const database = "golang.org/x/vulndb@v0.0.0-20261105234957-e22db6528018"

func main() {
	log.SetFlags(0)
	log.SetPrefix("govulncheck: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: govulncheck DIR")
	}
	found, err := check(context.Background(), os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	fails := false
	for _, f := range found {
		fmt.Println(f)
		fails = fails || f.fails()
	}
	if fails {
		log.Fatal("runnerd calls vulnerable third-party code")
	}
	fmt.Println("no known vulnerability in the third-party code that runnerd calls")
}

// finding is one vulnerability of one module, at the deepest level it was seen.
type finding struct {
	id, module, version, fixed, symbol string
}

func (f finding) standard() bool { return f.module == "stdlib" || f.module == "toolchain" }

// fails reports whether runnerd calls the vulnerable function and can do something about it.
func (f finding) fails() bool { return f.symbol != "" && !f.standard() }

func (f finding) String() string {
	note := "not called, only noted"
	switch {
	case f.fails():
		note = "called: " + f.symbol
	case f.symbol != "":
		note = "called, only noted (a Go release fixes it): " + f.symbol
	}
	fixed := "no fix yet"
	if f.fixed != "" {
		fixed = "fixed in " + f.fixed
	}
	return fmt.Sprintf("%s  %s@%s  %s  %s", f.id, f.module, f.version, fixed, note)
}

// check scans all packages of the module in dir.
func check(ctx context.Context, dir string) ([]finding, error) {
	entries, err := entriesDir(ctx)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	cmd := scan.Command(ctx, "-C", dir, "-db", "file://"+filepath.ToSlash(entries), "-format", "json", "./...")
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		return nil, err
	}
	return findings(&out)
}

// entriesDir returns the folder of OSV files in the module cache.
func entriesDir(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", database)
	cmd.Dir = os.TempDir() // outside any module: the version is the one above
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w: %s", database, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", err
	}
	return filepath.Join(module.Dir, "data", "osv"), nil
}

// findings reads the scanner's JSON messages. It reports a vulnerability several
// times, of the module, the package and each function that is called: the first
// with a function is kept, and where there is none, the first.
func findings(r io.Reader) ([]finding, error) {
	best := map[string]finding{}
	for dec := json.NewDecoder(r); ; {
		var message struct {
			Finding *struct {
				OSV          string `json:"osv"`
				FixedVersion string `json:"fixed_version"`
				Trace        []struct{ Module, Version, Package, Receiver, Function string }
			}
		}
		if err := dec.Decode(&message); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read findings: %w", err)
		}
		if message.Finding == nil || len(message.Finding.Trace) == 0 {
			continue
		}
		at := message.Finding.Trace[0]
		f := finding{id: message.Finding.OSV, module: at.Module, version: at.Version, fixed: message.Finding.FixedVersion}
		if at.Function != "" {
			f.symbol = strings.Join(slices.DeleteFunc([]string{at.Package, at.Receiver, at.Function},
				func(s string) bool { return s == "" }), ".")
		}
		key := f.id + " " + f.module
		if old, ok := best[key]; !ok || old.symbol == "" {
			best[key] = f
		}
	}
	var all []finding
	for _, f := range best {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b finding) int { return strings.Compare(a.id+a.module, b.id+b.module) })
	return all, nil
}
