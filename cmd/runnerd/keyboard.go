package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// keyboard is somebody who types lines.
type keyboard interface {
	// drop forgets what was typed up to now, so that it cannot answer a question
	// that nobody has seen yet.
	drop()
	// line waits for the next line and returns it without its end; io.EOF says
	// that nothing more comes.
	line(ctx context.Context) (string, error)
}

// keys is the person at standard input.
func (p *program) keys() keyboard {
	if p.keyboard != nil {
		return p.keyboard
	}
	if file, ok := p.in.(*os.File); ok {
		if _, tty := p.terminal(file); tty {
			return &terminalKeyboard{fd: int(file.Fd())}
		}
	}
	return &readerKeyboard{p.in}
}

// attended reports whether somebody is there who sees what is asked and can
// answer it.
func (p *program) attended() bool {
	_, sees := p.terminal(p.err)
	_, types := p.terminal(p.in)
	return sees && types
}

// readerKeyboard reads what is no terminal. It takes no byte beyond a line, and
// a line that is waited for cannot be given up.
type readerKeyboard struct{ in io.Reader }

func (k *readerKeyboard) drop() {}

func (k *readerKeyboard) line(context.Context) (string, error) {
	var text []byte
	for one := make([]byte, 1); ; {
		n, err := k.in.Read(one)
		if n == 1 && one[0] != '\n' {
			if text = append(text, one[0]); len(text) > maxLine {
				return "", errLongLine
			}
		}
		if n == 1 && one[0] == '\n' || err != nil && len(text) > 0 && errors.Is(err, io.EOF) {
			return string(text), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// maxLine bounds a line that is typed, in bytes.
const maxLine = 16 << 10

var errLongLine = errors.New("the line is too long")

// terminalKeyboard reads a terminal that gives whole lines. It reads only what
// is there, so that between questions nobody reads: what is typed then waits in
// the terminal, where drop finds it.
type terminalKeyboard struct{ fd int }

// pollTime is how often a wait for a line looks whether it is given up, in ms.
const pollTime = 100

func (k *terminalKeyboard) drop() {
	// Setting the attributes again with a flush drops half a line, too.
	if attributes, err := unix.IoctlGetTermios(k.fd, getTermios); err == nil {
		_ = unix.IoctlSetTermios(k.fd, flushTermios, attributes) // a terminal that went away says so to the read
	}
}

func (k *terminalKeyboard) line(ctx context.Context) (string, error) {
	var text []byte
	for buf := make([]byte, 4096); len(text) <= maxLine; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		ready := []unix.PollFd{{Fd: int32(k.fd), Events: unix.POLLIN}}
		n, err := unix.Poll(ready, pollTime)
		if n == 0 || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("waiting for the terminal: %w", err)
		}
		n, err = unix.Read(k.fd, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("reading the terminal: %w", err)
		}
		if n == 0 {
			return "", io.EOF
		}
		text = append(text, buf[:n]...)
		if line, _, whole := bytes.Cut(text, []byte("\n")); whole {
			return strings.TrimRight(string(line), "\r"), nil
		}
	}
	return "", errLongLine
}
