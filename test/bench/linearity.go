package main

import (
	"context"
	"fmt"
)

func linearityRows() []string {
	return []string{"linearity/disk_per_iteration", "linearity/iterations_per_second", "linearity/cpu_per_1000_iterations"}
}

// linearity compares runs of 100 iterations with runs of 10. What a Decide carries grows with the run, so time and
// CPU are compared with the floor, which carries as much; what is stored has to be linear.
func (b *bench) linearity(ctx context.Context) error {
	samples := map[string][]runSample{}
	for range b.few(3) {
		for _, name := range []string{"floor-bbolt", "runnerd"} {
			for _, l := range []load{
				{Runs: 400, InFlight: 16, Work: work{Iterations: 10}},
				{Runs: 40, InFlight: 16, Work: work{Iterations: 100}},
			} {
				if b.quick {
					l.Runs, l.InFlight = l.Runs/20, 2
				}
				s, err := b.runs(ctx, name, l)
				if err != nil {
					return fmt.Errorf("%s, %d iterations: %w", name, l.Work.Iterations, err)
				}
				key := fmt.Sprintf("%s/%d", name, l.Work.Iterations)
				samples[key] = append(samples[key], s)
				b.note("%s iterations, 16 in flight: %.0f iterations/s, %.3f CPU s/1000, %.2f KB/iteration", key,
					s.rate(), s.cpuPer1000(), s.bytesPerRun/float64(l.Work.Iterations)/1e3)
			}
		}
	}
	middle := func(key string, of func(runSample) float64) float64 { return median(pick(samples[key], of)) }
	perRun := func(s runSample) float64 { return s.bytesPerRun }
	b.add(row{"linearity/disk_per_iteration", middle("runnerd/100", perRun) / 100, "B", middle("runnerd/10", perRun) / 10, atMost(1.2)})
	b.add(row{
		"linearity/iterations_per_second", middle("runnerd/100", runSample.rate), "1/s",
		middle("floor-bbolt/100", runSample.rate),
		target{},
	})
	b.add(row{
		"linearity/cpu_per_1000_iterations", middle("runnerd/100", runSample.cpuPer1000), "s",
		middle("floor-bbolt/100", runSample.cpuPer1000),
		target{},
	})
	return nil
}
