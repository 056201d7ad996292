package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/credentials"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/pkg/runner"
)

// How long the daemon takes to stop, at most.
const (
	drainTime = 10 * time.Second
	// breakTime is for a daemon that cannot record anything any more: waiting
	// for outcomes would only delay the restart that recovers them.
	breakTime = 500 * time.Millisecond
)

func newServeCommand(p *program) *cobra.Command {
	var file string
	values := map[string]*string{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the daemon",
		Long: `Start the daemon. It prints "listening on ADDRESS" when it takes calls, and logs to
standard error. SIGTERM and Ctrl-C stop it within 10 s: new runs are refused,
watchers are told where to resume, outcomes that come are recorded; what was in
progress is recovered at the next start.

Without a configuration it listens on 127.0.0.1:7780 with a scripted agent, demo.
A configuration is one YAML file, then the environment (RUNNERD_LISTEN,
RUNNERD_DATA_DIR, RUNNERD_LOG_LEVEL, ...), then flags; the later wins. See
docs/configuration.md.

Callers on this machine may start and watch runs. Approvals need the token in
approver.token of the data folder, which only the owner of the daemon can read.
Others are let in by the sections tls and auth of the configuration: see
docs/security.md.

Exit codes:
` + exitCodes,
		Example: `  runnerd serve
  runnerd serve --config /etc/runnerd.yaml
  runnerd serve --listen 127.0.0.1:0 --data-dir /tmp/try`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p.tuneCollector()
			source := config.Source{File: firstOf(file, p.env("RUNNERD_CONFIG")), LookupEnv: p.lookupEnv}
			for _, field := range config.Fields() {
				if flag := flagName(field); cmd.Flags().Changed(flag) {
					source.Flags = append(source.Flags, config.Setting{Field: field, Value: *values[field], From: "--" + flag})
				}
			}
			cfg, err := config.Load(source)
			if err != nil {
				return &exitError{code: exitUsage, err: err}
			}
			return p.serve(cmd.Context(), cfg)
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file (RUNNERD_CONFIG)")
	for _, field := range config.Fields() {
		values[field] = cmd.Flags().String(flagName(field), "", field+" of the configuration ("+config.EnvName(field)+")")
	}
	return cmd
}

// gcPercent is GOGC unless the environment says otherwise. What lives is small
// and what runs allocate is short-lived: half as many collections as by Go's own
// default of 100 save a tenth of the CPU time for a few MB.
const gcPercent = 200

func (p *program) tuneCollector() {
	if p.env("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// serve is the daemon, from its configuration to its end.
func (p *program) serve(ctx context.Context, cfg *configv1.Config) (err error) {
	log := p.logger(cfg.GetLog())

	// The store comes first: it is what two daemons must not share.
	store, err := auditstore.Open(cfg.GetDataDir(), &auditstore.Options{Logger: log})
	if err != nil {
		return storeError(err)
	}
	defer func() { err = errors.Join(err, storeError(store.Close())) }()
	token, err := runner.LoadOrCreateApproverToken(cfg.GetDataDir())
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}

	// Who may call.
	auth, err := config.Auth(cfg, token, log)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	creds, err := newCreds(cfg, log)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}

	// What runs call.
	inside := startBuiltin(context.WithoutCancel(ctx), log)
	defer inside.stop()
	decider, err := newDecider(cfg, inside, log)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	defer decider.Close()
	tools, err := newTools(cfg, inside, log)
	if err != nil {
		return &exitError{code: exitUsage, err: err}
	}
	defer tools.Close()

	// The engine, and its face.
	fatal := make(chan error, 1)
	keyID, secret := store.DigestKey()
	engine, err := runner.New(runner.Config{
		Log: store, Blobs: store, LogID: store.LogID(), Key: runner.Key{ID: keyID, Secret: secret},
		Agents: config.Agents(cfg), Decider: decider, Tools: tools,
		Logger: log, MaxActive: int(cfg.GetLimits().GetMaxActiveRuns()), Full: store.Full,
		Fatal: func(err error) { sendFirst(fatal, err) },
	})
	if err != nil {
		return err
	}
	metrics := newMetrics(store)
	server, err := runner.NewServer(runner.ServerConfig{
		Runner: engine, Auth: auth, Creds: creds, Logger: log, Metrics: metrics,
	})
	if err != nil {
		return err
	}

	// From here on calls are taken.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.GetListen())
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	defer listener.Close()
	log.Info("listening", "address", listener.Addr().String(), "version", version(), "data_dir", cfg.GetDataDir(),
		"agents", len(cfg.GetAgents()))
	for _, text := range config.Warnings(cfg) {
		log.Warn("the configuration can hardly be meant so", "what", text)
	}
	if addr, ok := listener.Addr().(*net.TCPAddr); ok && !addr.IP.IsLoopback() && creds == nil {
		log.Warn("calls come in without encryption, and callers on this machine need no credential; a proxy that adds no" +
			" x-forwarded-for or other header of proxies makes its callers such: configure tls and auth, or listen on a loopback address")
	}

	tasks := newTasks(context.WithoutCancel(ctx)) // they end by the drain, in its order
	if address := cfg.GetMetricsListen(); address != "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("listening for metrics: %w", err)
		}
		log.Info("serving metrics", "address", l.Addr().String())
		tasks.start("metrics", func(ctx context.Context) error { return serveMetrics(ctx, l, metrics) })
	}
	tasks.start("engine", engine.Run)
	tasks.start("server", func(context.Context) error { return server.Serve(listener) })
	tasks.start("health", func(ctx context.Context) error { return tellHealth(ctx, engine, server, store.Full, log) })
	fmt.Fprintf(p.out, "listening on %s\n", listener.Addr())
	if p.serving != nil {
		p.serving(listener.Addr().String())
	}

	err = waitForEnd(ctx, tasks, fatal, store)
	limit := drainTime
	if err != nil {
		limit = breakTime
	}
	log.Info("stopping")
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if drainErr := server.Drain(drain); drainErr != nil {
		log.Warn("the drain was cut short; what was in progress is recovered at the next start", "error", drainErr)
	}
	tasks.stop()
	log.Info("stopped")
	return err
}

// newCreds is how the API is encrypted; nil: not at all.
func newCreds(cfg *configv1.Config, log *slog.Logger) (credentials.TransportCredentials, error) {
	settings, err := config.ServerTLS(cfg.GetTls(), log)
	if settings == nil || err != nil {
		return nil, err
	}
	return credentials.NewTLS(settings), nil
}

// waitForEnd returns when the daemon is told to stop, or why it cannot go on.
func waitForEnd(ctx context.Context, tasks *tasks, fatal <-chan error, store *auditstore.Store) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-tasks.failed:
		return err
	case err := <-fatal:
		return &exitError{code: exitStoreBroken, err: fmt.Errorf("the store cannot be trusted to have written: %w", err)}
	case <-store.Poisoned():
		return &exitError{code: exitStoreBroken, err: errors.New("a write to the store failed: only a new start can read what is durable")}
	}
}

// fullCheck is how often health checks look whether the store has space.
const fullCheck = time.Second

// tellHealth lets health checks succeed once all runs are recovered, for as long as the store takes new runs.
func tellHealth(ctx context.Context, engine *runner.Runner, server *runner.Server, full func() bool, log *slog.Logger) error {
	select {
	case <-engine.Ready():
		log.Info("ready")
	case <-ctx.Done():
		return nil
	}
	look := time.NewTicker(fullCheck)
	defer look.Stop()
	for serving := false; ; {
		if now := !full(); now != serving {
			serving = now
			server.SetServing(serving)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// storeError gives the errors of a store their exit codes.
func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, auditstore.ErrLocked):
		return &exitError{exitStoreLocked, err, "stop the other daemon, or name another folder with --data-dir"}
	case errors.Is(err, auditstore.ErrUnsafe):
		return &exitError{code: exitUsage, err: err}
	case errors.Is(err, auditstore.ErrCorrupt), errors.Is(err, auditstore.ErrFormat):
		return &exitError{exitStoreBroken, err, "keep a copy of the folder; runnerd audit verify --data-dir tells what can be read"}
	case errors.Is(err, auditstore.ErrUnknown), errors.Is(err, auditstore.ErrUnavailable):
		return &exitError{code: exitStoreBroken, err: err}
	}
	return err
}

// flagName is the flag of a field of the configuration: log-level for log.level.
func flagName(field string) string {
	name := []byte(field)
	for i, c := range name {
		if c == '.' || c == '_' {
			name[i] = '-'
		}
	}
	return string(name)
}

// logger writes what the daemon says about itself.
func (p *program) logger(cfg *configv1.Log) *slog.Logger {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	options := &slog.HandlerOptions{Level: levels[cfg.GetLevel()]}
	if cfg.GetFormat() == "json" {
		return slog.New(runner.RedactLog(slog.NewJSONHandler(safeWriter{p.err}, options)))
	}
	return slog.New(runner.RedactLog(slog.NewTextHandler(safeWriter{p.err}, options)))
}

// safeWriter makes log records safe to look at. Handlers write a whole record
// at a time, and quote as JSON does, so that JSON records stay what they are.
type safeWriter struct{ w io.Writer }

func (s safeWriter) Write(record []byte) (int, error) {
	if _, err := io.WriteString(s.w, safeBlock(string(record))); err != nil {
		return 0, err
	}
	return len(record), nil
}
