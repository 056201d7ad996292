package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Limit is how long a test waits for what must come.
const Limit = 60 * time.Second

// Context ends with the test, and after Limit.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Limit)
	t.Cleanup(cancel)
	return ctx
}

var notInID = regexp.MustCompile(`[^A-Za-z0-9._-]+`)

// RunID is a run id that tells which test made it.
func (d *Daemon) RunID(t testing.TB) string {
	name := strings.Trim(notInID.ReplaceAllString(t.Name(), "-"), "-._")
	return fmt.Sprintf("%s-%d", name[:min(len(name), 100)], d.ids.Add(1))
}

// Start starts a run, and checks its log when the test ends. A run id is made if there is none.
func (d *Daemon) Start(t testing.TB, req *runnerdv1.StartRunRequest) *runnerdv1.Run {
	t.Helper()
	if req.GetRunId() == "" {
		req.RunId = d.RunID(t)
	}
	answer, err := d.Runs.StartRun(Context(t), req)
	if err != nil {
		t.Fatalf("StartRun: %v", err)
	}
	t.Cleanup(func() { d.Check(t, req.GetRunId()) })
	return answer.GetRun()
}

// Run is GetRun.
func (d *Daemon) Run(t testing.TB, run string) *runnerdv1.Run {
	t.Helper()
	answer, err := d.Runs.GetRun(Context(t), &runnerdv1.GetRunRequest{RunId: run})
	if err != nil {
		t.Fatalf("GetRun: %v", err)
	}
	return answer.GetRun()
}

// Done waits until a run is DONE.
func (d *Daemon) Done(t testing.TB, run string) *runnerdv1.Run {
	t.Helper()
	return d.wait(t, run, runnerdv1.WaitUntil_WAIT_UNTIL_DONE)
}

// Idle waits until nothing of a run is in progress.
func (d *Daemon) Idle(t testing.TB, run string) *runnerdv1.Run {
	t.Helper()
	return d.wait(t, run, runnerdv1.WaitUntil_WAIT_UNTIL_IDLE)
}

func (d *Daemon) wait(t testing.TB, run string, until runnerdv1.WaitUntil) *runnerdv1.Run {
	t.Helper()
	answer, err := d.Runs.WaitRun(Context(t), &runnerdv1.WaitRunRequest{RunId: run, Until: until, Timeout: durationpb.New(Limit - time.Second)})
	if err != nil {
		t.Fatalf("WaitRun %s: %v", run, err)
	}
	if answer.GetTimedOut() {
		t.Fatalf("run %s is still %s; its events:\n%s", run, answer.GetRun().GetState(), Lines(d.Events(t, run)))
	}
	return answer.GetRun()
}

// Events is every event of a run so far, with its private part.
func (d *Daemon) Events(t testing.TB, run string) []*runnerdv1.Event {
	t.Helper()
	events, err := d.Read(Context(t), &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, IncludeRaw: true,
	})
	if err != nil {
		t.Fatalf("StreamEvents %s: %v", run, err)
	}
	return events
}

// Public is every event of a run so far, as anyone may see it.
func (d *Daemon) Public(t testing.TB, run string) []*runnerdv1.Event {
	t.Helper()
	events, err := d.Read(Context(t), &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}})
	if err != nil {
		t.Fatalf("StreamEvents %s: %v", run, err)
	}
	return events
}

// Read is what a stream gives until it ends OK.
func (d *Daemon) Read(ctx context.Context, req *runnerdv1.StreamEventsRequest) ([]*runnerdv1.Event, error) {
	var events []*runnerdv1.Event
	err := d.Each(ctx, req, func(m *runnerdv1.StreamEventsResponse) bool {
		if m.GetEvent() != nil {
			events = append(events, m.GetEvent())
		}
		return true
	})
	return events, err
}

// Each reads a stream until it ends or f returns false.
func (d *Daemon) Each(ctx context.Context, req *runnerdv1.StreamEventsRequest, f func(*runnerdv1.StreamEventsResponse) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.Runs.StreamEvents(ctx, req)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !f(m):
			return nil
		}
	}
}

// Until waits for an event of a run, from its first on.
func (d *Daemon) Until(t testing.TB, run, what string, is func(*runnerdv1.Event) bool) *runnerdv1.Event {
	t.Helper()
	var found *runnerdv1.Event
	err := d.Each(Context(t), &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, Follow: true, IncludeRaw: true,
	}, func(m *runnerdv1.StreamEventsResponse) bool {
		if m.GetEvent() != nil && is(m.GetEvent()) {
			found = m.GetEvent()
		}
		return found == nil
	})
	if found == nil {
		t.Fatalf("run %s has no %s (%v); its events:\n%s", run, what, err, Lines(d.Events(t, run)))
	}
	return found
}

// UntilType waits for the first event of a type.
func (d *Daemon) UntilType(t testing.TB, run, eventType string) *runnerdv1.Event {
	t.Helper()
	return d.Until(t, run, eventType, func(ev *runnerdv1.Event) bool { return ev.GetType() == eventType })
}

// Approve answers the open approval of a run.
func (d *Daemon) Approve(t testing.TB, run string, verdict runnerdv1.ApprovalVerdict) *runnerdv1.Approval {
	t.Helper()
	open := d.Idle(t, run).GetApprovals()
	if len(open) != 1 {
		t.Fatalf("run %s has %d open approvals, want 1", run, len(open))
	}
	a, err := d.Vote(Context(t), open[0], verdict)
	if err != nil {
		t.Fatalf("SubmitApproval: %v", err)
	}
	return a
}

// Vote answers one approval.
func (d *Daemon) Vote(ctx context.Context, a *runnerdv1.Approval, verdict runnerdv1.ApprovalVerdict) (*runnerdv1.Approval, error) {
	answer, err := d.Runs.SubmitApproval(ctx, &runnerdv1.SubmitApprovalRequest{
		RunId: a.GetRunId(), ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: verdict,
	})
	return answer.GetApproval(), err
}

// Input says something to a run.
func (d *Daemon) Input(t testing.TB, run, text string) {
	t.Helper()
	if _, err := d.Runs.SubmitInput(Context(t), &runnerdv1.SubmitInputRequest{RunId: run, Text: text}); err != nil {
		t.Fatalf("SubmitInput: %v", err)
	}
}

// Cancel ends a run from outside.
func (d *Daemon) Cancel(t testing.TB, run string, mode runnerdv1.CancelMode) *runnerdv1.Run {
	t.Helper()
	answer, err := d.Runs.CancelRun(Context(t), &runnerdv1.CancelRunRequest{RunId: run, Mode: mode, Reason: "the test says so"})
	if err != nil {
		t.Fatalf("CancelRun: %v", err)
	}
	return answer.GetRun()
}

// Artifact is the whole of an artifact.
func (d *Daemon) Artifact(t testing.TB, run, id string) []byte {
	t.Helper()
	data, err := d.ReadArtifact(Context(t), run, id, 0)
	if err != nil {
		t.Fatalf("ReadArtifact %s of %s: %v", id, run, err)
	}
	return data
}

// ReadArtifact reads an artifact from an offset on.
func (d *Daemon) ReadArtifact(ctx context.Context, run, id string, offset uint64) ([]byte, error) {
	stream, err := d.Runs.ReadArtifact(ctx, &runnerdv1.ReadArtifactRequest{RunId: run, ArtifactId: id, Offset: offset})
	if err != nil {
		return nil, err
	}
	var data []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		if m.GetOffset() != offset+uint64(len(data)) {
			return nil, fmt.Errorf("a piece at offset %d follows %d bytes", m.GetOffset(), len(data))
		}
		data = append(data, m.GetData()...)
	}
}

// History is the whole memory of a run.
func (d *Daemon) History(t testing.TB, run string) []*runnerdv1.HistoryEntry {
	t.Helper()
	var entries []*runnerdv1.HistoryEntry
	req := &runnerdv1.ListHistoryRequest{RunId: run}
	for {
		page, err := d.Runs.ListHistory(Context(t), req)
		if err != nil {
			t.Fatalf("ListHistory: %v", err)
		}
		entries = append(entries, page.GetEntries()...)
		if page.GetNextPageToken() == "" {
			return entries
		}
		req.PageToken = page.GetNextPageToken()
	}
}

// Eventually waits until a condition holds that no event tells of.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	limit := time.Now().Add(Limit)
	for !holds() {
		if time.Now().After(limit) {
			t.Fatalf("within %s it did not come true that %s", Limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Code checks the status code and the stable reason of an error; an empty reason is not looked at.
func Code(t testing.TB, err error, code codes.Code, reason string) *status.Status {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code {
		t.Errorf("error is %v, want code %s", err, code)
		return s
	}
	if reason == "" {
		return s
	}
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			if info.GetDomain() != "runnerd" || info.GetReason() != reason {
				t.Errorf("error %v has reason %s/%s, want runnerd/%s", err, info.GetDomain(), info.GetReason(), reason)
			}
			return s
		}
	}
	t.Errorf("error %v has no ErrorInfo, want reason %s", err, reason)
	return s
}

// Fields are the names of the fields that an error objects to.
func Fields(err error) []string {
	var names []string
	for _, detail := range status.Convert(err).Details() {
		if bad, ok := detail.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				names = append(names, v.GetField())
			}
		}
	}
	return names
}

// Types are the types of events, in their order.
func Types(events []*runnerdv1.Event) []string {
	var types []string
	for _, ev := range events {
		types = append(types, ev.GetType())
	}
	return types
}

// Only is the events of some types.
func Only(events []*runnerdv1.Event, types ...string) []*runnerdv1.Event {
	var out []*runnerdv1.Event
	for _, ev := range events {
		for _, t := range types {
			if ev.GetType() == t {
				out = append(out, ev)
			}
		}
	}
	return out
}

// Count counts the events of a type.
func Count(events []*runnerdv1.Event, eventType string) int { return len(Only(events, eventType)) }

// Lines shows events for the message of a failed test.
func Lines(events []*runnerdv1.Event) string {
	var b strings.Builder
	for _, ev := range events {
		m := ev.ProtoReflect()
		payload := m.Get(m.WhichOneof(m.Descriptor().Oneofs().ByName("payload"))).Message().Interface()
		line := fmt.Sprintf("%d %s leg=%d iteration=%d %v", ev.GetSequence(), ev.GetType(), ev.GetLeg(), ev.GetIteration(), payload)
		fmt.Fprintln(&b, line[:min(len(line), 400)])
	}
	return b.String()
}
