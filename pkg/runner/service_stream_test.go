package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

func following(r *runnerdv1.StreamEventsRequest)   { r.Follow = true }
func withSignals(r *runnerdv1.StreamEventsRequest) { r.IncludeSignals = true }
func rawly(r *runnerdv1.StreamEventsRequest)       { r.IncludeRaw = true }

func after(sequence uint64) func(*runnerdv1.StreamEventsRequest) {
	return func(r *runnerdv1.StreamEventsRequest) { r.AfterSequence = &sequence }
}

func afterCursor(cursor string) func(*runnerdv1.StreamEventsRequest) {
	return func(r *runnerdv1.StreamEventsRequest) { r.AfterCursor = cursor }
}

func ofAll(change ...func(*runnerdv1.StreamEventsRequest)) *runnerdv1.StreamEventsRequest {
	req := &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}}
	for _, c := range change {
		c(req)
	}
	return req
}

func typesOf(all []*runnerdv1.StreamEventsResponse) string {
	var names []string
	for _, resp := range all {
		if resp.GetEvent() != nil {
			names = append(names, resp.GetEvent().GetType())
		} else {
			names = append(names, resp.GetSignal().GetType())
		}
	}
	return strings.Join(names, " ")
}

const plainRun = "run_started tools_pinned iteration_started decision_made tool_call_requested tool_call_started " +
	"tool_call_completed iteration_started decision_made run_completed"

func TestStreamEvents(t *testing.T) {
	t.Parallel()
	rowFace(t, "T-175 E-54 events come in order, as stored, narrowed to types", func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "read:{}\nanswer:done")
		// It follows the run to its end and ends with it.
		all := f.events(f.anonymous(), "r1", following)
		if got := typesOf(all); got != plainRun {
			t.Fatalf("events: %s", got)
		}
		prev := auditstore.Digest{}
		for i, resp := range all {
			ev := resp.GetEvent()
			if ev.GetSequence() != uint64(i+1) || resp.GetCursor() == "" || ev.GetRunId() != "r1" {
				t.Errorf("event %d is %v", i, resp)
			}
			// What comes over the wire is what the chain covers.
			stored := proto.CloneOf(ev)
			stored.Position, stored.PrevHash, stored.Hash = 0, nil, nil
			public, err := proto.MarshalOptions{Deterministic: true}.Marshal(stored)
			if err != nil {
				t.Fatal(err)
			}
			hash := auditstore.Hash(prev, public)
			if !bytes.Equal(ev.GetHash(), hash[:]) || !bytes.Equal(ev.GetPrevHash(), prev[:]) {
				t.Errorf("event %d does not verify", i+1)
			}
			prev = hash
		}
		for _, tt := range []struct {
			name   string
			change []func(*runnerdv1.StreamEventsRequest)
			want   int
		}{
			{"without follow it ends at the head", nil, 10},
			{"after a sequence", []func(*runnerdv1.StreamEventsRequest){after(7)}, 3},
			{"after the last", []func(*runnerdv1.StreamEventsRequest){after(10)}, 0},
			{"after the last, following, it ends too", []func(*runnerdv1.StreamEventsRequest){after(10), following}, 0},
			{"after a cursor", []func(*runnerdv1.StreamEventsRequest){afterCursor(all[3].GetCursor())}, 6},
			{"after a cursor within an append", []func(*runnerdv1.StreamEventsRequest){afterCursor(all[0].GetCursor())}, 9},
			{"some types", []func(*runnerdv1.StreamEventsRequest){func(r *runnerdv1.StreamEventsRequest) {
				r.Types = []string{"decision_made", "text_delta"}
			}}, 2},
		} {
			got := f.events(f.anonymous(), "r1", tt.change...)
			if len(got) != tt.want {
				t.Errorf("%s: %s", tt.name, typesOf(got))
			}
		}
	})
}

func TestStreamEventsRefused(t *testing.T) {
	t.Parallel()
	rowFace(t, "E-54 unknown types and places are refused", func(f *face) {
		t := f.t
		f.start(f.anonymous(), "r1", "answer:done")
		f.settle("r1")
		types := func(names ...string) func(*runnerdv1.StreamEventsRequest) {
			return func(r *runnerdv1.StreamEventsRequest) { r.Types = names }
		}
		for _, tt := range []struct {
			name   string
			ctx    context.Context //nolint:containedctx // a case of the table
			req    *runnerdv1.StreamEventsRequest
			code   codes.Code
			reason string
			fields string
		}{
			{"past the head", f.anonymous(), ofRun("r1", after(99)), codes.OutOfRange, "PAST_HEAD", ""},
			{"past the head, following", f.anonymous(), ofRun("r1", after(99), following), codes.OutOfRange, "PAST_HEAD", ""},
			{"a cursor past the head", f.anonymous(), ofAll(afterCursor("log1.999.1")), codes.OutOfRange, "PAST_HEAD", ""},
			{"a cursor of another log", f.anonymous(), ofAll(afterCursor("log2.1.1")), codes.InvalidArgument, "BAD_CURSOR", ""},
			{"no cursor", f.anonymous(), ofRun("r1", afterCursor("here")), codes.InvalidArgument, "BAD_CURSOR", ""},
			{"an unknown type", f.anonymous(), ofRun("r1", types("run_started", "run_exploded")), codes.InvalidArgument, "UNKNOWN_EVENT_TYPE", "types"},
			{"an unknown run", f.anonymous(), ofRun("none"), codes.NotFound, "RUN_NOT_FOUND", ""},
			{"signals of all", f.anonymous(), ofAll(withSignals), codes.InvalidArgument, "INVALID_REQUEST", "include_signals"},
			{"a sequence of all", f.anonymous(), ofAll(after(1)), codes.InvalidArgument, "INVALID_REQUEST", "after_sequence"},
			{"two places", f.anonymous(), ofRun("r1", after(1), afterCursor("log1.1.1")), codes.InvalidArgument, "INVALID_REQUEST", "after_cursor"},
			{"raw without a credential", f.anonymous(), ofRun("r1", rawly), codes.Unauthenticated, "CREDENTIAL_REQUIRED", ""},
			{"all raw without a credential", f.anonymous(), ofAll(rawly), codes.Unauthenticated, "CREDENTIAL_REQUIRED", ""},
		} {
			_, err := collect(f.runs.StreamEvents(tt.ctx, tt.req))
			t.Log(tt.name)
			info := wantReason(t, err, tt.code, tt.reason)
			if got := fields(err); got != tt.fields {
				t.Errorf("fields %q", got)
			}
			if tt.reason == "UNKNOWN_EVENT_TYPE" && !strings.Contains(err.Error(), "run_exploded") {
				t.Errorf("it does not name the type: %v", err)
			}
			if tt.reason == "PAST_HEAD" && info.GetMetadata()["head"] == "" {
				t.Errorf("it does not tell the head: %v", info)
			}
		}
	})
}

func TestStreamRaw(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.anonymous(), "r1", "read:{\"password\":\"hunter2hunter2\"}\nanswer:done")
		f.settle("r1")
		find := func(all []*runnerdv1.StreamEventsResponse) (arguments, result string) {
			for _, resp := range all {
				if p := resp.GetEvent().GetToolCallRequested(); p != nil {
					arguments = p.GetArgumentsRaw()
				}
				if p := resp.GetEvent().GetToolCallCompleted(); p != nil {
					result = p.GetText()
				}
			}
			return arguments, result
		}
		arguments, result := find(f.events(f.anonymous(), "r1"))
		if strings.Contains(arguments+result, "hunter2") || arguments == "" || result == "" {
			t.Errorf("public: %q, %q", arguments, result)
		}
		raw := f.events(f.owner(), "r1", rawly)
		arguments, result = find(raw)
		if !strings.Contains(arguments, "hunter2") || !strings.Contains(result, toolSecret) {
			t.Errorf("raw: %q, %q", arguments, result)
		}
		if got := typesOf(raw); got != plainRun {
			t.Errorf("raw events: %s", got)
		}
		all, err := collect(f.runs.StreamEvents(f.owner(), ofAll(rawly)))
		if err != nil || typesOf(all) != plainRun {
			t.Errorf("all raw events: %s, %v", typesOf(all), err)
		}
	})
}

// TestStreamAll reads the events of all runs, in pieces from cursor to cursor, while the runs go on.
func TestStreamAll(t *testing.T) {
	t.Parallel()
	rowFace(t, "T-176 A-130 runs written at once do not mix", func(f *face) {
		t := f.t
		ctx, cancel := context.WithCancel(f.anonymous())
		defer cancel()
		stream, err := f.runs.StreamEvents(ctx, ofAll(following))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			f.start(f.owner(), fmt.Sprint("r", i), "read:{}\nanswer:done")
		}
		next := make(map[string]uint64)
		var cursors []string
		var seen []string
		var position uint64
		for range 5 * 10 {
			resp, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			ev := resp.GetEvent()
			if ev.GetPosition() < position {
				t.Fatalf("position %d after %d", ev.GetPosition(), position)
			}
			position = ev.GetPosition()
			next[ev.GetRunId()]++
			if ev.GetSequence() != next[ev.GetRunId()] {
				t.Fatalf("run %s: event %d after %d", ev.GetRunId(), ev.GetSequence(), next[ev.GetRunId()]-1)
			}
			cursors = append(cursors, resp.GetCursor())
			seen = append(seen, fmt.Sprint(ev.GetRunId(), "/", ev.GetSequence()))
		}
		for i, cursor := range cursors {
			rest, err := collect(f.runs.StreamEvents(f.anonymous(), ofAll(afterCursor(cursor))))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, resp := range rest {
				got = append(got, fmt.Sprint(resp.GetEvent().GetRunId(), "/", resp.GetEvent().GetSequence()))
			}
			if !slices.Equal(got, seen[i+1:]) {
				t.Fatalf("after cursor %d: %v, want %v", i, got, seen[i+1:])
			}
		}
	})
}

func TestStreamIdle(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "ask:what?")
		f.settle("r1")
		head := f.events(f.owner(), "r1")
		for name, req := range map[string]*runnerdv1.StreamEventsRequest{
			"run": ofRun("r1", following), "all": ofAll(following),
		} {
			stream, err := f.runs.StreamEvents(f.anonymous(), req)
			if err != nil {
				t.Fatal(err)
			}
			for range head {
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 {
				began := time.Now()
				resp, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				progress := resp.GetSignal().GetStreamProgress()
				if took := time.Since(began); took != 15*time.Second {
					t.Errorf("%s: idle for %v", name, took)
				}
				if progress.GetHeadCursor() != head[len(head)-1].GetCursor() {
					t.Errorf("%s: head %v, last event %v", name, progress, head[len(head)-1].GetCursor())
				}
				if name == "run" && progress.GetHeadSequence() != uint64(len(head)) {
					t.Errorf("%s: head %v", name, progress)
				}
			}
		}
	})
}

// TestStreamSignals: what the model writes goes to who sees raw events only.
func TestStreamSignals(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "ask:ready?\nread:{}\nsay:the words of the model")
		f.settle("r1")
		type watcher struct {
			stream grpc.ServerStreamingClient[runnerdv1.StreamEventsResponse]
			want   string
		}
		watchers := map[string]*watcher{
			"owner":  {want: "the words of the model|working"},
			"viewer": {want: "|"},
		}
		for name, w := range watchers {
			ctx := f.owner()
			if name == "viewer" {
				ctx = f.anonymous()
			}
			var err error
			if w.stream, err = f.runs.StreamEvents(ctx, ofRun("r1", following, withSignals)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "go"}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, f.brain.release)
		for name, w := range watchers {
			var text, progress string
			calls := 0
			for {
				resp, err := w.stream.Recv()
				if err != nil {
					break
				}
				text += resp.GetSignal().GetTextDelta().GetText()
				if p := resp.GetSignal().GetToolProgress(); p != nil {
					calls++
					progress += p.GetMessage()
					if p.GetCallId() != "2.1" || p.GetFraction() != 0.5 {
						t.Errorf("%s: progress %v", name, p)
					}
				}
			}
			if got := text + "|" + progress; got != w.want || calls != 1 {
				t.Errorf("%s hears %q in %d calls, want %q", name, got, calls, w.want)
			}
		}
	})
}

// TestStreamSlowReader: who reads nothing for 30 s is ended with the place to go on, and the run does not care.
func TestStreamSlowReader(t *testing.T) {
	t.Parallel()
	rowFace(t, "A-134 T-180 a slow reader loses no event and delays no run", func(f *face) {
		t := f.t
		// Enough to fill the windows of a connection.
		f.start(f.owner(), "r1", "block")
		for range 20 {
			if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: strings.Repeat("y", 60_000)}); err != nil {
				t.Fatal(err)
			}
		}
		stream, err := runnerdv1.NewRunServiceClient(f.dial()).StreamEvents(f.owner(), ofRun("r1", rawly, following))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the reader is stuck
		began := time.Now()
		if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "meanwhile"}); err != nil || time.Since(began) > 0 {
			t.Errorf("the run was delayed by %v: %v", time.Since(began), err)
		}
		time.Sleep(31 * time.Second)
		var last *runnerdv1.StreamEventsResponse
		for {
			resp, err := stream.Recv()
			if err != nil {
				info := wantReason(t, err, codes.ResourceExhausted, "SLOW_READER")
				if info.GetMetadata()["resume_after"] != last.GetCursor() {
					t.Errorf("resume after %v, the last event was %v", info, last.GetCursor())
				}
				break
			}
			last = resp
		}
		rest := f.events(f.owner(), "r1", rawly, afterCursor(last.GetCursor()))
		if len(rest) == 0 || rest[0].GetEvent().GetSequence() != last.GetEvent().GetSequence()+1 {
			t.Errorf("it does not go on after %d", last.GetEvent().GetSequence())
		}
		slow, err := runnerdv1.NewRunServiceClient(f.dial()).StreamEvents(f.owner(), ofRun("r1", rawly))
		if err != nil {
			t.Fatal(err)
		}
		// Who reads slowly, but reads, gets everything.
		for n := uint64(1); ; n++ {
			time.Sleep(5 * time.Second)
			resp, err := slow.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) || n != 25 {
					t.Errorf("ended after %d events with %v", n-1, err)
				}
				break
			}
			if resp.GetEvent().GetSequence() != n {
				t.Fatalf("event %d, want %d", resp.GetEvent().GetSequence(), n)
			}
		}
	})
}

// TestStreamConnectionAge: streams learn where to go on before their connection is cut, and get everything once.
func TestStreamConnectionAge(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "block")
		ticker := time.NewTicker(7 * time.Second)
		defer ticker.Stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		owner := f.owner()
		go func() {
			for {
				select {
				case <-ticker.C:
					_, _ = f.runs.SubmitInput(owner, &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "again"})
				case <-ctx.Done():
					return
				}
			}
		}()
		var next uint64
		cursor := ""
		ended := 0
		for ended < 3 {
			stream, err := f.runs.StreamEvents(f.owner(), ofRun("r1", following, afterCursor(cursor)))
			if err != nil {
				t.Fatal(err)
			}
			for {
				resp, err := stream.Recv()
				if err != nil {
					info := wantReason(t, err, codes.Unavailable, "DRAINING")
					if got := info.GetMetadata()["resume_after"]; got != cursor {
						t.Fatalf("resume after %q, the last event was at %q", got, cursor)
					}
					ended++
					break
				}
				if resp.GetEvent() == nil {
					cursor = resp.GetSignal().GetStreamProgress().GetHeadCursor()
					continue
				}
				next++
				if resp.GetEvent().GetSequence() != next {
					t.Fatalf("event %d, want %d", resp.GetEvent().GetSequence(), next)
				}
				cursor = resp.GetCursor()
			}
		}
	}, func(_ *Config, s *ServerConfig) { s.ConnectionAge = 2 * time.Second })
}

// TestStreamBrokenOff: a client that leaves, or was never there, is nothing to the run.
func TestStreamBrokenOff(t *testing.T) {
	t.Parallel()
	rowFace(t, "A-135 A-36 who leaves, who stays and who waits: the run is the same", func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "ask:go on?\nanswer:done")
		f.settle("r1")
		ctx, leave := context.WithCancel(f.owner())
		leaver, err := f.runs.StreamEvents(ctx, ofRun("r1", following))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := leaver.Recv(); err != nil {
			t.Fatal(err)
		}
		stayer, err := f.runs.StreamEvents(f.owner(), ofRun("r1", following, rawly))
		if err != nil {
			t.Fatal(err)
		}
		leave()
		if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "yes"}); err != nil {
			t.Fatal(err)
		}
		waited := f.settle("r1")
		all, err := collect(stayer, nil)
		if err != nil {
			t.Fatal(err)
		}
		last := all[len(all)-1].GetEvent()
		if !proto.Equal(last.GetRunCompleted().GetAnswer(), waited.GetFinalAnswer()) || last.GetSequence() != waited.GetHeadSequence() ||
			!proto.Equal(last.GetRunCompleted().GetUsage(), waited.GetUsage()) {
			t.Errorf("the stream ends with %v, the wait with %v", last, waited)
		}
	})
}
