package main

import (
	"fmt"
	"slices"
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
		Long: `Ask the tool hosts of an agent what they offer now, as a new run would, and list it:

  TIER          risk: 0 reads, 1 writes in the workspace, 2 neutral, 3 commands and
                the outside, 4 what cannot be undone
  LOST OUTCOME  what is done when nobody knows how a call ended: repeat it, reconcile
                (ask the host), or none (see in_doubt of the agent)
  DECLARED      what the host says of the tool
  LIMITS        time of one attempt, and how often a run may start calls

Findings follow, with what to do: an error leaves a tool out of the runs of the agent.`,
		Example: `  runnerd tools
  runnerd tools coder
  runnerd tools coder --output json | jq '.findings[].code'`,
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
		fmt.Fprintln(table, "TOOL\tHOST\tTIER\tLOST OUTCOME\tDECLARED\tLIMITS\tHOST SAYS")
	}
	for _, tool := range got.GetTools() {
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%s\n", safeLine(tool.GetOfferedName()), safeLine(tool.GetHost()), tool.GetTier(),
			strings.ToLower(short(tool.GetRecovery())), firstOf(annotationsText(tool.GetAnnotations()), "nothing"),
			limitsText(tool), shortLine(tool.GetDescription(), 60))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return p.printFindings(got.GetFindings(), style)
}

// limitsText is how long and how often a tool may run.
func limitsText(tool *runnerdv1.Tool) string {
	text := tool.GetTimeout().AsDuration().String()
	if limit := tool.GetRateLimit(); limit != nil {
		text += fmt.Sprintf(", %s in %s", count(limit.GetMaxCalls(), "call", "calls"), limit.GetPer().AsDuration())
	}
	return text
}

// printFindings prints errors one by one and first, because they take tools
// out, and warnings that say the same together.
func (p *program) printFindings(findings []*runnerdv1.Finding, style style) error {
	type group struct {
		code, message string
		tools         []string
	}
	var errs []string
	var warnings []*group
	for _, f := range findings {
		about := safeLine(f.GetHost())
		if f.GetTool() != "" {
			about = safeLine(f.GetHost() + "/" + f.GetTool())
		}
		if f.GetSeverity() == runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR {
			errs = append(errs, fmt.Sprintf("%s  %s: %s: %s", style.red("error"), about, safeLine(f.GetCode()), safeLine(f.GetMessage())))
			continue
		}
		i := slices.IndexFunc(warnings, func(g *group) bool { return g.code == f.GetCode() && g.message == f.GetMessage() })
		if i < 0 {
			i = len(warnings)
			warnings = append(warnings, &group{code: f.GetCode(), message: f.GetMessage()})
		}
		warnings[i].tools = append(warnings[i].tools, about)
	}
	for _, line := range errs {
		fmt.Fprintln(p.out, line)
	}
	for _, g := range warnings {
		if _, err := fmt.Fprintf(p.out, "%s  %s: %s: %s\n", style.yellow("warning"), strings.Join(g.tools, ", "),
			safeLine(g.code), safeLine(g.message)); err != nil {
			return err
		}
	}
	return nil
}
