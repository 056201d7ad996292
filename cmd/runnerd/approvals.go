package main

import (
	"context"
	"fmt"

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
		Long: `List the open approvals of all runs, or of one, oldest first: what will run, the rule
that asks, and the arguments field by field. Of long arguments the head and the tail
are shown; approve and deny show them whole. Words of the model and of the tool host
are marked with whose they are.

--output json has the arguments as text, byte for byte, up to 4 KiB. Needs the
credential of an approver.`,
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
				p.printQuestion(p.out, a, brief, style)
				for _, line := range answerLines(a, style) {
					fmt.Fprintln(p.out, "  "+line)
				}
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

// getApproval reads one approval with its exact arguments.
func (c *client) getApproval(ctx context.Context, run string, id uint64) (*runnerdv1.Approval, error) {
	ctx, cancel := call(ctx)
	defer cancel()
	got, err := c.GetApproval(ctx, &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: id})
	return got.GetApproval(), err
}
