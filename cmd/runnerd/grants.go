package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func newGrantsCommand(p *program) *cobra.Command {
	var (
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "grants [flags] RUN",
		Short: "List what a run may do without asking again",
		Long: `List the grants of a run that hold, oldest first: what people let pass for the rest of
the run when they approved a call. A grant never beats a block, and never covers a
tool of tier 4. Needs the credential of an approver.`,
		Example: `  runnerd grants 3f2a
  runnerd grants 3f2a --output json | jq -r .grant_id
  runnerd grants revoke 3f2a 9 --reason "enough of that"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one run")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			ctx, cancel := call(cmd.Context())
			defer cancel()
			got, err := c.ListGrants(ctx, &runnerdv1.ListGrantsRequest{RunId: args[0]})
			if err != nil {
				return err
			}
			if !asJSON {
				return p.printGrants(got.GetGrants())
			}
			for _, g := range got.GetGrants() {
				if err := printJSON(p.out, g); err != nil {
					return err
				}
			}
			return nil
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.AddCommand(newRevokeCommand(p))
	return cmd
}

func (p *program) printGrants(grants []*runnerdv1.Grant) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	if len(grants) > 0 {
		fmt.Fprintln(table, "GRANT\tGIVEN\tBY\tUSES\tDOES NOT ASK")
	}
	for _, g := range grants {
		fmt.Fprintf(table, "%d\t%s\t%s\t%d\t%s\n", g.GetGrantId(), g.GetGrantedAt().AsTime().In(p.zone).Format("2006-01-02 15:04:05"),
			safeLine(g.GetGrantedBy()), g.GetUses(), grantCovers(g.GetScope(), g.GetHost(), g.GetTool(), g.GetProgram()))
	}
	return table.Flush()
}

func newRevokeCommand(p *program) *cobra.Command {
	var (
		reason  string
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "revoke [flags] RUN GRANT",
		Short: "End a grant of a run",
		Long: `End a grant. Calls that it lets pass and that have not started are asked for again;
what runs already is let finish. It may be repeated. Needs the credential of an
approver.`,
		Example: `  runnerd grants revoke 3f2a 9
  runnerd grants revoke 3f2a 9 --reason "enough of that"`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			id, err := parseID("grant", args[1], "runnerd grants")
			if err != nil {
				return err
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			ctx, cancel := call(cmd.Context())
			defer cancel()
			got, err := c.RevokeGrant(ctx, &runnerdv1.RevokeGrantRequest{RunId: args[0], GrantId: id, Reason: reason})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, got)
			}
			_, err = fmt.Fprintf(p.out, "grant %d of run %s is revoked (event %d)\n", id, safeLine(args[0]), got.GetSequence())
			return err
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}
