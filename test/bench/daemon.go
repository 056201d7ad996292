package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	agentName = "bench" // no gate has anything to look at
	// connections is over how many a load or the watchers spread: the daemon takes 250 calls at a time on one.
	connections = 8
	// runTimeout bounds one run.
	runTimeout = 5 * time.Minute
)

// daemon is a runnerd process as an engine, with clients.
type daemon struct {
	process
	address string
	data    string

	conns   []*grpc.ClientConn
	clients []runnerdv1.RunServiceClient
}

// daemon starts runnerd with its data in a directory, which may hold those of an earlier process.
func (b *bench) daemon(ctx context.Context, dir string) (*daemon, error) {
	return b.daemonUnder(ctx, dir, nil)
}

// daemonUnder starts runnerd as the last argument of another command, such as strace.
func (b *bench) daemonUnder(ctx context.Context, dir string, under []string) (*daemon, error) {
	file := filepath.Join(b.dir, "runnerd.yaml")
	if err := os.WriteFile(file, []byte(b.config()), 0o600); err != nil {
		return nil, err
	}
	args := append(under, b.runnerd, "serve", "--config", file, "--listen", "127.0.0.1:0", "--data-dir", dir)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "RUNNERD_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	d := &daemon{process: process{cmd: cmd}, data: dir}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		d.kill()
		return nil, fmt.Errorf("start runnerd: it did not say where it listens: %w", err)
	}
	d.address = strings.TrimPrefix(strings.TrimSpace(line), "listening on ")
	if err := d.dial(); err != nil {
		d.kill()
		return nil, err
	}
	return d, nil
}

// config is the configuration of the daemon: an agent with the stubs, those with gates, and limits that no measure
// reaches.
func (b *bench) config() string {
	const budget = "{max_iterations: 1000000, max_tool_calls: 1000000, max_cost_cents: 1000000, max_context_tokens: 1000000}"
	return fmt.Sprintf(`log: {level: error}
decide_services:
  stub: {address: %q}
tool_hosts:
  stub: {address: %q}
  files: {address: %q, tools: {%s: {tier: 1, path_arguments: [path]}}}
agents:
  %s:
    decide_service: stub
    tool_hosts: [stub]
    policy: {mode: allow, paths: {off: true}}
    budget: %s
`, b.decide.address, b.tools.address, b.tools.address, toolName, agentName, budget) + gatedAgents(budget)
}

func (d *daemon) dial(options ...grpc.DialOption) error {
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	for range connections {
		conn, err := grpc.NewClient(d.address, options...)
		if err != nil {
			return err
		}
		d.conns = append(d.conns, conn)
		d.clients = append(d.clients, runnerdv1.NewRunServiceClient(conn))
	}
	return nil
}

func (d *daemon) hangUp() {
	for _, conn := range d.conns {
		_ = conn.Close() // nothing is in flight
	}
}

// client returns the client of a worker.
func (d *daemon) client(worker int) runnerdv1.RunServiceClient { return d.clients[worker%connections] }

// load implements engine.
func (d *daemon) load(ctx context.Context, l load) error {
	return l.execute(ctx, func(ctx context.Context, worker int, id string) error {
		client := d.client(worker)
		if err := startRun(ctx, client, cmp.Or(l.Agent, agentName), id, l.Work); err != nil {
			return err
		}
		return waitRun(ctx, client, id)
	})
}

func startRun(ctx context.Context, client runnerdv1.RunServiceClient, agent, id string, w work) error {
	req := &runnerdv1.StartRunRequest{RunId: id, Agent: agent, Task: w.task()}
	if agent != agentName {
		req.Plan = planOfFiles
	}
	_, err := client.StartRun(ctx, req)
	return err
}

// waitRun waits until a run is done, which has to be by an answer.
func waitRun(ctx context.Context, client runnerdv1.RunServiceClient, id string) error {
	resp, err := client.WaitRun(ctx, &runnerdv1.WaitRunRequest{
		RunId: id, Until: runnerdv1.WaitUntil_WAIT_UNTIL_DONE, Timeout: durationpb.New(runTimeout),
	})
	if err != nil {
		return err
	}
	if resp.GetRun().GetStopReason() != runnerdv1.StopReason_STOP_REASON_COMPLETED {
		return fmt.Errorf("ended %s: %s", resp.GetRun().GetStatus(), resp.GetRun().GetErrorMessage())
	}
	return nil
}

// close implements engine.
func (d *daemon) close() error {
	d.hangUp()
	if err := d.terminate(); err != nil {
		return fmt.Errorf("stop runnerd: %w", err)
	}
	return nil
}

// crash ends the daemon with SIGKILL.
func (d *daemon) crash() {
	d.kill()
	d.hangUp()
}
