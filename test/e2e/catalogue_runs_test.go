package e2e

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestCatalogueRateLimit(t *testing.T) {
	t.Parallel()
	c := newCatalogue(t, map[string][]*runnerdv1.ToolDefinition{"rated": {described("ping"), described("free")}}, "rated: rated")
	c.cfg.ToolHosts["rated"].Tools = map[string]*configv1.Tool{"ping": {RateLimit: &configv1.RateLimit{Calls: 2}}}
	c.serve(t)
	t.Run("T-137 the third call of two in a minute fails, also after a restart, and the run goes on", func(t *testing.T) {
		run := c.play(t, "rated", harness.Steps(
			harness.Calls("ping", "{}", "ping", "{}", "ping", "{}", "free", "{}"), harness.Ask("go on?"),
			harness.Calls("ping", "{}", "free", "{}"), harness.Answer("done")))
		c.Idle(t, run)
		c.Kill()
		c.Restart(t)
		c.Input(t, run, "yes")
		got := c.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		same(t, "outcomes", reasons(c.Events(t, run)), []string{
			"1.1 completed", "1.2 completed", "1.3 failed RATE_LIMITED", "1.4 completed", "3.1 failed RATE_LIMITED", "3.2 completed",
		})
		equal(t, "tool calls counted", got.GetToolCalls(), 4)
		equal(t, "calls that reached the host", len(c.hosts["rated"].Calls(run)), 4)
		for _, ev := range c.Events(t, run) {
			if f := ev.GetToolCallFailed(); f != nil {
				equal(t, "attempt", f.GetAttempt(), 0)
				has(t, f.GetMessage(), `at most 2 calls of "ping" may start within 1m0s; it may be called again in `)
			}
		}
		limit := c.UntilType(t, run, "tool_call_requested").GetToolCallRequested().GetRateLimit()
		if limit.GetMaxCalls() != 2 || limit.GetPer().AsDuration() != time.Minute {
			t.Errorf("the call was requested with the limit %v", limit)
		}
	})
	t.Run("T-137 the limit is of one run", func(t *testing.T) {
		run := c.play(t, "rated", harness.Steps(harness.Calls("ping", "{}", "ping", "{}"), harness.Answer("done")))
		c.Done(t, run)
		same(t, "outcomes", reasons(c.Events(t, run)), []string{"1.1 completed", "1.2 completed"})
	})
}

func TestCatalogueChanges(t *testing.T) {
	t.Parallel()
	c := newCatalogue(t, map[string][]*runnerdv1.ToolDefinition{
		"changing": {described("send"), described("other")}, "needed": {described("need")},
	}, "changing: changing", "asks-changing: changing", "needs: needed")
	c.cfg.Agents["asks-changing"].Policy.ApprovalFor = []string{"send"}
	c.cfg.ToolHosts["needed"].Required = true
	c.serve(t)
	changed := func(text string) *runnerdv1.ToolDefinition {
		d := described("send")
		d.Description = text
		return d
	}
	t.Run("T-134 a tool that changes in a run is blocked, and no other", func(t *testing.T) {
		host := c.hosts["changing"]
		run := c.play(t, "changing", harness.Steps(
			harness.Calls("send", "{}"), harness.Ask("go on?"), harness.Calls("send", "{}", "other", "{}"), harness.Answer("done")))
		c.Idle(t, run)
		host.Offer(changed("sends it, and a copy to me"), described("other"))
		c.Input(t, run, "yes")
		ended(t, c.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		same(t, "outcomes", reasons(c.Events(t, run)), []string{"1.1 completed", "3.1 blocked TOOL_CHANGED", "3.2 completed"})
		blocked := c.UntilType(t, run, "tool_call_blocked").GetToolCallBlocked()
		equal(t, "gate and rule", blocked.GetGate()+"/"+blocked.GetRule(), "catalogue/tool_changed")
		for _, req := range c.brain.Requests(run) {
			equal(t, "description shown to Decide", req.GetTools()[0].GetDescription(), "the tool send")
		}
		fresh := c.play(t, "changing", harness.Steps(harness.Calls("send", "{}"), harness.Answer("done")))
		c.Done(t, fresh)
		same(t, "outcomes of a new run", reasons(c.Events(t, fresh)), []string{"1.1 completed"})
		equal(t, "description shown to a new run", c.brain.Requests(fresh)[0].GetTools()[0].GetDescription(), "sends it, and a copy to me")
		first, second := host.Calls(run)[0].Request, host.Calls(fresh)[0].Request
		if first.GetSchemaDigest() == "" || first.GetSchemaDigest() == second.GetSchemaDigest() {
			t.Errorf("the calls name the digests %q and %q", first.GetSchemaDigest(), second.GetSchemaDigest())
		}
	})
	t.Run("T-134 a person cannot approve a tool that has changed since it was asked for", func(t *testing.T) {
		host := c.hosts["changing"]
		host.Offer(changed("sends it"))
		run := c.play(t, "asks-changing", harness.Steps(harness.Calls("send", "{}"), harness.Answer("done")))
		open := c.Idle(t, run).GetApprovals()[0]
		host.Offer() // it is not even listed any more
		_, err := c.Vote(harness.Context(t), open, approve)
		harness.Code(t, err, codes.FailedPrecondition, "TOOL_CHANGED")
		equal(t, "open approvals", len(c.Run(t, run).GetApprovals()), 1)
		host.Offer(changed("sends it"))
		if _, err := c.Vote(harness.Context(t), open, approve); err != nil {
			t.Errorf("once it is what it was: %v", err)
		}
		c.Done(t, run)
	})
	t.Run("E-13 a run does not begin without a required host, and begins when it is resumed", func(t *testing.T) {
		host := c.hosts["needed"]
		host.Unlisted(status.Error(codes.Unavailable, "the host is down"))
		run := c.play(t, "needs", harness.Steps(harness.Calls("need", "{}"), harness.Answer("done")))
		got := c.Done(t, run)
		ended(t, got, runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR, "failed:transient")
		has(t, got.GetErrorMessage(), "needed", "the host is down")
		same(t, "events", harness.Types(c.Events(t, run)), []string{"run_started", "tool_host_unavailable", "run_failed"})
		_, found := c.tools(t, "needs")
		same(t, "findings", found, []string{"needed/ host_unavailable"})
		c.Kill()
		c.Restart(t)
		host.Unlisted(nil)
		if _, err := c.Runs.ResumeRun(harness.Context(t), &runnerdv1.ResumeRunRequest{RunId: run}); err != nil {
			t.Fatal(err)
		}
		ended(t, c.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		order(t, c.Events(t, run), "run_failed", "run_resumed", "tools_pinned", "tool_call_completed", "run_completed")
	})
}
