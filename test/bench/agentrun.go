package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

var inFlights = []int{1, 64, 512}

func agentRunRows() (rows []string) {
	for _, n := range inFlights {
		for _, engine := range []string{"floor-bbolt", "agent-run"} {
			for _, figure := range []string{"iterations_per_second", "cpu_per_1000_iterations"} {
				rows = append(rows, fmt.Sprintf("%s/%d/%s", engine, n, figure))
			}
		}
	}
	return append(rows, "agent-run/1/iteration_p50", "agent-run/1/iteration_p99", "agent-run/512/iterations_per_second_to_64",
		"agent-run/64/peak_memory", "agent-run/512/peak_memory", "agent-run/64/disk_per_run")
}

// agentRuns measures workload agent-run at several numbers of runs in flight on all engines.
func (b *bench) agentRuns(ctx context.Context) error {
	samples := map[string][]runSample{} // by engine/in flight, one a round
	var loud []time.Duration            // how slow the disk was before and after each round
	before, err := b.probeDisk("before round 1")
	if err != nil {
		return err
	}
	for round := range b.rounds {
		for _, inFlight := range inFlights {
			for i := range engines {
				name := engines[(i+round)%len(engines)] // no engine is always first
				s, err := b.agentRun(ctx, name, inFlight)
				if err != nil {
					return fmt.Errorf("%s with %d in flight: %w", name, inFlight, err)
				}
				key := at(name, inFlight)
				samples[key] = append(samples[key], s)
				b.note("%-16s round %d: %7.0f iterations/s, %.3f CPU s/1000, peak %4.0f MB (now heap %.0f, mapped files %.0f), %5.1f KB/run%s",
					key, round+1, s.rate(), s.cpuPer1000(), s.peakMegabyte(), float64(s.memory.anonymous)/1e6, float64(s.memory.file)/1e6,
					s.bytesPerRun/1e3, s.note)
			}
		}
		after, err := b.probeDisk(fmt.Sprintf("after round %d", round+1))
		if err != nil {
			return err
		}
		loud = append(loud, max(before, after))
		before = after
	}
	rounds := quiet(loud)
	b.note("figures are medians of %d quiet rounds of %d", len(rounds), b.rounds)
	for key := range samples {
		samples[key] = only(samples[key], rounds)
	}
	b.addAgentRuns(samples)
	return nil
}

// at is the key of the samples of an engine.
func at(engine string, inFlight int) string { return fmt.Sprintf("%s/%d", engine, inFlight) }

// addAgentRuns makes the rows of the samples.
func (b *bench) addAgentRuns(samples map[string][]runSample) {
	middle := func(engine string, inFlight int, of func(runSample) float64) float64 {
		return median(pick(samples[at(engine, inFlight)], of))
	}
	compare := func(engine, floor string, inFlight int, name string, speed, cost target) {
		b.add(row{name + "/iterations_per_second", middle(engine, inFlight, runSample.rate), "1/s", middle(floor, inFlight, runSample.rate), speed})
		b.add(row{name + "/cpu_per_1000_iterations", middle(engine, inFlight, runSample.cpuPer1000), "s", middle(floor, inFlight, runSample.cpuPer1000), cost})
	}
	for _, n := range inFlights {
		speed, cost := target{}, target{}
		if n == 64 {
			speed, cost = atLeast(0.5), atMost(2.2)
		}
		compare("floor-bbolt", "floor-go", n, fmt.Sprintf("floor-bbolt/%d", n), target{}, target{})
		compare("runnerd", "floor-bbolt", n, fmt.Sprintf("agent-run/%d", n), speed, cost)
	}
	latency := func(name string, q float64, most float64) {
		of := func(s runSample) float64 { return quantile(s.intervals, q) }
		b.add(row{"agent-run/1/" + name, middle("runnerd", 1, of), "ms", middle("floor-bbolt", 1, of), atMost(most)})
	}
	latency("iteration_p50", 0.5, 1.5)
	latency("iteration_p99", 0.99, 2)
	b.add(row{"agent-run/512/iterations_per_second_to_64", middle("runnerd", 512, runSample.rate), "1/s", middle("runnerd", 64, runSample.rate), atLeast(1)})
	b.add(row{"agent-run/64/peak_memory", middle("runnerd", 64, runSample.peakMegabyte), "MB", 100, atMost(1)})
	b.add(row{"agent-run/512/peak_memory", middle("runnerd", 512, runSample.peakMegabyte), "MB", 160, atMost(1)})
	perRun := func(s runSample) float64 { return s.bytesPerRun }
	b.add(row{"agent-run/64/disk_per_run", middle("runnerd", 64, perRun), "B", middle("floor-bbolt", 64, perRun), atMost(1.2)})
}

// runSample is what one engine did in one round.
type runSample struct {
	sample
	intervals   []float64 // ms between two Decide of a run, with one run in flight
	bytesPerRun float64
	note        string
}

// agentRun measures one engine in processes of its own: a load to warm up, then the one that counts.
func (b *bench) agentRun(ctx context.Context, name string, inFlight int) (runSample, error) {
	runs := map[int]int{1: 60, 64: 800, 512: 1536}[inFlight]
	if b.quick {
		runs = max(4, inFlight/4)
	}
	return b.runs(ctx, name, load{Runs: runs, InFlight: inFlight, Work: work{Iterations: iterations}})
}

func (b *bench) runs(ctx context.Context, name string, l load) (s runSample, err error) {
	e, dir, err := b.start(ctx, name)
	if err != nil {
		return s, err
	}
	warm := l
	warm.Prefix, warm.Runs = "warm", max(1, l.Runs/4)
	l.Prefix = "run"
	err = func() error {
		if err := e.load(ctx, warm); err != nil {
			return err
		}
		if err := b.reset(e, l.InFlight == 1); err != nil {
			return err
		}
		if s.sample, err = measure(ctx, e, l); err != nil {
			return err
		}
		if l.InFlight == 1 {
			if s.intervals, err = b.intervals(); err != nil {
				return err
			}
		}
		s.note, err = commitNote(e)
		return err
	}()
	if closed := e.close(); err == nil {
		err = closed
	}
	if err != nil || name == "floor-go" {
		return s, err
	}
	used, err := storeBytes(dir)
	s.bytesPerRun = float64(used) / float64(warm.Runs+l.Runs)
	return s, err
}

// reset forgets what the warm-up left with the children.
func (b *bench) reset(e engine, record bool) error {
	if record {
		if err := b.decide.call("record", nil, nil); err != nil {
			return err
		}
	}
	if f, ok := e.(floorEngine); ok && f.bolt {
		return f.call("commits", nil, nil)
	}
	return nil
}

// intervals returns how long iterations took, in ms, as the decide stub saw them.
func (b *bench) intervals() ([]float64, error) {
	var ns []int64
	if err := b.decide.call("intervals", nil, &ns); err != nil {
		return nil, err
	}
	return pick(ns, func(n int64) float64 { return float64(n) / 1e6 }), nil
}

// commitNote tells what the commits of floor-bbolt took, which is what the disk allowed in that round.
func commitNote(e engine) (string, error) {
	f, ok := e.(floorEngine)
	if !ok || !f.bolt {
		return "", nil
	}
	var ns []int64
	if err := f.call("commits", nil, &ns); err != nil {
		return "", err
	}
	return fmt.Sprintf(", %d commits of p50 %v p99 %v", len(ns), micro(quantile(ns, 0.5)), micro(quantile(ns, 0.99))), nil
}

func micro(ns int64) time.Duration { return time.Duration(ns).Round(time.Microsecond) }

// quiet returns the rounds in which the disk was at most twice as slow as in the quietest.
func quiet(loud []time.Duration) (rounds []int) {
	for i, d := range loud {
		if d <= 2*slices.Min(loud) {
			rounds = append(rounds, i)
		}
	}
	return rounds
}

// only returns the values of some rounds.
func only[T any](all []T, rounds []int) []T {
	some := make([]T, len(rounds))
	for i, round := range rounds {
		some[i] = all[round]
	}
	return some
}

// probeDisk notes how long syncs take just now, as a histogram, and returns what nine of ten do not exceed.
func (b *bench) probeDisk(when string) (p90 time.Duration, err error) {
	path := filepath.Join(b.dir, "probe")
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	const syncs = 200
	times := make([]int64, syncs)
	page := make([]byte, 4096)
	for i := range times {
		if _, err := f.WriteAt(page, int64(i)*int64(len(page))); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := datasync(f); err != nil {
			return 0, err
		}
		times[i] = int64(time.Since(began))
	}
	b.note("%s: fdatasync of 4 KiB p50 %v p90 %v p99 %v max %v; %s", when, micro(quantile(times, 0.5)),
		micro(quantile(times, 0.9)), micro(quantile(times, 0.99)), micro(quantile(times, 1)), histogram(times))
	return time.Duration(quantile(times, 0.9)), nil
}

// histogram prints how many times fall below each power of two of 32 µs.
func histogram(ns []int64) string {
	counts := map[int]int{}
	last := 0
	for _, n := range ns {
		i := 0
		for bound := int64(32 * time.Microsecond); n >= bound; bound *= 2 {
			i++
		}
		counts[i]++
		last = max(last, i)
	}
	text := make([]string, last+1)
	for i := range text {
		text[i] = fmt.Sprintf("<%v:%d", 32*time.Microsecond<<i, counts[i])
	}
	return strings.Join(text, " ")
}
