package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func newApprovalsCommand(p *program) *cobra.Command {
	var (
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "approvals [flags] [RUN]",
		Short: "List what waits for a person, oldest first",
		Long: `List the open approvals of all runs, or of one, oldest first, with exactly what will
run: arguments over 4 KiB are shown with their head and tail; approve and deny show
them whole. Needs the token of an approver.`,
		Example: `  runnerd approvals
  runnerd approvals 3f2a
  runnerd approvals --output json | jq -r '"\(.run_id) \(.approval_id)"'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			style, err := p.style(out, p.out)
			if err != nil {
				return err
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			run := ""
			if len(args) == 1 {
				run = args[0]
			}
			open, err := c.openApprovals(cmd.Context(), run)
			if err != nil {
				return err
			}
			for i, a := range open {
				if asJSON {
					if err := printJSON(p.out, a); err != nil {
						return err
					}
					continue
				}
				if i > 0 {
					fmt.Fprintln(p.out)
				}
				fmt.Fprintln(p.out, style.bold(style.yellow(safeLine(fmt.Sprintf("%s %d", a.GetRunId(), a.GetApprovalId())))),
					p.approvalTimes(a))
				printApproval(p.out, a, style)
			}
			return nil
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	return cmd
}

// openApprovals reads all pages.
func (c *client) openApprovals(ctx context.Context, run string) ([]*runnerdv1.Approval, error) {
	var all []*runnerdv1.Approval
	req := &runnerdv1.ListApprovalsRequest{RunId: run, PageSize: pageSize}
	for {
		callCtx, cancel := call(ctx)
		page, err := c.ListApprovals(callCtx, req)
		cancel()
		if err != nil {
			return nil, err
		}
		all = append(all, page.GetApprovals()...)
		if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}

func (p *program) approvalTimes(a *runnerdv1.Approval) string {
	text := "since " + a.GetOpenedAt().AsTime().In(p.zone).Format("2006-01-02 15:04:05")
	if a.GetExpiresAt() != nil {
		text += ", until " + a.GetExpiresAt().AsTime().In(p.zone).Format("2006-01-02 15:04:05")
	}
	return text
}

// printApproval shows what is asked and how to answer.
func printApproval(w io.Writer, a *runnerdv1.Approval, style style) {
	for _, line := range approvalLines(a) {
		fmt.Fprintln(w, "  "+line)
	}
	if a.GetRule() != "" {
		fmt.Fprintln(w, "  "+style.dim(safeLine("asked by "+a.GetRule())))
	}
	run := safeLine(a.GetRunId())
	fmt.Fprintf(w, "  %s   or   %s\n", style.bold(fmt.Sprintf("runnerd approve %s %d", run, a.GetApprovalId())),
		style.bold(fmt.Sprintf("runnerd deny %s %d", run, a.GetApprovalId())))
}

func newApproveCommand(p *program) *cobra.Command {
	return newVerdictCommand(p, &cobra.Command{
		Use:   "approve [flags] RUN [APPROVAL]",
		Short: "Let a call run that waits for a person",
		Long: `Approve what a run asks. What will run is shown first, byte for byte; on a terminal
you are asked once more, unless --yes is given. Without an approval id the run must
have exactly one open approval.

About the budget, approve means: go on spending. About a call in doubt, approve means: send it again. With --settle it is not sent;
the text is recorded as its result, because you found out that it took effect.`,
		Example: `  runnerd approve 3f2a 9
  runnerd approve 3f2a --yes --reason "looked at the plan"
  runnerd approve 3f2a 21 --settle "the payment 77 went through"`,
	}, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE)
}

func newDenyCommand(p *program) *cobra.Command {
	return newVerdictCommand(p, &cobra.Command{
		Use:   "deny [flags] RUN [APPROVAL]",
		Short: "Refuse a call that waits for a person",
		Long: `Deny what a run asks. The model is told, with the reason you give, unless the agent
ends on a denial. Without an approval id the run must have exactly one open approval.

About the budget, deny means: end the run. About a call in doubt, deny means: give up, its outcome stays unknown. With --settle
the text is recorded as its error, because you found out that it failed.`,
		Example: `  runnerd deny 3f2a 9 --reason "not on a Friday"
  runnerd deny 3f2a 21 --settle "the payment was refused by the bank"`,
	}, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY)
}

// verdict is what approve and deny are asked to do.
type verdict struct {
	connection *connection
	output     *output
	verdict    runnerdv1.ApprovalVerdict
	reason     string
	settle     *string
	yes        bool
}

func newVerdictCommand(p *program, cmd *cobra.Command, what runnerdv1.ApprovalVerdict) *cobra.Command {
	v := &verdict{verdict: what}
	var settle string
	cmd.Args = cobra.RangeArgs(1, 2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("settle") {
			v.settle = &settle
		}
		var id uint64
		if len(args) == 2 {
			var err error
			if id, err = strconv.ParseUint(args[1], 10, 64); err != nil || id == 0 {
				return usageError{fmt.Errorf("%q is no approval id: it is a number, as runnerd approvals shows it", args[1])}
			}
		}
		return p.answer(cmd.Context(), v, args[0], id)
	}
	v.connection, v.output = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().StringVar(&v.reason, "reason", "", "why, for the record and the model")
	cmd.Flags().StringVar(&settle, "settle", "", "of a call in doubt: what really happened")
	cmd.Flags().BoolVarP(&v.yes, "yes", "y", false, "do not ask once more")
	return cmd
}

// answer submits a verdict on what it has shown.
func (p *program) answer(ctx context.Context, v *verdict, run string, id uint64) error {
	asJSON, err := v.output.json()
	if err != nil {
		return err
	}
	style, err := p.style(v.output, p.err)
	if err != nil {
		return err
	}
	c, err := p.dial(v.connection)
	if err != nil {
		return err
	}
	defer c.close()
	if id == 0 {
		if id, err = c.onlyApproval(ctx, run); err != nil {
			return err
		}
	}
	callCtx, cancel := call(ctx)
	got, err := c.GetApproval(callCtx, &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: id})
	cancel()
	if err != nil {
		return err
	}
	asked := got.GetApproval()
	fmt.Fprintln(p.err, style.bold(style.yellow(safeLine(fmt.Sprintf("%s %d", asked.GetRunId(), asked.GetApprovalId())))))
	for _, line := range approvalLines(asked) {
		fmt.Fprintln(p.err, "  "+line)
	}
	if asked.GetVia() == runnerdv1.Via_VIA_UNSPECIFIED {
		if err := p.confirm(v); err != nil {
			return err
		}
	}
	req := &runnerdv1.SubmitApprovalRequest{
		RunId: run, ApprovalId: id, Verdict: v.verdict, ApprovalDigest: asked.GetApprovalDigest(), Reason: v.reason,
	}
	if v.settle != nil {
		req.Verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
		req.Result = &runnerdv1.SettledResult{
			Text: *v.settle, IsError: v.verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY,
		}
	}
	callCtx, cancel = call(ctx)
	defer cancel()
	answered, err := c.SubmitApproval(callCtx, req)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p.out, answered.GetApproval())
	}
	_, err = fmt.Fprintln(p.out, verdictText(answered.GetApproval()))
	return err
}

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

// confirm asks once more on a terminal. Where there is none, the command line
// was the decision.
func (p *program) confirm(v *verdict) error {
	if _, tty := p.terminal(p.in); v.yes || !tty {
		return nil
	}
	what := strings.ToLower(short(v.verdict))
	if v.settle != nil {
		what = "settle"
	}
	fmt.Fprintf(p.err, "%s? [y/N] ", what)
	line, err := bufio.NewReader(p.in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if word := strings.ToLower(strings.TrimSpace(line)); word == "y" || word == "yes" {
		return nil
	}
	return &exitError{code: exitFailure, err: errors.New("nothing was answered; the approval stays open")}
}

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
	return safeLine(fmt.Sprintf("%s %s/%s (run %s, approval %d, digest %s)",
		word, a.GetHost(), a.GetTool(), a.GetRunId(), a.GetApprovalId(), a.GetApprovalDigest()))
}
