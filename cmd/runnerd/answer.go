package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// answerFlags are the flags of approve and deny.
type answerFlags struct {
	*connection
	*output
	answer
	yes       bool
	edit      bool
	arguments string // file with what is to run instead
}

// answer is what a person says to a question.
type answer struct {
	verdict runnerdv1.ApprovalVerdict
	reason  string
	settle  *string // of a call in doubt: what really happened
	grant   runnerdv1.GrantScope
	edited  *string // what is to run instead
}

func newApproveCommand(p *program) *cobra.Command {
	f := &answerFlags{answer: answer{verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE}}
	cmd := &cobra.Command{
		Use:   "approve [flags] RUN [APPROVAL]",
		Short: "Let a call run that waits for a person",
		Long: `Approve what a run asks. What will run is shown first, whole and field by field; on a
terminal you are asked once more, unless --yes is given. Without an approval id the
run must have exactly one open approval.

With --edit the arguments are opened in $VISUAL or $EDITOR, and what you make of them
runs instead, after you have seen the difference; --arguments takes them from a file.
They must pass the same checks and rules as the model's own. With --grant later calls
are let pass, too, in this run: of the same tool, or of the same program where the
tool runs a command (see runnerd grants).

About the budget, approve means: go on spending. About a call in doubt, approve means:
send it again. With --settle it is not sent; the text is recorded as its result,
because you found out that it took effect.`,
		Example: `  runnerd approve 3f2a 9
  runnerd approve 3f2a --edit
  runnerd approve 3f2a 9 --arguments - < arguments.json
  runnerd approve 3f2a --grant tool --reason "it may announce what it likes"
  runnerd approve 3f2a --yes --reason "looked at the plan"
  runnerd approve 3f2a 21 --settle "the payment 77 went through"`,
	}
	var grant string
	flags := cmd.Flags()
	flags.BoolVar(&f.edit, "edit", false, "change the arguments in an editor first")
	flags.StringVar(&f.arguments, "arguments", "", "`file` with the arguments that are to run instead; - is standard input")
	flags.StringVar(&grant, "grant", "", "do not ask again in this run: for this tool, or with prefix for this program of the tool")
	p.finishAnswerCommand(cmd, f, func() (err error) {
		if grant != "" {
			f.grant, err = oneOf("grant", grant, grantWords)
		}
		return err
	})
	cmd.MarkFlagsMutuallyExclusive("edit", "arguments", "settle")
	cmd.MarkFlagsMutuallyExclusive("grant", "settle")
	return cmd
}

func newDenyCommand(p *program) *cobra.Command {
	f := &answerFlags{answer: answer{verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY}}
	cmd := &cobra.Command{
		Use:   "deny [flags] RUN [APPROVAL]",
		Short: "Refuse a call that waits for a person",
		Long: `Deny what a run asks. The model is told, with the reason you give, unless the agent
ends on a denial. Without an approval id the run must have exactly one open approval.

About the budget, deny means: end the run. About a call in doubt, deny means: give
up, its outcome stays unknown. With --settle the text is recorded as its error,
because you found out that it failed.`,
		Example: `  runnerd deny 3f2a 9 --reason "not on a Friday"
  runnerd deny 3f2a 21 --settle "the payment was refused by the bank"`,
	}
	p.finishAnswerCommand(cmd, f, func() error { return nil })
	return cmd
}

// finishAnswerCommand gives approve and deny what both have.
func (p *program) finishAnswerCommand(cmd *cobra.Command, f *answerFlags, check func() error) {
	var settle string
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return err
		}
		if cmd.Flags().Changed("settle") {
			f.settle = &settle
		}
		var id uint64
		if len(args) == 2 {
			var err error
			if id, err = parseID("approval", args[1], "runnerd approvals"); err != nil {
				return err
			}
		}
		return p.answer(cmd.Context(), f, args[0], id)
	}
	f.connection, f.output = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().StringVar(&f.reason, "reason", "", "why, for the record and the model")
	cmd.Flags().StringVar(&settle, "settle", "", "of a call in doubt: what really happened")
	cmd.Flags().BoolVarP(&f.yes, "yes", "y", false, "do not ask once more")
}

// parseID reads the id of an approval or a grant.
func parseID(what, word, shownBy string) (uint64, error) {
	id, err := strconv.ParseUint(word, 10, 64)
	if err != nil || id == 0 {
		return 0, usageError{fmt.Errorf("%q is no %s id: it is a number, as %s shows it", word, what, shownBy)}
	}
	return id, nil
}

// answer shows a question whole and submits the answer to what it has shown.
func (p *program) answer(ctx context.Context, f *answerFlags, run string, id uint64) error {
	asJSON, err := f.json()
	if err != nil {
		return err
	}
	style, err := p.style(f.output, p.err)
	if err != nil {
		return err
	}
	if f.edit && !p.attended() {
		return usageError{errors.New("--edit needs a terminal; give the arguments with --arguments")}
	}
	c, err := p.dial(f.connection)
	if err != nil {
		return err
	}
	defer c.close()
	if id == 0 {
		if id, err = c.onlyApproval(ctx, run); err != nil {
			return err
		}
	}
	asked, err := c.getApproval(ctx, run, id)
	if err != nil {
		return err
	}
	p.printQuestion(p.err, asked, whole, style)
	if f.verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE && asked.GetArgumentsCut() {
		return errCut(asked)
	}
	var answered *runnerdv1.Approval
	switch {
	case f.edit:
		answered, err = p.approveEdited(ctx, c, f, asked, style)
	default:
		if f.arguments != "" {
			if err := p.takeArguments(f, asked); err != nil {
				return err
			}
		}
		if asked.GetVia() == runnerdv1.Via_VIA_UNSPECIFIED {
			if err := p.confirm(ctx, f, asked, style); err != nil {
				return err
			}
		}
		answered, err = c.submit(ctx, asked, f.answer)
	}
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p.out, answered)
	}
	_, err = fmt.Fprintln(p.out, verdictText(answered))
	return err
}

// errCut refuses to approve what was not shown whole.
func errCut(a *runnerdv1.Approval) error {
	return &exitError{
		code: exitFailure,
		err: fmt.Errorf("the arguments have %d bytes and are not shown whole; nobody can approve what they cannot see",
			a.GetArgumentsSize()),
		hint: fmt.Sprintf("runnerd deny %s %d", safeLine(a.GetRunId()), a.GetApprovalId()),
	}
}

// submit sends an answer to exactly what was asked.
func (c *client) submit(ctx context.Context, asked *runnerdv1.Approval, a answer) (*runnerdv1.Approval, error) {
	req := &runnerdv1.SubmitApprovalRequest{
		RunId: asked.GetRunId(), ApprovalId: asked.GetApprovalId(), ApprovalDigest: asked.GetApprovalDigest(),
		Verdict: a.verdict, Reason: a.reason, Grant: a.grant, EditedArgumentsJson: a.edited,
	}
	if a.settle != nil {
		req.Verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
		req.Result = &runnerdv1.SettledResult{
			Text: *a.settle, IsError: a.verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY,
		}
	}
	ctx, cancel := call(ctx)
	defer cancel()
	got, err := c.SubmitApproval(ctx, req)
	return got.GetApproval(), err
}

// takeArguments takes what is to run instead from a file. The same as was asked
// is no edit.
func (p *program) takeArguments(f *answerFlags, asked *runnerdv1.Approval) error {
	text, err := p.readText("", f.arguments)
	if err != nil {
		return err
	}
	text = strings.TrimSpace(text)
	if err := checkArguments(text); err != nil {
		return usageError{fmt.Errorf("--arguments: %w", err)}
	}
	if text != asked.GetArgumentsJson() {
		f.edited = &text
	}
	return nil
}

// approveEdited lets the person edit the arguments, shows what that changes,
// asks, and submits; what is wrong can be edited again.
func (p *program) approveEdited(
	ctx context.Context, c *client, f *answerFlags, asked *runnerdv1.Approval, style style,
) (*runnerdv1.Approval, error) {
	file, err := newArgumentsFile(asked.GetArgumentsJson())
	if err != nil {
		return nil, err
	}
	defer file.remove()
	for {
		if err := p.edit(ctx, file); err != nil {
			return nil, err
		}
		text, changed, err := file.edited()
		if bad, ok := errors.AsType[*badEditError](err); ok {
			if err := p.again(ctx, bad); err != nil {
				return nil, err
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		f.edited = &text
		if !changed {
			f.edited = nil
			fmt.Fprintln(p.err, "  nothing was changed")
		}
		if err := p.confirm(ctx, f, asked, style); err != nil {
			return nil, err
		}
		answered, err := c.submit(ctx, asked, f.answer)
		if reasonOf(err) != runnerdv1.ErrorReason_ERROR_REASON_EDIT_REFUSED {
			return answered, err
		}
		if err := p.again(ctx, err); err != nil {
			return nil, err
		}
	}
}

// again shows what is wrong with an edit, and asks whether to edit once more.
func (p *program) again(ctx context.Context, wrong error) error {
	_, text, _ := explain(wrong)
	fmt.Fprintf(p.err, "%s\nedit again? [Y/n] ", safeBlock(text))
	line, err := p.keys().line(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if word := strings.ToLower(strings.TrimSpace(line)); err == nil && (word == "" || word == "y" || word == "yes") {
		return nil
	}
	return errNotAnswered
}

var errNotAnswered = &exitError{code: exitFailure, err: errors.New("nothing was answered; the approval stays open")}

// onlyApproval finds the one open approval of a run.
func (c *client) onlyApproval(ctx context.Context, run string) (uint64, error) {
	open, err := c.openApprovals(ctx, run)
	switch {
	case err != nil:
		return 0, err
	case len(open) == 0:
		return 0, &exitError{code: exitFailure, err: fmt.Errorf("run %q waits for no approval", run)}
	case len(open) > 1:
		var ids []string
		for _, a := range open {
			ids = append(ids, strconv.FormatUint(a.GetApprovalId(), 10))
		}
		return 0, usageError{fmt.Errorf("run %q waits for several approvals, name one: %s", run, strings.Join(ids, ", "))}
	}
	return open[0].GetApprovalId(), nil
}

// confirm shows what the answer adds to the question, and asks once more on a
// terminal. Where there is none, the command line was the decision.
func (p *program) confirm(ctx context.Context, f *answerFlags, asked *runnerdv1.Approval, style style) error {
	for _, line := range addedLines(f.answer, asked, style) {
		fmt.Fprintln(p.err, "  "+line)
	}
	if _, tty := p.terminal(p.in); f.yes || !tty {
		return nil
	}
	keys := p.keys()
	keys.drop()
	fmt.Fprintf(p.err, "%s? [y/N] ", f.words())
	line, err := keys.line(ctx)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if word := strings.ToLower(strings.TrimSpace(line)); word == "y" || word == "yes" {
		return nil
	}
	return errNotAnswered
}

// words is an answer in a few words.
func (a answer) words() string {
	what := strings.ToLower(short(a.verdict))
	if a.settle != nil {
		what = "settle"
	}
	if a.edited != nil {
		what += " with these changes"
	}
	if a.grant != runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED {
		what += " and do not ask again"
	}
	return what
}

// addedLines is what an answer says beyond the question: what it changes and
// what else it lets pass.
func addedLines(a answer, asked *runnerdv1.Approval, style style) []string {
	var lines []string
	if a.edited != nil {
		lines = append(lines, style.dim("changes, "+count(len(*a.edited), "byte", "bytes")+" then:"))
		for _, line := range differenceLines(asked.GetArgumentsJson(), *a.edited, style) {
			lines = append(lines, "  "+line)
		}
	}
	if a.grant != runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED {
		lines = append(lines, "and does not ask again "+grantCovers(a.grant, asked.GetHost(), asked.GetTool(), asked.GetProgram()))
	}
	return lines
}

// verdictText says in one line what was answered.
func verdictText(a *runnerdv1.Approval) string {
	word := map[runnerdv1.ApprovalVerdict]string{
		runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE: "approved",
		runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY:    "denied",
		runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE:  "settled",
	}[a.GetVerdict()]
	if a.GetKind() == runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET {
		return safeLine(fmt.Sprintf("%s to go on: %s (run %s, approval %d, digest %s)",
			word, spentText(a.GetBudget()), a.GetRunId(), a.GetApprovalId(), a.GetApprovalDigest()))
	}
	edited := ""
	if a.GetEditedArgumentsJson() != "" {
		edited = " with other arguments"
	}
	text := safeLine(fmt.Sprintf("%s %s/%s%s (run %s, approval %d, digest %s)",
		word, a.GetHost(), a.GetTool(), edited, a.GetRunId(), a.GetApprovalId(), a.GetApprovalDigest()))
	if g := a.GetGrant(); g != nil {
		text += fmt.Sprintf("\ngrant %d %s (runnerd grants revoke %s %d)", g.GetGrantId(),
			grantCovers(g.GetScope(), g.GetHost(), g.GetTool(), g.GetProgram()), safeLine(a.GetRunId()), g.GetGrantId())
	}
	return text
}
