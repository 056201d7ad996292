package runstate

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// linted builds a catalogue of one tool of the host h and returns the codes of what was found, and whether it is offered.
func linted(t *testing.T, d *runnerdv1.ToolDefinition, o ToolOverride) (codes string, offered bool) {
	t.Helper()
	c, found := BuildCatalogue([]HostTools{{
		Host: "h", Tools: []*runnerdv1.ToolDefinition{d}, Override: map[string]ToolOverride{d.GetName(): o},
	}})
	var list []string
	for _, f := range found {
		severity := strings.ToLower(strings.TrimPrefix(f.GetSeverity().String(), "FINDING_SEVERITY_"))
		list = append(list, f.GetCode()+" "+severity)
		if f.GetMessage() == "" || f.GetHost() != "h" || f.GetTool() != d.GetName() {
			t.Errorf("the finding says %v", f)
		}
	}
	return strings.Join(list, ", "), c.Lookup(d.GetName()) != nil
}

func TestLint(t *testing.T) {
	t.Parallel()
	yes, no := new(true), new(false)
	readOnly := func(name string) *runnerdv1.ToolDefinition {
		d := definition(name)
		d.Annotations = &runnerdv1.Annotations{ReadOnly: yes}
		return d
	}
	annotated := func(a *runnerdv1.Annotations) *runnerdv1.ToolDefinition {
		d := definition("x")
		d.Annotations = a
		return d
	}
	schema := func(input, output string) *runnerdv1.ToolDefinition {
		d := definition("x")
		d.InputSchemaJson, d.OutputSchemaJson = input, output
		return d
	}
	described := func(d *runnerdv1.ToolDefinition, description string) *runnerdv1.ToolDefinition {
		d.Description = description
		return d
	}
	vouched := ToolOverride{Tier: new(uint32(0))}
	limited := ToolOverride{RateLimit: &runnerdv1.RateLimit{MaxCalls: 1, Per: durationpb.New(1)}}
	for name, tc := range map[string]struct {
		tool     *runnerdv1.ToolDefinition
		override ToolOverride
		want     string
	}{
		"nothing to say":                     {definition("x"), ToolOverride{}, ""},
		"T-131 missing_description":          {described(definition("x"), " \n"), ToolOverride{}, "missing_description error"},
		"T-131 contradictory_annotations":    {annotated(&runnerdv1.Annotations{ReadOnly: yes, Destructive: yes}), vouched, "contradictory_annotations error"},
		"T-131 invalid_security_tier":        {annotated(&runnerdv1.Annotations{SecurityTier: "severe"}), vouched, "invalid_security_tier error"},
		"T-131 mislabelled_write":            {readOnly("write_file"), ToolOverride{}, "mislabelled_write error"},
		"T-131 mislabelled_write, camel":     {readOnly("calendar.createEvent"), ToolOverride{}, "mislabelled_write error"},
		"T-131 mislabelled_shell":            {readOnly("bash"), ToolOverride{}, "mislabelled_shell error"},
		"T-131 mislabelled_shell, two words": {readOnly("run_command"), ToolOverride{}, "mislabelled_shell error"},
		"T-131 mislabelled_shell, exec":      {readOnly("exec"), ToolOverride{}, "mislabelled_shell error"},
		"T-131 destructive_read_only":        {readOnly("delete-branch"), ToolOverride{}, "destructive_read_only error"},
		"T-131 the operator vouches":         {readOnly("delete-branch"), vouched, ""},
		"T-131 not declared read-only":       {definition("delete-branch"), ToolOverride{}, ""},
		"T-131 a name that only reads":       {readOnly("read_shell_history"), ToolOverride{}, ""},
		"T-131 a verb elsewhere":             {readOnly("last_update"), ToolOverride{}, "read_only_with_write_keywords warning"},
		"T-131 where it belongs is no verb":  {described(readOnly("shell/status"), "d"), ToolOverride{}, ""},
		"T-131 runs what is no command":      {described(readOnly("execute_sql"), "d"), ToolOverride{}, ""},
		"T-131 a schema of no object":        {schema(`{"type":["string","array"]}`, "{}"), ToolOverride{}, "invalid_input_schema error"},
		"T-131 a schema of nothing":          {schema("false", "{}"), ToolOverride{}, "invalid_input_schema error"},
		"T-131 a schema that is none":        {schema(`{"type":"objekt"}`, "{}"), ToolOverride{}, "invalid_input_schema error"},
		"T-132 missing schemas":              {schema(" true ", "{}"), ToolOverride{}, "missing_input_schema warning, missing_output_schema warning"},
		"T-132 missing_destructive":          {annotated(nil), ToolOverride{}, "missing_destructive warning"},
		"T-132 missing_destructive, vouched": {annotated(nil), vouched, ""},
		"T-132 not read-only is not enough":  {annotated(&runnerdv1.Annotations{ReadOnly: no}), ToolOverride{}, "missing_destructive warning"},
		"T-132 security_tier_mismatch, low": {
			annotated(&runnerdv1.Annotations{Destructive: yes, SecurityTier: "low"}), ToolOverride{}, "security_tier_mismatch warning",
		},
		"T-132 security_tier_mismatch, raised": {
			annotated(&runnerdv1.Annotations{ReadOnly: yes, SecurityTier: "high"}), ToolOverride{}, "security_tier_mismatch warning",
		},
		"T-132 a tier that fits":               {annotated(&runnerdv1.Annotations{Destructive: no, SecurityTier: "Medium"}), ToolOverride{}, ""},
		"T-132 what destroys may be critical":  {annotated(&runnerdv1.Annotations{Destructive: yes, SecurityTier: "critical"}), ToolOverride{}, ""},
		"T-132 stateful_without_governance":    {annotated(&runnerdv1.Annotations{Destructive: no, Stateful: yes}), ToolOverride{}, "stateful_without_governance warning"},
		"T-132 stateful, with a rate limit":    {annotated(&runnerdv1.Annotations{Destructive: no, Stateful: yes}), limited, ""},
		"T-132 stateful, the operator vouches": {annotated(&runnerdv1.Annotations{Destructive: no, Stateful: yes}), vouched, ""},
		"T-133 a description that writes":      {described(readOnly("x"), "Shows or UPDATEs"), ToolOverride{}, "read_only_with_write_keywords warning"},
		"T-133 the operator vouches":           {described(readOnly("x"), "update"), vouched, ""},
		"T-133 not declared read-only":         {described(definition("x"), "update"), ToolOverride{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codes, offered := linted(t, tc.tool, tc.override)
			if codes != tc.want || offered == strings.Contains(tc.want, "error") {
				t.Errorf("found %q, offered %t; want %q", codes, offered, tc.want)
			}
		})
	}
	t.Run("T-133 each word", func(t *testing.T) {
		t.Parallel()
		for word := range strings.FieldsSeq("write save create delete remove modify update edit append overwrite truncate mkdir touch chmod chown") {
			if codes, offered := linted(t, described(readOnly("x"), "re"+strings.ToUpper(word)+"s"), ToolOverride{}); !offered ||
				codes != "read_only_with_write_keywords warning" {
				t.Errorf("%s: %q", word, codes)
			}
		}
	})
	t.Run("T-130 an error takes out that tool only", func(t *testing.T) {
		t.Parallel()
		c, found := BuildCatalogue([]HostTools{{Host: "h", Tools: []*runnerdv1.ToolDefinition{
			readOnly("bash"), definition("good"), {Name: "bare"},
		}}})
		expect(t, c, found, []string{"good"}, []string{"h/bash mislabelled_shell error", "h/bare missing_description error"})
	})
}
