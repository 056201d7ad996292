package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// serveOnce runs serve to its end.
func serveOnce(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	var out, errs lockedBuffer
	code := testProgram(&out, &errs, env).run(t.Context(), append([]string{"serve"}, args...))
	return result{code, out.String(), errs.String()}
}

func TestServeStopsWhenTold(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	conn, err := grpc.NewClient(d.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	d.run(t, "run", "--id", "w", "wait 100").must(t, exitOK)
	if code := d.stop(); code != exitOK {
		t.Errorf("exit code %d:\n%s", code, d.log)
	}
	if _, err := healthv1.NewHealthClient(conn).Check(t.Context(), &healthv1.HealthCheckRequest{}); err == nil {
		t.Error("the daemon still answers")
	}
	has(t, d.log.String(), "msg=listening", "msg=ready", "msg=stopping", "msg=stopped")
}

func TestServeFailsWithACodeOfItsOwn(t *testing.T) {
	t.Parallel()
	t.Run("data folder in use", func(t *testing.T) {
		t.Parallel()
		d := startDaemon(t, "", "127.0.0.1:0")
		r := serveOnce(t, nil, "--data-dir", d.dir, "--listen", "127.0.0.1:0").must(t, exitStoreLocked)
		has(t, r.err, "error: ", d.dir, "hint: stop the other daemon")
	})
	t.Run("port in use", func(t *testing.T) {
		t.Parallel()
		l := freePort(t)
		defer l.Close()
		has(t, serveOnce(t, nil, "--data-dir", t.TempDir(), "--listen", l.Addr().String()).must(t, exitFailure).err, "address already in use")
	})
	t.Run("damaged store", func(t *testing.T) {
		t.Parallel()
		d := startDaemon(t, "", "127.0.0.1:0")
		d.stop()
		if err := os.Truncate(filepath.Join(d.dir, "log.db"), 100); err != nil {
			t.Fatal(err)
		}
		has(t, serveOnce(t, nil, "--data-dir", d.dir, "--listen", "127.0.0.1:0").must(t, exitStoreBroken).err, "error: ", "hint: keep a copy")
	})
	t.Run("folder that others may write", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		has(t, serveOnce(t, nil, "--data-dir", dir, "--listen", "127.0.0.1:0").must(t, exitUsage).err, "chmod")
	})
	t.Run("configuration", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "bad.yaml")
		if err := os.WriteFile(file, []byte("listen: 7780\nagents:\n  a: {decide_service: none}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		env := map[string]string{"RUNNERD_CONFIG": file, "RUNNERD_LOG_LEVEL": "loud", "HOME": t.TempDir()}
		r := serveOnce(t, env, "--log-format", "xml").must(t, exitUsage)
		has(t, r.err, file+":1:9 listen", file+`:3:23 agents["a"].decide_service`, "RUNNERD_LOG_LEVEL: must", "--log-format: must")
	})
	t.Run("no such configuration", func(t *testing.T) {
		t.Parallel()
		serveOnce(t, nil, "--config", "/nowhere.yaml").must(t, exitUsage)
	})
}

func TestErrorsOfTheStoreHaveTheirCodes(t *testing.T) {
	t.Parallel()
	for want, errs := range map[int][]error{
		exitOK:          {nil},
		exitFailure:     {errors.New("something else"), auditstore.ErrFull},
		exitUsage:       {auditstore.ErrUnsafe},
		exitStoreLocked: {auditstore.ErrLocked},
		exitStoreBroken: {
			auditstore.ErrCorrupt, &auditstore.CorruptError{}, auditstore.ErrFormat, auditstore.ErrUnknown, auditstore.ErrUnavailable,
		},
	} {
		for _, err := range errs {
			if err != nil {
				err = fmt.Errorf("opening: %w", err)
			}
			if got := testProgram(io.Discard, io.Discard, nil).report(storeError(err)); got != want {
				t.Errorf("%v: got exit code %d, want %d", err, got, want)
			}
		}
	}
}

// freePort listens on a port that nobody uses.
func freePort(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Without any configuration the daemon has a folder, a token and an agent.
func TestServeWithoutConfiguration(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	var out, errs lockedBuffer
	p := testProgram(&out, &errs, map[string]string{"HOME": home, "RUNNERD_LISTEN": "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	addr, exited := make(chan string, 1), make(chan int, 1)
	p.serving = func(a string) { addr <- a }
	go func() { exited <- p.run(ctx, []string{"serve"}) }()
	var at string
	select {
	case at = <-addr:
	case code := <-exited:
		t.Fatalf("exit code %d:\n%s", code, errs.String())
	}
	if got := out.String(); got != "listening on "+at+"\n" {
		t.Errorf("standard output: %q", got)
	}
	d := &daemon{dir: filepath.Join(home, ".local/share/runnerd"), addr: at, log: &errs}
	info, err := os.Stat(filepath.Join(d.dir, "approver.token"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("approver.token: %v, %v", info, err)
	}
	if r := d.run(t, "run", "--follow", "say hello").must(t, exitOK); r.out != "echo: say hello\n" {
		t.Errorf("got %q", r.out)
	}
	cancel()
	if code := <-exited; code != exitOK {
		t.Errorf("exit code %d:\n%s", code, errs.String())
	}
}

func TestMetricsAreServed(t *testing.T) {
	t.Parallel()
	l := freePort(t)
	address := l.Addr().String()
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan string, 1)
	p := testProgram(io.Discard, &lockedBuffer{}, nil)
	p.serving = func(addr string) { served <- addr }
	exited := make(chan int, 1)
	go func() {
		exited <- p.run(ctx, []string{"serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--metrics-listen", address})
	}()
	d := &daemon{addr: <-served}
	d.waitServing(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	got, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	has(t, string(text), "grpc_server_handled_total", "go_goroutines", "runnerd_store_")
	cancel()
	if code := <-exited; code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestLogRecordsAreSafe(t *testing.T) {
	t.Parallel()
	const hostile = "x\x1b[2J\u202e\n"
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := testProgram(io.Discard, &out, nil).logger(&configv1.Log{Level: "info", Format: format})
		log.Info("call", "error", hostile)
		if line := strings.TrimSuffix(out.String(), "\n"); safeLine(line) != line {
			t.Errorf("%s: %+q", format, line)
		}
		if format == "json" {
			var record map[string]string
			if err := json.Unmarshal(out.Bytes(), &record); err != nil || record["error"] != hostile {
				t.Errorf("the record is not the same any more: %v, %v", record, err)
			}
		}
	}
}

// A watcher goes on over a restart of the daemon, without a gap or an event
// that is shown twice.
func TestWatchGoesOnOverARestart(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "127.0.0.1:0")
	d.run(t, "run", "--id", "x", "announce it").must(t, exitOK)
	d.idle(t, "x")

	var out, errs lockedBuffer
	p := testProgram(&out, &errs, map[string]string{"RUNNERD_ADDR": d.addr, "RUNNERD_DATA_DIR": d.dir})
	exited := make(chan int, 1)
	go func() { exited <- p.run(t.Context(), []string{"watch", "x", "-o", "json"}) }()
	waitFor(t, func() bool { return strings.Contains(out.String(), "tool_call_pending_approval") })

	d.stop()
	again := startDaemon(t, d.dir, d.addr)
	again.run(t, "approve", "x").must(t, exitOK)
	if code := <-exited; code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, errs.String())
	}
	var sequences []uint64
	for _, m := range messages(t, out.String(), func() *runnerdv1.StreamEventsResponse { return &runnerdv1.StreamEventsResponse{} }) {
		if m.GetEvent() != nil {
			sequences = append(sequences, m.GetEvent().GetSequence())
		}
	}
	want := make([]uint64, len(sequences))
	for i := range want {
		want[i] = uint64(i + 1)
	}
	if !slices.Equal(sequences, want) || len(want) < 10 {
		t.Errorf("got sequences %v", sequences)
	}
	has(t, errs.String(), "waiting for the daemon")
}
