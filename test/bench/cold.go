package main

import (
	"context"
	"fmt"
	"time"
)

func coldStartRows() []string { return []string{"cold-start/first_run_done"} }

// coldStart measures from the start of the process, with no data, to the end of its first run.
func (b *bench) coldStart(ctx context.Context) error {
	starts := map[string][]float64{}
	for range b.few(7) {
		for _, name := range []string{"floor-bbolt", "runnerd"} {
			began := time.Now()
			e, _, err := b.start(ctx, name)
			if err != nil {
				return err
			}
			listening := time.Since(began)
			if err := e.load(ctx, load{Prefix: "run", Runs: 1, InFlight: 1, Work: work{Iterations: iterations}}); err != nil {
				return fmt.Errorf("first run of %s: %w", name, err)
			}
			done := time.Since(began)
			b.note("cold start of %s: listens after %v, first run done after %v", name, listening.Round(time.Microsecond), done.Round(time.Microsecond))
			starts[name] = append(starts[name], done.Seconds())
			if err := e.close(); err != nil {
				return err
			}
		}
	}
	b.note("cold start of floor-bbolt: median %.3f s", median(starts["floor-bbolt"]))
	b.add(row{"cold-start/first_run_done", median(starts["runnerd"]), "s", 0.1, atMost(1)})
	return nil
}

// few returns how often a small thing is repeated.
func (b *bench) few(n int) int {
	if b.quick {
		return 1
	}
	return n
}
