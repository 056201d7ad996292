package runner

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// governed gives an agent what a policy can hold: layers, a required host, and a tool with a rate limit.
func governed(c *Config) {
	a := c.Agents["agent"]
	a.Spec.Policy = append(a.Spec.Policy, &runnerdv1.PolicyLayer{
		Name: "more", Mode: runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW, Deny: []*runnerdv1.DenyRule{{Id: "no_reading", Tools: "read"}},
	})
	a.Spec.RequiredHosts = []string{"hands"}
	a.Hosts[0].Tools = map[string]ToolOverride{
		"note": {RateLimit: &runnerdv1.RateLimit{MaxCalls: 1, Per: durationpb.New(time.Hour)}},
	}
}

// inAutoMode lets auto mode answer what a person would be asked.
func inAutoMode(c *Config) {
	governed(c)
	c.Agents["agent"].Spec.AutoMode = &runnerdv1.AutoMode{Limits: &runnerdv1.AutoModeLimits{MaxToolCalls: new(uint32(100))}}
}

// governedWorld calls a tool that must be asked for in two iterations, and one with a rate limit twice in a third.
func governedWorld() *world {
	return &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
		switch req.GetIteration() {
		case 1, 2:
			return calls("ask"), nil
		case 3:
			return calls("note", "note"), nil
		}
		return answers("done"), nil
	}}
}

// allowing approves what is asked with a grant, and edits it.
func allowing(ask *runnerdv1.Approval) runstate.Vote {
	v := vote(ask, approve)
	v.Grant, v.Edited = runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL, &runstate.Edit{Text: `{"n":2}`}
	return v
}

// TestGovernanceCostsNoCommit counts the commits of runs with gates, grants, edits, rate limits and auto mode: those of a
// plain run, and one for a verdict.
func TestGovernanceCostsNoCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), governedWorld(), governed)
		for _, run := range []string{"cold", "run"} {
			d.begin(t, run)
			waiting := d.rest(t, run)
			if d.active(run) != nil {
				t.Error("a run that waits for a person has a driver")
			}
			if _, err := d.Deliver(t.Context(), run, allowing(waiting.GetApprovals()[0])); err != nil {
				t.Fatal(err)
			}
			d.rest(t, run)
		}
		wantTypes(t, d, "run",
			"run_started", "tools_pinned", "iteration_started", // 1
			"decision_made", "tool_call_requested", "tool_call_pending_approval", // 2
			"tool_call_approved", "tool_call_started", // 3
			"tool_call_completed", "iteration_started", // 4
			"decision_made", "tool_call_requested", "tool_call_approved", "tool_call_started", // 5
			"tool_call_completed", "iteration_started", // 6
			"decision_made", "tool_call_requested", "tool_call_requested", "tool_call_started", // 7
			"tool_call_completed", "tool_call_failed", "iteration_started", // 8
			"decision_made", "run_completed") // 9
		if n := commits(t, d, "run"); n != 9 {
			t.Errorf("%d commits, want 9", n)
		}
		d.verify(t)
	})
	synctest.Test(t, func(t *testing.T) {
		d := boot(t, memory(nil), governedWorld(), inAutoMode)
		for _, run := range []string{"cold", "run"} {
			d.begin(t, run)
			d.rest(t, run)
		}
		if n := commits(t, d, "run"); n != 8 {
			t.Errorf("in auto mode %d commits, want 8", n)
		}
		d.verify(t)
	})
}

// TestGovernedRunsCrash ends the process after every append of a run, and answers what is asked as often as it takes. A
// call is sent at most once, what is sent is what was edited, and each verdict is recorded once.
func TestGovernedRunsCrash(t *testing.T) {
	for name, with := range map[string]option{"with people": governed, "in auto mode": inAutoMode} {
		appends := 1 << 30 // of a run in which nothing happens
		for n := 0; n <= appends; n++ {
			t.Run(fmt.Sprintf("%s, after append %d", name, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					done := crashAfter(t, n, with)
					if n == 0 {
						appends = done
					}
				})
			})
			if t.Failed() {
				return
			}
		}
	}
}

// crashAfter plays a run to its end with a crash after so many of its appends, 0: none, and returns how many it made.
func crashAfter(t *testing.T, n int, with option) int {
	t.Helper()
	var appends atomic.Int32
	moment, armed := make(chan struct{}), n > 0
	disk := memory(func(op auditstoretest.Op, run string) auditstoretest.Fault {
		if op != auditstoretest.OpAppend || run != "run" {
			return auditstoretest.None
		}
		if done := appends.Add(1); armed && int(done) > n {
			if int(done) == n+1 {
				close(moment)
			}
			return auditstoretest.Unavailable
		}
		return auditstoretest.None
	})
	w := governedWorld()
	d := boot(t, disk, w, with)
	d.begin(t, "run")
	played := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func(d *daemon) {
		defer close(played)
		answerAll(ctx, d)
	}(d)
	if armed {
		select {
		case <-moment: // the append after it is about to be made
		case <-played: // it was the last
		}
		cancel()
		<-played
		d.crash(t)
		armed = false
		d = boot(t, disk, w, with)
		answerAll(t.Context(), d)
	}
	<-played
	cancel()
	if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
		t.Errorf("got %v", got)
	}
	for key, sent := range w.attempts() {
		if sent != 1 && key != "run/3.1" { // that one may be repeated
			t.Errorf("%s was sent %d times", key, sent)
		}
	}
	want := `{"n":2}` // as it was edited
	if d.cfg.Agents["agent"].Spec.GetAutoMode() != nil {
		want = `{"n":1}`
	}
	for _, sent := range w.calls {
		if sent.GetCallId() == "1.1" && sent.GetArgumentsJson() != want {
			t.Errorf("1.1 was sent with %s, want %s", sent.GetArgumentsJson(), want)
		}
	}
	approved := make(map[string]int)
	for _, ev := range events(t, d, "run") {
		if p := ev.GetToolCallApproved(); p != nil {
			approved[p.GetCallId()]++
		}
	}
	if approved["1.1"] != 1 || approved["2.1"] != 1 || len(approved) != 2 {
		t.Errorf("approved %v", approved)
	}
	d.verify(t)
	return int(appends.Load())
}

// answerAll answers what the run asks until it ends, or ctx does.
func answerAll(ctx context.Context, d *daemon) {
	for {
		run, _, err := d.WaitRun(ctx, "run", true)
		if err != nil || len(run.GetApprovals()) == 0 {
			return
		}
		_, err = d.Deliver(ctx, "run", allowing(run.GetApprovals()[0]))
		if err != nil && !errors.Is(err, runstate.ErrNotOpen) {
			return
		}
	}
}
