package runstate

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const maxToolName = 128 // bytes, with the prefix of the host

// findings collects remarks about the tools of an agent.
type findings struct {
	list []*runnerdv1.Finding
}

func (f *findings) add(host, tool, code string, severity runnerdv1.FindingSeverity, format string, args ...any) {
	f.list = append(f.list, &runnerdv1.Finding{
		Host: host, Tool: tool, Code: code, Severity: severity, Message: fmt.Sprintf(format, args...),
	})
}

// lint says whether a tool is offered. The first error takes it out; what is wrong beside it would only be noise.
func (f *findings) lint(host HostTools, tool *runnerdv1.ToolDefinition, offered map[string][]string) bool {
	shown := printable(tool.GetName())
	override := host.Override[tool.GetName()]
	refuse := func(code, format string, args ...any) bool {
		f.add(host.Host, shown, code, runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR, format, args...)
		return false
	}
	name := host.Prefix + tool.GetName()
	if !legalToolName(host.Prefix, tool.GetName()) {
		return refuse("invalid_name", "the name must have 1 to %d bytes (with the prefix of its host), all of them "+
			"printable and no blanks", maxToolName)
	}
	if owners := offered[name]; len(owners) > 1 {
		return refuse("name_collision", "%d tools of this agent have the name %q (hosts: %s) and none of them is offered; "+
			"give one of the hosts a prefix", len(owners), name, strings.Join(owners, ", "))
	}
	if strings.TrimSpace(tool.GetDescription()) == "" {
		return refuse("missing_description", "no description: the model would know the tool by its name only")
	}
	if code, message := contradiction(tool, override); code != "" {
		return refuse(code, "%s", message)
	}
	schema, err := compileSchema(tool.GetInputSchemaJson())
	if err != nil {
		return refuse("invalid_input_schema", "%v", err)
	}
	if schema.acceptsNoObject() {
		return refuse("invalid_input_schema", "the schema accepts no JSON object, so the tool can never be called")
	}
	f.warn(host.Host, shown, tool, override)
	return true
}

// vouches is what silences a remark: the operator has looked at the tool and says what it is.
const vouches = "if that is right, set its tier in the configuration of the host"

// contradiction returns the code and the text of the first thing a host says of a tool that cannot be true together
// with another; empty: there is none.
func contradiction(tool *runnerdv1.ToolDefinition, override ToolOverride) (code, message string) {
	annotations := tool.GetAnnotations()
	if _, known := securityTier(annotations); !known {
		return "invalid_security_tier", fmt.Sprintf("security_tier is %q; it must be low, medium, high or critical",
			cutText(annotations.GetSecurityTier(), 64))
	}
	if !annotations.GetReadOnly() {
		return "", ""
	}
	if annotations.GetDestructive() {
		return "contradictory_annotations", "the tool is declared both read-only and destructive"
	}
	if override.Tier != nil {
		return "", ""
	}
	switch kindOfName(tool.GetName()) {
	case namesDestruction:
		return "destructive_read_only", "the tool is declared read-only, and its name says that it destroys; " + vouches
	case namesWrite:
		return "mislabelled_write", "the tool is declared read-only, and its name says that it writes; " + vouches
	case namesShell:
		return "mislabelled_shell", "the tool is declared read-only, and its name says that it runs commands; " + vouches
	}
	return "", ""
}

// warn remarks on a tool that is offered all the same.
func (f *findings) warn(host, shown string, tool *runnerdv1.ToolDefinition, override ToolOverride) {
	warn := func(code, format string, args ...any) {
		f.add(host, shown, code, runnerdv1.FindingSeverity_FINDING_SEVERITY_WARNING, format, args...)
	}
	if saysNothing(tool.GetInputSchemaJson()) {
		warn("missing_input_schema", "no input schema: every JSON object is passed on to the tool")
	}
	if saysNothing(tool.GetOutputSchemaJson()) {
		warn("missing_output_schema", "no output schema: nothing is promised about structured results")
	}
	if override.Tier != nil {
		return // what follows is about the tier
	}
	annotations := tool.GetAnnotations()
	if !annotations.GetReadOnly() && (annotations == nil || annotations.Destructive == nil) {
		warn("missing_destructive", "the host says neither that it is read-only nor whether it is destructive, so it counts as destructive")
	}
	if word := speaksOfWriting(tool.GetDescription()); word != "" && annotations.GetReadOnly() {
		warn("read_only_with_write_keywords", "the tool is declared read-only, and its description says %q; %s", word, vouches)
	}
	if annotations.GetSecurityTier() != "" {
		f.warnTier(annotations, warn)
	}
	if annotations.GetStateful() && override.RateLimit == nil {
		warn("stateful_without_governance", "the tool remembers between calls, and neither its tier nor a rate limit is configured")
	}
}

// warnTier remarks on a word for the risk of a tool that does not go with what else its host says. That what may
// destroy is critical goes with it.
func (f *findings) warnTier(annotations *runnerdv1.Annotations, warn func(code, format string, args ...any)) {
	word, _ := securityTier(annotations)
	by := annotatedTier(annotations)
	if word == by || word > by && by == 3 {
		return
	}
	warn("security_tier_mismatch", "security_tier %s is tier %d, and by its other annotations the tool has tier %d; the higher holds",
		annotations.GetSecurityTier(), word, by)
}

func (f *findings) tooMany(host string, count int) {
	f.add(host, "", "too_many_tools", runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR,
		"an agent has at most %d tools; the last %d of this host are not offered", MaxTools, count)
}

func (f *findings) tooLarge(host string, count int) {
	f.add(host, "", "catalogue_too_large", runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR,
		"the tools of an agent have at most %d KiB of schemas and descriptions; the last %d of this host are not offered",
		MaxCatalogue>>10, count)
}

// countNames gives the hosts that list each legal name, once for each time they list it. A tool that is left out for
// another reason still takes its name: repairing it must not turn its namesake into another tool.
func countNames(hosts []HostTools) map[string][]string {
	owners := make(map[string][]string)
	for _, host := range hosts {
		for _, tool := range host.Tools {
			if legalToolName(host.Prefix, tool.GetName()) {
				name := host.Prefix + tool.GetName()
				owners[name] = append(owners[name], host.Host)
			}
		}
	}
	return owners
}

// legalToolName says whether a tool can be called by its name. What may look like something else, as direction marks
// and blanks of no width can, is not printable.
func legalToolName(prefix, name string) bool {
	full := prefix + name
	if name == "" || len(full) > maxToolName || !utf8.ValidString(full) {
		return false
	}
	return !strings.ContainsFunc(full, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) })
}

// printable makes any name safe to print, at most 128 bytes and never empty.
func printable(name string) string {
	if name == "" {
		return `""`
	}
	quoted := strconv.Quote(name)
	return cutText(quoted[1:len(quoted)-1], maxToolName)
}

// saysNothing says whether a schema is absent, or present and accepts everything.
func saysNothing(schema string) bool {
	var value any
	if err := json.Unmarshal([]byte(schema), &value); err != nil {
		return strings.TrimSpace(schema) == ""
	}
	object, isObject := value.(map[string]any)
	return value == true || isObject && len(object) == 0
}
