package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// after reads a run after a sequence, without following.
func after(run string, sequence uint64) *runnerdv1.StreamEventsRequest {
	return &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, AfterSequence: &sequence}
}

// readFrames reads at most limit frames; 0: all until the stream ends.
func (w *world) readFrames(ctx context.Context, req *runnerdv1.StreamEventsRequest, limit int) ([]harness.Frame, error) {
	var all []harness.Frame
	err := w.Frames(ctx, req, func(f harness.Frame) bool {
		all = append(all, f)
		return len(all) != limit
	})
	return all, err
}

// sameFrames checks that two reads gave the same bytes and cursors.
func sameFrames(t *testing.T, got, want []harness.Frame) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b harness.Frame) bool {
		return string(a.Bytes) == string(b.Bytes) && a.Cursor == b.Cursor
	}) {
		t.Errorf("%d frames came, want the same %d again", len(got), len(want))
	}
}

func TestStream(t *testing.T) {
	t.Parallel()
	w := shared(t)
	rounds := harness.Steps(harness.Calls("look", "{}"), harness.Calls("put", "{}", "nothing", "{}"), harness.Answer("done"))

	t.Run("CASE-23 coming back to a stream with an old cursor", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", rounds)
		head := w.Done(t, run).GetHeadSequence()
		ctx := harness.Context(t)
		whole, err := w.readFrames(ctx, after(run, 0), 0)
		if err != nil || uint64(len(whole)) != head {
			t.Fatalf("%d events come, want %d: %v", len(whole), head, err)
		}

		// Cut after one event, again and again, by sequences and by cursors.
		for _, byCursor := range []bool{false, true} {
			var pieces []harness.Frame
			req := after(run, 0)
			for uint64(len(pieces)) < head {
				piece, err := w.readFrames(ctx, req, 1)
				if err != nil || len(piece) != 1 {
					t.Fatalf("after %d events: %d come, %v", len(pieces), len(piece), err)
				}
				pieces = append(pieces, piece...)
				req = after(run, uint64(len(pieces)))
				if byCursor {
					req.AfterSequence, req.AfterCursor = nil, piece[0].Cursor
				}
			}
			sameFrames(t, pieces, whole)
		}

		at, err := w.readFrames(ctx, after(run, head), 0)
		if err != nil || len(at) != 0 {
			t.Errorf("at the head %d events come, %v; want the end", len(at), err)
		}
		follow := after(run, head)
		follow.Follow = true
		if at, err = w.readFrames(ctx, follow, 0); err != nil || len(at) != 0 {
			t.Errorf("at the head of a DONE run a follower gets %d events, %v; want the end", len(at), err)
		}
		for _, past := range []uint64{head + 1, head + 1000, 1 << 63, math.MaxUint64} {
			_, err = w.readFrames(ctx, after(run, past), 0)
			s := harness.Code(t, err, codes.OutOfRange, "PAST_HEAD")
			for _, d := range s.Details() {
				if info, ok := d.(*errdetails.ErrorInfo); ok {
					equal(t, "head in the error", info.GetMetadata()["head"], fmt.Sprint(head))
				}
			}
		}
		log, _, _ := strings.Cut(whole[0].Cursor, ".")
		for cursor, want := range map[string]struct {
			code   codes.Code
			reason string
		}{
			"x":                                    {codes.InvalidArgument, "BAD_CURSOR"},
			"00000000000000000000000000000000.1.1": {codes.InvalidArgument, "BAD_CURSOR"}, // of another log
			log + ".1000000000000.1":               {codes.OutOfRange, "PAST_HEAD"},
		} {
			req := after(run, 0)
			req.AfterSequence, req.AfterCursor = nil, cursor
			_, err := w.readFrames(ctx, req, 0)
			harness.Code(t, err, want.code, want.reason)
		}
		_, err = w.readFrames(ctx, after(run+"-not", 0), 0)
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})

	t.Run("CASE-23 a follower goes through a pause and ends after the end", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}"), harness.Answer("done")), mode(pauseMode))
		seen := make(chan []harness.Frame, 1)
		failed := make(chan error, 1)
		go func() {
			req := after(run, 0)
			req.Follow = true
			all, err := w.readFrames(harness.Context(t), req, 0)
			seen <- all
			failed <- err
		}()
		w.Approve(t, run, approve)
		head := w.Done(t, run).GetHeadSequence()
		all := <-seen
		if err := <-failed; err != nil || uint64(len(all)) != head {
			t.Errorf("the follower saw %d events of %d: %v", len(all), head, err)
		}
		equal(t, "last event", all[len(all)-1].Event.GetType(), "run_completed")
	})

	t.Run("CASE-23 all runs by cursor", func(t *testing.T) {
		t.Parallel()
		ctx := harness.Context(t)
		first := w.play(t, "std", rounds)
		w.Done(t, first)
		second := w.play(t, "std", rounds)
		w.Done(t, second)
		// Other tests write too: what counts is that each read gives the same again, and both runs whole.
		scope := func(cursor string) *runnerdv1.StreamEventsRequest {
			return &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}, AfterCursor: cursor}
		}
		whole, err := w.readFrames(ctx, scope(""), 0)
		if err != nil {
			t.Fatal(err)
		}
		next := map[string]uint64{}
		for i, f := range whole {
			if next[f.Event.GetRunId()]++; next[f.Event.GetRunId()] != f.Event.GetSequence() {
				t.Errorf("event %d of %s came as number %d", f.Event.GetSequence(), f.Event.GetRunId(), next[f.Event.GetRunId()])
			}
			if i > 0 && f.Event.GetPosition() < whole[i-1].Event.GetPosition() {
				t.Errorf("position %d came after %d", f.Event.GetPosition(), whole[i-1].Event.GetPosition())
			}
		}
		for _, run := range []string{first, second} {
			if next[run] != w.Run(t, run).GetHeadSequence() {
				t.Errorf("%d events of %s came", next[run], run)
			}
		}
		for _, at := range []int{0, 1, len(whole) / 2, len(whole) - 1} {
			rest, err := w.readFrames(ctx, scope(whole[at].Cursor), len(whole)-at-1)
			if err != nil || len(rest) < len(whole)-at-1 {
				t.Errorf("after event %d of %d come %d: %v", at, len(whole), len(rest), err)
				continue
			}
			sameFrames(t, rest[:len(whole)-at-1], whole[at+1:])
		}
	})

	t.Run("A-134 a slow reader delays no run and loses nothing", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "wide", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
			if req.GetIteration() > 60 {
				return harness.Send(s, harness.Answer("done"))
			}
			return harness.Send(s, harness.Calls("look", `{"fill":"`+strings.Repeat("x", 30_000)+`"}`))
		}, budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(100), MaxToolCalls: proto.Uint32(100)}))
		read, reading := newGate(), make(chan error, 1)
		var slow []*runnerdv1.Event
		go func() {
			req := after(run, 0)
			req.Follow, req.IncludeRaw = true, true // over 1 MiB, more than any buffer between holds
			reading <- w.Each(harness.Context(t), req, func(m *runnerdv1.StreamEventsResponse) bool {
				if m.GetEvent() != nil {
					slow = append(slow, m.GetEvent())
				}
				read.pass(t.Context())
				return true
			})
		}()
		read.await(t)
		head := w.Done(t, run).GetHeadSequence() // while nobody reads
		read.open()
		if err := <-reading; err != nil {
			t.Fatal(err)
		}
		for i, ev := range slow {
			if ev.GetSequence() != uint64(i+1) {
				t.Fatalf("event %d came as number %d", ev.GetSequence(), i+1)
			}
		}
		equal(t, "events the reader got", uint64(len(slow)), head)
	})

	t.Run("A-134 signals are live, and only for who asks", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
			g.pass(s.Context())
			if err := harness.Say(s, "hel"); err != nil {
				return err
			}
			if err := harness.Say(s, "lo"); err != nil {
				return err
			}
			return harness.Send(s, harness.Calls("charge", "{}"))
		}, harness.Answer("done")), calls(func(_ *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
			progress := &runnerdv1.Progress{Message: "half", Fraction: new(0.5)}
			event := &runnerdv1.CallToolResponse_Progress{Progress: progress}
			return &runnerdv1.ToolResult{Text: "ok"}, s.Send(&runnerdv1.CallToolResponse{Event: event})
		}))
		g.await(t)
		var text string
		var kinds []string
		ready := newGate()
		ready.open()
		done := make(chan error, 1)
		go func() {
			req := after(run, 0)
			req.Follow, req.IncludeSignals = true, true
			done <- w.Each(harness.Context(t), req, func(m *runnerdv1.StreamEventsResponse) bool {
				if s := m.GetSignal(); s != nil {
					kinds = append(kinds, s.GetType())
					text += s.GetTextDelta().GetText()
					if s.GetRunId() != run || s.GetIteration() != 1 {
						t.Errorf("signal is %v", s)
					}
				} else if m.GetEvent().GetType() == "iteration_started" {
					ready.pass(t.Context())
				}
				return true
			})
		}()
		ready.await(t)
		g.open()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		w.Done(t, run)
		equal(t, "text", text, "hello")
		if !slices.Contains(kinds, "tool_progress") {
			t.Errorf("signals are %q, want tool_progress among them", kinds)
		}
		for _, ev := range w.Events(t, run) { // what is live leaves no trace
			if strings.Contains(fmt.Sprint(ev), "hello") {
				t.Errorf("the text of a signal is in event %v", ev)
			}
		}
	})

	t.Run("A-135 a client that breaks off its stream leaves the run as it is", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), calls(g.slow("paid")))
		g.await(t)
		for range 20 {
			req := after(run, 0)
			req.Follow = true
			if got, err := w.readFrames(harness.Context(t), req, 2); err != nil || len(got) != 2 {
				t.Errorf("%d frames, %v", len(got), err)
			}
		}
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})

	t.Run("E-54 a stream can be narrowed to types", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", rounds)
		w.Done(t, run)
		req := after(run, 0)
		req.Types = []string{"decision_made", "tool_call_completed", "tool_call_failed", "run_completed"}
		req.Follow = true
		events, err := w.Read(harness.Context(t), req)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"decision_made", "tool_call_completed", "decision_made", "tool_call_failed", "tool_call_completed",
			"decision_made", "run_completed",
		}
		if got := harness.Types(events); !slices.Equal(got, want) {
			t.Errorf("types are %q, want %q", got, want)
		}
		req.Types = []string{"decision_made", "gossip"}
		_, err = w.Read(harness.Context(t), req)
		harness.Code(t, err, codes.InvalidArgument, "UNKNOWN_EVENT_TYPE")
		has(t, err.Error(), "gossip")
	})

	t.Run("E-54 who may see raw events", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", rounds)
		w.Done(t, run)
		req := after(run, 0)
		req.IncludeRaw = true
		stream, err := w.Guest.StreamEvents(harness.Context(t), req)
		if err == nil {
			_, err = stream.Recv()
		}
		harness.Code(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
	})
}

func TestStreamOverKill(t *testing.T) {
	t.Parallel()
	t.Run("CASE-23 the same bytes after kill -9", func(t *testing.T) {
		t.Parallel()
		w := own(t)
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("put", "{}"), harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{"put": g.slow("ok")})))
		g.await(t)
		ctx := harness.Context(t)
		before, err := w.readFrames(ctx, after(run, 0), 0)
		if err != nil {
			t.Fatal(err)
		}
		req := after(run, uint64(len(before)))
		req.Follow = true
		cut := make(chan error, 1)
		go func() {
			_, err := w.readFrames(ctx, req, 0)
			cut <- err
		}()
		w.Kill()
		if err := <-cut; err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("a follower of a killed daemon ends with %v", err)
		}
		w.Restart(t)
		again, err := w.readFrames(ctx, after(run, 0), len(before))
		if err != nil {
			t.Fatal(err)
		}
		sameFrames(t, again, before)
		g.open()
		rest, err := w.readFrames(ctx, req, 0)
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "first event after the kill", rest[0].Event.GetSequence(), uint64(len(before)+1))
		equal(t, "its type", rest[0].Event.GetType(), "run_recovered")
		whole, err := w.readFrames(ctx, after(run, 0), 0)
		if err != nil {
			t.Fatal(err)
		}
		sameFrames(t, whole, append(before, rest...))
		byCursor := after(run, 0)
		byCursor.AfterSequence, byCursor.AfterCursor = nil, before[3].Cursor
		tail, err := w.readFrames(ctx, byCursor, 0)
		if err != nil {
			t.Fatal(err)
		}
		sameFrames(t, tail, whole[4:])
	})

	t.Run("A-134 an idle stream says that it is alive", func(t *testing.T) {
		t.Parallel()
		w := own(t)
		run := w.play(t, "std", harness.Steps(harness.Ask("well?")))
		head := w.Idle(t, run).GetHeadSequence()
		for name, req := range map[string]*runnerdv1.StreamEventsRequest{
			"all": {Scope: &runnerdv1.StreamEventsRequest_All{All: true}}, "run": after(run, head),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				req.Follow = true
				begin := time.Now()
				err := w.Each(harness.Context(t), req, func(m *runnerdv1.StreamEventsResponse) bool {
					if m.GetEvent() != nil {
						return true
					}
					if p := m.GetSignal().GetStreamProgress(); p.GetHeadCursor() == "" {
						t.Errorf("signal is %v, want stream_progress with the head", m.GetSignal())
					}
					return false
				})
				if err != nil {
					t.Error(err)
				}
				if took := time.Since(begin); took < 10*time.Second || took > 25*time.Second {
					t.Errorf("the signal took %s; it is due after 15 s", took)
				}
			})
		}
	})
}
