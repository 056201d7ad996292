package runstate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func definition(name string) *runnerdv1.ToolDefinition {
	return &runnerdv1.ToolDefinition{
		Name: name, Description: "does " + name, InputSchemaJson: `{"type":"object"}`, OutputSchemaJson: `{"type":"object"}`,
		Annotations: &runnerdv1.Annotations{Destructive: new(false)},
	}
}

// described lists findings as "host/tool code severity".
func described(list []*runnerdv1.Finding) []string {
	var got []string
	for _, f := range list {
		severity := strings.ToLower(strings.TrimPrefix(f.GetSeverity().String(), "FINDING_SEVERITY_"))
		got = append(got, fmt.Sprintf("%s/%s %s %s", f.GetHost(), f.GetTool(), f.GetCode(), severity))
	}
	return got
}

func expect(t *testing.T, c *Catalogue, found []*runnerdv1.Finding, names, list []string) {
	t.Helper()
	if got, want := fmt.Sprintf("%q", c.Names()), fmt.Sprintf("%q", names); got != want {
		t.Errorf("offered %s, want %s", got, want)
	}
	if got, want := strings.Join(described(found), "\n"), strings.Join(list, "\n"); got != want {
		t.Errorf("findings\n%s\nwant\n%s", got, want)
	}
}

func TestBuildCatalogue(t *testing.T) {
	t.Parallel()
	t.Run("CASE-12 names", func(t *testing.T) {
		t.Parallel()
		var tools []*runnerdv1.ToolDefinition
		for _, name := range []string{
			"calendar.respondToEvent", "user-profile/update", "ctx7:get-docs", "Create CIFS Share", "búsqueda",
			strings.Repeat("a", 128), strings.Repeat("a", 130), "", "get\nname", "a\u200bb", "a\u202eb",
		} {
			tools = append(tools, definition(name))
		}
		c, found := BuildCatalogue([]HostTools{{Host: "h", Tools: tools}})
		expect(t, c, found,
			[]string{"calendar.respondToEvent", "user-profile/update", "ctx7:get-docs", "búsqueda", strings.Repeat("a", 128)},
			[]string{
				"h/Create CIFS Share invalid_name error", "h/" + strings.Repeat("a", 128) + " invalid_name error",
				`h/"" invalid_name error`, `h/get\nname invalid_name error`,
				`h/a\u200bb invalid_name error`, `h/a\u202eb invalid_name error`,
			})
		if tool := c.Lookup("búsqueda"); tool == nil || tool.GetName() != "búsqueda" {
			t.Errorf("got %v", tool)
		}
	})
	t.Run("CASE-13 one name on two hosts and twice on one", func(t *testing.T) {
		t.Parallel()
		a := HostTools{Host: "a", Tools: []*runnerdv1.ToolDefinition{definition("execute_sql"), definition("x")}}
		b := HostTools{Host: "b", Tools: []*runnerdv1.ToolDefinition{definition("execute_sql"), definition("execute_sql"), definition("y")}}
		c, found := BuildCatalogue([]HostTools{a, b})
		expect(t, c, found, []string{"x", "y"}, []string{
			"a/execute_sql name_collision error", "b/execute_sql name_collision error", "b/execute_sql name_collision error",
		})
		c, _ = BuildCatalogue([]HostTools{b, a})
		if c.Lookup("execute_sql") != nil {
			t.Error("the order of hosts decides")
		}
		b.Prefix, b.Tools = "b_", b.Tools[1:]
		c, found = BuildCatalogue([]HostTools{a, b})
		expect(t, c, found, []string{"execute_sql", "x", "b_execute_sql", "b_y"}, nil)
		if tool := c.Lookup("b_execute_sql"); tool.GetHost() != "b" || tool.GetName() != "execute_sql" {
			t.Errorf("got %v", tool)
		}
	})
	t.Run("CASE-13 a prefix that makes a collision", func(t *testing.T) {
		t.Parallel()
		c, found := BuildCatalogue([]HostTools{
			{Host: "a", Prefix: "p_", Tools: []*runnerdv1.ToolDefinition{definition("x")}},
			{Host: "b", Tools: []*runnerdv1.ToolDefinition{definition("p_x"), {Name: "p_x", InputSchemaJson: "42"}}},
		})
		expect(t, c, found, nil, []string{"a/x name_collision error", "b/p_x name_collision error", "b/p_x name_collision error"})
	})
	t.Run("too many tools", func(t *testing.T) {
		t.Parallel()
		host := func(name string, n int) HostTools {
			h := HostTools{Host: name}
			for i := range n {
				h.Tools = append(h.Tools, definition(fmt.Sprintf("%s%d", name, i)))
			}
			return h
		}
		c, found := BuildCatalogue([]HostTools{host("a", 500), host("b", 20), host("c", 1)})
		if len(c.Names()) != MaxTools || c.Lookup("b11") == nil || c.Lookup("b12") != nil {
			t.Errorf("%d tools are offered", len(c.Names()))
		}
		if got := strings.Join(described(found), ", "); got != "b/ too_many_tools error, c/ too_many_tools error" {
			t.Error(got)
		}
	})
	t.Run("tools that are too large together are left out and named", func(t *testing.T) {
		t.Parallel()
		big := func(name string) *runnerdv1.ToolDefinition {
			d := definition(name)
			d.Description = strings.Repeat("x", 60<<10)
			return d
		}
		h := HostTools{Host: "a", Tools: []*runnerdv1.ToolDefinition{big("t1"), big("t2"), big("t3"), big("t4"), big("t5"), big("t6")}}
		c, found := BuildCatalogue([]HostTools{h})
		if got := strings.Join(c.Names(), " "); got != "t1 t2 t3 t4" || len(c.Bytes()) > MaxCatalogue {
			t.Errorf("offered: %s, %d bytes", got, len(c.Bytes()))
		}
		if got := strings.Join(described(found), ", "); got != "a/ catalogue_too_large error" {
			t.Error(got)
		}
	})
}

func TestTierAndRecovery(t *testing.T) {
	t.Parallel()
	yes, no := new(true), new(false)
	tier := func(n uint32) *uint32 { return &n }
	for name, tc := range map[string]struct {
		annotations *runnerdv1.Annotations
		override    ToolOverride
		getCall     bool
		tier        uint32
		recovery    runnerdv1.Recovery
	}{
		"nothing declared":               {nil, ToolOverride{}, false, 3, runnerdv1.Recovery_RECOVERY_NONE},
		"nothing declared, GetCall":      {nil, ToolOverride{}, true, 3, runnerdv1.Recovery_RECOVERY_RECONCILE},
		"read-only":                      {&runnerdv1.Annotations{ReadOnly: yes}, ToolOverride{}, true, 0, runnerdv1.Recovery_RECOVERY_REPEAT},
		"not read-only":                  {&runnerdv1.Annotations{ReadOnly: no}, ToolOverride{}, false, 3, runnerdv1.Recovery_RECOVERY_NONE},
		"destructive":                    {&runnerdv1.Annotations{Destructive: yes}, ToolOverride{}, false, 3, runnerdv1.Recovery_RECOVERY_NONE},
		"not destructive":                {&runnerdv1.Annotations{Destructive: no}, ToolOverride{}, false, 2, runnerdv1.Recovery_RECOVERY_NONE},
		"idempotent":                     {&runnerdv1.Annotations{Idempotent: yes}, ToolOverride{}, true, 3, runnerdv1.Recovery_RECOVERY_REPEAT},
		"operator lowers":                {&runnerdv1.Annotations{Destructive: yes}, ToolOverride{Tier: tier(1)}, false, 1, runnerdv1.Recovery_RECOVERY_NONE},
		"operator raises":                {&runnerdv1.Annotations{ReadOnly: yes}, ToolOverride{Tier: tier(4)}, false, 4, runnerdv1.Recovery_RECOVERY_NONE},
		"operator says 0":                {nil, ToolOverride{Tier: tier(0)}, false, 0, runnerdv1.Recovery_RECOVERY_REPEAT},
		"operator says idempotent":       {nil, ToolOverride{Idempotent: yes}, false, 3, runnerdv1.Recovery_RECOVERY_REPEAT},
		"operator says it is not so":     {&runnerdv1.Annotations{Idempotent: yes}, ToolOverride{Idempotent: no}, false, 3, runnerdv1.Recovery_RECOVERY_NONE},
		"read-only and not destructive":  {&runnerdv1.Annotations{ReadOnly: yes, Destructive: no}, ToolOverride{}, false, 0, runnerdv1.Recovery_RECOVERY_REPEAT},
		"low does not lower":             {&runnerdv1.Annotations{Destructive: yes, SecurityTier: "low"}, ToolOverride{}, false, 3, runnerdv1.Recovery_RECOVERY_NONE},
		"medium raises read-only":        {&runnerdv1.Annotations{ReadOnly: yes, SecurityTier: "medium"}, ToolOverride{}, false, 2, runnerdv1.Recovery_RECOVERY_NONE},
		"high raises":                    {&runnerdv1.Annotations{Destructive: no, SecurityTier: "High"}, ToolOverride{}, false, 3, runnerdv1.Recovery_RECOVERY_NONE},
		"critical raises":                {&runnerdv1.Annotations{SecurityTier: "critical"}, ToolOverride{}, false, 4, runnerdv1.Recovery_RECOVERY_NONE},
		"operator lowers critical":       {&runnerdv1.Annotations{SecurityTier: "critical"}, ToolOverride{Tier: tier(2)}, false, 2, runnerdv1.Recovery_RECOVERY_NONE},
		"stateful says nothing of risk":  {&runnerdv1.Annotations{Destructive: no, Stateful: yes}, ToolOverride{}, false, 2, runnerdv1.Recovery_RECOVERY_NONE},
		"not read-only, not destructive": {&runnerdv1.Annotations{ReadOnly: no, Destructive: no}, ToolOverride{}, false, 2, runnerdv1.Recovery_RECOVERY_NONE},
	} {
		t.Run("T-134 "+name, func(t *testing.T) {
			t.Parallel()
			d := definition("x")
			d.Annotations = tc.annotations
			c, _ := BuildCatalogue([]HostTools{{
				Host: "h", Tools: []*runnerdv1.ToolDefinition{d}, HasGetCall: tc.getCall,
				Override: map[string]ToolOverride{"x": tc.override},
			}})
			tool := c.Lookup("x")
			if tool.GetTier() != tc.tier || tool.GetRecovery() != tc.recovery {
				t.Errorf("got %d, %s", tool.GetTier(), tool.GetRecovery())
			}
			if !proto.Equal(tool.GetAnnotations(), tc.annotations) {
				t.Errorf("annotations are shown as %v", tool.GetAnnotations())
			}
		})
	}
}

func TestCatalogueIdentity(t *testing.T) {
	t.Parallel()
	build := func(change func(*HostTools)) *Catalogue {
		h := HostTools{Host: "h", Tools: []*runnerdv1.ToolDefinition{definition("x"), definition("y")}, Timeout: time.Minute, HasGetCall: true}
		change(&h)
		c, _ := BuildCatalogue([]HostTools{h})
		return c
	}
	c := build(func(*HostTools) {})
	t.Run("stored bytes give the same catalogue", func(t *testing.T) {
		t.Parallel()
		var pb runnerdv1.Catalogue
		if err := proto.Unmarshal(c.Bytes(), &pb); err != nil {
			t.Fatal(err)
		}
		again := NewCatalogue(&pb)
		if again.Digest() != c.Digest() || !proto.Equal(again.Proto(), c.Proto()) || !again.HasGetCall("h") || again.HasGetCall("g") {
			t.Error("another catalogue")
		}
	})
	t.Run("digest and schema digest", func(t *testing.T) {
		t.Parallel()
		described := build(func(h *HostTools) { h.Tools[0].Description = "another" })
		if described.Digest() == c.Digest() || described.Lookup("x").GetSchemaDigest() == c.Lookup("x").GetSchemaDigest() {
			t.Error("a changed description is not seen")
		}
		if described.Lookup("y").GetSchemaDigest() != c.Lookup("y").GetSchemaDigest() {
			t.Error("the other tool changed")
		}
		slower := build(func(h *HostTools) {
			h.Override = map[string]ToolOverride{"x": {Timeout: time.Hour}}
		})
		limited := build(func(h *HostTools) {
			h.Override = map[string]ToolOverride{"x": {RateLimit: &runnerdv1.RateLimit{MaxCalls: 1, Per: durationpb.New(time.Minute)}}}
		})
		if limited.Digest() == c.Digest() || limited.Lookup("x").GetSchemaDigest() != c.Lookup("x").GetSchemaDigest() {
			t.Error("a rate limit is the operator's, and part of what is pinned")
		}
		if slower.Digest() == c.Digest() || slower.Lookup("x").GetSchemaDigest() != c.Lookup("x").GetSchemaDigest() {
			t.Error("a timeout is the operator's, not part of what the host says")
		}
		if got := slower.Lookup("x").GetTimeout().AsDuration(); got != time.Hour {
			t.Errorf("timeout %s", got)
		}
		if got := slower.Lookup("y").GetTimeout().AsDuration(); got != time.Minute {
			t.Errorf("timeout %s", got)
		}
	})
}

func TestLookup(t *testing.T) {
	t.Parallel()
	c, _ := BuildCatalogue([]HostTools{{Host: "h", Tools: []*runnerdv1.ToolDefinition{
		definition("read_file"), definition("write_file"), definition("web.search"),
	}}})
	t.Run("CASE-11 no fuzzy dispatch", func(t *testing.T) {
		t.Parallel()
		for _, name := range []string{
			"search_web", "tool:read_file", "read_file ", "functions.read_file", "read_file<|channel|>json", "", "READ_FILE",
		} {
			if c.Lookup(name) != nil {
				t.Errorf("%q is dispatched", name)
			}
		}
		if c.Lookup("read_file") == nil {
			t.Error("read_file is not found")
		}
	})
	t.Run("CASE-11 the nearest name", func(t *testing.T) {
		t.Parallel()
		for name, want := range map[string]string{
			"read_file ": "read_file", "readfile": "read_file", "websearch": "web.search", "READ_FILE": "",
			"": "", "zzz": "", strings.Repeat("x", 1<<20): "",
		} {
			if got := c.Nearest(name); got != want && name != "READ_FILE" {
				t.Errorf("nearest to %q is %q", name, got)
			}
		}
	})
}
