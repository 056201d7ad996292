package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// run is the benchmark, or one of the processes it starts.
func run(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	if os.Getenv(childEnv) != "" {
		return runChild(ctx, args, in, out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(notes)
	var (
		only    = flags.String("run", ".", "measure only what `regexp` matches")
		quick   = flags.Bool("quick", false, "do very little, to see that all measures work; the figures say nothing")
		rounds  = flags.Int("rounds", 5, "interleaved rounds of agent-run")
		runnerd = flags.String("runnerd", ".bin/runnerd", "binary of the daemon")
		rules   = flags.String("rules", ".bin/rules.test", "test binary of pkg/runner/internal/runstate")
		dir     = flags.String("dir", "", "directory on the disk to measure (default: that of temporary files)")
		list    = flags.Bool("list", false, "list the measures and end")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	b := &bench{quick: *quick, rounds: *rounds, report: report{out: out, notes: notes, wanted: wanted.MatchString}}
	if *quick {
		b.rounds = 1
	}
	if *list {
		for _, m := range b.measures() {
			fmt.Fprintln(out, strings.Join(m.rows, "\n"))
		}
		return nil
	}
	if b.runnerd, err = filepath.Abs(*runnerd); err != nil {
		return err
	}
	if b.rules, err = filepath.Abs(*rules); err != nil {
		return err
	}
	for _, binary := range []string{b.runnerd, b.rules} {
		if _, err := os.Stat(binary); err != nil {
			return fmt.Errorf("what is measured is not built: %w", err)
		}
	}
	if b.dir, err = os.MkdirTemp(*dir, "runnerd-bench-"); err != nil {
		return err
	}
	return errors.Join(b.all(ctx), os.RemoveAll(b.dir))
}

// runChild is a stub or a floor.
func runChild(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	switch {
	case len(args) == 1 && args[0] == "decide":
		return serveDecide(ctx, in, out)
	case len(args) == 1 && args[0] == "tools":
		return serveTools(ctx, in, out)
	case len(args) == 1 && args[0] == "stream":
		return serveStream(ctx, in, out)
	case len(args) == 3 && args[0] == "floor":
		return serveFloor(ctx, args[1], args[2], "", in, out)
	case len(args) == 4 && args[0] == "floor":
		return serveFloor(ctx, args[1], args[2], args[3], in, out)
	default:
		return fmt.Errorf("no such process: %v", args)
	}
}

// measurement is a group of rows that are measured together.
type measurement struct {
	rows []string
	run  func(context.Context) error
}

// measures are all measurements, in the order they are made.
func (b *bench) measures() []measurement {
	return []measurement{
		{agentRunRows(), b.agentRuns},
		{syncRows(), b.syncs},
		{linearityRows(), b.linearity},
		{coldStartRows(), b.coldStart},
		{crashRows(), b.crashes},
		{fanOutRows(), b.fanOut},
		{commitRows(), b.commitRate},
		{eventCostRows(), b.eventCost},
		{verdictRows(), b.verdict},
		{gatedRows(), b.gatedRuns},
	}
}

// all makes the wanted measurements.
func (b *bench) all(ctx context.Context) (err error) {
	began := time.Now()
	b.note("%s %s/%s, %d CPUs, %s", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), b.dir)
	b.note("name\tvalue\tunit\treference\tratio")
	if b.quick {
		b.note("quick: the figures say nothing")
	}
	if b.decide, err = startChild(ctx, "decide"); err != nil {
		return err
	}
	defer b.decide.stop()
	if b.tools, err = startChild(ctx, "tools"); err != nil {
		return err
	}
	defer b.tools.stop()
	for _, m := range b.measures() {
		if !slices.ContainsFunc(m.rows, b.wanted) {
			continue
		}
		b.declared = m.rows
		if err := m.run(ctx); err != nil {
			return err
		}
	}
	b.note("took %v; missed: %d %v", time.Since(began).Round(time.Second), len(b.missed), b.missed)
	return nil
}
