package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/decide"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

const demoLong = `Runs one real job with everything there is: a daemon, a decide service and a tool
host, each a process of its own, on this machine, without a model and without a
network. An agent surveys the Go sources below --sources and writes a report, which
a person must approve: you, if this is a terminal. In the middle of the writing the
daemon is killed with -9 and started again; the run goes on, and nothing is done
twice. At last the log is verified.`

// demo is one run of the demonstration.
type demo struct {
	p       *program
	self    string // the runnerd binary
	dir     string // of its own, taken away at the end
	sources string
	fast    bool
	assent  bool // approve without asking
	out     *output
	style   style
	daemon  *child
	addr    string
	keys    keyboard // of the person; nil: nobody is there
}

func newDemoCommand(p *program) *cobra.Command {
	d := &demo{p: p, out: &output{}}
	cmd := &cobra.Command{
		Use:     "demo",
		Short:   "See one whole run, a crash in its middle included",
		Long:    demoLong,
		Example: "  runnerd demo\n  runnerd demo --sources ~/src/project\n  runnerd demo --yes --fast",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if d.style, err = p.style(d.out, p.out); err != nil {
				return err
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&d.sources, "sources", ".", "folder with the Go sources that are surveyed")
	cmd.Flags().BoolVar(&d.assent, "yes", false, "approve without asking, as where there is no terminal")
	cmd.Flags().BoolVar(&d.fast, "fast", false, "do not pace the demonstration for reading")
	cmd.Flags().StringVar(&d.out.color, "color", "auto", "auto (on a terminal, unless NO_COLOR is set), always or never")
	cmd.AddCommand(newDemoDecideCommand(p), newDemoToolsCommand(p))
	return cmd
}

func newDemoDecideCommand(p *program) *cobra.Command {
	var listen string
	var pace time.Duration
	cmd := &cobra.Command{
		Use: "decide", Short: "Serve the brain of the demonstration", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listenAndTell(cmd.Context(), p.out, listen, func(ctx context.Context, lis listener) error {
				return decide.Serve(ctx, lis, demoBrain(pace))
			})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on")
	cmd.Flags().DurationVar(&pace, "pace", 0, "time between words")
	return cmd
}

func newDemoToolsCommand(p *program) *cobra.Command {
	var listen, sources, scratch, ledger string
	var pace time.Duration
	cmd := &cobra.Command{
		Use: "tools", Short: "Serve the hands of the demonstration", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			from, err := os.OpenRoot(sources)
			if err != nil {
				return err
			}
			to, err := os.OpenRoot(scratch)
			if err != nil {
				return err
			}
			book, err := toolhost.OpenLedger(ledger)
			if err != nil {
				return err
			}
			defer book.Close()
			tools := &demoTools{sources: from, scratch: to, pace: pace}
			return listenAndTell(cmd.Context(), p.out, listen, func(ctx context.Context, lis listener) error {
				return tools.server(book).Serve(ctx, lis)
			})
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on")
	cmd.Flags().StringVar(&sources, "sources", ".", "folder to read")
	cmd.Flags().StringVar(&scratch, "scratch", "", "folder to write to")
	cmd.Flags().StringVar(&ledger, "ledger", "", "file that keeps what was executed")
	cmd.Flags().DurationVar(&pace, "pace", 0, "time between paragraphs")
	return cmd
}

const demoConfig = `decide_services:
  brain: {address: %q}
tool_hosts:
  files: {address: %q}
agents:
  surveyor:
    decide_service: brain
    tool_hosts: [files]
    policy: {approval_for: ["write_*"]}
`

// run is the whole demonstration.
func (d *demo) run(ctx context.Context) (err error) {
	if d.self, err = os.Executable(); err != nil {
		return err
	}
	if d.sources, err = filepath.Abs(d.sources); err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "runnerd-demo-"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(d.dir) }() // a folder of its own that stays does no harm
	scratch := filepath.Join(d.dir, "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		return err
	}
	if _, ok := d.p.terminal(d.p.in); ok && !d.assent {
		d.keys = d.p.keys()
	}
	ledger := filepath.Join(d.dir, "ledger.jsonl")

	d.title("Three processes: a decide service, a tool host, and runnerd between them.")
	brain, err := d.start(ctx, "demo", "decide", "--pace", d.pause(60*time.Millisecond).String())
	if err != nil {
		return err
	}
	defer brain.stop()
	hands, err := d.start(ctx, "demo", "tools", "--pace", d.pause(900*time.Millisecond).String(),
		"--sources", d.sources, "--scratch", scratch, "--ledger", ledger)
	if err != nil {
		return err
	}
	defer hands.stop()
	config := filepath.Join(d.dir, "runnerd.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, demoConfig, brain.addr, hands.addr), 0o600); err != nil {
		return err
	}
	if err := d.serve(ctx, "127.0.0.1:0"); err != nil {
		return err
	}
	defer func() { d.daemon.stop() }()
	d.say("decide service %s · tool host %s · runnerd %s", brain.addr, hands.addr, d.addr)

	run, err := d.watch(ctx)
	if err != nil {
		return err
	}
	if err := d.report(run, filepath.Join(scratch, demoReport), ledger); err != nil {
		return err
	}
	return d.verify(ctx)
}

// serve starts the daemon and waits until it serves.
func (d *demo) serve(ctx context.Context, listen string) error {
	daemon, err := d.start(ctx, "serve", "--config", filepath.Join(d.dir, "runnerd.yaml"),
		"--data-dir", filepath.Join(d.dir, "data"), "--listen", listen)
	if err != nil {
		return err
	}
	d.daemon, d.addr = daemon, daemon.addr
	return nil
}

func (d *demo) dial() (*client, error) {
	return d.p.dial(&connection{addr: d.addr, tokenFile: filepath.Join(d.dir, "data", "approver.token")})
}

// watch starts the run and shows its events to the end. When the report is half written, the daemon is killed.
func (d *demo) watch(ctx context.Context) (*runnerdv1.Run, error) {
	c, err := d.dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	started, err := c.StartRun(ctx, &runnerdv1.StartRunRequest{RunId: "demo", Agent: "surveyor", Task: demoTask})
	if err != nil {
		return nil, err
	}
	d.title("The task: " + demoTask)
	_, terminal := d.p.terminal(d.p.out)
	w := &watcher{program: d.p, client: c, output: d.out, signals: terminal}
	r, err := w.renderer(d.p.out)
	if err != nil {
		return nil, err
	}
	r.here = true
	killed := false
	err = c.stream(ctx, &runnerdv1.StreamEventsRequest{
		Scope:  &runnerdv1.StreamEventsRequest_RunId{RunId: started.GetRun().GetRunId()},
		Follow: true, IncludeSignals: true, IncludeRaw: true,
	}, func(msg *runnerdv1.StreamEventsResponse) error {
		if s := msg.GetSignal(); s != nil {
			r.signal(s)
			if half := s.GetToolProgress(); !killed && half.GetFraction() >= 0.4 {
				killed = true
				return d.crash(ctx, r)
			}
			return nil
		}
		if err := r.event(ctx, msg.GetEvent()); err != nil {
			return err
		}
		d.rest(ctx, 150*time.Millisecond)
		if ask := msg.GetEvent().GetToolCallPendingApproval(); ask != nil {
			return d.ask(ctx, c, msg.GetEvent())
		}
		return nil
	}, func(error) { d.say("the stream broke; it goes on after the last event that was seen") })
	if err != nil {
		return nil, err
	}
	got, err := c.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: "demo"})
	return got.GetRun(), err
}

// crash kills the daemon in the middle of a call and starts it again.
func (d *demo) crash(ctx context.Context, r *renderer) error {
	if r.live != nil {
		r.live.clear()
	}
	d.title("The report is half written. Now: kill -9 of the daemon.")
	d.daemon.kill()
	d.rest(ctx, 1500*time.Millisecond)
	d.title("And start it again. It finds a call that was started and has no outcome: it does not call again, it asks the tool host what became of it.")
	return d.serve(ctx, d.addr)
}

// ask lets the person at the terminal decide; where there is none, the demonstration approves.
func (d *demo) ask(ctx context.Context, c *client, ev *runnerdv1.Event) error {
	asked, err := c.getApproval(ctx, ev.GetRunId(), ev.GetSequence())
	if err != nil {
		return err
	}
	say := answer{verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE, reason: "approved by the demo"}
	if d.keys == nil {
		d.say("nobody is at a terminal: the demo approves by itself")
		d.rest(ctx, time.Second)
		_, err := c.submit(ctx, asked, say)
		return err
	}
	for {
		d.keys.drop()
		fmt.Fprint(d.p.out, d.style.bold("Approve this call? [Y]es, [e]dit it first, [n]o: "))
		line, err := d.keys.line(ctx)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		say.reason = "approved at the terminal"
		switch word := strings.ToLower(strings.TrimSpace(line)); {
		case err != nil || strings.HasPrefix(word, "n"):
			say.verdict, say.reason = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, "denied at the terminal"
		case strings.HasPrefix(word, "e"):
			say.reason = "edited at the terminal"
			if _, err := d.p.approveEdited(ctx, c, &answerFlags{answer: say}, asked, d.style); err != nil {
				_, text, hint := explain(err)
				d.say("%s", join("; ", safeLine(text), hint))
				continue
			}
			return nil
		}
		_, err = c.submit(ctx, asked, say)
		return err
	}
}

// report tells how it ended, and what the tool host really executed.
func (d *demo) report(run *runnerdv1.Run, file, ledger string) error {
	d.title("The answer:")
	fmt.Fprintln(d.p.out, safeBlock(run.GetFinalAnswer().GetContent()))
	records, err := toolhost.ReadLedger(ledger)
	if err != nil {
		return err
	}
	executed := map[string]int{}
	for _, r := range records {
		if r.Phase == toolhost.PhaseBegin {
			executed[r.Tool+" "+r.Key]++
		}
	}
	d.title("What the tool host executed, by its own ledger:")
	for _, r := range records {
		if key := r.Tool + " " + r.Key; r.Phase == toolhost.PhaseBegin && executed[key] > 0 {
			d.say("%-28s %d ×", key, executed[key])
			if executed[key] > 1 && strings.HasPrefix(r.Tool, "write_") {
				return fmt.Errorf("%s was executed %d times", key, executed[key])
			}
			delete(executed, key)
		}
	}
	if text, err := os.ReadFile(file); err == nil {
		d.title("The report:")
		fmt.Fprint(d.p.out, safeBlock(string(text)))
	}
	if run.GetOutcome() != runnerdv1.Outcome_OUTCOME_SUCCESS {
		return fmt.Errorf("the run ended with %s: %s", run.GetStatus(), run.GetErrorMessage())
	}
	return nil
}

// verify checks the log: hash chain, invariants, and that the events give the state.
func (d *demo) verify(ctx context.Context) error {
	d.title("runnerd audit verify")
	c, err := d.dial()
	if err != nil {
		return err
	}
	defer c.close()
	stream, err := c.audit.VerifyAudit(ctx, &runnerdv1.VerifyAuditRequest{})
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if err != nil {
			return err
		}
		if f := msg.GetFinding(); f != nil {
			d.say("%s", safeLine(fmt.Sprintf("%s/%d %s: %s", f.GetRunId(), f.GetSequence(), f.GetCode(), f.GetMessage())))
		}
		if s := msg.GetSummary(); s != nil {
			if !s.GetOk() {
				return errors.New("the log does not verify")
			}
			d.say("%s", d.style.green(fmt.Sprintf("✓ %s, %s: chain unbroken, invariants hold, the events give the state",
				count(s.GetVerified().GetRuns(), "run", "runs"), count(s.GetVerified().GetEvents(), "event", "events"))))
			return nil
		}
	}
}

func (d *demo) title(text string) { fmt.Fprintf(d.p.out, "\n%s\n", d.style.bold("▌ "+text)) }

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.p.out, "  "+format+"\n", args...) }

// pause is a pace of the demonstration.
func (d *demo) pause(pace time.Duration) time.Duration {
	if d.fast {
		return pace / 20
	}
	return pace
}

func (d *demo) rest(ctx context.Context, pace time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d.pause(pace)):
	}
}
