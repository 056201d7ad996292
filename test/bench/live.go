package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// live has watchers at the head of a run while it goes on: one half follows the run, the other half all runs. The tool
// takes its time, longer with more watchers, so that some 25 000 messages a second are due, a tenth of what a server
// of streams can do: what is seen is what watchers do to a run, not that the machine is full.
func (b *bench) live(ctx context.Context, watchers int) (err error) {
	w := work{Iterations: max(10, 3000/watchers), Pace: time.Duration(watchers) * 200 * time.Microsecond, Hold: true}
	if b.quick {
		w.Iterations = 5
	}
	dir, err := b.folder()
	if err != nil {
		return err
	}
	d, err := b.daemon(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var with, without, cpu, least []float64
	var messages []rawMessage
	for round := range b.few(3) {
		id := fmt.Sprintf("%s-%d", filepath.Base(dir), round) // a hold is for one run
		calm, err := b.heldRun(ctx, d, id+"-calm", w, nil)
		if err != nil {
			return err
		}
		if messages, err = capture(ctx, d.address, follow(id+"-calm")); err != nil {
			return err
		}
		cursor, err := cursorOf(messages[len(messages)-1])
		if err != nil {
			return err
		}
		watched, err := b.heldRun(ctx, d, id, w, func(ctx context.Context) (finish func() error, err error) {
			return attach(ctx, d.address, watchers, len(messages), follow(id), followAll(cursor))
		})
		if err != nil {
			return err
		}
		due := float64(watchers * (len(messages) - heldEvents))
		with = append(with, float64(w.Iterations)/watched.seconds)
		without = append(without, float64(w.Iterations)/calm.seconds)
		cpu = append(cpu, 1e6*(watched.cpu-calm.cpu)/due)
		floor, err := floorLive(ctx, watchers, messages, w)
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		least = append(least, 1e6*floor/due)
		beyond := func(h held) time.Duration {
			return (time.Duration(h.seconds/float64(w.Iterations)*float64(time.Second)) - w.Pace).Round(time.Microsecond)
		}
		b.note("%d watchers of a run of %d events: beyond the %v of its tool an iteration took %v, %v without; server CPU %.2f µs/message, floor's %.2f",
			watchers, len(messages), w.Pace, beyond(watched), beyond(calm), cpu[round], least[round])
	}
	b.fanOutRow(watchers, "live_cpu_per_message", median(cpu), "us", 4, atMost(1))
	b.fanOutRow(watchers, "live_cpu_to_floor", median(cpu), "us", median(least), target{})
	b.fanOutRow(watchers, "iterations_per_second", median(with), "1/s", median(without), atLeast(0.95))
	return nil
}

// heldEvents is how many events a run has while its first Decide is held: run_started, tools_pinned and
// iteration_started.
const heldEvents = 3

func follow(run string) *runnerdv1.StreamEventsRequest {
	return &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Follow: true}
}

func followAll(after string) *runnerdv1.StreamEventsRequest {
	return &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}, AfterCursor: after, Follow: true}
}

func cursorOf(message rawMessage) (string, error) {
	var m runnerdv1.StreamEventsResponse
	err := proto.Unmarshal(message, &m)
	return m.GetCursor(), err
}

// held is a run that was let go once everything was in place.
type held struct{ seconds, cpu float64 }

// heldRun starts a run whose first Decide is held, prepares, lets it go, and waits for its end and that of finish.
func (b *bench) heldRun(ctx context.Context, d *daemon, id string, w work, prepare func(context.Context) (finish func() error, err error)) (h held, err error) {
	if err := startRun(ctx, d.client(0), agentName, id, w); err != nil {
		return h, err
	}
	finish := func() error { return nil }
	if prepare != nil {
		if finish, err = prepare(ctx); err != nil {
			return h, err
		}
	}
	before, err := d.cpu()
	if err != nil {
		return h, err
	}
	began := time.Now()
	if err := b.decide.call("release", id, nil); err != nil {
		return h, err
	}
	if err := waitRun(ctx, d.client(0), id); err != nil {
		return h, err
	}
	h.seconds = time.Since(began).Seconds()
	if err := finish(); err != nil {
		return h, err
	}
	after, err := d.cpu()
	h.cpu = (after - before).Seconds()
	return h, err
}

// attach opens watchers, whose requests take turns, and returns when each has seen an event. finish waits until each
// has seen so many.
func attach(ctx context.Context, address string, watchers, events int, requests ...*runnerdv1.StreamEventsRequest) (finish func() error, err error) {
	s, err := openStreams(address, watchers)
	if err != nil {
		return nil, err
	}
	var seen atomic.Int64
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- parallel(ctx, watchers, func(ctx context.Context, i int) error {
			n := 0
			err := s.read(ctx, i, requests[i%len(requests)], func([]byte) bool {
				if n++; n == 1 && seen.Add(1) == int64(watchers) {
					close(ready)
				}
				return n < events
			})
			if err == nil && n != events {
				err = fmt.Errorf("watcher %d saw %d events, not %d", i, n, events)
			}
			return err
		})
		s.close()
	}()
	select {
	case <-ready:
		return func() error { return <-ended }, nil
	case err := <-ended:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// floorLive returns the CPU time the floor takes to send the messages to watchers who follow, in seconds. It publishes
// as a run does: three events with a decision, two with a result.
func floorLive(ctx context.Context, watchers int, messages []rawMessage, w work) (cpu float64, err error) {
	floor, err := startChild(ctx, "stream")
	if err != nil {
		return 0, err
	}
	defer floor.stop()
	if err := floor.call("messages", messages, nil); err != nil {
		return 0, err
	}
	if err := floor.call("play", schedule{Groups: []int{heldEvents}, Every: time.Millisecond}, nil); err != nil {
		return 0, err
	}
	finish, err := attach(ctx, floor.address, watchers, len(messages), follow("run"))
	if err != nil {
		return 0, err
	}
	plan := schedule{Every: w.Pace / 2}
	for range w.Iterations {
		plan.Groups = append(plan.Groups, 3, 2)
	}
	plan.Groups = append(plan.Groups, 2)
	before, err := floor.cpu()
	if err != nil {
		return 0, err
	}
	if err := floor.call("play", plan, nil); err != nil {
		return 0, err
	}
	if err := finish(); err != nil {
		return 0, err
	}
	after, err := floor.cpu()
	return (after - before).Seconds(), err
}
