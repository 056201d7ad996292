package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

const rootLong = `runnerd executes AI-agent runs. Somebody else writes the brain (a decide service)
and the hands (tool hosts); runnerd owns what lies between: the loop, budgets,
approvals by people, recovery after a crash, and a log that can be checked.

  runnerd serve                      start the daemon, with a scripted agent
  runnerd run "say hello"            start a run and watch it
  runnerd approvals                  see what waits for a person

Exit codes of all commands:
` + exitCodes

func newRoot(p *program) *cobra.Command {
	root := &cobra.Command{
		Use:           "runnerd",
		Short:         "Execute AI-agent runs",
		Long:          rootLong,
		SilenceErrors: true, // report prints them, safely
		SilenceUsage:  true,
	}
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w\nsee %s --help", err, cmd.CommandPath())}
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddGroup(
		&cobra.Group{ID: "daemon", Title: "The daemon:"},
		&cobra.Group{ID: "runs", Title: "Runs:"},
		&cobra.Group{ID: "people", Title: "What waits for people:"},
		&cobra.Group{ID: "log", Title: "The log and the parts:"},
	)
	add := func(group string, commands ...*cobra.Command) {
		for _, cmd := range commands {
			cmd.GroupID = group
			root.AddCommand(cmd)
		}
	}
	add("daemon", newServeCommand(p), newDemoCommand(p), newTokenCommand(p), newVersionCommand(p))
	add("runs", newRunCommand(p), newWatchCommand(p), newRunsCommand(p), newCancelCommand(p), newResumeCommand(p))
	add("people", newApprovalsCommand(p), newApproveCommand(p), newDenyCommand(p), newGrantsCommand(p), newInputCommand(p))
	add("log", newAuditCommand(p), newToolsCommand(p), newPolicyCommand(p), newDevCommand())
	markUsage(root)
	return root
}

// markUsage makes wrong arguments of every command usage errors, as wrong flags are. What only holds other commands
// shows its help, and takes no other word for one of them.
func markUsage(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.RunE = noSuchCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				usage := ""
				if !cmd.HasSubCommands() {
					usage = "\nusage: " + cmd.UseLine()
				}
				return usageError{fmt.Errorf("%w%s\nsee %s --help", err, usage, cmd.CommandPath())}
			}
			return nil
		}
	}
	for _, child := range cmd.Commands() {
		markUsage(child)
	}
}

// noSuchCommand refuses what is no command, and names those that it may have been meant for.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	if cmd.SuggestionsMinimumDistance <= 0 {
		cmd.SuggestionsMinimumDistance = 2
	}
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return errors.New(text)
}
