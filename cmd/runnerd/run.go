package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// runFlags are the flags of run.
type runFlags struct {
	*connection
	*output
	task, taskFile   string
	id, agent, kind  string
	contextFile      string
	metadata         string
	labels           []string
	model, effort    string
	approval         string
	approvalTimeout  time.Duration
	budget           *budgetFlags
	policy           *policyFlags
	follow, signals  bool
	noAsk            bool
	followIsExplicit bool
}

func newRunCommand(p *program) *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use:   "run [flags] [TASK]",
		Short: "Start a run, and watch it to its end",
		Long: `Start a run of an agent.

On a terminal, or with --follow, the run is watched to its end: its events go to
standard error, the answer to standard output, and the exit code tells how it
ended. Otherwise the id of the run is printed at once. Ctrl-C stops watching; the
run goes on. On a terminal an approver is asked what the run asks, unless --no-ask is
given; skipping leaves the approval open.

The policy flags narrow what the agent may do: what they say holds besides what the
agent's policy says, and the stricter wins. See runnerd policy explain.

Exit codes:
` + exitCodes,
		Example: `  runnerd run "say hello"
  runnerd run --agent coder -f task.md --max-iterations 40 --max-cost-cents 250
  git diff | runnerd run --agent reviewer -f - --label repo=runnerd
  answer=$(runnerd run --follow "what time is it?")
  runnerd run --agent coder --mode read-only "where is the retry limit set?"
  runnerd run --agent coder --plan-hash 9f2c --plan-target src/retry "raise the limit"
  runnerd run --id nightly-7 --follow=false "check the backups"`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if f.task != "" {
					return usageError{errors.New("give the task once: as an argument or with --task")}
				}
				f.task = args[0]
			}
			f.followIsExplicit = cmd.Flags().Changed("follow")
			f.budget.set(cmd)
			f.policy.given(cmd)
			return p.startRun(cmd.Context(), f)
		},
	}
	f.connection, f.output = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.task, "task", "", "what is to be done")
	flags.StringVarP(&f.taskFile, "file", "f", "", "read the task from a file; - is standard input")
	flags.StringVarP(&f.agent, "agent", "a", "demo", "agent to run")
	flags.StringVar(&f.id, "id", "", "id of the run; the same id and request again is the same run (default: made up)")
	flags.StringVar(&f.kind, "kind", "", "kind of the task: edit, investigate or test_only")
	flags.StringVar(&f.contextFile, "context", "", "file with a JSON object for the decide service; - is standard input")
	flags.StringVar(&f.metadata, "metadata", "", "JSON object to keep with the run")
	flags.StringArrayVarP(&f.labels, "label", "l", nil, "label to find the run by, key=value; can be repeated")
	flags.StringVar(&f.model, "model", "", "model for the decide service, in its own words")
	flags.StringVar(&f.effort, "effort", "", "effort for the decide service, in its own words")
	flags.StringVar(&f.approval, "approval", "", "how people are asked: wait, pause or deny (default: as the agent says)")
	flags.DurationVar(&f.approvalTimeout, "approval-timeout", 0, "how long an approval stays open")
	flags.BoolVar(&f.follow, "follow", false, "watch the run to its end (default on a terminal)")
	flags.BoolVar(&f.signals, "signals", false, "also show what is in progress (default on a terminal)")
	flags.BoolVar(&f.noAsk, "no-ask", false, "do not ask here what the run asks")
	f.budget, f.policy = addBudgetFlags(cmd), addPolicyFlags(cmd)
	return cmd
}

func (p *program) startRun(ctx context.Context, f *runFlags) error {
	req, err := p.startRequest(f)
	if err != nil {
		return err
	}
	asJSON, err := f.json()
	if err != nil {
		return err
	}
	c, err := p.dial(f.connection)
	if err != nil {
		return err
	}
	defer c.close()

	callCtx, cancel := call(ctx)
	defer cancel()
	started, err := c.StartRun(callCtx, req)
	if err != nil {
		return err
	}
	run := started.GetRun()
	if _, tty := p.terminal(p.out); !f.follow && (f.followIsExplicit || !tty) {
		if asJSON {
			return printJSON(p.out, run)
		}
		_, err := fmt.Fprintln(p.out, safeLine(run.GetRunId()))
		return err
	}
	return p.followRun(ctx, c, f, run, asJSON)
}

// followRun watches a run to its end and prints its answer.
func (p *program) followRun(ctx context.Context, c *client, f *runFlags, run *runnerdv1.Run, asJSON bool) error {
	// Whoever starts a run with a credential owns it, and sees it whole.
	events := p.err
	if asJSON {
		events = p.out
	}
	w := &watcher{program: p, client: c, output: f.output, out: events, asJSON: asJSON, raw: c.credential, ask: !f.noAsk}
	_, tty := p.terminal(events)
	w.signals = f.signals || tty && !asJSON
	err := w.watch(ctx, &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run.GetRunId()}, Follow: true,
	})
	if ctx.Err() != nil {
		id := safeLine(run.GetRunId())
		return &exitError{exitInterrupted, errors.New("interrupted; the run goes on"), "runnerd watch " + id + "   or   runnerd cancel " + id}
	}
	if err != nil {
		return err
	}

	callCtx, cancel := call(ctx)
	defer cancel()
	got, err := c.GetRun(callCtx, &runnerdv1.GetRunRequest{RunId: run.GetRunId()})
	if err != nil {
		return err
	}
	run = got.GetRun()
	if asJSON {
		if err := printJSON(p.out, run); err != nil {
			return err
		}
	} else if err := p.printAnswer(ctx, c, run); err != nil {
		return err
	}
	if code := outcomeExit(run); code != exitOK {
		return &exitError{code: code, hint: nextStep(run)}
	}
	return nil
}

// printAnswer prints the answer of a run to standard output, also one that is
// stored beside the log.
func (p *program) printAnswer(ctx context.Context, c *client, run *runnerdv1.Run) error {
	answer := run.GetFinalAnswer()
	text := answer.GetContent()
	if ref := answer.GetContentRef(); ref != nil {
		data, err := c.readArtifact(ctx, run.GetRunId(), ref)
		if err != nil {
			return err
		}
		text = string(data)
	}
	if text == "" {
		return nil
	}
	_, err := fmt.Fprintln(p.out, strings.TrimRight(safeBlock(text), "\n"))
	return err
}

// readArtifact reads a whole artifact.
func (c *client) readArtifact(ctx context.Context, run string, ref *runnerdv1.ArtifactRef) ([]byte, error) {
	ctx, cancel := call(ctx)
	defer cancel()
	pieces, err := c.ReadArtifact(ctx, &runnerdv1.ReadArtifactRequest{RunId: run, ArtifactId: ref.GetArtifactId()})
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		piece, err := pieces.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		all = append(all, piece.GetData()...)
	}
}

// nextStep says how a run that did not succeed can go on.
func nextStep(run *runnerdv1.Run) string {
	id := safeLine(run.GetRunId())
	switch {
	case run.GetOutcome() == runnerdv1.Outcome_OUTCOME_BLOCKED:
		return "runnerd input " + id + " \"…\""
	case run.GetResumable():
		return strings.TrimSpace("runnerd resume " + id + " " + raiseFlag(run))
	}
	return safeLine(run.GetHint())
}

// startRequest is what the flags ask for.
func (p *program) startRequest(f *runFlags) (*runnerdv1.StartRunRequest, error) {
	task, err := p.readText(f.task, f.taskFile)
	if err != nil {
		return nil, err
	}
	if f.taskFile == "-" && f.contextFile == "-" {
		return nil, usageError{errors.New("standard input can be the task or the context, not both")}
	}
	req := &runnerdv1.StartRunRequest{
		RunId: f.id, Agent: f.agent, Task: task, MetadataJson: f.metadata,
		Model: f.model, Effort: f.effort, Budget: f.budget.budget,
	}
	if err := f.policy.put(req); err != nil {
		return nil, err
	}
	if f.contextFile != "" {
		if req.ContextJson, err = p.readText("", f.contextFile); err != nil {
			return nil, err
		}
	}
	if req.Labels, err = parseLabels(f.labels); err != nil {
		return nil, err
	}
	if f.kind != "" {
		if req.Kind, err = oneOf("kind", f.kind, map[string]runnerdv1.TaskKind{
			"edit":        runnerdv1.TaskKind_TASK_KIND_EDIT,
			"investigate": runnerdv1.TaskKind_TASK_KIND_INVESTIGATE,
			"test_only":   runnerdv1.TaskKind_TASK_KIND_TEST_ONLY,
		}); err != nil {
			return nil, err
		}
	}
	if f.approval != "" || f.approvalTimeout != 0 {
		req.Approval = &runnerdv1.ApprovalSettings{}
	}
	if f.approval != "" {
		if req.Approval.Mode, err = oneOf("approval", f.approval, map[string]runnerdv1.ApprovalMode{
			"wait":  runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT,
			"pause": runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE,
			"deny":  runnerdv1.ApprovalMode_APPROVAL_MODE_DENY,
		}); err != nil {
			return nil, err
		}
	}
	if f.approvalTimeout != 0 {
		req.Approval.Timeout = durationpb.New(f.approvalTimeout)
	}
	return req, nil
}

func parseLabels(pairs []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, usageError{fmt.Errorf("--label %q is not key=value", pair)}
		}
		labels[key] = value
	}
	return labels, nil
}
