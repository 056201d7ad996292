package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// payloadTypes are the names of all payloads that an event can have.
func payloadTypes() []string {
	fields := (*runnerdv1.Event)(nil).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	var names []string
	for i := range fields.Len() {
		names = append(names, string(fields.Get(i).Name()))
	}
	return names
}

// frames is every public event of a run as it came over the wire.
func (w *world) frames(t *testing.T, run string) []harness.Frame {
	t.Helper()
	var frames []harness.Frame
	err := w.Frames(harness.Context(t), &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}},
		func(f harness.Frame) bool {
			frames = append(frames, f)
			return true
		})
	if err != nil {
		t.Fatalf("StreamEvents %s: %v", run, err)
	}
	return frames
}

// verify is what VerifyAudit finds, and its summary.
func (w *world) verify(t *testing.T, run string) (findings []*runnerdv1.AuditFinding, summary *runnerdv1.AuditSummary) {
	t.Helper()
	stream, err := w.Audit.VerifyAudit(harness.Context(t), &runnerdv1.VerifyAuditRequest{RunId: run})
	if err != nil {
		t.Fatalf("VerifyAudit: %v", err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return findings, summary
		}
		if err != nil {
			t.Fatalf("VerifyAudit: %v", err)
		}
		if m.GetFinding() != nil {
			findings = append(findings, m.GetFinding())
		}
		summary = m.GetSummary()
	}
}

// eventful is a run with events of many types: a failed check, a refusal by a person, a lost call, an invalid decision.
func eventful(t *testing.T, w *world) string {
	t.Helper()
	run := w.play(t, "tells", harness.Steps(
		harness.Calls("nowhere", "{}", "deploy_site", `{"key":"k"}`, "look", "{}", "charge", "{}", "put", "{}"),
		&runnerdv1.Decision{},
		harness.Ask("which?"),
		harness.Answer("done"),
	), calls(byTool(map[string]harness.Handler{"charge": refuse(codes.Internal)})))
	w.vote(t, w.open(t, run, 1)[0], deny)
	w.UntilType(t, run, "input_requested")
	w.Input(t, run, "that one")
	ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	return run
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-175 A-130 every event has one envelope", func(t *testing.T) {
		t.Parallel()
		run := eventful(t, w)
		known := payloadTypes()
		var before *runnerdv1.Event
		for i, ev := range w.Public(t, run) {
			m := ev.ProtoReflect()
			payload := m.WhichOneof(m.Descriptor().Oneofs().ByName("payload"))
			if payload == nil || string(payload.Name()) != ev.GetType() || !slices.Contains(known, ev.GetType()) {
				t.Errorf("event %d has type %q and payload %v", i+1, ev.GetType(), payload)
			}
			equal(t, "run", ev.GetRunId(), run)
			equal(t, "sequence", ev.GetSequence(), uint64(i+1))
			equal(t, "length of the hash", len(ev.GetHash()), 32)
			equal(t, "leg", ev.GetLeg(), 1)
			if !ev.GetTime().IsValid() || ev.GetTime().AsTime().Before(before.GetTime().AsTime()) && before != nil {
				t.Errorf("event %d has the time %v after %v", i+1, ev.GetTime(), before.GetTime())
			}
			if ev.GetPosition() < before.GetPosition() || ev.GetIteration() < before.GetIteration() {
				t.Errorf("event %d goes back: %v after %v", i+1, ev, before)
			}
			before = ev
		}
	})

	t.Run("A-131 event types are a closed set", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")))
		w.Done(t, run)
		req := &runnerdv1.StreamEventsRequest{
			Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Types: []string{"tool_call_started", "run_completed"},
		}
		events, err := w.Read(harness.Context(t), req)
		if got := harness.Types(events); err != nil || !slices.Equal(got, req.GetTypes()) {
			t.Errorf("filtered by %q the events are %q, %v", req.GetTypes(), got, err)
		}
		req.Types = []string{"tool_call_stalled"}
		_, err = w.Read(harness.Context(t), req)
		harness.Code(t, err, codes.InvalidArgument, "UNKNOWN_EVENT_TYPE")
	})

	t.Run("A-132 refusals, failed checks, retries and transport errors are events", func(t *testing.T) {
		t.Parallel()
		events := w.Public(t, eventful(t, w))
		for _, eventType := range []string{"tool_call_denied", "tool_call_blocked", "tool_call_failed", "tool_call_in_doubt", "decision_invalid"} {
			if harness.Count(events, eventType) == 0 {
				t.Errorf("there is no %s in %q", eventType, harness.Types(events))
			}
		}
		lost := w.play(t, "lost", harness.Steps()) // its decide service cannot be reached
		ended(t, w.Done(t, lost), runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR, "failed:transient")
		retries := harness.Only(w.Public(t, lost), "decide_retried")
		equal(t, "retries", len(retries), 2)
		for _, ev := range retries {
			equal(t, "code", ev.GetDecideRetried().GetCode(), "UNAVAILABLE")
		}
	})

	t.Run("T-176 runs that are written at once do not mix", func(t *testing.T) {
		t.Parallel()
		var runs []string
		for i := range 16 {
			args := fmt.Sprintf(`{"n":%d}`, i)
			runs = append(runs, w.play(t, "std", harness.Steps(harness.Calls("look", args, "put", args), harness.Calls("charge", args), harness.Answer("done"))))
		}
		for i, run := range runs {
			w.Done(t, run)
			for _, ev := range harness.Only(w.Events(t, run), "tool_call_requested") {
				equal(t, "arguments", ev.GetToolCallRequested().GetArgumentsRaw(), fmt.Sprintf(`{"n":%d}`, i))
			}
			first, second := w.frames(t, run), w.frames(t, run)
			var hash []byte
			for j, f := range first {
				equal(t, "run", f.Event.GetRunId(), run)
				if err := f.Linked(hash); err != nil {
					t.Error(err)
				}
				if hash = f.Event.GetHash(); !bytes.Equal(f.Bytes, second[j].Bytes) {
					t.Errorf("event %d of %s is not what it was", j+1, run)
				}
			}
		}
	})

	t.Run("T-187 whatever became of it, a run verifies", func(t *testing.T) {
		t.Parallel()
		run := eventful(t, w)
		findings, summary := w.verify(t, run)
		if len(findings) > 0 || !summary.GetOk() {
			t.Errorf("found %v", findings)
		}
		events := w.Public(t, run)
		equal(t, "runs verified", summary.GetVerified().GetRuns(), 1)
		equal(t, "events verified", summary.GetVerified().GetEvents(), uint64(len(events)))
		equal(t, "first event", events[0].GetType(), "run_started")
		equal(t, "last event", events[len(events)-1].GetType(), "run_completed")
		stream, err := w.Audit.VerifyAudit(harness.Context(t), &runnerdv1.VerifyAuditRequest{RunId: "nobody"})
		if err == nil {
			_, err = stream.Recv()
		}
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})

	t.Run("T-177 an export can be verified by anyone", func(t *testing.T) {
		t.Parallel()
		run := eventful(t, w)
		var export bytes.Buffer
		stream, err := w.Audit.ExportAudit(harness.Context(t), &runnerdv1.ExportAuditRequest{RunId: run})
		if err != nil {
			t.Fatal(err)
		}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			export.Write(m.GetLines())
		}
		var prev auditstore.Digest
		sequence := uint64(0)
		for lines := bufio.NewScanner(&export); lines.Scan(); sequence++ {
			var line struct {
				RunID              string `json:"run_id"`
				Sequence           uint64 `json:"sequence"`
				PrevHash           string `json:"prev_hash"`
				Hash, Stored, Salt string
			}
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				t.Fatalf("%v in %s", err, lines.Text())
			}
			stored, err := base64.StdEncoding.DecodeString(line.Stored)
			if err != nil {
				t.Fatal(err)
			}
			hash := auditstore.Hash(prev, stored)
			if line.RunID != run || line.Sequence != sequence+1 || line.PrevHash != hex.EncodeToString(prev[:]) || line.Hash != hex.EncodeToString(hash[:]) {
				t.Errorf("line %d is not what its bytes say: %.300s", sequence+1, lines.Text())
			}
			if line.Salt != "" {
				t.Error("an export without private parts has a salt")
			}
			prev = hash
		}
		head, err := w.Audit.GetHead(harness.Context(t), &runnerdv1.GetHeadRequest{RunId: run})
		if err != nil || head.GetSequence() != sequence || !bytes.Equal(head.GetHash(), prev[:]) {
			t.Errorf("the export ends with event %d, hash %x; GetHead says %v, %v", sequence, prev, head, err)
		}
	})

	t.Run("T-188 ListRuns tells what each run does", func(t *testing.T) {
		t.Parallel()
		labels := map[string]string{"test": w.RunID(t)}
		label := func(_ *world, req *runnerdv1.StartRunRequest) { req.Labels = labels }
		g := newGate()
		want := map[string]string{}
		want[w.play(t, "std", harness.Steps(harness.Answer("done")), label)] = "DONE completed"
		want[w.play(t, "std", harness.Fail(codes.NotFound), label)] = "DONE failed:transient"
		want[w.play(t, "std", asking(), label)] = "WAITING_APPROVAL running"
		want[w.play(t, "std", asking(), label, mode(pauseMode))] = "PAUSED pending_approval"
		want[w.play(t, "std", harness.Steps(harness.Ask("which?")), label)] = "WAITING_INPUT running"
		for run := range want {
			w.Idle(t, run)
		}
		busy := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), label, calls(g.slow("seen")))
		want[busy] = "RUNNING running"
		g.await(t)
		list := func(states ...runnerdv1.RunState) map[string]string {
			got := map[string]string{}
			req := &runnerdv1.ListRunsRequest{Labels: labels, States: states, PageSize: 2}
			for {
				page, err := w.Runs.ListRuns(harness.Context(t), req)
				if err != nil {
					t.Fatal(err)
				}
				for _, run := range page.GetRuns() {
					got[run.GetRunId()] = strings.TrimPrefix(run.GetState().String(), "RUN_STATE_") + " " + run.GetStatus()
				}
				if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
					return got
				}
			}
		}
		if got := list(); !equalMaps(got, want) {
			t.Errorf("runs are %v, want %v", got, want)
		}
		equal(t, "runs that are DONE", len(list(runnerdv1.RunState_RUN_STATE_DONE)), 2)
		equal(t, "runs in one of two states", len(list(runnerdv1.RunState_RUN_STATE_PAUSED, runnerdv1.RunState_RUN_STATE_WAITING_INPUT)), 2)
		g.open()
		w.Done(t, busy)
		for run := range want {
			w.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_ABORT)
		}
	})

	t.Run("T-180 watchers that fail or are gone do not disturb a run", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("put", "{}"), harness.Answer("done")), calls(g.slow("seen")))
		g.await(t)
		gone, cancel := context.WithCancel(harness.Context(t))
		defer cancel()
		req := &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Follow: true, IncludeSignals: true}
		for range 20 { // some break off, some never read
			breaks, stop := context.WithCancel(gone)
			if _, err := w.Runs.StreamEvents(breaks, req); err != nil {
				t.Fatal(err)
			}
			stop()
			if _, err := w.Runs.StreamEvents(gone, req); err != nil {
				t.Fatal(err)
			}
		}
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})
}

func equalMaps(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// TestLogOverKill kills the daemon under runs that are watched.
func TestLogOverKill(t *testing.T) {
	t.Parallel()
	w := own(t)
	var runs []string
	var gates []*gate
	for range 8 {
		g := newGate()
		gates = append(gates, g)
		runs = append(runs, w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "charge", "{}"), harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{"charge": g.slow("charged")}))))
	}
	// What the watchers of the runs see until the daemon is gone.
	seen := make([][]harness.Frame, len(runs))
	var watching sync.WaitGroup
	for i, run := range runs {
		watching.Go(func() {
			_ = w.Frames(harness.Context(t), &runnerdv1.StreamEventsRequest{
				Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Follow: true,
			}, func(f harness.Frame) bool {
				seen[i] = append(seen[i], f)
				return true
			}) // ends with the daemon
		})
	}
	atHost := make([]uint64, len(runs)) // sequence of the start of the call that the host has
	for i, run := range runs {
		gates[i].await(t)
		atHost[i] = w.Until(t, run, "start of charge", func(ev *runnerdv1.Event) bool {
			return ev.GetToolCallStarted().GetTool() == "charge"
		}).GetSequence()
	}

	t.Run("T-178 the data folder is its owner's alone", func(t *testing.T) {
		err := filepath.WalkDir(filepath.Join(w.Dir, "data"), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			want := fs.FileMode(0o600)
			if entry.IsDir() {
				want = 0o700
			}
			equal(t, "mode of "+path, info.Mode().Perm(), want)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})

	w.Kill()
	watching.Wait()
	w.Restart(t)

	t.Run("A-133 T-178 what was seen, and what led to a call, was on the disk", func(t *testing.T) {
		for i, run := range runs {
			now := w.frames(t, run)
			if len(now) < len(seen[i]) {
				t.Fatalf("of %d events that were seen %d are there", len(seen[i]), len(now))
			}
			for j, f := range seen[i] {
				if !bytes.Equal(f.Bytes, now[j].Bytes) {
					t.Errorf("event %d of %s was another when it was seen", j+1, run)
				}
			}
			if uint64(len(now)) <= atHost[i] || now[atHost[i]-1].Event.GetToolCallStarted().GetTool() != "charge" {
				t.Errorf("the host was called, and event %d is not there", atHost[i])
			}
		}
	})

	t.Run("A-133 after it the log goes on", func(t *testing.T) {
		for _, run := range runs {
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			equal(t, "recoveries", harness.Count(w.Public(t, run), "run_recovered"), 1)
		}
		if _, err := w.CheckAll(harness.Context(t)); err != nil {
			t.Error(err)
		}
	})
}
