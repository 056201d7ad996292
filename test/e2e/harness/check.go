package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// Check checks the log of a run: chain, invariants and replay by the daemon, and the invariants once more over what a
// watcher is given.
func (d *Daemon) Check(t testing.TB, run string) {
	t.Helper()
	if d.process == nil {
		return // the daemon was left down; whoever did so has checked before
	}
	ctx, cancel := context.WithTimeout(context.Background(), Limit) // t.Context has ended when the test cleans up
	defer cancel()
	if _, err := d.verifyAudit(ctx, run); err != nil {
		t.Errorf("VerifyAudit %s: %v", run, err)
	}
	events, err := d.Read(ctx, &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, IncludeRaw: true,
	})
	if err != nil {
		t.Errorf("StreamEvents %s: %v", run, err)
	}
	for _, v := range runner.Verify(slices.Values(events)) {
		t.Errorf("run %s: %v", run, v)
	}
	if t.Failed() {
		t.Logf("events of %s:\n%s", run, Lines(events))
	}
}

// CheckAll checks all runs of the daemon and returns how many there are.
func (d *Daemon) CheckAll(ctx context.Context) (runs int, err error) { return d.verifyAudit(ctx, "") }

func (d *Daemon) verifyAudit(ctx context.Context, run string) (runs int, err error) {
	stream, err := d.Audit.VerifyAudit(ctx, &runnerdv1.VerifyAuditRequest{RunId: run})
	if err != nil {
		return 0, err
	}
	var findings []error
	var summary *runnerdv1.AuditSummary
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return 0, err
		}
		if f := m.GetFinding(); f != nil {
			findings = append(findings, fmt.Errorf("run %s, event %d: %s: %s", f.GetRunId(), f.GetSequence(), f.GetCode(), f.GetMessage()))
		}
		if m.GetSummary() != nil {
			summary = m.GetSummary()
		}
	}
	switch {
	case summary == nil:
		return 0, errors.New("the verification has no summary")
	case summary.GetOk() != (len(findings) == 0):
		findings = append(findings, fmt.Errorf("the summary says ok=%t after %d findings", summary.GetOk(), len(findings)))
	}
	return int(summary.GetVerified().GetRuns()), errors.Join(findings...)
}
