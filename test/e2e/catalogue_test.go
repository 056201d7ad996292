package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// catalogue is a daemon with many tool hosts, each with its own list. Hosts are asked again before every decision.
type catalogue struct {
	*world
	hosts map[string]*harness.Hands
}

// newCatalogue starts a daemon whose agents have the hosts named before the colon, "agent: host host".
func newCatalogue(t *testing.T, lists map[string][]*runnerdv1.ToolDefinition, agents ...string) *catalogue {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	c := &catalogue{world: w, hosts: map[string]*harness.Hands{}}
	for name, list := range lists {
		h, err := harness.NewHands(list...)
		if err != nil {
			t.Fatal(err)
		}
		c.hosts[name] = h
		w.cfg.ToolHosts[name] = &configv1.ToolHost{Address: h.Addr, Recheck: durationpb.New(0)}
	}
	for _, agent := range agents {
		name, hosts, _ := strings.Cut(agent, ": ")
		a := proto.CloneOf(w.cfg.GetAgents()["std"])
		a.ToolHosts, a.Policy = strings.Fields(hosts), &configv1.Policy{Mode: "allow"}
		w.cfg.Agents[name] = a
	}
	return c
}

func (c *catalogue) serve(t *testing.T) {
	t.Helper()
	c.Daemon = harness.Start(t, c.cfg)
}

// tools are what ListTools says of an agent: offered names as "name=host/tool", and findings as "host/tool code".
func (c *catalogue) tools(t *testing.T, agent string) (offered, found []string) {
	t.Helper()
	list, err := c.Runs.ListTools(harness.Context(t), &runnerdv1.ListToolsRequest{Agent: agent})
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range list.GetTools() {
		offered = append(offered, fmt.Sprintf("%s=%s/%s", tool.GetOfferedName(), tool.GetHost(), tool.GetName()))
	}
	for _, f := range list.GetFindings() {
		line := fmt.Sprintf("%s/%s %s", f.GetHost(), f.GetTool(), f.GetCode())
		if f.GetSeverity() == runnerdv1.FindingSeverity_FINDING_SEVERITY_WARNING {
			line += "?"
		}
		found = append(found, line)
	}
	return offered, found
}

// names are the tools that the first Decide of a run was offered.
func (c *catalogue) names(t *testing.T, run string) (names []string) {
	t.Helper()
	for _, tool := range c.brain.Requests(run)[0].GetTools() {
		names = append(names, tool.GetName())
	}
	return names
}

// described is a tool about which there is nothing to remark.
func described(name string) *runnerdv1.ToolDefinition {
	d := harness.Tool(name, `{"type":"object"}`, harness.Harmless)
	d.OutputSchemaJson = `{"type":"object"}`
	return d
}

// reasons lists how the calls of a run ended.
func reasons(events []*runnerdv1.Event) (list []string) {
	for _, ev := range events {
		switch p := ev.GetPayload().(type) {
		case *runnerdv1.Event_ToolCallCompleted:
			list = append(list, p.ToolCallCompleted.GetCallId()+" completed")
		case *runnerdv1.Event_ToolCallFailed:
			list = append(list, p.ToolCallFailed.GetCallId()+" failed "+strings.TrimPrefix(p.ToolCallFailed.GetReason().String(), "CALL_REASON_"))
		case *runnerdv1.Event_ToolCallBlocked:
			list = append(list, p.ToolCallBlocked.GetCallId()+" blocked "+strings.TrimPrefix(p.ToolCallBlocked.GetReason().String(), "CALL_REASON_"))
		}
	}
	return list
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s are\n%q, want\n%q", what, got, want)
	}
}

func TestCatalogueNames(t *testing.T) {
	t.Parallel()
	odd := []string{
		"calendar.respondToEvent", "user-profile/update", "ctx7:get-docs", "Create CIFS Share", "búsqueda",
		strings.Repeat("a", 64), strings.Repeat("a", 130), "", "get\nname", "get\u200bname",
	}
	lists := map[string][]*runnerdv1.ToolDefinition{
		"a": {described("execute_sql"), described("only_a")},
		"b": {described("execute_sql"), described("execute_sql"), described("only_b")},
		"c": {described("execute_sql")},
		"d": {described("p.x")}, "p": {described("x")},
	}
	for _, name := range odd {
		lists["odd"] = append(lists["odd"], described(name))
	}
	c := newCatalogue(t, lists, "odd: odd", "ab: a b", "ba: b a", "ac: a c", "only-c: a c", "pd: p d")
	c.cfg.ToolHosts["odd"].Prefix, c.cfg.ToolHosts["c"].Prefix, c.cfg.ToolHosts["p"].Prefix = "o_", "c_", "p."
	c.cfg.ToolHosts["c"].Tools = map[string]*configv1.Tool{"execute_sql": {Tier: proto.Uint32(0)}}
	c.cfg.Agents["odd"].Policy.ApprovalFor = []string{"calendar.*"}
	c.cfg.Agents["ac"].Policy.ApprovalFor = []string{"execute_sql"}
	c.cfg.Agents["only-c"].Policy.ApprovalFor = []string{"tool:c_*"}
	c.serve(t)

	t.Run("T-135 CASE-12 what is a legal name is offered, and the rest is found", func(t *testing.T) {
		offered, found := c.tools(t, "odd")
		long := strings.Repeat("a", 64)
		same(t, "tools", offered, []string{
			"o_calendar.respondToEvent=odd/calendar.respondToEvent", "o_user-profile/update=odd/user-profile/update",
			"o_ctx7:get-docs=odd/ctx7:get-docs", "o_búsqueda=odd/búsqueda", "o_" + long + "=odd/" + long,
		})
		same(t, "findings", found, []string{
			"odd/Create CIFS Share invalid_name", "odd/" + strings.Repeat("a", 128) + " invalid_name", `odd/"" invalid_name`,
			`odd/get\nname invalid_name`, `odd/get\u200bname invalid_name`,
		})
	})

	t.Run("CASE-12 a tool is called by its own name, and globs mean that too", func(t *testing.T) {
		run := c.play(t, "odd", harness.Steps(
			harness.Calls("o_calendar.respondToEvent", "{}", "o_búsqueda", "{}", "búsqueda", "{}", "o_user-profile/update", "{}"),
			harness.Answer("done")))
		asked := c.Approve(t, run, approve)
		equal(t, "tool asked for", asked.GetTool(), "calendar.respondToEvent")
		c.Done(t, run)
		var called []string
		for _, call := range c.hosts["odd"].Calls(run) {
			called = append(called, call.Request.GetName())
		}
		same(t, "calls", called, []string{"calendar.respondToEvent", "búsqueda", "user-profile/update"})
		same(t, "outcomes", reasons(c.Events(t, run)), []string{"1.3 failed UNKNOWN_TOOL", "1.1 completed", "1.2 completed", "1.4 completed"})
	})

	t.Run("T-135 CASE-13 one name twice is refused, whoever answers first and after a restart", func(t *testing.T) {
		look := func(agent string, first, second *harness.Hands) {
			t.Helper()
			release, before := second.Hold(), first.Listed()
			defer release()
			g := newGate()
			run := c.play(t, agent, func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
				g.once.Do(func() { close(g.arrived) })
				return harness.Steps(harness.Calls("execute_sql", "{}", "only_a", "{}"), harness.Answer("done"))(req, s)
			})
			harness.Eventually(t, "the first host has answered", func() bool { return first.Listed() > before })
			release()
			g.await(t)
			c.Done(t, run)
			names := c.names(t, run)
			slices.Sort(names)
			same(t, "offered tools", names, []string{"only_a", "only_b"})
			same(t, "outcomes", reasons(c.Events(t, run)), []string{"1.1 failed UNKNOWN_TOOL", "1.2 completed"})
			found := c.UntilType(t, run, "tools_pinned").GetToolsPinned().GetFindings()
			if len(found) != 3 || found[0].GetCode() != "name_collision" {
				t.Errorf("the run recorded the findings %v", found)
			}
			equal(t, "calls of execute_sql", len(first.Calls(run))+len(second.Calls(run)), 1)
		}
		a, b := c.hosts["a"], c.hosts["b"]
		look("ab", a, b)
		look("ab", b, a)
		look("ba", a, b)
		_, before := c.tools(t, "ab")
		same(t, "findings", before, []string{"a/execute_sql name_collision", "b/execute_sql name_collision", "b/execute_sql name_collision"})
		c.Kill()
		c.Restart(t)
		look("ba", b, a)
		_, after := c.tools(t, "ab")
		same(t, "findings after a restart", after, before)
	})

	t.Run("CASE-13 a prefix keeps hosts apart, and may make a collision of its own", func(t *testing.T) {
		offered, found := c.tools(t, "ac")
		same(t, "tools", offered, []string{"execute_sql=a/execute_sql", "only_a=a/only_a", "c_execute_sql=c/execute_sql"})
		same(t, "findings", found, nil)
		offered, found = c.tools(t, "pd")
		same(t, "tools", offered, nil)
		same(t, "findings", found, []string{"p/x name_collision", "d/p.x name_collision"})
	})

	t.Run("CASE-13 what is said of a tool of one host is not said of another's", func(t *testing.T) {
		list, err := c.Runs.ListTools(harness.Context(t), &runnerdv1.ListToolsRequest{Agent: "ac"})
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "tier of a's", list.GetTools()[0].GetTier(), 2)
		equal(t, "tier of c's", list.GetTools()[2].GetTier(), 0)

		// A policy.
		run := c.play(t, "only-c", harness.Steps(harness.Calls("execute_sql", "{}", "c_execute_sql", "{}"), harness.Answer("done")))
		asked := c.Approve(t, run, deny)
		equal(t, "host asked for", asked.GetHost(), "c")
		c.Done(t, run)
		equal(t, "calls of a", len(c.hosts["a"].Calls(run)), 1)
		equal(t, "calls of c", len(c.hosts["c"].Calls(run)), 0)

		// A grant.
		run = c.play(t, "ac", harness.Steps(harness.Calls("execute_sql", "{}"), harness.Calls("execute_sql", "{}", "c_execute_sql", "{}"), harness.Answer("done")))
		open := c.Idle(t, run).GetApprovals()[0]
		_, err = c.Runs.SubmitApproval(harness.Context(t), &runnerdv1.SubmitApprovalRequest{
			RunId: run, ApprovalId: open.GetApprovalId(), ApprovalDigest: open.GetApprovalDigest(), Verdict: approve,
			Grant: runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL,
		})
		if err != nil {
			t.Fatal(err)
		}
		asked = c.Approve(t, run, deny)
		equal(t, "call asked for", asked.GetCallId(), "2.2")
		equal(t, "host asked for", asked.GetHost(), "c")
		c.Done(t, run)
		equal(t, "calls of a", len(c.hosts["a"].Calls(run)), 2)
		equal(t, "calls of c", len(c.hosts["c"].Calls(run)), 0)
	})
}

func TestCatalogueSchemas(t *testing.T) {
	t.Parallel()
	schema := func(name, text string) *runnerdv1.ToolDefinition {
		d := described(name)
		d.InputSchemaJson = text
		return d
	}
	c := newCatalogue(t, map[string][]*runnerdv1.ToolDefinition{"schemas": {
		schema("recursive", `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["q"],
			"properties":{"q":{"$ref":"#/$defs/Q"}},
			"$defs":{"Q":{"type":"object","properties":{"limit":{"type":"integer","default":20},"next":{"$ref":"#/$defs/Q"}}}}}`),
		schema("draft7", `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","additionalProperties":false,"properties":{
			"n":{"type":"integer"},"list":{"type":"array","items":{"type":"string"}}}}`),
		schema("remote", `{"$ref":"https://example.com/x.json"}`), schema("broken", `{"type":"objekt"}`), schema("text", `{"type":"string"}`),
		schema("yes", "true"), schema("empty", "{}"), schema("absent", ""), schema("no", "false"),
	}}, "schemas: schemas")
	c.serve(t)

	t.Run("CASE-22 T-131 what cannot be used takes out its own tool, and nothing is fetched", func(t *testing.T) {
		offered, found := c.tools(t, "schemas")
		for i := range offered {
			offered[i], _, _ = strings.Cut(offered[i], "=")
		}
		same(t, "tools", offered, []string{"recursive", "draft7", "yes", "empty", "absent"})
		same(t, "findings", found, []string{
			"schemas/remote invalid_input_schema", "schemas/broken invalid_input_schema", "schemas/text invalid_input_schema",
			"schemas/yes missing_input_schema?", "schemas/empty missing_input_schema?", "schemas/absent missing_input_schema?",
			"schemas/no invalid_input_schema",
		})
	})

	t.Run("CASE-22 T-136 arguments are checked by the schema as it is", func(t *testing.T) {
		run := c.play(t, "schemas", harness.Steps(
			harness.Calls(
				"recursive", `{"q":{"next":{"next":{"limit":1}}}}`, "recursive", `{"q":{"next":{"next":{"limit":"1"}}}}`, "recursive", `{}`,
				"draft7", `{"n":1,"list":["a"]}`, "draft7", `{"x":1}`, "draft7", `{"n":true}`, "draft7", `{"list":["a",1]}`,
				"yes", `{"any":1}`, "empty", `{"any":1}`, "absent", `{"any":1}`, "remote", `{}`),
			harness.Answer("done")))
		c.Done(t, run)
		got := reasons(c.Events(t, run))
		slices.Sort(got)
		same(t, "outcomes", got, []string{
			"1.1 completed", "1.10 completed", "1.11 failed UNKNOWN_TOOL", "1.2 failed SCHEMA_MISMATCH", "1.3 failed SCHEMA_MISMATCH",
			"1.4 completed", "1.5 failed SCHEMA_MISMATCH", "1.6 failed SCHEMA_MISMATCH", "1.7 failed SCHEMA_MISMATCH",
			"1.8 completed", "1.9 completed",
		})
	})
}

func TestCatalogueLint(t *testing.T) {
	t.Parallel()
	readOnly := func(name, description string) *runnerdv1.ToolDefinition {
		d := described(name)
		d.Description, d.Annotations = description, &runnerdv1.Annotations{ReadOnly: new(true)}
		return d
	}
	annotated := func(name string, a *runnerdv1.Annotations) *runnerdv1.ToolDefinition {
		d := described(name)
		d.Annotations = a
		return d
	}
	bare := described("bare")
	bare.InputSchemaJson, bare.OutputSchemaJson, bare.Annotations = "", "", nil
	silent := described("silent")
	silent.Description = ""
	yes, no := new(true), new(false)
	c := newCatalogue(t, map[string][]*runnerdv1.ToolDefinition{"lint": {
		described("good"), bare, silent,
		annotated("both", &runnerdv1.Annotations{ReadOnly: yes, Destructive: yes}), annotated("odd", &runnerdv1.Annotations{SecurityTier: "severe"}),
		readOnly("write_file", "d"), readOnly("bash", "d"), readOnly("delete_all", "d"), readOnly("remove_nothing", "d"),
		readOnly("words", "update"),
		annotated("low", &runnerdv1.Annotations{Destructive: yes, SecurityTier: "low"}),
		annotated("critical", &runnerdv1.Annotations{Destructive: yes, Idempotent: yes, SecurityTier: "critical"}),
		annotated("session", &runnerdv1.Annotations{Destructive: no, Stateful: yes}),
		annotated("lowered", &runnerdv1.Annotations{SecurityTier: "critical"}),
	}}, "lint: lint")
	c.cfg.ToolHosts["lint"].Tools = map[string]*configv1.Tool{
		"remove_nothing": {Tier: proto.Uint32(0)}, "lowered": {Tier: proto.Uint32(1)},
	}
	c.serve(t)

	t.Run("T-131 T-132 T-133 each code", func(t *testing.T) {
		_, found := c.tools(t, "lint")
		same(t, "findings", found, []string{
			"lint/bare missing_input_schema?", "lint/bare missing_output_schema?", "lint/bare missing_destructive?",
			"lint/silent missing_description", "lint/both contradictory_annotations", "lint/odd invalid_security_tier",
			"lint/write_file mislabelled_write", "lint/bash mislabelled_shell", "lint/delete_all destructive_read_only",
			"lint/words read_only_with_write_keywords?", "lint/low security_tier_mismatch?", "lint/session stateful_without_governance?",
		})
	})

	t.Run("T-139 no RPC runs a tool outside a run", func(t *testing.T) {
		explained, err := c.Runs.ExplainPolicy(harness.Context(t), &runnerdv1.ExplainPolicyRequest{
			Subject: &runnerdv1.ExplainPolicyRequest_Start{Start: &runnerdv1.StartRunRequest{Agent: "lint", Task: "t"}},
			Tool:    "good", ArgumentsJson: "{}",
		})
		if err != nil || explained.GetVerdict() != runnerdv1.Verdict_VERDICT_ALLOW {
			t.Errorf("ExplainPolicy says %v, %v", explained, err)
		}
		conn, err := grpc.NewClient(c.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		stream, err := runnerdv1.NewToolHostServiceClient(conn).CallTool(harness.Context(t), &runnerdv1.CallToolRequest{
			Name: "good", ArgumentsJson: "{}",
		})
		if err == nil {
			_, err = stream.Recv()
		}
		if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
			t.Errorf("CallTool of the daemon gives %v", err)
		}
		if n := len(c.hosts["lint"].Attempts()); n != 0 {
			t.Errorf("%d calls reached the host", n)
		}
	})

	t.Run("T-130 T-132 an error takes out that tool only, and warnings block nothing", func(t *testing.T) {
		run := c.play(t, "lint", harness.Steps(
			harness.Calls("good", "{}", "bare", "{}", "words", "{}", "session", "{}", "low", "{}", "bash", "{}"), harness.Answer("done")))
		ended(t, c.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		same(t, "outcomes", reasons(c.Events(t, run)), []string{
			"1.6 failed UNKNOWN_TOOL", "1.1 completed", "1.2 completed", "1.3 completed", "1.4 completed", "1.5 completed",
		})
		for _, f := range c.UntilType(t, run, "tools_pinned").GetToolsPinned().GetFindings() {
			equal(t, "severity of a recorded finding", f.GetSeverity(), runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR)
		}
	})

	t.Run("T-134 annotations give the tier, a host can raise it, only the operator lowers one", func(t *testing.T) {
		list, err := c.Runs.ListTools(harness.Context(t), &runnerdv1.ListToolsRequest{Agent: "lint"})
		if err != nil {
			t.Fatal(err)
		}
		tiers := map[string]uint32{}
		for _, tool := range list.GetTools() {
			tiers[tool.GetName()] = tool.GetTier()
		}
		for name, want := range map[string]uint32{
			"good": 2, "bare": 3, "words": 0, "low": 3, "critical": 4, "session": 2, "lowered": 1, "remove_nothing": 0,
		} {
			equal(t, "tier of "+name, tiers[name], want)
		}
		run := c.play(t, "lint", harness.Steps(harness.Calls("critical", "{}"), harness.Answer("done")))
		c.Approve(t, run, approve) // in mode allow only tier 4 is asked for
		c.Done(t, run)
		a := c.UntilType(t, run, "tool_call_started").GetToolCallStarted().GetAnnotations()
		if !a.GetDestructive() || !a.GetIdempotent() || a.ReadOnly != nil || a.GetSecurityTier() != "critical" {
			t.Errorf("the call was started with %v", a)
		}
	})
}
