package e2e

import (
	"fmt"
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

func cents(c float64) with { return budget(&runnerdv1.Budget{MaxCostCents: new(c)}) }

// costly is a script of one answer that costs so much.
func costly(c float64) harness.Step {
	return harness.Steps(harness.Costing(harness.Answer("done"), c, 1, 1))
}

func TestBudget(t *testing.T) {
	t.Parallel()
	w := shared(t)
	resume := func(run string, b *runnerdv1.Budget) (*runnerdv1.Run, error) {
		answer, err := w.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run, Budget: b})
		return answer.GetRun(), err
	}

	t.Run("T-10 max_iterations ends the run without one more iteration", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Forever(harness.Calls("look", "{}")), budget(&runnerdv1.Budget{MaxIterations: proto.Uint32(2)}))
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS, "failed:model_logic")
		has(t, got.GetErrorMessage(), "iteration budget", "2 of 2")
		equal(t, "iteration_started events", harness.Count(w.Events(t, run), "iteration_started"), 2)
		equal(t, "Decides", len(w.brain.Requests(run)), 2)
		equal(t, "iterations left at the second", w.brain.Requests(run)[1].GetBudgetLeft().GetIterations(), 1)
	})

	t.Run("T-31 a budget out of bounds, or wider than the agent's, is refused by name", func(t *testing.T) {
		t.Parallel()
		for field, b := range map[string]*runnerdv1.Budget{
			"budget.max_iterations":           {MaxIterations: proto.Uint32(0)},
			"budget.max_cost_cents":           {MaxCostCents: proto.Float64(-1)},
			"budget.max_tool_calls":           {MaxToolCalls: proto.Uint32(1_000_001)},
			"budget.max_duration":             {MaxDuration: durationpb.New(-time.Second)},
			"budget.max_consecutive_failures": {MaxConsecutiveFailures: proto.Uint32(1_000_001)},
			"budget.max_consecutive_refusals": {MaxConsecutiveRefusals: proto.Uint32(1_000_001)},
			"budget.max_context_tokens":       {MaxContextTokens: proto.Uint32(0)},
		} {
			w.refuses(t, b, "INVALID_REQUEST", field)
		}
		for field, b := range map[string]*runnerdv1.Budget{
			"budget.max_iterations":           {MaxIterations: proto.Uint32(26)},
			"budget.max_cost_cents":           {MaxCostCents: new(100.01)},
			"budget.max_tool_calls":           {MaxToolCalls: proto.Uint32(26)},
			"budget.max_consecutive_failures": {MaxConsecutiveFailures: proto.Uint32(0)}, // off is the widest
			"budget.max_consecutive_refusals": {MaxConsecutiveRefusals: proto.Uint32(0)},
			"budget.max_context_tokens":       {MaxContextTokens: proto.Uint32(200_001)},
		} {
			w.refuses(t, b, "BUDGET_TOO_WIDE", field)
		}
		narrow := &runnerdv1.Budget{MaxIterations: proto.Uint32(3), MaxToolCalls: proto.Uint32(0), MaxCostCents: proto.Float64(0)}
		run := w.play(t, "std", harness.Steps(harness.Answer("done")), budget(narrow))
		got := w.Done(t, run).GetSpec().GetBudget()
		if got.GetMaxIterations() != 3 || got.GetMaxToolCalls() != 0 || got.GetMaxCostCents() != 0 || got.GetMaxConsecutiveFailures() != 5 {
			t.Errorf("effective budget is %v", got)
		}
	})

	t.Run("T-32 only strictly over the cap, before and after a Decide", func(t *testing.T) {
		t.Parallel()
		ended(t, w.Done(t, w.play(t, "std", costly(100))), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		over := w.play(t, "std", costly(100.000000001))
		got := w.Done(t, over)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_COST, "failed:budget_exceeded")
		equal(t, "answer kept for the record", w.UntilType(t, over, "run_failed").GetRunFailed().GetAnswer().GetContent(), "done")
		calling := w.play(t, "std", harness.Forever(harness.Costing(harness.Calls("charge", "{}"), 60, 1, 1)))
		ended(t, w.Done(t, calling), runnerdv1.StopReason_STOP_REASON_MAX_COST, "failed:budget_exceeded")
		equal(t, "calls of the decision that went over", len(w.hands.Calls(calling)), 1)
		blocked := harness.Only(w.Events(t, calling), "tool_call_blocked")[0].GetToolCallBlocked()
		equal(t, "what became of its call", blocked.GetReason(), runnerdv1.CallReason_CALL_REASON_RUN_ENDING)
	})

	t.Run("T-33 a cap of 0 allows no cost, and a wide one any", func(t *testing.T) {
		t.Parallel()
		ended(t, w.Done(t, w.play(t, "std", costly(0.1), cents(0))), runnerdv1.StopReason_STOP_REASON_MAX_COST, "failed:budget_exceeded")
		ended(t, w.Done(t, w.play(t, "std", costly(0), cents(0))), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		ended(t, w.Done(t, w.play(t, "wide", costly(1e9), cents(1e9))), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	})

	t.Run("T-34 calls within the limit run, the rest is blocked, then the run ends", func(t *testing.T) {
		t.Parallel()
		limit := budget(&runnerdv1.Budget{MaxToolCalls: proto.Uint32(2)})
		within := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Calls("look", "{}"), harness.Answer("done")), limit)
		ended(t, w.Done(t, within), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		beyond := w.play(t, "std", harness.Steps(harness.Calls("put", "{}", "put", "{}", "put", "{}", "look", "{}")), limit)
		got := w.Done(t, beyond)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS, "failed:budget_exceeded")
		events := w.Events(t, beyond)
		equal(t, "starts", harness.Count(events, "tool_call_started"), 2)
		equal(t, "completed", harness.Count(events, "tool_call_completed"), 2)
		blocked := harness.Only(events, "tool_call_blocked")
		equal(t, "blocked", len(blocked), 2)
		equal(t, "reason", blocked[0].GetToolCallBlocked().GetReason(), runnerdv1.CallReason_CALL_REASON_TOOL_BUDGET)
		none := w.play(t, "std", harness.Steps(harness.Calls("look", "{}")), budget(&runnerdv1.Budget{MaxToolCalls: proto.Uint32(0)}))
		ended(t, w.Done(t, none), runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS, "failed:budget_exceeded")
		equal(t, "calls where none is allowed", len(w.hands.Calls(none)), 0)
	})

	t.Run("T-35 what counts as a call", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(
			harness.Calls("charge", "{}", "nothing", "{}", "book", "{}", "deploy_site", "{}"), harness.Answer("done")),
			mode(denyMode), calls(harness.ToolError("no")))
		equal(t, "calls, of one that failed and three that were refused", w.Done(t, run).GetToolCalls(), 1)
		attempts := w.play(t, "std", harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), calls(
			func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				if req.GetAttempt() == 1 {
					return refuse(codes.Unavailable)(req, s)
				}
				return &runnerdv1.ToolResult{Text: "ok"}, nil
			}))
		equal(t, "calls, of one that took two attempts", w.Done(t, attempts).GetToolCalls(), 1)
		equal(t, "attempts", len(w.hands.Calls(attempts)), 2)
		imported := w.play(t, "std", harness.Steps(harness.Calls("look", "{}")), func(_ *world, req *runnerdv1.StartRunRequest) {
			req.Budget = &runnerdv1.Budget{MaxToolCalls: proto.Uint32(3)}
			for _, kind := range []runnerdv1.ObservationKind{
				runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT,
				runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR, runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE,
			} {
				req.InitialObservations = append(req.InitialObservations, &runnerdv1.InitialObservation{Kind: kind, Text: "x"})
			}
		})
		got := w.Done(t, imported)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS, "failed:budget_exceeded")
		equal(t, "calls, of three observations of tools and a note", got.GetToolCalls(), 3)
	})

	t.Run("T-36 cost and calls are of one category, iterations of another", func(t *testing.T) {
		t.Parallel()
		for name, want := range map[string]runnerdv1.Category{
			"MAX_COST": runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED, "MAX_TOOL_CALLS": runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED,
			"MAX_ITERATIONS": runnerdv1.Category_CATEGORY_MODEL_LOGIC,
		} {
			run := endings[name].play(t, w)
			equal(t, name, w.Run(t, run).GetCategory(), want)
			equal(t, name+" in the log", w.UntilType(t, run, "run_failed").GetRunFailed().GetCategory(), want)
		}
	})

	t.Run("A-25 A-38 failures count in a row, and a completed call resets them", func(t *testing.T) {
		t.Parallel()
		fails := func(n int) []any {
			var steps []any
			for range n {
				steps = append(steps, harness.Calls("charge", "{}"))
			}
			return steps
		}
		handler := calls(byTool(map[string]harness.Handler{"charge": harness.ToolError("no")}))
		mixed := append(append(fails(4), harness.Calls("look", "{}")), append(fails(4), harness.Answer("done"))...)
		got := w.Done(t, w.play(t, "std", harness.Steps(mixed...), handler))
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "failures in a row", got.GetConsecutiveFailures(), 4)
		five := w.Done(t, w.play(t, "std", harness.Steps(fails(6)...), handler))
		ended(t, five, runnerdv1.StopReason_STOP_REASON_MAX_FAILURES, "failed:model_logic")
		equal(t, "iterations", five.GetIteration(), 5)
		// Refusals are no failures.
		denials := w.play(t, "std", harness.Steps(
			harness.Calls("deploy_site", "{}", "deploy_site", "{}", "deploy_site", "{}", "deploy_site", "{}", "deploy_site", "{}"),
			harness.Answer("done")), mode(denyMode))
		got = w.Done(t, denials)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "failures in a row after five denials", got.GetConsecutiveFailures(), 0)
	})

	t.Run("A-25 A-30 max_duration cuts a Decide that hangs", func(t *testing.T) {
		t.Parallel()
		begin := time.Now()
		run := w.play(t, "timed", harness.Hang)
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_DURATION, "failed:budget_exceeded")
		if took := time.Since(begin); took < time.Second || took > 5*time.Second {
			t.Errorf("it took %s, the limit is 1 s", took)
		}
		harness.Eventually(t, "the stream of the Decide is cancelled", func() bool { return w.brain.InFlight(run) == 0 })
		if ran := got.GetRunningTime().AsDuration(); ran < time.Second || ran > 3*time.Second {
			t.Errorf("running time is %s", ran)
		}
	})

	t.Run("E-20 several limits at once: the first of the list wins", func(t *testing.T) {
		t.Parallel()
		// One decision that fails, costs too much and is the last: its iteration, its cost, its context, its failures.
		bad := harness.Forever(harness.Costing(harness.Calls("nothing", "{}"), 2, 1, 1))
		var first, none uint32 // tokens of the first request
		small := w.Done(t, w.play(t, "std", bad, budget(&runnerdv1.Budget{MaxContextTokens: proto.Uint32(1)}))).GetErrorMessage()
		_, numbers, _ := strings.Cut(small, "about ")
		if _, err := fmt.Sscanf(numbers, "%d tokens of %d", &first, &none); err != nil {
			t.Fatalf("%q: %v", small, err)
		}
		first += 15
		limits := func(iterations uint32, cost float64, context uint32) with {
			return budget(&runnerdv1.Budget{
				MaxIterations: new(iterations), MaxCostCents: new(cost), MaxConsecutiveFailures: proto.Uint32(1),
				MaxContextTokens: new(context),
			})
		}
		for reason, limit := range map[runnerdv1.StopReason]with{
			runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS: limits(1, 1, first),
			runnerdv1.StopReason_STOP_REASON_MAX_COST:       limits(2, 1, first),
			runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT:    limits(2, 2, first),
			runnerdv1.StopReason_STOP_REASON_MAX_FAILURES:   limits(2, 2, 200_000),
		} {
			equal(t, "stop reason", w.Done(t, w.play(t, "std", bad, limit)).GetStopReason(), reason)
		}
	})

	t.Run("E-22 a tool in progress finishes first, and time counts over all legs", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "timed", harness.Steps(harness.Calls("charge", "{}"), harness.Step(harness.Hang)), calls(
			func(_ *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				select {
				case <-time.After(1500 * time.Millisecond): // longer than the limit
				case <-s.Context().Done():
				}
				return &runnerdv1.ToolResult{Text: "paid"}, s.Context().Err()
			}))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_MAX_DURATION, "failed:budget_exceeded")
		order(t, w.Events(t, run), "tool_call_completed", "run_failed")
		_, err := resume(run, nil)
		harness.Code(t, err, codes.FailedPrecondition, "LIMIT_STILL_REACHED")
		if _, err = resume(run, &runnerdv1.Budget{MaxDuration: durationpb.New(2500 * time.Millisecond)}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		got := w.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_MAX_DURATION, "failed:budget_exceeded")
		if took := time.Since(begin); took > 2*time.Second {
			t.Errorf("the second leg took %s; only what the first left over was its", took)
		}
	})

	t.Run("E-22 a limit in a request replaces the agent's as a whole", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "timed", harness.Steps(harness.Answer("done")), budget(&runnerdv1.Budget{MaxDuration: durationpb.New(500 * time.Millisecond)}))
		equal(t, "max_duration", fmt.Sprint(w.Done(t, run).GetSpec().GetBudget().GetMaxDuration().AsDuration()), "500ms")
	})

	t.Run("E-23 a limit ends a run INCOMPLETE, and more lets it go on", func(t *testing.T) {
		t.Parallel()
		answer := harness.Answer("done")
		for name, c := range map[string]struct {
			limit, more *runnerdv1.Budget
			script      []any
		}{
			"MAX_ITERATIONS": {
				&runnerdv1.Budget{MaxIterations: proto.Uint32(1)}, &runnerdv1.Budget{MaxIterations: proto.Uint32(2)},
				[]any{harness.Calls("look", "{}"), answer},
			},
			"MAX_TOOL_CALLS": {
				&runnerdv1.Budget{MaxToolCalls: proto.Uint32(1)}, &runnerdv1.Budget{MaxToolCalls: proto.Uint32(5)},
				[]any{harness.Calls("put", "{}", "put", "{}"), harness.Calls("put", "{}"), answer},
			},
			"MAX_COST": {
				&runnerdv1.Budget{MaxCostCents: proto.Float64(1)}, &runnerdv1.Budget{MaxCostCents: proto.Float64(10)},
				[]any{harness.Costing(harness.Calls("look", "{}"), 2, 1, 1), answer},
			},
		} {
			run := w.play(t, "std", harness.Steps(c.script...), budget(c.limit))
			got := w.Done(t, run)
			equal(t, name+": outcome", got.GetOutcome(), runnerdv1.Outcome_OUTCOME_INCOMPLETE)
			equal(t, name+": stop reason", got.GetStopReason().String(), "STOP_REASON_"+name)
			if got.GetHint() == "" {
				t.Errorf("%s: there is no hint", name)
			}
			_, err := resume(run, nil)
			harness.Code(t, err, codes.FailedPrecondition, "LIMIT_STILL_REACHED")
			_, err = resume(run, &runnerdv1.Budget{MaxIterations: proto.Uint32(1000)})
			harness.Code(t, err, codes.InvalidArgument, "BUDGET_TOO_WIDE")
			if _, err := resume(run, c.more); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			order(t, w.Events(t, run), "run_failed", "run_resumed", "iteration_started", "run_completed")
		}
		live := w.play(t, "std", harness.Steps(harness.Ask("well?"), answer))
		w.Idle(t, live)
		_, err := resume(live, &runnerdv1.Budget{MaxIterations: proto.Uint32(5)})
		harness.Code(t, err, codes.FailedPrecondition, "RUN_ACTIVE")
		_, err = resume(w.playAnswer(t), nil)
		harness.Code(t, err, codes.FailedPrecondition, "RUN_ENDED")
	})
}

// refuses checks that a budget is refused because of a field, and that nothing is recorded.
func (w *world) refuses(t *testing.T, b *runnerdv1.Budget, reason, field string) {
	t.Helper()
	id := w.RunID(t)
	_, err := w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{RunId: id, Agent: "std", Budget: b})
	harness.Code(t, err, codes.InvalidArgument, reason)
	if !slices.Contains(harness.Fields(err), field) {
		t.Errorf("%v objects to %q, want %q", b, harness.Fields(err), field)
	}
	_, err = w.Runs.GetRun(harness.Context(t), &runnerdv1.GetRunRequest{RunId: id})
	harness.Code(t, err, codes.NotFound, "RUN_NOT_FOUND")
}

// playAnswer plays a run that ended well.
func (w *world) playAnswer(t *testing.T) string {
	t.Helper()
	run := w.play(t, "std", harness.Steps(harness.Answer("done")))
	w.Done(t, run)
	return run
}
