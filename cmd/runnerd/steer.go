package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func newInputCommand(p *program) *cobra.Command {
	var (
		file, requestID string
		connect         *connection
		out             *output
	)
	cmd := &cobra.Command{
		Use:   "input [flags] RUN [TEXT]",
		Short: "Answer the question of a run, or tell it something",
		Long: `Say something to a run. It answers the open question of the run, lets a blocked run
go on, or is shown to the model with its next decision.`,
		Example: `  runnerd input 3f2a "use the staging database"
  runnerd input 3f2a -f notes.md --request-id notes-1`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			argument := ""
			if len(args) == 2 {
				argument = args[1]
			} else if file == "" {
				return usageError{errors.New("give a text, or a file with -f")}
			}
			text, err := p.readText(argument, file)
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
			got, err := c.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: args[0], Text: text, RequestId: requestID})
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, got)
			}
			_, err = fmt.Fprintf(p.out, "recorded as event %d of run %s\n", got.GetSequence(), safeLine(args[0]))
			return err
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().StringVarP(&file, "file", "f", "", "read the text from a file; - is standard input")
	cmd.Flags().StringVar(&requestID, "request-id", "", "id that makes the command safe to repeat")
	return cmd
}

func newCancelCommand(p *program) *cobra.Command {
	var (
		abort   bool
		reason  string
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "cancel [flags] RUN",
		Short: "End a run: what is in progress is let finish, or cut with --abort",
		Long: `End a run. Nothing new starts; calls in progress are let finish, or with --abort cut
at once and settled within 5 s. It returns when the request is durable. It may be
repeated, and --abort may follow.`,
		Example: `  runnerd cancel 3f2a --reason "not needed any more"
  runnerd cancel 3f2a --abort`,
		Args: cobra.ExactArgs(1),
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
			req := &runnerdv1.CancelRunRequest{RunId: args[0], Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP, Reason: reason}
			if abort {
				req.Mode = runnerdv1.CancelMode_CANCEL_MODE_ABORT
			}
			ctx, cancel := call(cmd.Context())
			defer cancel()
			got, err := c.CancelRun(ctx, req)
			if err != nil {
				return err
			}
			return p.printState(got.GetRun(), asJSON)
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().BoolVar(&abort, "abort", false, "cut what is in progress")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the record")
	return cmd
}

func newResumeCommand(p *program) *cobra.Command {
	var (
		budget  *budgetFlags
		auto    *autoLimitFlags
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "resume [flags] RUN",
		Short: "Let a run go on that a limit or a lost decide service ended",
		Long: `Let a resumable run go on with all that it knows and has counted. Limits may be
raised within the agent's budget_max, those of auto mode (--auto-...) within its
auto_mode.limits_max; others stay as they are.`,
		Example: `  runnerd resume 3f2a --max-iterations 50
  runnerd resume 3f2a --auto-max-iterations 80 --auto-max-duration 1h
  runnerd resume 3f2a && runnerd watch 3f2a`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			budget.set(cmd)
			auto.set(cmd)
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			ctx, cancel := call(cmd.Context())
			defer cancel()
			got, err := c.ResumeRun(ctx, &runnerdv1.ResumeRunRequest{
				RunId: args[0], Budget: budget.budget, AutoModeLimits: auto.limits,
			})
			if err != nil {
				return err
			}
			return p.printState(got.GetRun(), asJSON)
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	budget, auto = addBudgetFlags(cmd), addAutoLimitFlags(cmd)
	return cmd
}

// printState says in one line what a run does now.
func (p *program) printState(run *runnerdv1.Run, asJSON bool) error {
	if asJSON {
		return printJSON(p.out, run)
	}
	text := safeLine(run.GetRunId()) + ": " + strings.ToLower(short(run.GetState()))
	if run.GetState() == runnerdv1.RunState_RUN_STATE_DONE {
		text += ", " + safeLine(run.GetStatus()) + " (" + short(run.GetStopReason()) + ")"
	}
	_, err := fmt.Fprintln(p.out, text)
	return err
}
