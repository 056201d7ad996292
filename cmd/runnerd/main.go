// Command runnerd executes AI-agent runs: the daemon, and the commands that
// start, watch and steer runs of a daemon.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // who asks a second time does not want to wait
	code := newProgram().run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// program is what a command knows of the world around it; tests make their own.
type program struct {
	in        io.Reader
	out       io.Writer // what was asked for
	err       io.Writer // everything else: errors, progress, logs
	lookupEnv func(string) (string, bool)
	// terminal reports whether one of in, out and err is a terminal, and its width.
	terminal func(any) (width int, ok bool)
	keyboard keyboard // who types; nil: whoever types at in
	now      func() time.Time
	zone     *time.Location    // in which times are shown
	serving  func(addr string) // told when serve listens; nil: nobody
}

func newProgram() *program {
	return &program{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		lookupEnv: os.LookupEnv, terminal: terminalWidth, now: time.Now, zone: time.Local,
	}
}

func terminalWidth(file any) (int, bool) {
	f, ok := file.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = 80
	}
	return width, true
}

// run executes one command line and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	root := newRoot(p) //nolint:contextcheck // commands get theirs from ExecuteContext
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	return p.report(err)
}

// env is a variable of the environment, or empty.
func (p *program) env(name string) string {
	value, _ := p.lookupEnv(name)
	return value
}
