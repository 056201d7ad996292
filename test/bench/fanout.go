package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

var fanOuts = []int{100, 1000}

func fanOutRows() (rows []string) {
	for _, n := range fanOuts {
		for _, figure := range []string{"messages_per_second", "server_cpu_per_message", "live_cpu_per_message", "live_cpu_to_floor", "iterations_per_second"} {
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
		if err := b.live(ctx, watchers); err != nil {
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
