package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// argumentsFile is a file in which a person edits the arguments of a call. It is
// readable by its owner only and lies in a folder of its own.
type argumentsFile struct {
	dir, path string
	written   string // what the person was given
	original  string // the exact arguments that were asked about
}

// newArgumentsFile lays arguments out in a file.
func newArgumentsFile(arguments string) (*argumentsFile, error) {
	dir, err := os.MkdirTemp("", "runnerd-edit-") // 0700
	if err != nil {
		return nil, err
	}
	f := &argumentsFile{
		dir: dir, path: filepath.Join(dir, "arguments.json"),
		written: prettyArguments(arguments) + "\n", original: arguments,
	}
	if err := os.WriteFile(f.path, []byte(f.written), 0o600); err != nil {
		f.remove()
		return nil, err
	}
	return f, nil
}

func (f *argumentsFile) remove() { _ = os.RemoveAll(f.dir) } // a private file that stays does no harm

// edited reads what the person made of it. Nothing but blanks changed is no
// edit: ok is false.
func (f *argumentsFile) edited() (text string, ok bool, err error) {
	file, err := os.Open(f.path)
	if err != nil {
		return "", false, err
	}
	defer file.Close()
	data, err := readAllOf(file)
	if err != nil {
		return "", false, err
	}
	if string(data) == f.written {
		return "", false, nil
	}
	if err := checkArguments(string(data)); err != nil {
		return "", false, &badEditError{err}
	}
	text = compactArguments(string(data))
	return text, text != compactArguments(f.original), nil
}

// badEditError is a mistake in the edited text, which can be edited again.
type badEditError struct{ error }

func (e *badEditError) Unwrap() error { return e.error }

// edit lets the person change the file in an editor of theirs.
func (p *program) edit(ctx context.Context, f *argumentsFile) error {
	editor := firstOf(p.env("VISUAL"), p.env("EDITOR"))
	if editor == "" {
		return &exitError{code: exitFailure, err: errors.New("there is no editor"), hint: "set EDITOR, or give the arguments with --arguments"}
	}
	// As other programs do, the shell takes the variable apart: it may have arguments.
	cmd := exec.CommandContext(ctx, "sh", "-c", editor+` "$1"`, "sh", f.path) //nolint:gosec // the person's own editor
	cmd.Stdout, cmd.Stderr = p.err, p.err                                     // standard output may be a file
	if in, ok := p.in.(*os.File); ok {
		cmd.Stdin = in
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the editor %s failed, and the approval stays open: %w", safeLine(editor), err)
	}
	return nil
}

// differenceLines shows what an edit changes, field by field: lines that go
// behind a minus, lines that come behind a plus, and some that stay around them.
func differenceLines(before, after string, style style) []string {
	a, b := fieldLines(before, 0), fieldLines(after, 0)
	head := 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	end := 0
	for end < min(len(a), len(b))-head && a[len(a)-1-end] == b[len(b)-1-end] {
		end++
	}
	const around = 2
	var lines []string
	for _, line := range a[max(head-around, 0):head] {
		lines = append(lines, "  "+line)
	}
	changes(a[head:len(a)-end], b[head:len(b)-end], func(mark byte, line string) {
		line = string(mark) + " " + line
		switch mark {
		case '-':
			line = style.red(line)
		case '+':
			line = style.green(line)
		}
		lines = append(lines, line)
	})
	for _, line := range a[len(a)-end : min(len(a)-end+around, len(a))] {
		lines = append(lines, "  "+line)
	}
	return lines
}

// maxTable bounds the work of finding lines that stay.
const maxTable = 4 << 20

// changes tells how to get from one list of lines to another, by their longest
// common subsequence; of very many lines it tells that all go and all come.
func changes(a, b []string, tell func(mark byte, line string)) {
	if (len(a)+1)*(len(b)+1) > maxTable {
		for _, line := range a {
			tell('-', line)
		}
		for _, line := range b {
			tell('+', line)
		}
		return
	}
	// common[i][j] is how many lines of a[i:] and b[j:] can stay.
	common := make([][]int, len(a)+1)
	for i := range common {
		common[i] = make([]int, len(b)+1)
	}
	for i, line := range slices.Backward(a) {
		for j, other := range slices.Backward(b) {
			if line == other {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			tell(' ', a[i])
			i, j = i+1, j+1
		case i < len(a) && (j == len(b) || common[i+1][j] >= common[i][j+1]):
			tell('-', a[i])
			i++
		default:
			tell('+', b[j])
			j++
		}
	}
}
