package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/runnerd/runnerd/pkg/toolhost"
)

// demoTools are the hands of the demo: three tools that read Go sources and one that writes a report. Everything they
// say is measured, and they can touch nothing but the two folders.
type demoTools struct {
	sources *os.Root
	scratch *os.Root
	pace    time.Duration // between the paragraphs that are written, so that a person can follow
}

// demoPackage is what the tools say about a folder of Go files, tests and generated code left out.
type demoPackage struct {
	Dir   string `json:"dir"`
	Files int    `json:"files"`
	Lines int    `json:"lines"`
}

// demoMeasure is a closer look at one of them.
type demoMeasure struct {
	demoPackage
	Functions    int    `json:"functions"`
	Longest      string `json:"longest"`
	LongestLines int    `json:"longest_lines"`
	At           string `json:"at"`
}

func (d *demoTools) server(ledger toolhost.Ledger) *toolhost.Server {
	s := toolhost.NewServer(toolhost.WithLedger(ledger))
	const dirSchema = `{"type":"object","properties":{"dir":{"type":"string"}},"required":["dir"],"additionalProperties":false}`
	s.Tool(toolhost.Definition{
		Name: "list_packages", Description: "Lists the folders with Go files and how big they are.",
		InputSchema: `{"type":"object","additionalProperties":false}`, ReadOnly: toolhost.Yes,
	}, func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		packages, err := d.listPackages()
		if err != nil {
			return nil, err
		}
		return demoResult(fmt.Sprintf("%d packages", len(packages)), packages)
	})
	s.Tool(toolhost.Definition{
		Name: "measure_package", Description: "Counts the functions of a package and finds the longest.",
		InputSchema: dirSchema, ReadOnly: toolhost.Yes,
	}, func(_ context.Context, call *toolhost.Call) (*toolhost.Result, error) {
		var in struct{ Dir string }
		if err := call.Decode(&in); err != nil {
			return nil, err
		}
		m, err := d.measure(in.Dir)
		if err != nil {
			return nil, err
		}
		return demoResult(fmt.Sprintf("%s: %d functions, the longest is %s with %d lines", m.Dir, m.Functions, m.Longest, m.LongestLines), m)
	})
	s.Tool(toolhost.Definition{
		Name: "write_report", Description: "Writes a report into the scratch folder. It must not exist yet.",
		InputSchema: `{"type":"object","properties":{"path":{"type":"string"},"content":{"type":"string"}},` +
			`"required":["path","content"],"additionalProperties":false}`,
		ReadOnly: toolhost.No, Destructive: toolhost.No, Idempotent: toolhost.No,
	}, d.writeReport)
	s.Tool(toolhost.Definition{
		Name: "check_report", Description: "Reads a report back: its paragraphs, lines and SHA-256.",
		InputSchema: `{"type":"object","properties":{"path":{"type":"string"}},"required":["path"],"additionalProperties":false}`,
		ReadOnly:    toolhost.Yes,
	}, func(_ context.Context, call *toolhost.Call) (*toolhost.Result, error) {
		var in struct{ Path string }
		if err := call.Decode(&in); err != nil {
			return nil, err
		}
		data, err := d.scratch.ReadFile(in.Path)
		if err != nil {
			return nil, err
		}
		text := string(data)
		return demoResult(fmt.Sprintf("%d paragraphs, %d lines, SHA-256 %x…",
			strings.Count(strings.TrimSpace(text), "\n\n")+1, strings.Count(text, "\n"), sha256.Sum256(data)), nil)
	})
	return s
}

func demoResult(text string, structured any) (*toolhost.Result, error) {
	r := toolhost.Text(text)
	if structured != nil {
		data, err := json.Marshal(structured)
		if err != nil {
			return nil, err
		}
		r.StructuredJson = string(data)
	}
	return r, nil
}

func (d *demoTools) listPackages() ([]demoPackage, error) {
	byDir := map[string]*demoPackage{}
	err := fs.WalkDir(d.sources.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && (name != "." && strings.HasPrefix(e.Name(), ".") || e.Name() == "gen" || e.Name() == "testdata"):
			return fs.SkipDir
		case e.IsDir() || !isDemoSource(e.Name()):
			return nil
		}
		data, err := d.sources.ReadFile(name)
		if err != nil {
			return err
		}
		dir := path.Dir(name)
		if byDir[dir] == nil {
			byDir[dir] = &demoPackage{Dir: dir}
		}
		byDir[dir].Files++
		byDir[dir].Lines += strings.Count(string(data), "\n")
		return nil
	})
	if err != nil {
		return nil, err
	}
	packages := make([]demoPackage, 0, len(byDir))
	for _, p := range byDir {
		packages = append(packages, *p)
	}
	slices.SortFunc(packages, func(a, b demoPackage) int { return strings.Compare(a.Dir, b.Dir) })
	return packages, nil
}

func isDemoSource(name string) bool {
	return strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

func (d *demoTools) measure(dir string) (demoMeasure, error) {
	entries, err := fs.ReadDir(d.sources.FS(), dir)
	if err != nil {
		return demoMeasure{}, err
	}
	m := demoMeasure{demoPackage: demoPackage{Dir: dir}}
	for _, e := range entries {
		if e.IsDir() || !isDemoSource(e.Name()) {
			continue
		}
		name := path.Join(dir, e.Name())
		data, err := d.sources.ReadFile(name)
		if err != nil {
			return demoMeasure{}, err
		}
		m.Files++
		m.Lines += strings.Count(string(data), "\n")
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, data, parser.SkipObjectResolution)
		if err != nil {
			return demoMeasure{}, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			m.Functions++
			from, to := files.Position(f.Pos()), files.Position(f.End())
			if lines := to.Line - from.Line + 1; lines > m.LongestLines {
				m.Longest, m.LongestLines, m.At = f.Name.Name, lines, fmt.Sprintf("%s:%d", name, from.Line)
			}
		}
	}
	if m.Files == 0 {
		return demoMeasure{}, fmt.Errorf("%s holds no Go files", dir)
	}
	return m, nil
}

// writeReport writes a report paragraph by paragraph. It goes on when its caller is gone, as a real effect in the
// world does: a mail that is on its way is not called back by a broken connection.
func (d *demoTools) writeReport(_ context.Context, call *toolhost.Call) (*toolhost.Result, error) {
	var in struct{ Path, Content string }
	if err := call.Decode(&in); err != nil {
		return nil, err
	}
	f, err := d.scratch.OpenFile(in.Path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, toolhost.Refuse(codes.AlreadyExists, "%s exists already", in.Path)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	paragraphs := strings.SplitAfter(in.Content, "\n\n")
	for i, p := range paragraphs {
		call.Progress(fmt.Sprintf("paragraph %d of %d", i+1, len(paragraphs)), float64(i)/float64(len(paragraphs)))
		time.Sleep(d.pace)
		if _, err := f.WriteString(p); err != nil {
			return nil, err
		}
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	return demoResult(fmt.Sprintf("wrote %s, %d bytes", in.Path, len(in.Content)), nil)
}
