package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestApprovals(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("A-65 an open approval holds up its own run only", func(t *testing.T) {
		t.Parallel()
		held := w.play(t, "std", asking())
		a := w.open(t, held, 1)[0]
		ended(t, w.Done(t, w.play(t, "std", harness.Steps(harness.Calls("put", "{}"), harness.Answer("done")))),
			runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "state", w.Run(t, held).GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		w.vote(t, a, approve)
		w.Done(t, held)
	})

	t.Run("A-69 unattended every ask is denied, and the run goes on", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}", "put", "{}", "deploy_site", "{}"), harness.Answer("done")), mode(denyMode))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		denied := harness.Only(w.Events(t, run), "tool_call_denied")
		equal(t, "denials", len(denied), 2)
		for _, ev := range denied {
			equal(t, "reason", ev.GetToolCallDenied().GetReason(), runnerdv1.CallReason_CALL_REASON_NO_APPROVER)
			equal(t, "via", ev.GetToolCallDenied().GetResolution().GetVia(), runnerdv1.Via_VIA_AUTO)
		}
		equal(t, "calls", len(w.hands.Calls(run)), 1)
		w.open(t, run, 0)
	})

	t.Run("T-97 A-70 an approval nobody answers is denied at its deadline", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking(), patient(time.Second))
		a := w.open(t, run, 1)[0]
		equal(t, "patience", a.GetExpiresAt().AsTime().Sub(a.GetOpenedAt().AsTime()), time.Second)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		denied := w.UntilType(t, run, "tool_call_denied")
		equal(t, "via", denied.GetToolCallDenied().GetResolution().GetVia(), runnerdv1.Via_VIA_TIMEOUT)
		if at := denied.GetTime().AsTime(); at.Before(a.GetExpiresAt().AsTime()) {
			t.Errorf("it is denied at %s, before %s", at, a.GetExpiresAt().AsTime())
		}
		equal(t, "calls", len(w.hands.Calls(run)), 0)
		w.open(t, run, 0)
	})

	t.Run("A-71 a verdict on an unknown approval is not found and decides nothing", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		for _, id := range []uint64{1, a.GetApprovalId() - 1, a.GetApprovalId() + 1, 1 << 60} {
			_, err := w.submit(t, &runnerdv1.Approval{RunId: run, ApprovalId: id, ApprovalDigest: a.GetApprovalDigest()}, approve)
			harness.Code(t, err, codes.NotFound, "APPROVAL_NOT_FOUND")
			_, err = w.Runs.GetApproval(harness.Context(t), &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: id})
			harness.Code(t, err, codes.NotFound, "APPROVAL_NOT_FOUND")
		}
		_, err := w.submit(t, &runnerdv1.Approval{RunId: "nobody", ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest()}, approve)
		harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
		w.open(t, run, 1)
		w.vote(t, a, deny)
		w.Done(t, run)
	})

	t.Run("A-72 a cancel frees what waits", func(t *testing.T) {
		t.Parallel()
		for _, m := range []runnerdv1.CancelMode{runnerdv1.CancelMode_CANCEL_MODE_STOP, runnerdv1.CancelMode_CANCEL_MODE_ABORT} {
			run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}", "deploy_site", "{}")))
			asks := w.open(t, run, 2)
			w.Cancel(t, run, m)
			equal(t, "state", w.Done(t, run).GetState(), runnerdv1.RunState_RUN_STATE_DONE)
			for _, a := range asks {
				closed := w.approval(t, run, a.GetApprovalId())
				equal(t, "via", closed.GetVia(), runnerdv1.Via_VIA_CANCEL)
				equal(t, "verdict", closed.GetVerdict(), deny)
				w.refused(t, a, approve, "RUN_ENDED")
			}
			w.open(t, run, 0)
			equal(t, "calls", len(w.hands.Calls(run)), 0)
		}
	})

	t.Run("A-73 who only watches unblocks nothing", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		seen := w.UntilType(t, run, "tool_call_pending_approval") // by a watcher that follows
		equal(t, "announced", seen.GetSequence(), a.GetApprovalId())
		still, err := w.Runs.WaitRun(harness.Context(t), &runnerdv1.WaitRunRequest{RunId: run, Timeout: durationpb.New(200 * time.Millisecond)})
		if err != nil || still.GetRun().GetState() != runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL {
			t.Errorf("watched, it is %v, %v", still.GetRun().GetState(), err)
		}
		w.vote(t, a, approve)
		w.Done(t, run)
	})

	t.Run("E-45 a denied call is an observation with its reason, and the run goes on", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		w.vote(t, w.open(t, run, 1)[0], deny)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		o := shown(t, w, run, 2)
		equal(t, "kind", o.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL)
		equal(t, "reason", o.GetReason(), runnerdv1.CallReason_CALL_REASON_REJECTED_BY_APPROVER)
		equal(t, "call", o.GetCallId()+" "+o.GetProviderCallId(), "1.1 c1")
	})

	t.Run("E-46 a denial and a timeout are told alike, and told apart by via", func(t *testing.T) {
		t.Parallel()
		told := func(vote bool) (o *runnerdv1.Observation, via runnerdv1.Via) {
			run := w.play(t, "std", asking(), patient(time.Second))
			if vote {
				w.vote(t, w.open(t, run, 1)[0], deny)
			}
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			return shown(t, w, run, 2), w.UntilType(t, run, "tool_call_denied").GetToolCallDenied().GetResolution().GetVia()
		}
		byPerson, human := told(true)
		byClock, timeout := told(false)
		equal(t, "kind", byClock.GetKind(), byPerson.GetKind())
		equal(t, "of a person", human, runnerdv1.Via_VIA_HUMAN)
		equal(t, "of the clock", timeout, runnerdv1.Via_VIA_TIMEOUT)
		has(t, byPerson.GetText(), "not run")
		has(t, byClock.GetText(), "not run")
	})

	t.Run("T-110 what model and host say stands apart from what will run", func(t *testing.T) {
		t.Parallel()
		const args = `{"site":"prod","password":"hunter2hunter2"}`
		lie := "I only look around. password=hunter2hunter2 " + strings.Repeat("ü", 600)
		decision := harness.Calls("deploy_site", args)
		decision.Text = lie
		run := w.play(t, "std", harness.Steps(decision, harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		equal(t, "arguments", a.GetArgumentsJson(), args)
		equal(t, "characters of the model", utf8.RuneCountInString(a.GetModelText()), 500)
		has(t, a.GetModelText(), "I only look around. password=")
		if strings.Contains(a.GetModelText(), "hunter2") {
			t.Errorf("the model's words show a secret: %q", a.GetModelText())
		}
		equal(t, "the host", a.GetHostText(), "the tool deploy_site")
		equal(t, "gate and layer", a.GetGate()+" "+a.GetLayer(), "approval_for agent")
		equal(t, "tier", a.GetTier(), 3)
		w.vote(t, a, deny)
		w.Done(t, run)
		closed := w.approval(t, run, a.GetApprovalId())
		equal(t, "words, later", closed.GetModelText()+closed.GetHostText(), a.GetModelText()+a.GetHostText())
		equal(t, "gate, layer, tier, later", fmt.Sprint(closed.GetGate(), closed.GetLayer(), closed.GetTier()), fmt.Sprint(a.GetGate(), a.GetLayer(), a.GetTier()))
		equal(t, "grants of what is closed", len(closed.GetPossibleGrants()), 0)
	})

	t.Run("A5 what is put where nobody looks is in the exact arguments", func(t *testing.T) {
		t.Parallel()
		for _, at := range []int{500, 4096, 65536} {
			args := `{"a":"` + strings.Repeat("x", at) + `","evil":"rm -rf /"}`
			run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", args), harness.Answer("done")))
			a := w.open(t, run, 1)[0]
			has(t, a.GetArgumentsJson(), "rm -rf /")
			equal(t, "cut", a.GetArgumentsCut(), len(args) > 4096)
			equal(t, "whole", w.approval(t, run, a.GetApprovalId()).GetArgumentsJson() == args, true)
			w.vote(t, a, deny)
			w.Done(t, run)
		}
	})
}

// TestParallelCallsOneAsked plays four calls of which two are asked for, with a restart between the verdicts.
func TestParallelCallsOneAsked(t *testing.T) {
	t.Parallel()
	w := own(t)
	t.Run("CASE-19 each of the calls has one outcome, and none runs twice", func(t *testing.T) {
		run := w.play(t, "std", harness.Steps(
			harness.Calls("look", `{"n":"a"}`, "deploy_site", `{"n":"b"}`, "look", `{"n":"c"}`, "deploy_site", `{"n":"d"}`), harness.Answer("done")))
		w.Until(t, run, "the first reader", func(ev *runnerdv1.Event) bool { return ev.GetToolCallCompleted().GetCallId() == "1.1" })
		asks := w.open(t, run, 2)
		equal(t, "asked", asks[0].GetCallId()+" "+asks[1].GetCallId(), "1.2 1.4")
		w.vote(t, asks[1], approve)
		equal(t, "state", w.Idle(t, run).GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
		w.Kill()
		w.Restart(t)
		equal(t, "Decides before all have an outcome", len(w.brain.Requests(run)), 1)
		w.vote(t, asks[1], approve) // says the same again
		w.refused(t, asks[1], deny, "ALREADY_RESOLVED")
		w.vote(t, asks[0], deny)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		if got, want := w.sent(run), []string{`{"n":"a"}`, `{"n":"c"}`, `{"n":"d"}`}; !slices.Equal(got, want) {
			t.Errorf("sent are %q, want %q", got, want)
		}
		var outcomes []string
		for _, e := range w.brain.Requests(run)[1].GetHistory()[1:] {
			o := e.GetObservation()
			outcomes = append(outcomes, o.GetCallId()+" "+strings.TrimPrefix(o.GetKind().String(), "OBSERVATION_KIND_"))
		}
		if want := []string{"1.1 TOOL_RESULT", "1.2 DENIAL", "1.3 TOOL_RESULT", "1.4 TOOL_RESULT"}; !slices.Equal(outcomes, want) {
			t.Errorf("the model is shown %q, want %q", outcomes, want)
		}
	})
}
