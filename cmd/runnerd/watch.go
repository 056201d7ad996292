package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func newWatchCommand(p *program) *cobra.Command {
	var (
		all, raw, signals, follow bool
		after                     uint64
		cursor                    string
		types                     []string
		connect                   *connection
		out                       *output
	)
	cmd := &cobra.Command{
		Use:   "watch [flags] RUN | --all",
		Short: "Show the events of a run, from the first to its end",
		Long: `Show the events of a run, or of all runs, and what comes. A daemon that restarts
meanwhile is waited for; no event is missed or shown twice.

Watching one run ends when the run does, and the exit code is 0 however it ended.`,
		Example: `  runnerd watch 3f2a
  runnerd watch 3f2a --signals
  runnerd watch 3f2a --follow=false --output json | jq .event.type
  runnerd watch --all --type tool_call_pending_approval`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == all {
				return errors.New("name one run, or use --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			req := &runnerdv1.StreamEventsRequest{
				Scope: &runnerdv1.StreamEventsRequest_All{All: true}, AfterCursor: cursor, Types: types, Follow: follow,
			}
			if len(args) == 1 {
				req.Scope = &runnerdv1.StreamEventsRequest_RunId{RunId: args[0]}
			}
			if cmd.Flags().Changed("after") {
				if all {
					return usageError{errors.New("--after counts the events of one run; with --all use --cursor")}
				}
				req.AfterSequence = &after
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			w := &watcher{program: p, client: c, output: out, out: p.out, asJSON: asJSON, raw: raw, signals: signals}
			err = w.watch(cmd.Context(), req)
			if cmd.Context().Err() != nil {
				return &exitError{code: exitInterrupted}
			}
			return err
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&all, "all", false, "watch all runs")
	flags.BoolVar(&follow, "follow", true, "go on with what comes")
	flags.BoolVar(&signals, "signals", false, "also show what is in progress: text of the model, progress of tools")
	flags.BoolVar(&raw, "raw", false, "show arguments and results whole; for the owner of the run and admins")
	flags.Uint64Var(&after, "after", 0, "only events after this sequence")
	flags.StringVar(&cursor, "cursor", "", "only events after this cursor, as --output json prints them")
	flags.StringSliceVar(&types, "type", nil, "only events of these types, for example tool_call_failed")
	return cmd
}

// watcher prints a stream of events.
type watcher struct {
	*program
	*client
	*output
	out     io.Writer
	asJSON  bool
	raw     bool
	signals bool
}

func (w *watcher) watch(ctx context.Context, req *runnerdv1.StreamEventsRequest) error {
	req.IncludeRaw = w.raw
	oneRun := req.GetRunId() != ""
	req.IncludeSignals = w.signals && oneRun
	receive := func(msg *runnerdv1.StreamEventsResponse) error { return printJSON(w.out, msg) }
	tidy := func() {}
	if !w.asJSON {
		r, err := w.renderer(w.out)
		if err != nil {
			return err
		}
		r.runs = !oneRun
		if r.live != nil {
			tidy = r.live.clear
		}
		receive = func(msg *runnerdv1.StreamEventsResponse) error {
			if msg.GetEvent() != nil {
				return r.event(ctx, msg.GetEvent())
			}
			r.signal(msg.GetSignal())
			return nil
		}
	}
	defer func() { tidy() }()
	return w.stream(ctx, req, receive, func(err error) {
		tidy()
		_, text, _ := explain(err)
		fmt.Fprintf(w.program.err, "waiting for the daemon: %s\n", safeLine(text))
	})
}

// renderer makes a renderer that writes to out.
func (w *watcher) renderer(out io.Writer) (*renderer, error) {
	style, err := w.style(w.output, out)
	if err != nil {
		return nil, err
	}
	width, _ := w.terminal(out)
	r := &renderer{out: out, style: style, zone: w.zone, now: w.now, width: width}
	if w.signals {
		r.live = &liveLine{out: out, style: style, width: width}
	}
	if w.credential {
		r.approval = func(ctx context.Context, run string, id uint64) (*runnerdv1.Approval, error) {
			ctx, cancel := call(ctx)
			defer cancel()
			got, err := w.GetApproval(ctx, &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: id})
			return got.GetApproval(), err
		}
	}
	return r, nil
}
