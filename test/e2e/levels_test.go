package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// looks is a decision to look that costs so much.
func looks(cents float64) *runnerdv1.Decision {
	return harness.Costing(harness.Calls("look", "{}"), cents, 1, 1)
}

// levels are the levels of the cost cap that a run was warned of, in order.
func levels(events []*runnerdv1.Event) string {
	var list []string
	for _, ev := range harness.Only(events, "budget_warning") {
		if w := ev.GetBudgetWarning(); w.GetKind() == runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_LEVEL {
			list = append(list, fmt.Sprint(w.GetLevel()))
		}
	}
	return strings.Join(list, " ")
}

// budgetAsked is the question of a run about its budget, once it is asked.
func (w *world) budgetAsked(t *testing.T, run string) *runnerdv1.Approval {
	t.Helper()
	a := w.open(t, run, 1)[0]
	equal(t, "kind", a.GetKind(), runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET)
	equal(t, "state", w.Run(t, run).GetState(), runnerdv1.RunState_RUN_STATE_WAITING_APPROVAL)
	return a
}

func TestBudgetLevels(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("T-13 T-46 each run gives its own warnings, once", func(t *testing.T) {
		t.Parallel()
		steps := []any{looks(60)}
		for range 9 {
			steps = append(steps, looks(0))
		}
		script := harness.Steps(append(steps, harness.Answer("done"))...)
		one, two := w.play(t, "std", script), w.play(t, "std", harness.Steps(append(steps, harness.Answer("done"))...))
		for _, run := range []string{one, two} {
			equal(t, "warned", fmt.Sprint(w.Done(t, run).GetWarnedLevels()), "[50]")
			equal(t, "levels", levels(w.Events(t, run)), "50")
		}
	})

	t.Run("T-46 levels are given once over restarts and raised caps", func(t *testing.T) {
		t.Parallel()
		w := own(t)
		g := newGate()
		run := w.play(t, "wide", harness.Steps(looks(85), looks(20), harness.Answer("done")), calls(g.slow("ok")))
		g.await(t)
		w.Kill()
		w.Restart(t)
		g.open()
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_MAX_COST, "failed:budget_exceeded")
		if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
			RunId: run, Budget: &runnerdv1.Budget{MaxCostCents: proto.Float64(110)},
		}); err != nil {
			t.Fatal(err)
		}
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "levels", levels(w.Events(t, run)), "50 80 90 100")
		w.Check(t, run)
	})

	t.Run("T-39 T-48 T-53 a jump over the cap gives all warnings, then the end", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", costly(150))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_MAX_COST, "failed:budget_exceeded")
		events := w.Events(t, run)
		equal(t, "levels", levels(events), "50 80 90 100")
		order(t, events, "decision_made", "budget_warning", "budget_read_only_suggested", "run_failed")
		equal(t, "questions without confirm_at_90", harness.Count(events, "budget_confirmation_requested"), 0)
	})

	t.Run("T-45 T-47 a warning has level, percent, cost and cap", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "wide", costly(100), cents(200))
		w.Done(t, run)
		warning := w.UntilType(t, run, "budget_warning").GetBudgetWarning()
		equal(t, "level", warning.GetLevel(), 50)
		equal(t, "percent", warning.GetPercent(), 50)
		equal(t, "cost", warning.GetCostCents(), 100)
		equal(t, "nanocents", warning.GetCostNanocents(), 100_000_000_000)
		equal(t, "cap", warning.GetMaxCostCents(), 200)
		none := w.play(t, "std", costly(0.1), cents(0))
		w.Done(t, none)
		equal(t, "warnings of a cap of 0", levels(w.Events(t, none)), "")
	})

	t.Run("T-49 T-47 nothing starts before the verdict, and yes goes on", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "confirms", harness.Steps(looks(92.5), looks(3), harness.Answer("done")))
		a := w.budgetAsked(t, run)
		equal(t, "level", a.GetBudget().GetLevel(), 90)
		equal(t, "percent", a.GetBudget().GetPercent(), 92.5)
		equal(t, "cost", a.GetBudget().GetCostNanocents(), 92_500_000_000)
		equal(t, "cap", a.GetBudget().GetMaxCostCents(), 100)
		equal(t, "rule", a.GetRule(), "confirm_at_90")
		order(t, w.Events(t, run), "budget_warning", "budget_confirmation_requested")
		equal(t, "calls that were sent", len(w.hands.Calls(run)), 0)
		w.refused(t, otherDigest(a), approve, "DIGEST_MISMATCH")
		_, err := w.submit(t, a, settle)
		harness.Code(t, err, codes.InvalidArgument, "VERDICT_NOT_POSSIBLE")
		closed := w.vote(t, a, approve)
		equal(t, "via", closed.GetVia(), runnerdv1.Via_VIA_HUMAN)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "the same verdict again", w.vote(t, a, approve).GetVerdict(), approve)
		w.refused(t, a, deny, "RUN_ENDED")
		events := w.Events(t, run)
		equal(t, "questions", harness.Count(events, "budget_confirmation_requested"), 1)
		if p := harness.Only(events, "budget_prompt")[0].GetBudgetPrompt(); !p.GetApproved() || p.GetResolution().GetApprovalId() != a.GetApprovalId() {
			t.Errorf("the verdict is recorded as %v", p)
		}
		got, err := w.Runs.GetApproval(harness.Context(t), &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: a.GetApprovalId()})
		if err != nil || got.GetApproval().GetVerdict() != approve || got.GetApproval().GetBudget().GetPercent() != 92.5 {
			t.Errorf("GetApproval gives %v, %v", got, err)
		}
	})

	t.Run("T-49 T-52 all levels are recorded before the question, and no ends the run", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "confirms", harness.Steps(looks(100), harness.Answer("done")))
		a := w.budgetAsked(t, run)
		equal(t, "levels", levels(w.Events(t, run)), "50 80 90 100")
		w.vote(t, a, deny)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED, "failed:system")
		events := w.Events(t, run)
		order(t, events, "budget_read_only_suggested", "budget_confirmation_requested", "budget_prompt", "tool_call_blocked", "run_failed")
		equal(t, "calls that were sent", len(w.hands.Calls(run)), 0)
		_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run})
		harness.Code(t, err, codes.FailedPrecondition, "RUN_ENDED")
	})

	t.Run("T-49 nobody answers in time", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "confirms", harness.Steps(looks(90), harness.Answer("done")), patient(time.Second))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED, "failed:system")
		prompt := w.UntilType(t, run, "budget_prompt").GetBudgetPrompt()
		equal(t, "via", prompt.GetResolution().GetVia(), runnerdv1.Via_VIA_TIMEOUT)
	})

	t.Run("T-49 paused, over a restart", func(t *testing.T) {
		t.Parallel()
		w := own(t)
		run := w.play(t, "confirms", harness.Steps(looks(90), harness.Answer("done")), mode(pauseMode))
		equal(t, "state", w.Idle(t, run).GetState(), runnerdv1.RunState_RUN_STATE_PAUSED)
		w.Kill()
		w.Restart(t)
		_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run})
		harness.Code(t, err, codes.FailedPrecondition, "APPROVAL_OPEN")
		w.vote(t, w.open(t, run, 1)[0], approve)
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		w.Check(t, run)
	})

	t.Run("T-49 an answer that ends the run is not held up", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "confirms", costly(95))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "questions", harness.Count(w.Events(t, run), "budget_confirmation_requested"), 0)
	})

	t.Run("T-50 without confirm_at_90 a run passes 90 percent with a warning; mode deny says no", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(looks(95), harness.Answer("done")), mode(denyMode))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "levels", levels(w.Events(t, run)), "50 80 90")
		nobody := w.play(t, "confirms", harness.Steps(looks(95), harness.Answer("done")), mode(denyMode))
		ended(t, w.Done(t, nobody), runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED, "failed:system")
		equal(t, "questions", harness.Count(w.Events(t, nobody), "budget_confirmation_requested"), 0)
	})

	t.Run("T-48 T-51 at the cap read-only is suggested once, and nothing is switched", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Costing(harness.Calls("charge", "{}"), 100, 1, 1), harness.Costing(harness.Calls("charge", "{}"), 0, 1, 1), harness.Answer("done")))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		events := w.Events(t, run)
		suggested := harness.Only(events, "budget_read_only_suggested")
		equal(t, "suggestions", len(suggested), 1)
		equal(t, "percent", suggested[0].GetBudgetReadOnlySuggested().GetPercent(), 100)
		equal(t, "calls", len(w.hands.Calls(run)), 2)
		early := w.play(t, "std", harness.Steps(looks(80), harness.Answer("done")))
		w.Done(t, early)
		equal(t, "levels at 80", levels(w.Events(t, early)), "50 80")
		equal(t, "suggestions at 80", harness.Count(w.Events(t, early), "budget_read_only_suggested"), 0)
	})

	t.Run("A-38 refusals have a counter of their own", func(t *testing.T) {
		t.Parallel()
		limit := budget(&runnerdv1.Budget{MaxConsecutiveRefusals: proto.Uint32(3)})
		run := w.play(t, "std", harness.Forever(harness.Calls("deploy_site", "{}")), mode(denyMode), limit)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_FAILURES, "failed:model_logic")
		equal(t, "refusals", got.GetConsecutiveRefusals(), 3)
		equal(t, "failures", got.GetConsecutiveFailures(), 0)
		has(t, got.GetErrorMessage(), "3 refused calls in a row")
		if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run}); err != nil {
			t.Fatal(err)
		}
		equal(t, "iterations after a resume", w.Done(t, run).GetIteration(), 6)
		reset := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}", "deploy_site", "{}", "look", "{}"),
			harness.Calls("deploy_site", "{}", "deploy_site", "{}"), harness.Answer("done")), mode(denyMode), limit)
		ended(t, w.Done(t, reset), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})
}

func TestContext(t *testing.T) {
	t.Parallel()
	w := shared(t)
	reads := func(tokens int64) *runnerdv1.Decision {
		return harness.Costing(harness.Calls("look", "{}"), 0, tokens-1, 1)
	}

	t.Run("T-160 the model is told once", func(t *testing.T) {
		t.Parallel()
		script := func() harness.Step {
			return harness.Steps(reads(119_999), reads(120_000), reads(150_000), harness.Answer("done"))
		}
		run := w.play(t, "std", script())
		w.Done(t, run)
		warned := harness.Only(w.Events(t, run), "context_warning")
		equal(t, "warnings", len(warned), 1)
		equal(t, "iteration", warned[0].GetIteration(), 2)
		equal(t, "tokens", warned[0].GetContextWarning().GetTokens(), 120_000)
		history := w.brain.Requests(run)[2].GetHistory()
		note := history[len(history)-1].GetObservation()
		equal(t, "kind", note.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE)
		has(t, note.GetText(), "120000 of 200000")
		last := w.brain.Requests(run)[3].GetHistory()
		notes := slices.DeleteFunc(slices.Clone(last), func(e *runnerdv1.HistoryEntry) bool {
			return e.GetObservation().GetKind() != runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE
		})
		equal(t, "notes", len(notes), 1)
		off := w.play(t, "unwarned", script())
		w.Done(t, off)
		equal(t, "warnings where they are off", harness.Count(w.Events(t, off), "context_warning"), 0)
	})

	t.Run("T-161 GetRun shows the zone", func(t *testing.T) {
		t.Parallel()
		for tokens, zone := range map[int64]runnerdv1.ContextZone{
			149_999: runnerdv1.ContextZone_CONTEXT_ZONE_GREEN, 150_000: runnerdv1.ContextZone_CONTEXT_ZONE_YELLOW,
			183_999: runnerdv1.ContextZone_CONTEXT_ZONE_YELLOW, 184_000: runnerdv1.ContextZone_CONTEXT_ZONE_RED,
		} {
			got := w.Done(t, w.play(t, "std", harness.Steps(harness.Costing(harness.Answer("done"), 0, tokens-1, 1))))
			equal(t, "zone", got.GetContextZone(), zone)
			equal(t, "tokens", got.GetContextTokens(), tokens)
		}
	})

	t.Run("A-28 a request over the context ends the run before an iteration", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Answer("done")), budget(&runnerdv1.Budget{MaxContextTokens: proto.Uint32(10)}))
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT, "failed:budget_exceeded")
		equal(t, "iterations", got.GetIteration(), 0)
		equal(t, "Decides", len(w.brain.Requests(run)), 0)
		_, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run})
		harness.Code(t, err, codes.FailedPrecondition, "LIMIT_STILL_REACHED")
		if _, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{
			RunId: run, Budget: &runnerdv1.Budget{MaxContextTokens: proto.Uint32(200_000)},
		}); err != nil {
			t.Fatal(err)
		}
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		grown := w.play(t, "std", harness.Forever(harness.Calls("look", "{}")), calls(harness.Result(strings.Repeat("x", 6000))),
			budget(&runnerdv1.Budget{MaxContextTokens: proto.Uint32(4000)}))
		got = w.Done(t, grown)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT, "failed:budget_exceeded")
		equal(t, "iterations", got.GetIteration(), 3)
	})
}
