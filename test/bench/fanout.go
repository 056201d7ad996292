package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

var fanOuts = []int{100, 1000}

func fanOutRows() (rows []string) {
	for _, n := range fanOuts {
		for _, figure := range []string{"messages_per_second", "server_cpu_per_message", "live_cpu_per_message", "iterations_per_second"} {
			rows = append(rows, fmt.Sprintf("fan-out/%d/%s", n, figure))
		}
	}
	return rows
}

// fanOut measures many watchers: how fast they read a run that is over, and what they cost while one goes on.
func (b *bench) fanOut(ctx context.Context) error {
	for _, watchers := range fanOuts {
		if b.quick {
			watchers /= 10
		}
		if err := b.catchUp(ctx, watchers); err != nil {
			return fmt.Errorf("%d watchers catch up: %w", watchers, err)
		}
		if err := b.follow(ctx, watchers); err != nil {
			return fmt.Errorf("%d watchers follow: %w", watchers, err)
		}
	}
	return nil
}

// fanOutRow makes a row of so many watchers; a quick one stands for ten times as many.
func (b *bench) fanOutRow(watchers int, figure string, value float64, unit string, reference float64, t target) {
	if b.quick {
		watchers *= 10
	}
	b.add(row{fmt.Sprintf("fan-out/%d/%s", watchers, figure), value, unit, reference, t})
}

// streams opens event streams and hands them what comes as bytes.
type streams struct {
	conns []*grpc.ClientConn
}

// openStreams makes connections for so many streams.
func openStreams(address string, n int) (*streams, error) {
	s := new(streams)
	for range max(connections, n/100) {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newRawCodec())))
		if err != nil {
			s.close()
			return nil, err
		}
		s.conns = append(s.conns, conn)
	}
	return s, nil
}

func (s *streams) close() {
	for _, conn := range s.conns {
		_ = conn.Close() // the streams have ended
	}
}

// read reads one stream to its end, or until each returns false.
func (s *streams) read(ctx context.Context, i int, req *runnerdv1.StreamEventsRequest, each func([]byte) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	desc := &runnerdv1.RunService_ServiceDesc.Streams[0]
	stream, err := s.conns[i%len(s.conns)].NewStream(ctx, desc, runnerdv1.RunService_StreamEvents_FullMethodName)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(req); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var message rawMessage
	for {
		if err := stream.RecvMsg(&message); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if !each(message) {
			return nil
		}
	}
}

// catchUp has watchers read the events of a run that is over, and the same messages from the floor.
func (b *bench) catchUp(ctx context.Context, watchers int) (err error) {
	const messagesEach = 500_000 // of all watchers together
	w := work{Iterations: max(1, messagesEach/watchers/5)}
	if b.quick {
		w.Iterations = 10
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
	if err := d.load(ctx, load{Prefix: "run", Runs: 1, InFlight: 1, Work: w}); err != nil {
		return err
	}
	req := &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: "run-0"}}
	messages, err := capture(ctx, d.address, req)
	if err != nil {
		return err
	}
	floor, err := startChild(ctx, "stream")
	if err != nil {
		return err
	}
	defer floor.stop()
	if err := floor.call("messages", messages, nil); err != nil {
		return err
	}
	type rates struct{ perSecond, cpu []float64 }
	var own, least rates
	for range b.few(3) {
		for _, server := range []struct {
			name    string
			address string
			process *process
			to      *rates
		}{{"floor", floor.address, &floor.process, &least}, {"runnerd", d.address, &d.process, &own}} {
			n, seconds, cpu, err := readAll(ctx, server.address, server.process, watchers, req)
			if err != nil {
				return fmt.Errorf("%s: %w", server.name, err)
			}
			if n != watchers*len(messages) {
				return fmt.Errorf("%s: %d messages came, not %d times %d", server.name, n, watchers, len(messages))
			}
			b.note("%d watchers read %d events each from %s: %.0f messages/s, server CPU %.2f µs/message", watchers, len(messages),
				server.name, float64(n)/seconds, 1e6*cpu/float64(n))
			server.to.perSecond = append(server.to.perSecond, float64(n)/seconds)
			server.to.cpu = append(server.to.cpu, 1e6*cpu/float64(n))
		}
	}
	b.fanOutRow(watchers, "messages_per_second", median(own.perSecond), "1/s", median(least.perSecond), atLeast(0.5))
	b.fanOutRow(watchers, "server_cpu_per_message", median(own.cpu), "us", 4, atMost(1))
	return nil
}

// capture reads the messages of a stream.
func capture(ctx context.Context, address string, req *runnerdv1.StreamEventsRequest) (messages []rawMessage, err error) {
	s, err := openStreams(address, 1)
	if err != nil {
		return nil, err
	}
	defer s.close()
	err = s.read(ctx, 0, req, func(m []byte) bool {
		messages = append(messages, append(rawMessage(nil), m...))
		return true
	})
	return messages, err
}

// readAll has watchers read a stream to its end at once.
func readAll(ctx context.Context, address string, server *process, watchers int, req *runnerdv1.StreamEventsRequest) (n int, seconds, cpu float64, err error) {
	s, err := openStreams(address, watchers)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.close()
	before, err := server.cpu()
	if err != nil {
		return 0, 0, 0, err
	}
	began := time.Now()
	counts := make([]int, watchers)
	err = parallel(ctx, watchers, func(ctx context.Context, i int) error {
		return s.read(ctx, i, req, func([]byte) bool {
			counts[i]++
			return true
		})
	})
	if err != nil {
		return 0, 0, 0, err
	}
	seconds = time.Since(began).Seconds()
	after, err := server.cpu()
	for _, c := range counts {
		n += c
	}
	return n, seconds, (after - before).Seconds(), err
}

// follow has watchers at the head of a run while it goes on: one half follows the run, the other half all runs. Its
// tool takes 50 ms a call, so that the machine is not the limit and only what watchers do to the run is seen.
func (b *bench) follow(ctx context.Context, watchers int) (err error) {
	w := work{Iterations: 30, Pace: 50 * time.Millisecond, Hold: true}
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
	calmID, watchedID := fmt.Sprintf("calm-%d", watchers), fmt.Sprintf("watched-%d", watchers) // a hold is for one run
	calm, err := b.heldRun(ctx, d, calmID, w, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	})
	if err != nil {
		return err
	}
	events, err := capture(ctx, d.address, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: calmID}})
	if err != nil {
		return err
	}
	watched, err := b.heldRun(ctx, d, watchedID, w, func(ctx context.Context) (func() error, error) {
		return attach(ctx, d.address, watchers, watchedID, len(events))
	})
	if err != nil {
		return err
	}
	rate := func(h held) float64 { return float64(w.Iterations) / h.seconds }
	overhead := func(h held) time.Duration {
		each := time.Duration(h.seconds / float64(w.Iterations) * float64(time.Second))
		return (each - w.Pace).Round(time.Microsecond)
	}
	messages := float64(watchers * len(events))
	b.note("%d watchers of a run of %d events: %.2f iterations/s, %.2f without; beyond the tool's time an iteration took %v, %v without",
		watchers, len(events), rate(watched), rate(calm), overhead(watched), overhead(calm))
	b.fanOutRow(watchers, "live_cpu_per_message", 1e6*(watched.cpu-calm.cpu)/messages, "us", 4, atMost(1))
	b.fanOutRow(watchers, "iterations_per_second", rate(watched), "1/s", rate(calm), atLeast(0.95))
	return nil
}

// held is a run that was let go once everything was in place.
type held struct{ seconds, cpu float64 }

// heldRun starts a run whose first Decide is held, prepares, lets it go, and waits for its end and that of finish.
func (b *bench) heldRun(ctx context.Context, d *daemon, id string, w work, prepare func(context.Context) (finish func() error, err error)) (h held, err error) {
	if err := startRun(ctx, d.client(0), id, w); err != nil {
		return h, err
	}
	finish, err := prepare(ctx)
	if err != nil {
		return h, err
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

// attach opens watchers and returns when each has seen an event of the run that is held. finish waits until each has
// seen all events.
func attach(ctx context.Context, address string, watchers int, run string, events int) (finish func() error, err error) {
	s, err := openStreams(address, watchers)
	if err != nil {
		return nil, err
	}
	scopes := []*runnerdv1.StreamEventsRequest{
		{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Follow: true},
		{Scope: &runnerdv1.StreamEventsRequest_All{All: true}, Follow: true},
	}
	need := []int{events, 2 * events} // all: the calm run before, too
	var seen atomic.Int64
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- parallel(ctx, watchers, func(ctx context.Context, i int) error {
			n := 0
			err := s.read(ctx, i, scopes[i%2], func([]byte) bool {
				if n++; n == need[i%2]-events+1 && seen.Add(1) == int64(watchers) {
					close(ready)
				}
				return n < need[i%2]
			})
			if err == nil && n != need[i%2] {
				err = fmt.Errorf("watcher %d saw %d events, not %d", i, n, need[i%2])
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
