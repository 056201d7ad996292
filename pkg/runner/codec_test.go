package runner

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestEventFrame holds what goes over the wire against what the proto codec would have sent.
func TestEventFrame(t *testing.T) {
	t.Parallel()
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 100, 200, 20_000, 300_000} {
		ev := &runnerdv1.Event{
			RunId: "run-1", Sequence: 7, Type: "input_received", Time: timestamppb.New(time.Unix(1, 2)),
			Payload:  &runnerdv1.Event_InputReceived{InputReceived: &runnerdv1.InputReceived{Text: strings.Repeat("x", size)}},
			Position: 12, PrevHash: make([]byte, 32), Hash: make([]byte, 32),
		}
		wire, err := proto.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		for _, cursor := range []string{"", "log.12.7", strings.Repeat("c", 200)} {
			buffers, err := c.Marshal(&eventFrame{event: wire, cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			got := new(runnerdv1.StreamEventsResponse)
			if err := c.Unmarshal(buffers, got); err != nil {
				t.Fatal(err)
			}
			if want := (&runnerdv1.StreamEventsResponse{Event: ev, Cursor: cursor}); !proto.Equal(got, want) {
				t.Errorf("event of %d bytes, cursor %q: got %v", size, cursor, got)
			}
		}
	}
	got := new(runnerdv1.StreamEventsResponse)
	fields := got.ProtoReflect().Descriptor().Fields()
	if string(fields.ByNumber(responseEvent).Name()) != "event" || string(fields.ByNumber(responseCursor).Name()) != "cursor" {
		t.Error("the numbers of the fields are not those of the proto")
	}
	plain, err := c.Marshal(&runnerdv1.StreamEventsResponse{Cursor: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Unmarshal(plain, got); err != nil || got.GetCursor() != "c" {
		t.Errorf("a plain message came as %v: %v", got, err)
	}
}

func BenchmarkEventFrame(b *testing.B) {
	c, err := newCodec()
	if err != nil {
		b.Fatal(err)
	}
	frame := &eventFrame{event: make([]byte, 600), cursor: "0123456789abcdef.123456.789"}
	for b.Loop() {
		buffers, err := c.Marshal(frame)
		if err != nil {
			b.Fatal(err)
		}
		buffers.Free()
	}
}

// TestConnAge: a stream ends after its connection surely has to be left and before it surely is not cut yet.
func TestConnAge(t *testing.T) {
	t.Parallel()
	for _, age := range []time.Duration{2 * time.Second, time.Minute, 30 * time.Minute} {
		for _, grace := range []time.Duration{time.Second, time.Minute} {
			a := newConnAge(age, grace)
			latestLeave := a.leave + a.leave/10
			soonestCut := a.leave - a.leave/10 + a.grace
			if a.streamsEnd < latestLeave+grace/2 || a.streamsEnd > soonestCut-grace/2 {
				t.Errorf("age %v: streams end at %v, leave until %v, cut from %v", age, a.streamsEnd, latestLeave, soonestCut)
			}
		}
	}
}

func TestLifetime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{age: newConnAge(30*time.Minute, time.Minute)}
		s.draining, s.drain = newPhase()
		s.stopping, s.stop = newPhase()
		conn := connClock{}.TagConn(t.Context(), nil)
		began := time.Now()
		time.Sleep(10 * time.Minute)

		ctx, end := s.lifetime(conn, false)
		defer end()
		<-ctx.Done()
		if age := time.Since(began); age != 34*time.Minute {
			t.Errorf("the call ended when its connection was %v old", age)
		}
		if told := toError(endedBy(ctx, ctx.Err())); ReasonName(told.Reason) != "DRAINING" || !strings.Contains(told.Message, "connection") {
			t.Errorf("told %v", told)
		}

		young, endYoung := s.lifetime(t.Context(), false)
		defer endYoung()
		health, endHealth := s.lifetime(t.Context(), true)
		defer endHealth()
		s.drain()
		<-young.Done()
		if told := toError(endedBy(young, young.Err())); ReasonName(told.Reason) != "DRAINING" {
			t.Errorf("told %v", told)
		}
		synctest.Wait()
		if health.Err() != nil {
			t.Error("the health watch ended with the drain")
		}
		s.stop()
		<-health.Done()
	})
}
