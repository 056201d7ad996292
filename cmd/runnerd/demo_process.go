package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// listener is where a part of the demonstration serves.
type listener = net.Listener

// listening is the first line that a part of the demonstration prints, followed by its address.
const listening = "listening on "

// listenAndTell listens, prints where, and serves until ctx ends.
func listenAndTell(ctx context.Context, out io.Writer, addr string, serve func(context.Context, listener) error) error {
	lis, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, listening+lis.Addr().String())
	return serve(ctx, lis)
}

// child is one process of the demonstration.
type child struct {
	cmd  *exec.Cmd
	addr string // where it serves
	done chan struct{}
}

// startTime bounds how long a process may take until it serves.
const startTime = 30 * time.Second

// start starts this program with other arguments and waits until it says where it listens. What it logs goes to a
// file, which is shown when it does not come up.
func (d *demo) start(ctx context.Context, args ...string) (*child, error) {
	logName := filepath.Join(d.dir, strings.Join(args[:min(2, len(args))], "-")+".log")
	log, err := os.OpenFile(logName, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c := &child{cmd: exec.Command(d.self, args...), done: make(chan struct{})} //nolint:gosec // this program itself
	c.cmd.Stderr = log
	c.cmd.SysProcAttr = ownGroup() // an interrupt at the terminal is for the demonstration, which stops its parts
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	where := make(chan string, 1)
	go func() {
		defer close(c.done)
		defer close(where)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if addr, ok := strings.CutPrefix(lines.Text(), listening); ok {
				where <- addr
			}
		}
		_ = c.cmd.Wait() // how it ended is told by its log
	}()
	select {
	case addr, ok := <-where:
		if ok {
			c.addr = addr
			return c, nil
		}
		err = errors.New("it ended before it served")
	case <-time.After(startTime):
		err = fmt.Errorf("it does not serve within %s", startTime)
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.kill()
	told, _ := os.ReadFile(logName)
	return nil, fmt.Errorf("runnerd %s: %w\n%s", strings.Join(args, " "), err, safeBlock(string(told)))
}

// kill ends the process as a power cut would.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

// stop lets the process end by itself, for at most some seconds.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(12 * time.Second):
		c.kill()
	}
}
