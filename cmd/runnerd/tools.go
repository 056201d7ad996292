package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func newToolsCommand(p *program) *cobra.Command {
	var (
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "tools [flags] [AGENT]",
		Short: "List the tools of an agent, and what is wrong with them",
		Long: `Ask the tool hosts of an agent what they offer now, as a new run would. Findings of
severity error leave a tool out of the runs of the agent.`,
		Example: `  runnerd tools
  runnerd tools coder --output json`,
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
			agent := "demo"
			if len(args) == 1 {
				agent = args[0]
			}
			ctx, cancel := call(cmd.Context())
			defer cancel()
			got, err := c.ListTools(ctx, &runnerdv1.ListToolsRequest{Agent: agent})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, got)
			}
			return p.printTools(got, style)
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	return cmd
}

func (p *program) printTools(got *runnerdv1.ListToolsResponse, style style) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	if len(got.GetTools()) > 0 {
		fmt.Fprintln(table, "TOOL\tHOST\tTIER\tLOST OUTCOME\tTIMEOUT\tDESCRIPTION")
	}
	for _, tool := range got.GetTools() {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", safeLine(tool.GetOfferedName()), safeLine(tool.GetHost()), tool.GetTier(),
			strings.ToLower(short(tool.GetRecovery())), tool.GetTimeout().AsDuration(), shortLine(tool.GetDescription(), 60))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, f := range got.GetFindings() {
		line := safeLine(fmt.Sprintf("%s %s/%s: %s", f.GetCode(), f.GetHost(), f.GetTool(), f.GetMessage()))
		if f.GetSeverity() == runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR {
			fmt.Fprintln(p.out, style.red("error")+"    "+line)
			continue
		}
		fmt.Fprintln(p.out, style.yellow("warning")+"  "+line)
	}
	return nil
}
