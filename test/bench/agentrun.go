package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	samples := map[string][]sample{} // by engine/in flight
	latency := map[string][][]float64{}
	disk := map[string][]float64{}
	for round := range b.rounds {
		if err := b.probeDisk(fmt.Sprintf("round %d", round+1)); err != nil {
			return err
		}
		for _, inFlight := range inFlights {
			for i := range engines {
				name := engines[(i+round)%len(engines)] // no engine is always first
				s, err := b.agentRun(ctx, name, inFlight)
				if err != nil {
					return fmt.Errorf("%s with %d in flight: %w", name, inFlight, err)
				}
				key := fmt.Sprintf("%s/%d", name, inFlight)
				samples[key] = append(samples[key], s.sample)
				if inFlight == 1 {
					latency[name] = append(latency[name], s.intervals)
				}
				disk[key] = append(disk[key], s.bytesPerRun)
				b.note("%-16s round %d: %7.0f iterations/s, %.3f CPU s/1000, peak %4.0f MB (now heap %.0f, mapped files %.0f), %5.1f KB/run%s",
					key, round+1, s.rate(), s.cpuPer1000(), s.peakMegabyte(), float64(s.memory.anonymous)/1e6, float64(s.memory.file)/1e6,
					s.bytesPerRun/1e3, s.note)
			}
		}
	}
	middle := func(key string, of func(sample) float64) float64 { return median(pick(samples[key], of)) }
	for _, inFlight := range inFlights {
		at := func(engine string) string { return fmt.Sprintf("%s/%d", engine, inFlight) }
		speed, cost := target{}, target{}
		if inFlight == 64 {
			speed, cost = atLeast(0.5), atMost(2.2)
		}
		bolt, own := at("floor-bbolt"), at("runnerd")
		name := fmt.Sprintf("agent-run/%d/", inFlight)
		b.add(row{bolt + "/iterations_per_second", middle(bolt, sample.rate), "1/s", middle(at("floor-go"), sample.rate), target{}})
		b.add(row{bolt + "/cpu_per_1000_iterations", middle(bolt, sample.cpuPer1000), "s", middle(at("floor-go"), sample.cpuPer1000), target{}})
		b.add(row{name + "iterations_per_second", middle(own, sample.rate), "1/s", middle(bolt, sample.rate), speed})
		b.add(row{name + "cpu_per_1000_iterations", middle(own, sample.cpuPer1000), "s", middle(bolt, sample.cpuPer1000), cost})
	}
	percentile := func(engine string, q float64) float64 {
		var each []float64
		for _, intervals := range latency[engine] {
			each = append(each, quantile(intervals, q))
		}
		return median(each)
	}
	b.add(row{"agent-run/1/iteration_p50", percentile("runnerd", 0.5), "ms", percentile("floor-bbolt", 0.5), atMost(1.5)})
	b.add(row{"agent-run/1/iteration_p99", percentile("runnerd", 0.99), "ms", percentile("floor-bbolt", 0.99), atMost(2)})
	b.add(row{"agent-run/512/iterations_per_second_to_64", middle("runnerd/512", sample.rate), "1/s", middle("runnerd/64", sample.rate), atLeast(1)})
	b.add(row{"agent-run/64/peak_memory", middle("runnerd/64", sample.peakMegabyte), "MB", 100, atMost(1)})
	b.add(row{"agent-run/512/peak_memory", middle("runnerd/512", sample.peakMegabyte), "MB", 160, atMost(1)})
	b.add(row{"agent-run/64/disk_per_run", median(disk["runnerd/64"]), "B", median(disk["floor-bbolt/64"]), atMost(1.2)})
	return nil
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

// probeDisk notes how long syncs take just now, as a histogram.
func (b *bench) probeDisk(when string) error {
	path := filepath.Join(b.dir, "probe")
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer os.Remove(path)
	defer f.Close()
	const syncs = 200
	times := make([]int64, syncs)
	page := make([]byte, 4096)
	for i := range times {
		if _, err := f.WriteAt(page, int64(i)*int64(len(page))); err != nil {
			return err
		}
		began := time.Now()
		if err := datasync(f); err != nil {
			return err
		}
		times[i] = int64(time.Since(began))
	}
	b.note("%s: fdatasync of 4 KiB p50 %v p90 %v p99 %v max %v; %s", when, micro(quantile(times, 0.5)),
		micro(quantile(times, 0.9)), micro(quantile(times, 0.99)), micro(quantile(times, 1)), histogram(times))
	return nil
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
	text := ""
	for i := range last + 1 {
		text += fmt.Sprintf(" <%v:%d", 32*time.Microsecond<<i, counts[i])
	}
	return text[min(1, len(text)):]
}
