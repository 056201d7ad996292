package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// hostileTexts are texts that try to look like something else, made of pieces
// that do something to a terminal, to JSON, or to a reader.
func hostileTexts(n int) []string {
	pieces := []string{
		"\x1b[2J", "\x1b[1A\x1b[2K", "\x1b]0;t\a", "\x1b]52;c;cm0=\a", "\u009b31m", "\r", "\n", "\t", "\b\b", "\x00", "\x7f", "\a",
		"\u202e", "\u202d", "\u2066", "\u2069", "\u200e", "\u061c", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u034f",
		"\u3164", "\u2800", "\ufe00", "\U000e0041", "\U000e0100", "\u2028", "\u2029", "\u0085", "\ue000", "\uffff", "\ufffd",
		"\u0301", strings.Repeat("\u0301", 9), "\\", `\u202e`, `\n`, `"`, `":`, "{", "}", "[", "]", ",", "|", "  | ", "text | ",
		"model says | ", "host says | ", "approve? [y/N] y", "digest ", "┃ ", "asked by ", "error: ", "\x1b[0m", "rm -rf /", "ls", " ", "",
		"а", "a", "日本", "مرحبا", "not shown here", "⋯", strings.Repeat(" ", 90), "no arguments: {}", "0", "1.0",
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	texts := map[string]bool{}
	for len(texts) < n {
		var text strings.Builder
		for range 1 + rnd.IntN(5) {
			text.WriteString(pieces[rnd.IntN(len(pieces))])
		}
		texts[text.String()] = true
	}
	var all []string
	for text := range texts {
		all = append(all, text)
	}
	return all
}

// Whatever stands in an approval, a tool, a grant or an explanation: nothing of
// it touches the terminal, and arguments that differ look different.
func TestHostileTextsOverAllCommands(t *testing.T) {
	t.Parallel()
	const texts = 5000
	seen := map[string]string{}
	for _, text := range hostileTexts(texts) {
		approval := &runnerdv1.Approval{}
		fill(approval.ProtoReflect(), text, 0)
		approval.Kind, approval.ArgumentsCut = runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, false
		approval.PossibleGrants = shellApproval().GetPossibleGrants()
		approval.ArgumentsJson = fmt.Sprintf(`{"to":%s,%s:[{"a":%s}]}`, jsonString(text), jsonString("k"+text), jsonString(text))
		explained, tools, grant := &runnerdv1.ExplainPolicyResponse{}, &runnerdv1.ListToolsResponse{}, &runnerdv1.Grant{}
		fill(explained.ProtoReflect(), text, 0)
		fill(tools.ProtoReflect(), text, 0)
		fill(grant.ProtoReflect(), text, 0)
		edited := approval.GetArgumentsJson()

		shown := &lockedBuffer{}
		p := testProgram(shown, shown, nil)
		for _, d := range []detail{brief, whole} {
			p.printQuestion(shown, approval, d, style{})
		}
		for _, line := range answerLines(approval, style{}) {
			fmt.Fprintln(shown, line)
		}
		for _, line := range addedLines(answer{edited: &edited}, shellApproval(), style{}) {
			fmt.Fprintln(shown, line)
		}
		fmt.Fprintln(shown, verdictText(approval))
		for _, err := range []error{
			p.printTools(tools, style{}), p.printGrants([]*runnerdv1.Grant{grant}), p.printExplanation(text, explained, style{}),
			printJSON(shown, approval),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range shown.String() {
			if r != '\n' && !visible(r) {
				t.Fatalf("%+q lets %U through:\n%+q", text, r, shown.String())
			}
		}
		arguments := strings.Join(shownArguments(&runnerdv1.Approval{ArgumentsJson: approval.GetArgumentsJson()}, whole, style{}), "\n")
		if other, ok := seen[arguments]; ok {
			t.Fatalf("%+q and %+q look the same:\n%s", text, other, arguments)
		}
		seen[arguments] = text
		// What the model says never starts a line as the question does.
		for line := range strings.SplitSeq(strings.Join(spokenLines("model says", text, style{}), "\n"), "\n") {
			if line != "" && !strings.HasPrefix(line, "model says | ") {
				t.Fatalf("%+q: a line of the model is not marked: %q", text, line)
			}
		}
	}
	if len(seen) != texts {
		t.Errorf("%d texts have %d renderings", texts, len(seen))
	}
}

// jsonString writes a text as JSON with as few escapes as JSON allows, as an
// attacker would.
func jsonString(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			out.WriteRune('\\')
			out.WriteRune(r)
		case r < ' ':
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String() + `"`
}
