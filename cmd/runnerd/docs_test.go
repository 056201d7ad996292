package main

import (
	"bytes"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/test/identitytest"
)

// Parts of the documentation are made from what they document: they stand
// between <!-- begin NAME --> and <!-- end -->. The test compares them, and
// go test ./cmd/runnerd -rewrite writes them anew.

const repository = "../.."

var madePart = regexp.MustCompile(`(?s)(<!-- begin ([^>]*?) -->\n)(.*?)(<!-- end -->)`)

// madeParts are what can stand in a document, by the first word of the name.
var madeParts = map[string]func(t *testing.T, argument string) string{
	"file":        wholeFile,
	"messages":    documentedMessages,
	"events":      documentedEvents,
	"signals":     documentedSignals,
	"settings":    documentedSettings,
	"file-format": documentedFileFormat,
	"life":        lifeOfARun,
	"exit-codes":  func(*testing.T, string) string { return "```\n" + exitCodes + "```\n" },
}

func TestDocumentsShowWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := madePart.ReplaceAllFunc(text, func(part []byte) []byte {
				m := madePart.FindSubmatch(part)
				kind, argument, _ := strings.Cut(string(m[2]), " ")
				produce, ok := madeParts[kind]
				if !ok {
					t.Fatalf("nobody makes %q", m[2])
				}
				return slices.Concat(m[1], []byte(produce(t, argument)), m[4])
			})
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(text), string(got)); diff != "" {
				t.Errorf("%s is not what it documents (-document +made; -rewrite writes it):\n%s", file, diff)
			}
		})
	}
}

// documents are all markdown files that are ours.
func documents(t *testing.T) []string {
	t.Helper()
	all := []string{filepath.Join(repository, "README.md"), filepath.Join(repository, "CHANGELOG.md")}
	found, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	return append(all, found...)
}

// wholeFile shows a file of the repository.
func wholeFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, name))
	if err != nil {
		t.Fatal(err)
	}
	language := map[string]string{".go": "go", ".py": "python", ".yaml": "yaml"}[filepath.Ext(name)]
	return "```" + language + "\n" + strings.TrimRight(string(text), "\n") + "\n```\n"
}

var link = regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), string(m[1]))); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			}
		}
	}
}

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// Every command of every document is one that exists, with flags that exist.
func TestDocumentedCommandsExist(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range shellBlock.FindAllSubmatch(text, -1) {
			for line := range strings.Lines(strings.ReplaceAll(string(block[1]), "\\\n", " ")) {
				for _, words := range runnerdCommands(line) {
					root := newRoot(testProgram(&bytes.Buffer{}, &bytes.Buffer{}, nil))
					found, rest, err := root.Find(words)
					if err == nil && found != root {
						err = found.ParseFlags(rest)
					}
					if err != nil {
						t.Errorf("%s: %q: %v", file, strings.TrimSpace(line), err)
					}
					seen++
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d commands were found", seen)
	}
}

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// Every configuration that a document shows is one.
func TestDocumentedConfigurationsAreGood(t *testing.T) {
	t.Parallel()
	seen := 0
	for _, file := range documents(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllSubmatch(text, -1) {
			shown := filepath.Join(t.TempDir(), "runnerd.yaml")
			if err := os.WriteFile(shown, []byte(identitytest.Localize(t, string(block[1]))), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := config.Load(config.Source{File: shown, LookupEnv: environment("HOME", "/h")}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			seen++
		}
	}
	if seen < 3 {
		t.Errorf("only %d configurations were found", seen)
	}
}

// docs/dependencies.md has a row for each module that the code imports, and no other.
func TestDependenciesAreExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(repository, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	var explained []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		explained = append(explained, m[1])
	}
	slices.Sort(explained)
	if diff := cmp.Diff(importedModules(t), explained); diff != "" {
		t.Errorf("docs/dependencies.md (-imported +explained):\n%s", diff)
	}
}

// importedModules are the modules of go.mod that a package of this module imports.
func importedModules(t *testing.T) []string {
	t.Helper()
	required := requiredModules(t)
	used := map[string]bool{}
	err := filepath.WalkDir(repository, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, statErr := os.Stat(filepath.Join(path, "go.mod"))
			other := path != repository && statErr == nil // a module of its own
			if other || d.Name() == ".git" || d.Name() == ".gen" || d.Name() == ".bin" || d.Name() == "node_modules" {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			longest := ""
			for _, module := range required {
				if (name == module || strings.HasPrefix(name, module+"/")) && len(module) > len(longest) {
					longest = module
				}
			}
			if longest != "" {
				used[longest] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for module := range used {
		all = append(all, module)
	}
	slices.Sort(all)
	return all
}

func requiredModules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) v\S+`).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}
