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
	return p.printFindings(got.GetFindings(), style)
}

// printFindings prints errors one by one, because they take tools out, and
// warnings together.
func (p *program) printFindings(findings []*runnerdv1.Finding, style style) error {
	var codes []string
	warned := map[string][]string{}
	for _, f := range findings {
		tool := safeLine(f.GetHost() + "/" + f.GetTool())
		if f.GetSeverity() == runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR {
			fmt.Fprintln(p.out, style.red("error")+"  "+tool+": "+safeLine(f.GetMessage()))
			continue
		}
		if warned[f.GetCode()] == nil {
			codes = append(codes, f.GetCode())
		}
		warned[f.GetCode()] = append(warned[f.GetCode()], tool)
	}
	for _, code := range codes {
		if _, err := fmt.Fprintln(p.out, style.yellow("warning")+"  "+safeLine(code)+": "+strings.Join(warned[code], ", ")); err != nil {
			return err
		}
	}
	return nil
}
