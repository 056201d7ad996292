package e2e

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// TestVote plays the rows about votes of the table of states and facts.
func TestVote(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("an approval that was never opened is not found, whatever the run does", func(t *testing.T) {
		t.Parallel()
		busy := w.play(t, "std", harness.Hang)
		w.UntilType(t, busy, "iteration_started")
		asked := w.play(t, "std", harness.Steps(harness.Ask("which?"), harness.Answer("done")))
		w.Idle(t, asked)
		waiting := w.play(t, "std", asking())
		w.Idle(t, waiting)
		ended := w.play(t, "std", harness.Steps(harness.Answer("done")))
		w.Done(t, ended)
		for _, run := range []string{busy, asked, waiting, ended} {
			for _, id := range []uint64{1, 3, 1 << 40} { // run_started, iteration_started, none
				for _, verdict := range []runnerdv1.ApprovalVerdict{approve, deny, settle} {
					_, err := w.submit(t, &runnerdv1.Approval{RunId: run, ApprovalId: id, ApprovalDigest: "k:0"}, verdict)
					harness.Code(t, err, codes.NotFound, "APPROVAL_NOT_FOUND")
				}
			}
		}
		w.Cancel(t, busy, runnerdv1.CancelMode_CANCEL_MODE_ABORT)
		w.Input(t, asked, "that one")
		w.Approve(t, waiting, deny)
	})

	// In each state with an open approval: a wrong digest and a verdict of another kind change nothing.
	for name, changes := range map[string][]with{"WAITING_APPROVAL": nil, "PAUSED": {mode(pauseMode)}} {
		t.Run("what is not the verdict leaves it open: "+name, func(t *testing.T) {
			t.Parallel()
			run := w.play(t, "std", asking(), changes...)
			equal(t, "state", w.Idle(t, run).GetState().String(), "RUN_STATE_"+name)
			a := w.open(t, run, 1)[0]
			w.refused(t, otherDigest(a), approve, "DIGEST_MISMATCH")
			w.refused(t, otherDigest(a), deny, "DIGEST_MISMATCH")
			_, err := w.submit(t, a, settle)
			harness.Code(t, err, codes.InvalidArgument, "VERDICT_NOT_POSSIBLE")
			w.open(t, run, 1)
			_, err = w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run})
			if name == "PAUSED" {
				harness.Code(t, err, codes.FailedPrecondition, "APPROVAL_OPEN")
			} else if err != nil {
				t.Errorf("ResumeRun of a run that waits: %v", err)
			}
			_, err = w.Guest.SubmitApproval(harness.Context(t), &runnerdv1.SubmitApprovalRequest{
				RunId: run, ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: approve,
			})
			harness.Code(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
			w.vote(t, a, approve)
			w.Done(t, run)
			w.refused(t, a, deny, "RUN_ENDED")
			w.refused(t, otherDigest(a), approve, "RUN_ENDED")
			equal(t, "the same again", w.vote(t, a, approve).GetVia(), runnerdv1.Via_VIA_HUMAN)
		})
	}

	t.Run("while a call runs an approval is held until its turn, and a denial waits for nobody", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(
			harness.Calls("look", "{}", "deploy_site", `{"n":2}`, "deploy_site", `{"n":3}`), harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{"look": g.slow("seen")})))
		g.await(t)
		asks := w.open(t, run, 2)
		w.refused(t, otherDigest(asks[0]), approve, "DIGEST_MISMATCH")
		w.vote(t, asks[0], approve)
		w.refused(t, asks[0], deny, "ALREADY_RESOLVED")
		w.vote(t, asks[0], approve)
		w.vote(t, asks[1], deny)
		w.refused(t, asks[1], approve, "ALREADY_RESOLVED")
		w.vote(t, asks[1], deny)
		equal(t, "state", w.Run(t, run).GetState(), runnerdv1.RunState_RUN_STATE_RUNNING)
		equal(t, "calls before the first has an outcome", len(w.hands.Calls(run)), 1)
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		order(t, w.Events(t, run), "tool_call_approved", "tool_call_denied", "tool_call_completed", "tool_call_started", "tool_call_completed")
		var reasons []string
		for _, e := range w.brain.Requests(run)[1].GetHistory()[1:] {
			reasons = append(reasons, e.GetObservation().GetCallId()+" "+e.GetObservation().GetKind().String()[len("OBSERVATION_KIND_"):])
		}
		if want := []string{"1.1 TOOL_RESULT", "1.2 TOOL_RESULT", "1.3 DENIAL"}; !slices.Equal(reasons, want) {
			t.Errorf("the model is shown %q, want %q", reasons, want)
		}
	})

	t.Run("deny, then approve the next: the run goes on by order", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", `{"n":1}`, "put", "{}", "deploy_site", `{"n":3}`), harness.Answer("done")))
		asks := w.open(t, run, 2)
		w.vote(t, asks[0], deny)
		w.Until(t, run, "the call of put", func(ev *runnerdv1.Event) bool { return ev.GetToolCallCompleted().GetCallId() == "1.2" })
		equal(t, "state", w.Idle(t, run).GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		w.vote(t, asks[1], approve)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "calls", len(w.hands.Calls(run)), 2)
	})

	t.Run("a paused run with two asks pauses again after the first verdict", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", `{"n":1}`, "deploy_site", `{"n":2}`), harness.Answer("done")), mode(pauseMode))
		asks := w.open(t, run, 2)
		w.vote(t, asks[1], approve)
		equal(t, "state", w.Idle(t, run).GetState(), runnerdv1.RunState_RUN_STATE_PAUSED)
		equal(t, "calls", len(w.hands.Calls(run)), 0)
		w.vote(t, asks[0], deny)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "leg", got.GetLeg(), 3)
		order(t, w.Events(t, run), "run_paused", "run_resumed", "tool_call_approved", "run_paused", "run_resumed", "tool_call_denied", "tool_call_started")
	})

	t.Run("at its deadline it is denied via TIMEOUT: WAITING_APPROVAL", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}"), harness.Ask("what else?"), harness.Answer("done")), patient(time.Second))
		a := w.asked(t, run)
		denied := w.UntilType(t, run, "tool_call_denied").GetToolCallDenied()
		equal(t, "via", denied.GetResolution().GetVia(), runnerdv1.Via_VIA_TIMEOUT)
		equal(t, "reason", denied.GetReason(), runnerdv1.CallReason_CALL_REASON_APPROVAL_TIMEOUT)
		w.Until(t, run, "question", func(ev *runnerdv1.Event) bool { return ev.GetInputRequested() != nil })
		w.refused(t, a, approve, "TIMED_OUT")
		closed, err := w.Runs.GetApproval(harness.Context(t), &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: a.GetApprovalId()})
		if err != nil || closed.GetApproval().GetVia() != runnerdv1.Via_VIA_TIMEOUT {
			t.Errorf("GetApproval gives %v, %v", closed, err)
		}
		w.Input(t, run, "nothing")
		w.Done(t, run)
		w.refused(t, a, approve, "RUN_ENDED")
	})

	t.Run("at its deadline it is denied via TIMEOUT: RUNNING", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "deploy_site", "{}"), harness.Answer("done")),
			patient(time.Second), calls(g.slow("seen")))
		g.await(t)
		a := w.asked(t, run)
		w.UntilType(t, run, "tool_call_denied")
		equal(t, "state", w.Run(t, run).GetState(), runnerdv1.RunState_RUN_STATE_RUNNING)
		w.refused(t, a, approve, "TIMED_OUT")
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})

	t.Run("a run that ends takes its open approvals with it, via CANCEL", func(t *testing.T) {
		t.Parallel()
		for _, m := range []runnerdv1.ApprovalMode{runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, pauseMode} {
			run := w.play(t, "std", asking(), mode(m))
			w.Idle(t, run)
			a := w.open(t, run, 1)[0]
			w.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_STOP)
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
			denied := w.UntilType(t, run, "tool_call_denied").GetToolCallDenied()
			equal(t, "via", denied.GetResolution().GetVia(), runnerdv1.Via_VIA_CANCEL)
			equal(t, "reason", denied.GetReason(), runnerdv1.CallReason_CALL_REASON_APPROVAL_CANCELLED)
			w.refused(t, a, approve, "RUN_ENDED")
			w.open(t, run, 0)
		}
	})

	t.Run("an approval cancelled under a run that still settles says so", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "deploy_site", "{}")), calls(g.slow("seen")))
		g.await(t)
		a := w.open(t, run, 1)[0]
		w.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_STOP)
		w.refused(t, a, approve, "CANCELLED")
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
		w.refused(t, a, approve, "RUN_ENDED")
	})

	t.Run("in mode DENY nobody is asked", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking(), mode(denyMode))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		events := w.Events(t, run)
		equal(t, "approvals", harness.Count(events, "tool_call_pending_approval"), 0)
		denied := w.UntilType(t, run, "tool_call_denied").GetToolCallDenied()
		equal(t, "reason", denied.GetReason(), runnerdv1.CallReason_CALL_REASON_NO_APPROVER)
		equal(t, "kind of the observation", shown(t, w, run, 2).GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL)
		equal(t, "calls", len(w.hands.Calls(run)), 0)
	})

	t.Run("a resumable end keeps the answers of its approvals", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "wide", harness.Steps(harness.Calls("deploy_site", "{}"), harness.Answer("done")),
			budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(1)}))
		a := w.open(t, run, 1)[0]
		w.vote(t, a, deny)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
		w.refused(t, a, approve, "RUN_ENDED")
		equal(t, "the same again", w.vote(t, a, deny).GetVerdict(), deny)
		if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
			RunId: run, Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(5)},
		}); err != nil {
			t.Fatal(err)
		}
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "calls", len(w.hands.Calls(run)), 0)
	})
}

// TestApprovalOverRestart plays approvals that are open while the daemon is killed.
func TestApprovalOverRestart(t *testing.T) {
	t.Parallel()
	w := own(t)
	waiting := w.play(t, "std", asking())
	paused := w.play(t, "std", asking(), mode(pauseMode))
	brief := w.play(t, "std", asking(), patient(4*time.Second))
	held := newGate()
	running := w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "deploy_site", "{}"), harness.Answer("done")),
		calls(byTool(map[string]harness.Handler{"look": func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
			if req.GetAttempt() == 1 {
				held.pass(s.Context())
			}
			return &runnerdv1.ToolResult{Text: "seen"}, nil
		}})))
	held.await(t)
	before := map[string]*runnerdv1.Approval{}
	heads := map[string]uint64{}
	for _, run := range []string{waiting, paused, running} {
		before[run] = w.open(t, run, 1)[0]
		heads[run] = w.Run(t, run).GetHeadSequence()
	}
	w.Kill()
	w.Restart(t)

	t.Run("E-42 an open approval stays the one of its call", func(t *testing.T) {
		for _, run := range []string{waiting, paused} {
			_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run})
			if run == paused {
				harness.Code(t, err, codes.FailedPrecondition, "APPROVAL_OPEN")
			} else if err != nil {
				t.Errorf("ResumeRun of a run that waits: %v", err)
			}
			after := w.open(t, run, 1)[0]
			if !proto.Equal(before[run], after) {
				t.Errorf("the approval is %v, was %v", after, before[run])
			}
			equal(t, "head of a run that waits for people", w.Run(t, run).GetHeadSequence(), heads[run])
			w.vote(t, after, approve)
			got := w.Done(t, run)
			ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			equal(t, "calls", len(w.hands.Calls(run)), 1)
			events := w.Events(t, run)
			equal(t, "approvals", harness.Count(events, "tool_call_pending_approval"), 1)
			equal(t, "recoveries", harness.Count(events, "run_recovered"), 0)
		}
	})

	t.Run("a deadline that passes is kept over a restart", func(t *testing.T) {
		ended(t, w.Done(t, brief), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		denied := w.UntilType(t, brief, "tool_call_denied").GetToolCallDenied()
		equal(t, "via", denied.GetResolution().GetVia(), runnerdv1.Via_VIA_TIMEOUT)
	})

	t.Run("a call that ran is recovered, the approval beside it stays", func(t *testing.T) {
		w.vote(t, before[running], approve)
		ended(t, w.Done(t, running), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		order(t, w.Events(t, running), "run_recovered", "tool_call_retried")
		equal(t, "calls", len(w.hands.Calls(running)), 3) // look twice: it reads only
	})
}

// TestVoteOnQueuedRun needs a daemon with one slot.
func TestVoteOnQueuedRun(t *testing.T) {
	t.Parallel()
	w := oneSlot(t)
	g := newGate()
	first := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), calls(g.slow("seen")))
	g.await(t)
	queued := w.play(t, "std", harness.Steps(harness.Answer("done")))
	equal(t, "state", w.Run(t, queued).GetState(), runnerdv1.RunState_RUN_STATE_QUEUED)
	for _, verdict := range []runnerdv1.ApprovalVerdict{approve, deny} {
		_, err := w.submit(t, &runnerdv1.Approval{RunId: queued, ApprovalId: 1, ApprovalDigest: "k:0"}, verdict)
		harness.Code(t, err, codes.NotFound, "APPROVAL_NOT_FOUND")
	}
	w.Input(t, queued, "mind this")
	if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: queued}); err != nil {
		t.Errorf("ResumeRun of a queued run: %v", err)
	}
	_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
		RunId: queued, Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(3)},
	})
	harness.Code(t, err, codes.FailedPrecondition, "RUN_ACTIVE")
	for m, reason := range map[runnerdv1.CancelMode]runnerdv1.StopReason{
		runnerdv1.CancelMode_CANCEL_MODE_STOP:  runnerdv1.StopReason_STOP_REASON_STOPPED,
		runnerdv1.CancelMode_CANCEL_MODE_ABORT: runnerdv1.StopReason_STOP_REASON_CANCELLED,
	} {
		run := w.play(t, "std", harness.Hang)
		w.Cancel(t, run, m)
		ended(t, w.Done(t, run), reason, "failed:system")
		equal(t, "Decides", len(w.brain.Requests(run)), 0)
	}
	g.open()
	w.Done(t, first)
	w.Done(t, queued)
	equal(t, "what Decide 1 is shown", shown(t, w, queued, 1).GetText(), "mind this")
}

// oneSlot is a daemon in which one run at a time is in progress.
func oneSlot(t *testing.T) *world {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Limits = &configv1.Limits{MaxActiveRuns: proto.Uint32(1)}
	w.Daemon = harness.Start(t, w.cfg)
	return w
}
