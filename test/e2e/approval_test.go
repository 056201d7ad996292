package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

const (
	approve = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	deny    = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
	settle  = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE

	pauseMode = runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE
	denyMode  = runnerdv1.ApprovalMode_APPROVAL_MODE_DENY
)

// asking is a run that asks for deploy_site once and then answers.
func asking() harness.Step {
	return harness.Steps(harness.Calls("deploy_site", `{"site": "blue"}`), harness.Answer("done"))
}

// open is the approvals of a run that are open, once there are so many.
func (w *world) open(t *testing.T, run string, n int) []*runnerdv1.Approval {
	t.Helper()
	var open []*runnerdv1.Approval
	harness.Eventually(t, "the approvals are open", func() bool {
		list, err := w.Runs.ListApprovals(harness.Context(t), &runnerdv1.ListApprovalsRequest{RunId: run})
		open = list.GetApprovals()
		return err == nil && len(open) == n
	})
	return open
}

// asked is the first approval of a run about a call, open or not.
func (w *world) asked(t *testing.T, run string) *runnerdv1.Approval {
	t.Helper()
	ev := w.UntilType(t, run, "tool_call_pending_approval")
	return &runnerdv1.Approval{
		RunId: run, ApprovalId: ev.GetSequence(), ApprovalDigest: ev.GetToolCallPendingApproval().GetApprovalDigest(),
	}
}

// settlement is what an approver finds to be true of a call in doubt.
const settlement = "it was booked once"

// submit answers an approval; to settle is to give the settlement.
func (w *world) submit(t *testing.T, a *runnerdv1.Approval, verdict runnerdv1.ApprovalVerdict) (*runnerdv1.Approval, error) {
	t.Helper()
	req := &runnerdv1.SubmitApprovalRequest{
		RunId: a.GetRunId(), ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: verdict,
	}
	if verdict == settle {
		req.Result = &runnerdv1.SettledResult{Text: settlement}
	}
	answer, err := w.Runs.SubmitApproval(harness.Context(t), req)
	return answer.GetApproval(), err
}

// vote answers an approval and expects that to be taken.
func (w *world) vote(t *testing.T, a *runnerdv1.Approval, verdict runnerdv1.ApprovalVerdict) *runnerdv1.Approval {
	t.Helper()
	closed, err := w.submit(t, a, verdict)
	if err != nil {
		t.Fatalf("SubmitApproval: %v", err)
	}
	return closed
}

// refused answers an approval and expects a refusal that records nothing.
func (w *world) refused(t *testing.T, a *runnerdv1.Approval, verdict runnerdv1.ApprovalVerdict, reason string) {
	t.Helper()
	before := w.Run(t, a.GetRunId()).GetHeadSequence()
	_, err := w.submit(t, a, verdict)
	harness.Code(t, err, codes.FailedPrecondition, reason)
	if after := w.Run(t, a.GetRunId()).GetHeadSequence(); after != before {
		t.Errorf("a refused verdict took the run from event %d to %d", before, after)
	}
}

// otherDigest is the same approval under the digest of something else.
func otherDigest(a *runnerdv1.Approval) *runnerdv1.Approval {
	a = proto.CloneOf(a)
	digest := []byte(a.GetApprovalDigest())
	digest[len(digest)-1] ^= 1
	a.ApprovalDigest = string(digest)
	return a
}

// started is the ids of the calls that were started, in their order.
func started(events []*runnerdv1.Event) []string {
	var ids []string
	for _, ev := range harness.Only(events, "tool_call_started") {
		ids = append(ids, ev.GetToolCallStarted().GetCallId())
	}
	return ids
}

func TestApproval(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-110 an approval shows what will run, the log hides it", func(t *testing.T) {
		t.Parallel()
		args := `{"password": "hunter2", "site": "blue"}`
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", args), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		equal(t, "call", a.GetCallId(), "1.1")
		equal(t, "host", a.GetHost(), "hands")
		equal(t, "tool", a.GetTool(), "deploy_site")
		equal(t, "arguments", a.GetArgumentsJson(), args)
		equal(t, "rule", a.GetRule(), "approval_for:deploy_*")
		has(t, a.GetArgumentDigest(), ":")
		has(t, a.GetApprovalDigest(), ":")
		for _, ev := range w.Public(t, run) {
			if strings.Contains(ev.String(), "hunter2") {
				t.Errorf("the password stands in the public event %v", ev)
			}
		}
		asked := w.UntilType(t, run, "tool_call_pending_approval").GetToolCallPendingApproval()
		equal(t, "argument digest of the event", asked.GetArgumentDigest(), a.GetArgumentDigest())
		equal(t, "approval digest of the event", asked.GetApprovalDigest(), a.GetApprovalDigest())
		w.vote(t, a, approve)
		w.Done(t, run)
		equal(t, "arguments at the host", w.hands.Calls(run)[0].Request.GetArgumentsJson(), args)
	})

	t.Run("T-111 tool_call_pending_approval comes before all else about an approval", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		w.vote(t, a, approve)
		w.Done(t, run)
		opened := w.UntilType(t, run, "tool_call_pending_approval")
		equal(t, "sequence that opened it", opened.GetSequence(), a.GetApprovalId())
		p := opened.GetToolCallPendingApproval()
		equal(t, "request", p.GetRequestedSequence(), w.UntilType(t, run, "tool_call_requested").GetSequence())
		equal(t, "call", p.GetCallId(), "1.1")
		order(t, w.Events(t, run), "tool_call_requested", "tool_call_pending_approval", "tool_call_approved", "tool_call_started")
	})

	t.Run("T-112 E-44 in mode PAUSE the leg is closed until somebody answers", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("deploy_site", "{}"), harness.Answer("done")),
			mode(pauseMode))
		got := w.Idle(t, run)
		equal(t, "state", got.GetState(), runnerdv1.RunState_RUN_STATE_PAUSED)
		equal(t, "status", got.GetStatus(), "pending_approval")
		a := w.open(t, run, 1)[0]
		if a.GetExpiresAt() != nil {
			t.Errorf("an approval of a paused run expires at %v", a.GetExpiresAt().AsTime())
		}
		events := w.Public(t, run)
		last := events[len(events)-1].GetRunPaused()
		if !slices.Equal(last.GetApprovalIds(), []uint64{a.GetApprovalId()}) {
			t.Errorf("the stream ends with %v, want run_paused for approval %d", events[len(events)-1], a.GetApprovalId())
		}
		equal(t, "checkpoint", w.checkpoint(t, run, "").GetLabel(), "step-1")
		w.vote(t, a, approve)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "calls of deploy_site", len(w.hands.Calls(run)), 2)
	})

	t.Run("T-113 an approved call starts when it is its turn", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", `{"n":1}`, "deploy_site", `{"n":2}`), harness.Answer("done")))
		asks := w.open(t, run, 2)
		w.vote(t, asks[1], approve)
		equal(t, "state", w.Run(t, run).GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		equal(t, "calls before the first was approved", len(w.hands.Calls(run)), 0)
		w.vote(t, asks[0], approve)
		w.Done(t, run)
		events := w.Events(t, run)
		order(t, events, "tool_call_approved", "tool_call_approved", "tool_call_started", "tool_call_completed", "tool_call_started", "tool_call_completed")
		if got := started(events); !slices.Equal(got, []string{"1.1", "1.2"}) {
			t.Errorf("started are %q, want 1.1 and then 1.2", got)
		}
		for _, ev := range harness.Only(events, "tool_call_approved") {
			equal(t, "via", ev.GetToolCallApproved().GetResolution().GetVia(), runnerdv1.Via_VIA_HUMAN)
			equal(t, "principal", ev.GetPrincipal(), "local:owner")
		}
	})

	t.Run("T-114 a denial is told to the model", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		if _, err := w.Runs.SubmitApproval(harness.Context(t), &runnerdv1.SubmitApprovalRequest{
			RunId: run, ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: deny, Reason: "not on a Friday",
		}); err != nil {
			t.Fatal(err)
		}
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		denied := w.UntilType(t, run, "tool_call_denied").GetToolCallDenied()
		equal(t, "reason", denied.GetReason(), runnerdv1.CallReason_CALL_REASON_REJECTED_BY_APPROVER)
		equal(t, "kind of the observation", shown(t, w, run, 2).GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL)
		has(t, shown(t, w, run, 2).GetText(), "not on a Friday")
		equal(t, "calls at the host", len(w.hands.Calls(run)), 0)
	})

	t.Run("T-114 with on_denial fail it ends the run", func(t *testing.T) {
		t.Parallel()
		g := newGate()
		run := w.play(t, "denyfail", harness.Steps(harness.Calls("look", "{}", "deploy_site", "{}", "put", "{}")), calls(g.slow("seen")))
		g.await(t)
		w.vote(t, w.open(t, run, 1)[0], deny)
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_PERMISSION_DENIED, "failed:permission")
		events := w.Events(t, run)
		order(t, events, "tool_call_denied", "tool_call_completed", "run_failed")
		equal(t, "why put did not run", w.UntilType(t, run, "tool_call_blocked").GetToolCallBlocked().GetReason(),
			runnerdv1.CallReason_CALL_REASON_RUN_ENDING)
	})

	t.Run("T-115 what cannot run is blocked at once, nobody is asked", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking(), budget(&runnerdv1.Budget{MaxToolCalls: proto.Uint32(0)}))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS, "failed:budget_exceeded")
		events := w.Events(t, run)
		equal(t, "approvals", harness.Count(events, "tool_call_pending_approval"), 0)
		equal(t, "reason", w.UntilType(t, run, "tool_call_blocked").GetToolCallBlocked().GetReason(),
			runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET)
	})

	t.Run("T-116 a verdict opens a new leg, with all that was counted", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Costing(harness.Calls("look", "{}"), 3, 10, 1),
			harness.Costing(harness.Calls("deploy_site", "{}"), 4, 10, 1), harness.Costing(harness.Answer("done"), 5, 10, 1)), mode(pauseMode))
		w.Idle(t, run)
		w.vote(t, w.open(t, run, 1)[0], approve)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "leg", got.GetLeg(), 2)
		equal(t, "iteration", got.GetIteration(), 3)
		equal(t, "tool calls", got.GetToolCalls(), 2)
		equal(t, "cost", got.GetUsage().GetCostCents(), 12)
		events := w.Events(t, run)
		order(t, events, "run_paused", "run_resumed", "tool_call_approved", "tool_call_started", "tool_call_completed", "run_completed")
		equal(t, "run_started events", harness.Count(events, "run_started"), 1)
		resumed := w.UntilType(t, run, "run_resumed")
		equal(t, "cause", resumed.GetRunResumed().GetCause(), runnerdv1.ResumeCause_RESUME_CAUSE_APPROVAL)
		equal(t, "who", resumed.GetPrincipal(), "local:owner")
		equal(t, "calls at the host", len(w.hands.Calls(run)), 2)
	})

	t.Run("E-40 globs match the offered name, with tool: before it or not", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prefixed", harness.Steps( // approval_for: tool:deploy*, boo?
			harness.Calls("deploy_site", "{}", "book", `{"q": 1}`, "charge", "{}"), harness.Answer("done")))
		asks := w.open(t, run, 2)
		equal(t, "first rule", asks[0].GetRule(), "approval_for:tool:deploy*")
		equal(t, "second rule", asks[1].GetRule(), "approval_for:boo?")
		for _, a := range asks {
			w.vote(t, a, approve)
		}
		w.Done(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 3)
	})

	t.Run("E-41 of long arguments the inbox shows head, tail and size", func(t *testing.T) {
		t.Parallel()
		args := `{"a":"HEAD` + strings.Repeat("é", 40_000) + `TAIL"}`
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", args), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		equal(t, "size", a.GetArgumentsSize(), uint64(len(args)))
		equal(t, "cut", a.GetArgumentsCut(), true)
		has(t, a.GetArgumentsJson()[:20], `{"a":"HEAD`)
		if shown := a.GetArgumentsJson(); !strings.HasSuffix(shown, `TAIL"}`) || len(shown) > 5000 {
			t.Errorf("%d bytes are shown, ending with %q", len(shown), shown[max(0, len(shown)-20):])
		}
		whole, err := w.Runs.GetApproval(harness.Context(t), &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: a.GetApprovalId()})
		if err != nil || whole.GetApproval().GetArgumentsJson() != args {
			t.Errorf("GetApproval gives %d bytes (%v), want the exact %d", len(whole.GetApproval().GetArgumentsJson()), err, len(args))
		}
		w.vote(t, a, approve)
		w.Done(t, run)
		equal(t, "arguments at the host", w.hands.Calls(run)[0].Request.GetArgumentsJson() == args, true)
	})

	t.Run("E-43 approved in time the call runs once", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		first := w.vote(t, a, approve)
		w.Done(t, run)
		second := w.vote(t, a, approve) // the same verdict again
		equal(t, "first answer", first.GetVerdict(), approve)
		equal(t, "second answer", second.GetVerdict(), approve)
		equal(t, "who", second.GetClosedBy(), "local:owner")
		equal(t, "calls", len(w.hands.Calls(run)), 1)
		equal(t, "approvals used", harness.Count(w.Events(t, run), "tool_call_approved"), 1)
		equal(t, "approval of the start", w.UntilType(t, run, "tool_call_started").GetToolCallStarted().GetApprovalId(), a.GetApprovalId())
	})

	t.Run("A-31 waiting for people costs no time", func(t *testing.T) {
		t.Parallel()
		for name, step := range map[string]harness.Step{
			"an approval": asking(), "a question": harness.Steps(harness.Ask("which?"), harness.Answer("done")),
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				const limit = 3 * time.Second
				run := w.play(t, "timed", step, budget(&runnerdv1.Budget{MaxDuration: durationpb.New(limit)}))
				w.Idle(t, run)
				still, err := w.Runs.WaitRun(harness.Context(t), &runnerdv1.WaitRunRequest{RunId: run, Timeout: durationpb.New(limit + 200*time.Millisecond)})
				if err != nil || !still.GetTimedOut() {
					t.Fatalf("past the limit: %v, %v", still, err)
				}
				if name == "an approval" {
					w.Approve(t, run, approve)
				} else {
					w.Input(t, run, "that one")
				}
				got := w.Done(t, run)
				ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
				if spent := got.GetRunningTime().AsDuration(); spent >= limit {
					t.Errorf("%s were charged", spent)
				}
			})
		}
	})
}
