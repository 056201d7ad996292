package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner"
)

func newAuditCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Check and export the log",
		Example: `  runnerd audit verify
  runnerd audit export --private > log.jsonl`,
	}
	cmd.AddCommand(newVerifyCommand(p), newExportCommand(p), newHeadCommand(p))
	return cmd
}

func newVerifyCommand(p *program) *cobra.Command {
	var (
		witnessFile string
		connect     *connection
		out         *output
	)
	cmd := &cobra.Command{
		Use:   "verify [flags] [RUN]",
		Short: "Check the hash chain, the invariants and the stored states of all runs, or of one",
		Long: `Check that no event was changed, lost or added: sequences and hash chain of each run;
that the events keep the invariants of a run; and that folding them gives the stored
states. The first line that is wrong is named with its run and sequence.

With --data-dir the log of a stopped daemon is read, without a daemon.

Only a hash that was kept elsewhere can witness against a log that was rewritten as a
whole or cut at its end. Keep the head of a run, and give it with --witness.`,
		Example: `  runnerd audit verify
  runnerd audit verify 3f2a
  runnerd audit head 3f2a --output json > 3f2a.head
  runnerd audit verify 3f2a --witness 3f2a.head
  runnerd audit verify --data-dir /var/lib/runnerd`,
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
			req := &runnerdv1.VerifyAuditRequest{}
			if len(args) == 1 {
				req.RunId = args[0]
			}
			v := &verifyPrinter{program: p, style: style, asJSON: asJSON}
			if witnessFile != "" {
				if req.GetRunId() == "" {
					return usageError{errors.New("--witness is the head of one run: name that run")}
				}
				if v.witness, err = readWitness(witnessFile); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("data-dir") {
				return v.folder(cmd.Context(), connect.dataDir, req)
			}
			return v.daemon(cmd.Context(), connect, req)
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().StringVar(&witnessFile, "witness", "", "file with the head of the run that audit head --output json printed before")
	cmd.Flags().Lookup("data-dir").Usage = "verify the data folder of a stopped daemon"
	return cmd
}

// verifyPrinter prints what a verification says.
type verifyPrinter struct {
	*program
	style   style
	asJSON  bool
	witness *runnerdv1.GetHeadResponse // nil: there is none
	summary *runnerdv1.AuditSummary
}

// folder verifies the log of a stopped daemon.
func (v *verifyPrinter) folder(ctx context.Context, dir string, req *runnerdv1.VerifyAuditRequest) error {
	store, err := auditstore.OpenReadOnly(dir)
	if err != nil {
		return storeError(err)
	}
	defer store.Close()
	keyID, secret := store.DigestKey()
	err = runner.VerifyLog(ctx, store, store, runner.Key{ID: keyID, Secret: secret}, req.GetRunId(), v.message)
	if err != nil {
		return err
	}
	if v.witness != nil {
		if err := witnessedIn(ctx, store, req.GetRunId(), v.witness); err != nil {
			return err
		}
	}
	return v.result()
}

// daemon lets a daemon verify its log.
func (v *verifyPrinter) daemon(ctx context.Context, connect *connection, req *runnerdv1.VerifyAuditRequest) error {
	c, err := v.dial(connect)
	if err != nil {
		return err
	}
	defer c.close()
	stream, err := c.audit.VerifyAudit(ctx, req)
	if err != nil {
		return err
	}
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := v.message(msg); err != nil {
			return err
		}
	}
	if v.witness != nil {
		if err := c.witnessed(ctx, req.GetRunId(), v.witness); err != nil {
			return err
		}
	}
	return v.result()
}

func (v *verifyPrinter) message(msg *runnerdv1.VerifyAuditResponse) error {
	if msg.GetSummary() != nil {
		v.summary = msg.GetSummary()
	}
	if v.asJSON {
		return printJSON(v.out, msg)
	}
	switch {
	case msg.GetFinding() != nil:
		f := msg.GetFinding()
		where := "log"
		if f.GetRunId() != "" {
			where = fmt.Sprintf("run %s, event %d", f.GetRunId(), f.GetSequence())
		}
		fmt.Fprintln(v.out, v.style.red(safeLine(where+": "+f.GetCode()+": "+f.GetMessage())))
	case msg.GetProgress() != nil:
		if _, tty := v.terminal(v.err); tty {
			fmt.Fprintf(v.err, "\r\x1b[K%s", progressText(msg.GetProgress()))
		}
	case msg.GetSummary() != nil:
		if _, tty := v.terminal(v.err); tty {
			fmt.Fprint(v.err, "\r\x1b[K")
		}
		if msg.GetSummary().GetOk() {
			fmt.Fprintln(v.out, v.style.green("ok")+": "+progressText(msg.GetSummary().GetVerified()))
		} else {
			fmt.Fprintln(v.out, v.style.red("not ok")+": "+count(msg.GetSummary().GetFindings(), "finding", "findings")+" in "+
				progressText(msg.GetSummary().GetVerified()))
		}
	}
	return nil
}

// result is an error unless everything was found good.
func (v *verifyPrinter) result() error {
	if v.summary == nil {
		return errors.New("the verification ended without a result")
	}
	if !v.summary.GetOk() {
		return &exitError{code: exitFailure}
	}
	return nil
}

func progressText(p *runnerdv1.AuditProgress) string {
	text := count(p.GetRuns(), "run", "runs") + ", " + count(p.GetEvents(), "event", "events")
	if p.GetErased() > 0 {
		text += fmt.Sprintf(", %d of them erased", p.GetErased())
	}
	return text
}

func newExportCommand(p *program) *cobra.Command {
	var (
		private bool
		file    string
		connect *connection
	)
	cmd := &cobra.Command{
		Use:   "export [flags] [RUN]",
		Short: "Write the log as JSON lines that can be verified elsewhere",
		Long: `Write the log, or that of one run, as JSON lines: {"run_id", "sequence", "position",
"prev_hash", "hash", "stored"} with the stored bytes in base64, and with --private
"private" and "salt". Needs the token of an admin.`,
		Example: `  runnerd audit export > log.jsonl
  runnerd audit export 3f2a --private --file 3f2a.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req := &runnerdv1.ExportAuditRequest{IncludePrivate: private}
			if len(args) == 1 {
				req.RunId = args[0]
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			to := p.out
			if file != "" {
				f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					return err
				}
				to = f
				defer func() { err = errors.Join(err, f.Close()) }()
			}
			stream, err := c.audit.ExportAudit(cmd.Context(), req)
			if err != nil {
				return err
			}
			for {
				msg, err := stream.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				if _, err := to.Write(msg.GetLines()); err != nil { // base64 and digits: nothing to make safe
					return err
				}
			}
		},
	}
	connect = p.addConnectionFlags(cmd)
	cmd.Flags().BoolVar(&private, "private", false, "also private parts and salts")
	cmd.Flags().StringVar(&file, "file", "", "write to a new file that only you can read")
	return cmd
}

func newHeadCommand(p *program) *cobra.Command {
	var (
		connect *connection
		out     *output
	)
	cmd := &cobra.Command{
		Use:   "head [flags] [RUN]",
		Short: "Print the head of the log or of a run, to keep elsewhere as a witness",
		Example: `  runnerd audit head
  runnerd audit head 3f2a --output json`,
		Args: cobra.MaximumNArgs(1),
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
			req := &runnerdv1.GetHeadRequest{}
			if len(args) == 1 {
				req.RunId = args[0]
			}
			ctx, cancel := call(cmd.Context())
			defer cancel()
			head, err := c.audit.GetHead(ctx, req)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, head)
			}
			text := fmt.Sprintf("log %s position %d", safeLine(head.GetLogId()), head.GetPosition())
			if req.GetRunId() != "" {
				text += fmt.Sprintf(" run %s sequence %d hash %x", safeLine(req.GetRunId()), head.GetSequence(), head.GetHash())
			}
			_, err = fmt.Fprintln(p.out, text)
			return err
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	return cmd
}
