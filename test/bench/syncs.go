package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"go.etcd.io/bbolt"
)

func syncRows() []string {
	return []string{"agent-run/1/fdatasync_per_iteration", "agent-run/64/fdatasync_per_iteration"}
}

// syncs counts the fdatasync calls of the daemon with strace, in a round of its own, since that slows it. Where there
// is no strace it counts two for each transaction of the store's file, which is what bbolt does.
func (b *bench) syncs(ctx context.Context) error {
	count, how := b.countSyncs, "counted by strace"
	if _, err := exec.LookPath("strace"); err != nil {
		count, how = b.countCommits, "two a transaction, as there is no strace"
	}
	for _, m := range []struct {
		inFlight, runs int
		most           float64
	}{{1, 30, 4.5}, {64, 400, 0.5}} {
		if b.quick {
			m.runs = max(3, m.inFlight/4)
		}
		n, err := count(ctx, load{Prefix: "run", Runs: m.runs, InFlight: m.inFlight, Work: work{Iterations: iterations}})
		if err != nil {
			return fmt.Errorf("count syncs: %w", err)
		}
		b.note("%d fdatasync in %d runs with %d in flight: %s", n, m.runs, m.inFlight, how)
		b.add(row{fmt.Sprintf("agent-run/%d/fdatasync_per_iteration", m.inFlight), float64(n) / float64(m.runs*iterations), "1", m.most, atMost(1)})
	}
	return nil
}

// countSyncs puts a load on a daemon under strace and returns how many syncs its process made, start and end apart.
func (b *bench) countSyncs(ctx context.Context, l load) (int, error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return 0, err
	}
	dir, err := b.folder()
	if err != nil {
		return 0, err
	}
	trace := filepath.Join(b.dir, "strace")
	d, err := b.daemonUnder(ctx, dir, []string{strace, "-f", "-q", "--seccomp-bpf", "-e", "trace=fdatasync,fsync", "-e", "signal=none", "-o", trace})
	if err != nil {
		return 0, err
	}
	defer d.hangUp()
	started, err := countLines(trace, "sync(")
	if err == nil {
		err = d.load(ctx, l)
	}
	ended := 0
	if err == nil {
		ended, err = countLines(trace, "sync(")
	}
	return ended - started, errors.Join(err, d.terminateTraced())
}

// countCommits puts a load on a daemon and returns twice the number of transactions that it committed, start and end
// apart.
func (b *bench) countCommits(ctx context.Context, l load) (int, error) {
	var commits [2]int
	for i, runs := range []int{0, l.Runs} {
		dir, err := b.folder()
		if err != nil {
			return 0, err
		}
		d, err := b.daemon(ctx, dir)
		if err != nil {
			return 0, err
		}
		l.Runs = runs
		if err := errors.Join(d.load(ctx, l), d.close()); err != nil {
			return 0, err
		}
		err = viewStore(dir, func(tx *bbolt.Tx) error {
			commits[i] = tx.ID()
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return 2 * (commits[1] - commits[0]), nil
}

// terminateTraced ends a daemon that runs as the child of strace, which passes no signals on.
func (p *process) terminateTraced() error {
	pids, err := children(p.pid())
	if err != nil {
		return errors.Join(err, p.cmd.Process.Kill())
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			return err
		}
	}
	return p.cmd.Wait()
}

// countLines returns how many lines of a trace hold a call. A call that strace had to split over two lines counts
// once, as it begins.
func countLines(path, call string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if bytes.Contains(lines.Bytes(), []byte(call)) {
			n++
		}
	}
	return n, nil
}
