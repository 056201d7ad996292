package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

func eventCostRows() []string {
	return []string{"event-cost/store_append", "event-cost/store_read", "event-cost/record_input", "event-cost/verify"}
}

// early and late are the events of a run whose costs are compared.
const early, late = 100, 100_000

// equal is what counts as the same within the noise of one machine.
const equal = 1.25

// eventCost compares what event 100 000 of a run costs with what event 100 does: in the store, in the daemon from a
// caller's request to its answer, and when the log is folded and verified.
func (b *bench) eventCost(ctx context.Context) error {
	last, times := late, 1000
	if b.quick {
		last, times = 2000, 20
	}
	if err := b.storeCost(ctx, last, times); err != nil {
		return fmt.Errorf("cost in the store: %w", err)
	}
	if err := b.daemonCost(ctx, last, times); err != nil {
		return fmt.Errorf("cost in the daemon: %w", err)
	}
	return nil
}

// timeBoth times two things in turns, so that both see the same noise, and returns the medians in µs.
func timeBoth(times int, one, two func(i int) error) (first, second float64, err error) {
	var took [2][]float64
	for i := range times {
		for j, do := range []func(int) error{one, two} {
			began := time.Now()
			if err := do(i); err != nil {
				return 0, 0, err
			}
			took[j] = append(took[j], float64(time.Since(began).Nanoseconds())/1e3)
		}
	}
	return median(took[0]), median(took[1]), nil
}

func (b *bench) storeCost(ctx context.Context, last, times int) (err error) {
	dir, err := b.folder()
	if err != nil {
		return err
	}
	options := &auditstore.Options{Logger: slog.New(slog.DiscardHandler)}
	store, err := auditstore.Open(dir, options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	var claims []*auditstore.Claim
	for run, events := range map[string]int{"short": early, "long": last} {
		claim, err := firstEvent(ctx, store, run)
		if err != nil {
			return err
		}
		for claim.Head < uint64(events) {
			if err := appendEvents(ctx, store, claim, min(events-int(claim.Head), 100)); err != nil {
				return err
			}
		}
		claims = append(claims, claim)
	}
	if claims[0].Run == "short" {
		claims[0], claims[1] = claims[1], claims[0]
	}
	add := func(claim *auditstore.Claim) func(int) error {
		return func(int) error { return appendEvents(ctx, store, claim, 1) }
	}
	long, short, err := timeBoth(times, add(claims[0]), add(claims[1]))
	if err != nil {
		return err
	}
	b.add(row{"event-cost/store_append", long, "us", short, atMost(equal)})

	// What was written before the store was opened is read from the file, here from appends of equal size.
	if err := store.Close(); err != nil {
		return err
	}
	if store, err = auditstore.Open(dir, options); err != nil {
		return err
	}
	read := func(from int) func(int) error {
		return func(i int) error {
			records, _, err := store.Read(ctx, auditstore.Scope{Run: "long"}, auditstore.Cursor{Sequence: uint64(from + i)}, 1)
			if err == nil && len(records) == 0 {
				err = fmt.Errorf("no event after %d", from+i)
			}
			return err
		}
	}
	long, short, err = timeBoth(times, read(last-times-early), read(early))
	if err != nil {
		return err
	}
	b.add(row{"event-cost/store_read", long, "us", short, atMost(equal)})
	return nil
}

// daemonCost makes runs long by inputs while their first Decide is held: each is an event of a running run.
func (b *bench) daemonCost(ctx context.Context, last, times int) (err error) {
	dir, err := b.folder()
	if err != nil {
		return err
	}
	d, err := b.daemon(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	for run, events := range map[string]int{"event-short": early, "event-long": last} {
		if err := startRun(ctx, d.client(0), agentName, run, work{Hold: true}); err != nil {
			return err
		}
		l := load{Runs: events, InFlight: 512}
		if err := l.execute(ctx, func(ctx context.Context, worker int, _ string) error { return submit(ctx, d.client(worker), run) }); err != nil {
			return err
		}
	}
	add := func(run string) func(int) error {
		return func(int) error { return submit(ctx, d.client(0), run) }
	}
	long, short, err := timeBoth(times, add("event-long"), add("event-short"))
	if err != nil {
		return err
	}
	b.add(row{"event-cost/record_input", long, "us", short, atMost(equal)})
	for _, run := range []string{"event-long", "event-short"} {
		if err := b.decide.call("release", run, nil); err != nil {
			return err
		}
		if err := waitRun(ctx, d.client(0), run); err != nil {
			return err
		}
	}
	audit := runnerdv1.NewAuditServiceClient(d.conns[0])
	longEach, err := verify(ctx, d, audit, "event-long", b.few(3))
	if err != nil {
		return err
	}
	shortEach, err := verify(ctx, d, audit, "event-short", 20)
	if err != nil {
		return err
	}
	b.add(row{"event-cost/verify", longEach, "us", shortEach, atMost(equal)})
	return nil
}

func submit(ctx context.Context, client runnerdv1.RunServiceClient, run string) error {
	_, err := client.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: run, Text: "one thing more"})
	return err
}

// verify verifies a run several times and returns the CPU time an event took, in µs.
func verify(ctx context.Context, d *daemon, audit runnerdv1.AuditServiceClient, run string, times int) (float64, error) {
	before, err := d.cpu()
	if err != nil {
		return 0, err
	}
	events := uint64(0)
	for range times {
		stream, err := audit.VerifyAudit(ctx, &runnerdv1.VerifyAuditRequest{RunId: run})
		if err != nil {
			return 0, err
		}
		var summary *runnerdv1.AuditSummary
		var finding *runnerdv1.AuditFinding // the last one
		err = drain(stream, func(r *runnerdv1.VerifyAuditResponse) {
			if s := r.GetSummary(); s != nil {
				summary = s
			}
			if f := r.GetFinding(); f != nil {
				finding = f
			}
		})
		if err != nil {
			return 0, err
		}
		if finding != nil || summary.GetVerified().GetEvents() == 0 {
			return 0, fmt.Errorf("verify %s: %v, %v", run, finding, summary)
		}
		events += summary.GetVerified().GetEvents()
	}
	after, err := d.cpu()
	return float64((after - before).Nanoseconds()) / 1e3 / float64(events), err
}
