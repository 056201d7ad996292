package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/spf13/cobra"

	decidescript "github.com/runnerd/runnerd/pkg/decide/script"
	toolscript "github.com/runnerd/runnerd/pkg/toolhost/script"
)

func newDevCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Serve scripted decide services and tool hosts",
		Long: `Serve scripted decide services and tool hosts, to try out runnerd, and to test agents and clients without a
model. What they do stands in a YAML file; --example prints one.`,
		Example: `  runnerd dev decide --example > brain.yaml
  runnerd dev decide --script brain.yaml --listen 127.0.0.1:7791
  runnerd dev tools --example > hands.yaml
  runnerd dev tools --script hands.yaml --listen 127.0.0.1:7790`,
	}
	cmd.AddCommand(newDevDecideCommand(), newDevToolsCommand())
	return cmd
}

// devFlags are the flags that both commands have.
type devFlags struct {
	script  string
	listen  string
	example bool
}

func (f *devFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.script, "script", "", "`file` that says what the service does (- is standard input)")
	cmd.Flags().StringVar(&f.listen, "listen", "127.0.0.1:0", "TCP `address` to listen on; port 0 takes a free one")
	cmd.Flags().BoolVar(&f.example, "example", false, "print an example script and exit")
	cmd.MarkFlagsMutuallyExclusive("script", "example")
	cmd.MarkFlagsOneRequired("script", "example")
}

func newDevDecideCommand() *cobra.Command {
	var flags devFlags
	var journal string
	cmd := &cobra.Command{
		Use:   "decide (--script FILE | --example)",
		Short: "Serve a scripted decide service",
		Long: `Serve a decide service that gives the decisions of a script. The first line of the output tells the address:

  listening on 127.0.0.1:41234

It serves until it is interrupted or terminated.`,
		Example: `  runnerd dev decide --example > brain.yaml
  runnerd dev decide --script brain.yaml --listen 127.0.0.1:7791 --journal asked.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.example {
				_, err := fmt.Fprint(cmd.OutOrStdout(), decidescript.Example())
				return err
			}
			return devDecide(cmd, flags, journal)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&journal, "journal", "", "`file` to which every request is added as a JSON line")
	return cmd
}

func devDecide(cmd *cobra.Command, flags devFlags, journalFile string) (err error) {
	s, err := readScript(cmd, flags.script, decidescript.Parse)
	if err != nil {
		return err
	}
	var journal *decidescript.Journal
	if journalFile != "" {
		f, err := os.OpenFile(journalFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		journal = decidescript.NewJournal(f)
	}
	return devServe(cmd, flags.listen, decidescript.New(s, journal).Serve)
}

func newDevToolsCommand() *cobra.Command {
	var flags devFlags
	var ledger string
	cmd := &cobra.Command{
		Use:   "tools (--script FILE | --example)",
		Short: "Serve a scripted tool host",
		Long: `Serve a tool host that gives the results of a script. The first line of the output tells the address:

  listening on 127.0.0.1:41234

The ledger is a file of JSON lines that tells what was really executed, each line on the disk before what it tells of
happens. It serves until it is interrupted or terminated.`,
		Example: `  runnerd dev tools --example > hands.yaml
  runnerd dev tools --script hands.yaml --listen 127.0.0.1:7790 --ledger done.jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if flags.example {
				_, err := fmt.Fprint(cmd.OutOrStdout(), toolscript.Example())
				return err
			}
			return devTools(cmd, flags, ledger)
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&ledger, "ledger", "", "`file` that witnesses what was executed")
	return cmd
}

func devTools(cmd *cobra.Command, flags devFlags, ledger string) (err error) {
	s, err := readScript(cmd, flags.script, toolscript.Parse)
	if err != nil {
		return err
	}
	host, err := toolscript.New(s, toolscript.Config{Ledger: ledger, Crash: killSelf})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	return devServe(cmd, flags.listen, host.Serve)
}

// killSelf ends the process as kill -9 does: nothing is flushed, closed or answered.
func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil && p.Kill() == nil {
		select {} // the signal is on its way
	}
}

// devServe serves on an address until the process is told to stop.
func devServe(cmd *cobra.Command, listen string, serve func(context.Context, net.Listener) error) error {
	lis, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", lis.Addr())
	return serve(cmd.Context(), lis)
}

// readScript reads a script from a file, or from standard input if the name is "-".
func readScript[S any](cmd *cobra.Command, file string, parse func(name string, data []byte) (*S, error)) (*S, error) {
	name, read := file, func() ([]byte, error) { return os.ReadFile(file) }
	if file == "-" {
		name, read = "standard input", func() ([]byte, error) { return io.ReadAll(cmd.InOrStdin()) }
	}
	data, err := read()
	if err != nil {
		return nil, usageError{err}
	}
	s, err := parse(name, data)
	if err != nil {
		return nil, usageError{err}
	}
	return s, nil
}
