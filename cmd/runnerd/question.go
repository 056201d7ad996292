package main

import (
	"fmt"
	"io"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// What a person is asked is shown in this order: what will run, why it is asked,
// the exact arguments. Only then come the words of the model and of the host, each
// line marked with whose it is, so that neither can pass for the question.

// detail is how much of a question is shown.
type detail int

const (
	brief detail = iota // beside other events: long arguments have head and tail
	whole               // for who answers: everything, and the digest of it
)

// questionLines shows what a person is asked; each line is safe to print.
func questionLines(a *runnerdv1.Approval, d detail, style style) []string {
	if a.GetKind() == runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET {
		lines := []string{spentText(a.GetBudget()) + "; approve: go on, deny: end the run"}
		if a.GetRule() != "" {
			lines = append(lines, style.dim(safeLine("asked by "+a.GetRule())))
		}
		return append(lines, digestLines(a, d, style)...)
	}
	lines := []string{style.bold(safeLine(a.GetHost()+"/"+a.GetTool())) +
		" (" + join(", ", fmt.Sprintf("tier %d", a.GetTier()), annotationsText(a.GetAnnotations())) + ")"}
	if a.GetCause() != runnerdv1.LostCause_LOST_CAUSE_UNSPECIFIED {
		lines = append(lines, fmt.Sprintf("attempt %d was lost: %s; approve: send again, deny: give up, --settle: say what happened",
			a.GetAttempt(), short(a.GetCause())))
	}
	if asked := askedBy(a.GetGate(), a.GetLayer(), a.GetRule()); asked != "" {
		lines = append(lines, style.dim("asked by "+asked))
	}
	lines = append(lines, shownArguments(a, d, style)...)
	lines = append(lines, spokenLines("model says", a.GetModelText(), style)...)
	lines = append(lines, spokenLines("host says", a.GetHostText(), style)...)
	return append(lines, digestLines(a, d, style)...)
}

// askedBy names what decided: the rule, and the gate and layer it belongs to.
func askedBy(gate, layer, rule string) string {
	if layer != "" {
		layer = "layer " + layer
	}
	if rule == "" {
		return safeLine(join(", ", gate, layer))
	}
	if strings.HasPrefix(rule, gate) {
		gate = "" // the rule says it already
	}
	if where := join(", ", gate, layer); where != "" {
		rule += " (" + where + ")"
	}
	return safeLine(rule)
}

// shownArguments is the exact arguments, below a line with their size.
func shownArguments(a *runnerdv1.Approval, d detail, style style) []string {
	size := count(a.GetArgumentsSize(), "byte", "bytes")
	if a.GetArgumentsJson() == "" {
		if a.GetArgumentsSize() == 0 {
			return nil
		}
		return []string{"arguments of " + size + ", which are not shown to you"}
	}
	head := "arguments, " + size + ":"
	lines := argumentLines(a.GetArgumentsJson())
	if a.GetArgumentsCut() {
		head = "arguments, " + size + ", cut:"
		lines = marked("text | ", a.GetArgumentsJson())
	}
	if d == brief {
		lines = shorten(lines)
	}
	all := []string{style.dim(head)}
	for _, line := range lines {
		all = append(all, "  "+line)
	}
	if edited := a.GetEditedArgumentsJson(); edited != "" {
		all = append(all, style.dim("what ran instead:"))
		for _, line := range shorten(argumentLines(edited)) {
			all = append(all, "  "+line)
		}
	}
	return all
}

// spokenLines marks each line of somebody's words with whose they are.
func spokenLines(who, text string, style style) []string {
	if text == "" {
		return nil
	}
	lines := marked(who+" | ", strings.TrimRight(text, "\n"))
	for i := range lines {
		lines[i] = style.dim(lines[i])
	}
	return lines
}

func digestLines(a *runnerdv1.Approval, d detail, style style) []string {
	if d != whole || a.GetApprovalDigest() == "" {
		return nil
	}
	return []string{style.dim("digest " + safeLine(a.GetApprovalDigest()))}
}

// answerLines says with which commands a question can be answered.
func answerLines(a *runnerdv1.Approval, style style) []string {
	lines := []string{waysToAnswer(a.GetRunId(), a.GetApprovalId(), style)}
	for _, scope := range a.GetPossibleGrants() {
		if word := grantWord(scope); word != "" {
			lines = append(lines, style.bold(fmt.Sprintf("runnerd approve %s %d --grant %s", safeLine(a.GetRunId()), a.GetApprovalId(), word))+
				"   and do not ask again "+grantCovers(scope, a.GetHost(), a.GetTool(), a.GetProgram()))
		}
	}
	return lines
}

func waysToAnswer(run string, id uint64, style style) string {
	return style.bold(fmt.Sprintf("runnerd approve %s %d", safeLine(run), id)) + "   or   " +
		style.bold(fmt.Sprintf("runnerd deny %s %d", safeLine(run), id))
}

// grantWords are the grants as people write them.
var grantWords = map[string]runnerdv1.GrantScope{
	"tool":   runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL,
	"prefix": runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX,
}

// grantWord is a scope as people write it; empty for one this program does not
// know, which it does not offer.
func grantWord(scope runnerdv1.GrantScope) string {
	for word, known := range grantWords {
		if known == scope {
			return word
		}
	}
	return ""
}

// grantCovers says for what a grant lets calls pass, in this run.
func grantCovers(scope runnerdv1.GrantScope, host, tool, program string) string {
	name := safeLine(host + "/" + tool)
	switch {
	case scope == runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX && program == "": // not shown to the caller
		return "for " + name + " running single commands of one program"
	case scope == runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX:
		return "for " + name + " running the single command " + quote(program)
	}
	return "for " + name + ", whatever its arguments"
}

// printQuestion shows a question below a line that names it.
func (p *program) printQuestion(w io.Writer, a *runnerdv1.Approval, d detail, style style) {
	fmt.Fprintln(w, style.bold(style.yellow(safeLine(fmt.Sprintf("%s %d", a.GetRunId(), a.GetApprovalId())))), p.approvalTimes(a))
	for _, line := range questionLines(a, d, style) {
		fmt.Fprintln(w, "  "+line)
	}
}

func (p *program) approvalTimes(a *runnerdv1.Approval) string {
	const layout = "2006-01-02 15:04:05"
	text := "since " + a.GetOpenedAt().AsTime().In(p.zone).Format(layout)
	if a.GetExpiresAt() != nil {
		text += ", until " + a.GetExpiresAt().AsTime().In(p.zone).Format(layout)
	}
	return text
}
