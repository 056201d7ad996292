package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func newRunsCommand(p *program) *cobra.Command {
	var (
		agent   string
		states  []string
		labels  []string
		limit   int
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "runs [flags] [RUN]",
		Short: "List runs, newest first, or show one whole",
		Long: `List runs, newest first. Counters of a run that is active are as of the last time it
rested. With the id of a run, show that run with its counters, open approvals,
question and answer.`,
		Example: `  runnerd runs
  runnerd runs --state waiting_approval,waiting_input
  runnerd runs --agent coder --label repo=runnerd --limit 5
  runnerd runs 3f2a
  runnerd runs --output json | jq -r .run_id`,
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
			req := &runnerdv1.ListRunsRequest{Agent: agent}
			for _, word := range states {
				state, err := oneOf("state", word, stateWords())
				if err != nil {
					return err
				}
				req.States = append(req.States, state)
			}
			if req.Labels, err = parseLabels(labels); err != nil {
				return err
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			if len(args) == 1 {
				return p.showRun(cmd.Context(), c, args[0], asJSON, style)
			}
			return p.listRuns(cmd.Context(), c, req, limit, asJSON)
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&agent, "agent", "a", "", "only runs of this agent")
	flags.StringSliceVar(&states, "state", nil, "only runs in these states: "+strings.Join(slices.Sorted(maps.Keys(stateWords())), ", "))
	flags.StringArrayVarP(&labels, "label", "l", nil, "only runs with this label, key=value; can be repeated")
	flags.IntVarP(&limit, "limit", "n", 50, "list at most so many; 0 lists all")
	return cmd
}

// stateWords are the states as people write them.
func stateWords() map[string]runnerdv1.RunState {
	words := map[string]runnerdv1.RunState{}
	for number := range runnerdv1.RunState_name {
		if state := runnerdv1.RunState(number); number != 0 {
			words[strings.ToLower(short(state))] = state
		}
	}
	return words
}

// pageSize is how many things are asked for at once.
const pageSize = 200

func (p *program) listRuns(
	ctx context.Context, c *client, req *runnerdv1.ListRunsRequest, limit int, asJSON bool,
) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for listed := 0; ; {
		req.PageSize = pageSize
		if limit > 0 {
			req.PageSize = uint32(min(pageSize, limit-listed))
		}
		callCtx, cancel := call(ctx)
		page, err := c.ListRuns(callCtx, req)
		cancel()
		if err != nil {
			return err
		}
		if listed == 0 && !asJSON && len(page.GetRuns()) > 0 {
			fmt.Fprintln(table, "RUN\tAGENT\tSTATE\tSTARTED\tITER\tCALLS\tCOST\tTASK")
		}
		for _, run := range page.GetRuns() {
			if asJSON {
				if err := printJSON(p.out, run); err != nil {
					return err
				}
				continue
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\n", safeLine(run.GetRunId()), safeLine(run.GetAgent()),
				stateText(run), run.GetCreatedAt().AsTime().In(p.zone).Format("2006-01-02 15:04:05"), run.GetIteration(),
				run.GetToolCalls(), cents(run.GetUsage().GetCostNanocents()), shortLine(run.GetTask(), 40))
		}
		listed += len(page.GetRuns())
		req.PageToken = page.GetNextPageToken()
		if req.GetPageToken() == "" || limit > 0 && listed >= limit {
			break
		}
	}
	return table.Flush()
}

// stateText is the state of a run, and of one that is done how it ended.
func stateText(run *runnerdv1.Run) string {
	if run.GetState() == runnerdv1.RunState_RUN_STATE_DONE {
		return safeLine(run.GetStatus())
	}
	return strings.ToLower(short(run.GetState()))
}

func (p *program) showRun(ctx context.Context, c *client, id string, asJSON bool, style style) error {
	ctx, cancel := call(ctx)
	defer cancel()
	got, err := c.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: id})
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(p.out, got.GetRun())
	}
	run := got.GetRun()
	for i, a := range run.GetApprovals() {
		// The arguments are for approvers; others are told what is asked without.
		if whole, err := c.getApproval(ctx, id, a.GetApprovalId()); err == nil {
			run.Approvals[i] = whole
		}
	}
	return p.printRun(p.out, run, style)
}

// printRun shows a run as a list of what there is to know.
func (p *program) printRun(w io.Writer, run *runnerdv1.Run, style style) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, value)
		}
	}
	row("run", safeLine(run.GetRunId()))
	row("agent", safeLine(run.GetAgent()))
	row("owner", safeLine(run.GetOwner()))
	row("state", stateText(run))
	if run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_UNSPECIFIED {
		row("stop reason", short(run.GetStopReason()))
	}
	row("started", run.GetCreatedAt().AsTime().In(p.zone).Format(time.RFC3339))
	budget := run.GetSpec().GetBudget()
	row("iterations", fmt.Sprintf("%d of %d", run.GetIteration(), budget.GetMaxIterations()))
	row("tool calls", fmt.Sprintf("%d of %d", run.GetToolCalls(), budget.GetMaxToolCalls()))
	row("cost", costText(run.GetUsage(), budget))
	row("tokens", fmt.Sprintf("%d read, %d written", run.GetUsage().GetInputTokens(), run.GetUsage().GetOutputTokens()))
	if run.GetContextTokens() > 0 {
		row("context", contextText(run))
	}
	if levels := run.GetWarnedLevels(); len(levels) > 0 {
		row("warned of cost at", fmt.Sprintf("%d %%", levels[len(levels)-1]))
	}
	if n := run.GetConsecutiveRefusals(); n > 0 {
		row("refused in a row", fmt.Sprint(n))
	}
	row("running time", lasted(run.GetRunningTime().AsDuration()))
	row("auto mode", autoModeText(run.GetAutoMode()))
	for _, g := range run.GetGrants() {
		row(fmt.Sprintf("grant %d", g.GetGrantId()), join(", ", "does not ask "+grantCovers(g.GetScope(), g.GetHost(), g.GetTool(), g.GetProgram()),
			"by "+safeLine(g.GetGrantedBy()), "used "+count(g.GetUses(), "time", "times")))
	}
	row("labels", labelsText(run.GetLabels()))
	row("task", shortLine(run.GetTask(), detailWidth))
	row("error", safeLine(run.GetErrorMessage()))
	row("hint", safeLine(run.GetHint()))
	if q := run.GetQuestion(); q != nil {
		row("question", safeLine(q.GetText()))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, a := range run.GetApprovals() {
		fmt.Fprintf(w, "\n%s\n", style.bold(style.yellow(fmt.Sprintf("waits for approval %d", a.GetApprovalId()))))
		for _, line := range append(questionLines(a, brief, style), answerLines(a, style)...) {
			fmt.Fprintln(w, "  "+line)
		}
	}
	if answer := run.GetFinalAnswer(); answer != nil {
		fmt.Fprintf(w, "\n%s\n", style.bold("answer"))
		if ref := answer.GetContentRef(); ref != nil {
			fmt.Fprintln(w, quoted("", ref))
		} else {
			fmt.Fprintln(w, safeBlock(answer.GetContent()))
		}
	}
	return nil
}

// contextText is what the last decision took up of the context.
func contextText(run *runnerdv1.Run) string {
	text := fmt.Sprintf("%d", run.GetContextTokens())
	if most := run.GetSpec().GetBudget().GetMaxContextTokens(); most > 0 {
		text += fmt.Sprintf(" of %d", most)
	}
	text += " tokens"
	if zone := run.GetContextZone(); zone != runnerdv1.ContextZone_CONTEXT_ZONE_UNSPECIFIED {
		text += ", " + strings.ToLower(short(zone))
	}
	return text
}

// autoModeText is what a run did in auto mode, and what it may.
func autoModeText(s *runnerdv1.AutoModeSummary) string {
	if s == nil {
		return ""
	}
	limits := s.GetLimits()
	return fmt.Sprintf("on, approved %s; %d of %d iterations, %d of %d calls, %.2f of %.2f ¢, %s of %s",
		count(s.GetApprovedCalls(), "call", "calls"), s.GetIterations(), limits.GetMaxIterations(), s.GetToolCalls(), limits.GetMaxToolCalls(),
		s.GetCostCents(), limits.GetMaxCostCents(), lasted(s.GetRunningTime().AsDuration()), lasted(limits.GetMaxDuration().AsDuration()))
}

func costText(u *runnerdv1.UsageTotals, b *runnerdv1.Budget) string {
	text := cents(u.GetCostNanocents())
	if b != nil && b.MaxCostCents != nil {
		text += fmt.Sprintf(" of %.2f ¢", b.GetMaxCostCents())
	}
	if n := u.GetDecisionsWithoutCost(); n > 0 {
		text += fmt.Sprintf(" (at least: %s came without a cost)", count(n, "decision", "decisions"))
	}
	return text
}

func labelsText(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, safeLine(key+"="+labels[key]))
	}
	return strings.Join(pairs, " ")
}
