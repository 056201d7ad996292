package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// testConfig has an agent for each way a run can go.
const testConfig = `
decide_services: {demo: {scripted: builtin}}
tool_hosts: {demo: {scripted: builtin}}
agents:
  demo:
    decide_service: demo
    tool_hosts: [demo]
    budget_max: {max_iterations: 100, max_tool_calls: 100}
    approval: {modes: [wait, pause, deny]}
    policy: {approval_for: [announce]}
  strict:
    decide_service: demo
    tool_hosts: [demo]
    policy: {approval_for: [announce]}
    on_denial: fail
    on_question: block
  auto:
    decide_service: demo
    tool_hosts: [demo]
    auto_mode: {enabled: true, limits: {max_iterations: 3}, limits_max: {max_iterations: 9, max_tool_calls: 200}}
`

// daemon is a daemon inside the test, on a port of its own.
type daemon struct {
	dir, addr string
	stop      func() int // stops it and returns its exit code
	log       *lockedBuffer
}

// startDaemon starts a daemon on a data folder; empty: a new one. It is stopped
// at the end of the test.
func startDaemon(t *testing.T, dir, listen string) *daemon {
	t.Helper()
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "data")
	}
	file := filepath.Join(t.TempDir(), "runnerd.yaml")
	if err := os.WriteFile(file, []byte(testConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d := &daemon{dir: dir, log: &lockedBuffer{}}
	ctx, cancel := context.WithCancel(context.Background())
	ready, exited := make(chan string, 1), make(chan int, 1)
	p := testProgram(&bytes.Buffer{}, d.log, nil)
	p.serving = func(addr string) { ready <- addr }
	go func() {
		exited <- p.run(ctx, []string{"serve", "--config", file, "--data-dir", dir, "--listen", listen})
	}()
	d.stop = sync.OnceValue(func() int {
		cancel()
		return <-exited
	})
	t.Cleanup(func() { d.stop() })
	select {
	case d.addr = <-ready:
	case code := <-exited:
		exited <- code
		t.Fatalf("the daemon ended with %d:\n%s", code, d.log)
	}
	d.waitServing(t)
	return d
}

// waitServing waits until the daemon says that it is healthy.
func (d *daemon) waitServing(t *testing.T) {
	t.Helper()
	conn, err := grpc.NewClient(d.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := grpc_health_v1.NewHealthClient(conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		got, err := watch.Recv()
		if err != nil {
			t.Fatalf("health: %v\n%s", err, d.log)
		}
		if got.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			return
		}
	}
}

// testProgram is a program with an environment of its own and no terminal.
func testProgram(out, errs interface{ Write([]byte) (int, error) }, env map[string]string) *program {
	return &program{
		in: strings.NewReader(""), out: out, err: errs, zone: time.UTC, now: time.Now,
		lookupEnv: func(name string) (string, bool) { value, ok := env[name]; return value, ok },
		terminal:  func(any) (int, bool) { return 0, false },
	}
}

// result is what a command gave.
type result struct {
	code     int
	out, err string
}

// run executes a command against the daemon, as its owner.
func (d *daemon) run(t *testing.T, args ...string) result {
	t.Helper()
	return d.runWith(t, func(*program) {}, args...)
}

// anonymous executes a command as somebody who cannot read the data folder.
func (d *daemon) anonymous(t *testing.T, args ...string) result {
	t.Helper()
	return d.runWith(t, func(p *program) {
		p.lookupEnv = environment("RUNNERD_ADDR", d.addr, "RUNNERD_DATA_DIR", "/nowhere")
	}, args...)
}

func (d *daemon) runWith(t *testing.T, change func(*program), args ...string) result {
	t.Helper()
	var out, errs lockedBuffer
	p := testProgram(&out, &errs, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
	change(p)
	code := p.run(t.Context(), args)
	return result{code, out.String(), errs.String()}
}

func environment(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// must fails the test unless the exit code is as wanted.
func (r result) must(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nout:\n%s\nerr:\n%s", r.code, code, r.out, r.err)
	}
	return r
}

// has fails the test unless a text has all of some parts.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}

// messages reads the lines that --output json prints.
func messages[M proto.Message](t *testing.T, text string, fresh func() M) []M {
	t.Helper()
	var all []M
	for line := range strings.Lines(text) {
		m := fresh()
		if err := protojson.Unmarshal([]byte(line), m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, m)
	}
	return all
}

func newRun() *runnerdv1.Run { return &runnerdv1.Run{} }

// types are the types of streamed events, in order.
func types(t *testing.T, text string) []string {
	t.Helper()
	var all []string
	for _, m := range messages(t, text, func() *runnerdv1.StreamEventsResponse { return &runnerdv1.StreamEventsResponse{} }) {
		all = append(all, m.GetEvent().GetType())
	}
	return all
}

// client dials the daemon as its owner.
func (d *daemon) client(t *testing.T) *client {
	t.Helper()
	p := testProgram(&bytes.Buffer{}, &bytes.Buffer{}, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
	c, err := p.dial(&connection{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// idle waits until nothing of a run is in progress.
func (d *daemon) idle(t *testing.T, run string) *runnerdv1.Run {
	t.Helper()
	got, err := d.client(t).WaitRun(t.Context(), &runnerdv1.WaitRunRequest{
		RunId: run, Until: runnerdv1.WaitUntil_WAIT_UNTIL_IDLE, Timeout: durationpb.New(time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetTimedOut() {
		t.Fatalf("run %s is still %v", run, got.GetRun().GetState())
	}
	return got.GetRun()
}

// lockedBuffer is a buffer that several goroutines may use.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// waitFor waits until something that another goroutine does has happened.
func waitFor(t *testing.T, happened func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(time.Minute)
	for !happened() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatal("it did not happen within a minute")
		}
	}
}
