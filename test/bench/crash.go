package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

func crashRows() []string { return []string{"crash/64/all_done", "crash/64/calls_run_twice"} }

// crashes kills the daemon in the middle of 64 runs and starts it again on the same data. All runs have to be done as
// soon as they would have been, and a second for the start; no call may have been executed twice.
func (b *bench) crashes(ctx context.Context) error {
	l := load{Prefix: "run", Runs: 64, InFlight: 64, Work: work{Iterations: 40, Pace: 25 * time.Millisecond}}
	if b.quick {
		l.Work.Iterations = 10
	}
	calm, err := b.calmTime(ctx, l)
	if err != nil {
		return fmt.Errorf("without a crash: %w", err)
	}
	var done, allowed []float64
	repeated := 0
	for range b.few(3) {
		c, err := b.crash(ctx, l, calm/2)
		if err != nil {
			return fmt.Errorf("with a crash: %w", err)
		}
		remaining := calm - c.killedAfter
		b.note("calm %v, killed after %v, listening again %v later, all done %v after the kill (calm: %v); %d calls, %d twice",
			calm.Round(time.Millisecond), c.killedAfter.Round(time.Millisecond), c.listening.Round(time.Millisecond),
			c.done.Round(time.Millisecond), remaining.Round(time.Millisecond), c.ledger.Calls, c.ledger.Repeated)
		done = append(done, c.done.Seconds())
		allowed = append(allowed, (remaining + time.Second).Seconds())
		repeated += c.ledger.Repeated
	}
	b.add(row{"crash/64/all_done", median(done), "s", median(allowed), atMost(1)})
	b.add(row{"crash/64/calls_run_twice", float64(repeated), "1", 0, target{zero: true}})
	return nil
}

// calmTime returns how long the load takes when nothing happens.
func (b *bench) calmTime(ctx context.Context, l load) (calm time.Duration, err error) {
	dir, err := b.folder()
	if err != nil {
		return 0, err
	}
	d, err := b.daemon(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	began := time.Now()
	if err := d.load(ctx, l); err != nil {
		return 0, err
	}
	return time.Since(began), nil
}

// crashed is what became of a load whose daemon was killed.
type crashed struct {
	killedAfter time.Duration // from the start of the load
	listening   time.Duration // from the kill to the next process taking calls
	done        time.Duration // from the kill to the end of the last run
	ledger      ledger
}

func (b *bench) crash(ctx context.Context, l load, after time.Duration) (c crashed, err error) {
	dir, err := b.folder()
	if err != nil {
		return c, err
	}
	d, err := b.daemon(ctx, dir)
	if err != nil {
		return c, err
	}
	if err := b.tools.call("keep ledger", nil, nil); err != nil {
		d.crash()
		return c, err
	}
	began := time.Now()
	err = l.execute(ctx, func(ctx context.Context, worker int, id string) error {
		return startRun(ctx, d.client(worker), agentName, id, l.Work)
	})
	time.Sleep(after - time.Since(began)) // a moment in the middle is what is asked for
	d.crash()
	killed := time.Now()
	if err != nil {
		return c, err
	}
	c.killedAfter = killed.Sub(began)
	if d, err = b.daemon(ctx, dir); err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	c.listening = time.Since(killed)
	err = l.execute(ctx, func(ctx context.Context, worker int, id string) error { return waitRun(ctx, d.client(worker), id) })
	if err != nil {
		return c, err
	}
	c.done = time.Since(killed)
	return c, b.tools.call("ledger", nil, &c.ledger)
}
