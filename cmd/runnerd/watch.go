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
		all, raw, signals, follow, noAsk bool
		after                            uint64
		cursor                           string
		types                            []string
		connect                          *connection
		out                              *output
	)
	cmd := &cobra.Command{
		Use:   "watch [flags] RUN | --all",
		Short: "Show the events of a run, from the first to its end",
		Long: `Show the events of a run, or of all runs, and what comes. A daemon that restarts
meanwhile is waited for; no event is missed or shown twice.

Watching one run ends when the run does, and the exit code is 0 however it ended. On a
terminal an approver is asked what the run asks, unless --no-ask is given; skipping
leaves the approval open, and Ctrl-C leaves the run alone.`,
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
			w := &watcher{program: p, client: c, output: out, out: p.out, asJSON: asJSON, raw: raw, signals: signals, ask: !noAsk && follow}
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
	flags.BoolVar(&noAsk, "no-ask", false, "do not ask here what the run asks")
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
	ask     bool // the person at the terminal, if there is one
}

func (w *watcher) watch(ctx context.Context, req *runnerdv1.StreamEventsRequest) error {
	req.IncludeRaw = w.raw
	oneRun := req.GetRunId() != ""
	req.IncludeSignals = w.signals && oneRun
	if w.asJSON {
		return w.stream(ctx, req, func(msg *runnerdv1.StreamEventsResponse) error { return printJSON(w.out, msg) }, w.waiting)
	}
	r, err := w.renderer(w.out)
	if err != nil {
		return err
	}
	r.runs = !oneRun
	tidy := func() {}
	if r.live != nil {
		tidy = r.live.clear
	}
	defer func() { tidy() }()
	if w.ask && oneRun {
		a, err := w.asker(w.client, w.output)
		if err != nil {
			return err
		}
		if a != nil {
			a.tidy = tidy
			return w.watchAndAsk(ctx, req, r, a)
		}
	}
	return w.stream(ctx, req, func(msg *runnerdv1.StreamEventsResponse) error {
		if msg.GetEvent() != nil {
			return r.event(ctx, msg.GetEvent())
		}
		r.signal(msg.GetSignal())
		return nil
	}, func(err error) { tidy(); w.waiting(err) })
}

// watchAndAsk prints events while the person at the terminal is asked.
func (w *watcher) watchAndAsk(ctx context.Context, req *runnerdv1.StreamEventsRequest, r *renderer, a *asker) error {
	r.asked = true
	asking, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.serve(asking)
	}()
	defer func() { stop(); <-ended }()
	return w.stream(ctx, req, func(msg *runnerdv1.StreamEventsResponse) error {
		ev := msg.GetEvent()
		if ev == nil {
			a.quietly(func() { r.signal(msg.GetSignal()) })
			return nil
		}
		err := a.above(func() error { return r.event(ctx, ev) })
		a.event(asking, ev)
		return err
	}, func(err error) {
		_ = a.above(func() error { a.tidy(); w.waiting(err); return nil }) // writes to the terminal only
	})
}

// waiting tells that the stream broke and is taken up again.
func (w *watcher) waiting(err error) {
	_, text, _ := explain(err)
	fmt.Fprintf(w.program.err, "waiting for the daemon: %s\n", safeLine(text))
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
		r.approval = w.getApproval
	}
	return r, nil
}
