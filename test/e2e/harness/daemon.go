package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// startLimit is how long a daemon may take until it serves, also after a kill and under the race detector.
const startLimit = 60 * time.Second

// Daemon is a runnerd process on a data folder of its own. Its clients stay the same over kills and restarts.
type Daemon struct {
	Dir   string // holds data/, config.yaml and daemon.log
	Runs  runnerdv1.RunServiceClient
	Audit runnerdv1.AuditServiceClient
	Guest runnerdv1.RunServiceClient // the same API without a credential

	audits  turnstile
	creds   credentials.TransportCredentials
	addr    atomic.Pointer[string]
	token   atomic.Pointer[string]
	conns   []*grpc.ClientConn
	ids     atomic.Int64 // for run ids that are not given
	process *process     // nil while it is down
}

// process is one start of the daemon.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when err is set
	err    error
}

// Start starts a daemon for one test and ends it, orderly, when the test ends.
func Start(t testing.TB, cfg *configv1.Config) *Daemon {
	t.Helper()
	d, err := Launch(t.TempDir(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the daemon's log ends with\n%s", d.logTail())
		}
	})
	return d
}

// Launch starts a daemon in a folder and returns when it serves.
func Launch(dir string, cfg *configv1.Config) (*Daemon, error) {
	cfg.Listen = "127.0.0.1:0"
	cfg.DataDir = filepath.Join(dir, "data")
	text, err := protojson.MarshalOptions{UseProtoNames: true, Multiline: true}.Marshal(cfg)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.yaml"), text, 0o600); err != nil { // JSON is YAML
		return nil, err
	}
	d := &Daemon{Dir: dir, audits: make(turnstile, 1), creds: insecure.NewCredentials()}
	if cfg.GetTls() != nil {
		// The certificate itself is trusted, whoever signed it: it is on this machine.
		if d.creds, err = credentials.NewClientTLSFromFile(cfg.GetTls().GetCertFile(), "localhost"); err != nil {
			return nil, err
		}
	}
	owner, err := d.dial(d.credential)
	if err != nil {
		return nil, err
	}
	guest, err := d.dial(nil)
	if err != nil {
		return nil, err
	}
	d.conns = []*grpc.ClientConn{owner, guest}
	d.Runs, d.Guest = runnerdv1.NewRunServiceClient(owner), runnerdv1.NewRunServiceClient(guest)
	d.Audit = runnerdv1.NewAuditServiceClient(owner)
	return d, d.start()
}

// dial makes a connection that finds the daemon at whatever address it has.
func (d *Daemon) dial(credential func(context.Context) context.Context) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(d.creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			addr := d.addr.Load()
			if addr == nil {
				return nil, errors.New("the daemon is down")
			}
			return new(net.Dialer).DialContext(ctx, "tcp", *addr)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
	}
	if credential != nil {
		opts = append(opts,
			grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
			) error {
				return invoke(credential(ctx), method, req, reply, cc, opts...)
			}),
			grpc.WithStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
				open grpc.Streamer, opts ...grpc.CallOption,
			) (grpc.ClientStream, error) {
				if strings.HasPrefix(method, "/"+runnerdv1.AuditService_ServiceDesc.ServiceName+"/") {
					return d.audits.open(ctx, func() (grpc.ClientStream, error) {
						return open(credential(ctx), desc, cc, method, opts...)
					})
				}
				return open(credential(ctx), desc, cc, method, opts...)
			}))
	}
	return grpc.NewClient("passthrough:///runnerd", opts...)
}

// credential adds the approver token, unless the call has a credential already.
func (d *Daemon) credential(ctx context.Context) context.Context {
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md.Get("authorization")) > 0 {
		return ctx
	}
	if token := d.token.Load(); token != nil {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+*token)
	}
	return ctx
}

// Addr is where the daemon listens, host:port; empty while it is down.
func (d *Daemon) Addr() string {
	if addr := d.addr.Load(); addr != nil {
		return *addr
	}
	return ""
}

// listening finds the address in what the daemon says when it serves.
var listening = regexp.MustCompile(`listening on (127\.0\.0\.1:[1-9][0-9]*)`)

// start starts the process and returns when its health is SERVING.
func (d *Daemon) start() error {
	log, err := os.OpenFile(filepath.Join(d.Dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := d.command()
	found := &addressFinder{log: log, found: make(chan string, 1)}
	cmd.Stdout, cmd.Stderr = found, found
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.err = errors.Join(cmd.Wait(), log.Close())
		close(p.exited)
	}()
	d.process = p

	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case addr := <-found.found:
		d.addr.Store(&addr)
	case <-p.exited:
		return fmt.Errorf("the daemon ended while it started: %w\n%s", p.err, d.logTail())
	case <-limit.C:
		return fmt.Errorf("the daemon named no address within %s\n%s", startLimit, d.logTail())
	}
	token, err := os.ReadFile(filepath.Join(d.Dir, "data", "approver.token"))
	if err != nil {
		return err
	}
	text := strings.TrimSpace(string(token))
	d.token.Store(&text)
	return d.untilServing()
}

func (d *Daemon) untilServing() error {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	health := healthv1.NewHealthClient(d.conns[0])
	for {
		answer, err := health.Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the daemon does not serve: %v, %w\n%s", answer, err, d.logTail())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Serving tells what the health check of the daemon says.
func (d *Daemon) Serving(ctx context.Context) bool {
	answer, err := healthv1.NewHealthClient(d.conns[0]).Check(ctx, &healthv1.HealthCheckRequest{})
	return err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING
}

// addressFinder copies what the daemon says into its log and picks the address out.
type addressFinder struct {
	log   io.Writer
	found chan string

	mu   sync.Mutex
	head []byte // until the address was found
	done bool
}

func (f *addressFinder) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.done {
		f.head = append(f.head, p...)
		if m := listening.FindSubmatch(f.head); m != nil && bytes.HasSuffix(f.head, []byte("\n")) {
			f.done, f.head = true, nil
			f.found <- string(m[1])
		}
	}
	_, _ = f.log.Write(p) // a log that cannot be kept, as on a full disk, must not end the daemon by SIGPIPE
	return len(p), nil
}

// Kill ends the daemon with SIGKILL and returns when it is gone.
func (d *Daemon) Kill() {
	_ = d.process.cmd.Process.Kill() // it may have ended by itself
	<-d.process.exited
	d.process = nil
	d.addr.Store(nil)
}

// Restart starts a daemon that is down on the same data folder and configuration.
func (d *Daemon) Restart(t testing.TB) {
	t.Helper()
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
}

// Stop ends the daemon with SIGTERM and tells whether it ended well.
func (d *Daemon) Stop() error {
	p := d.process
	if p == nil {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	select {
	case <-p.exited:
	case <-limit.C:
		d.Kill()
		return errors.New("the daemon did not end within 30 s of SIGTERM")
	}
	d.process = nil
	d.addr.Store(nil)
	if p.err != nil {
		return fmt.Errorf("the daemon ended badly: %w\n%s", p.err, d.logTail())
	}
	return nil
}

// Close stops the daemon and looks into its log for what must never be there.
func (d *Daemon) Close() error {
	errs := []error{d.Stop()}
	for _, conn := range d.conns {
		errs = append(errs, conn.Close())
	}
	log, err := os.ReadFile(filepath.Join(d.Dir, "daemon.log"))
	errs = append(errs, err)
	for _, bad := range []string{"DATA RACE", "panic", "illegal event", "level=ERROR"} {
		if i := bytes.Index(log, []byte(bad)); i >= 0 {
			errs = append(errs, fmt.Errorf("the daemon's log has %q:\n%s", bad, log[max(0, i-500):min(len(log), i+4000)]))
		}
	}
	return errors.Join(errs...)
}

// logTail is the end of the daemon's log.
func (d *Daemon) logTail() string {
	log, err := os.ReadFile(filepath.Join(d.Dir, "daemon.log"))
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-4000):])
}

// Flash starts a daemon that is down and kills it again so long after, served or not: a kill in the middle of a start.
func (d *Daemon) Flash(life time.Duration) error {
	log, err := os.OpenFile(filepath.Join(d.Dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := d.command()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return errors.Join(err, log.Close())
	}
	time.Sleep(life)
	_ = cmd.Process.Kill()
	if err := cmd.Wait(); err != nil && cmd.ProcessState.Exited() { // it ended by itself before it was killed
		return errors.Join(fmt.Errorf("the daemon ended while it started: %w\n%s", err, d.logTail()), log.Close())
	}
	return log.Close()
}

func (d *Daemon) command() *exec.Cmd {
	// #nosec G204 -- the binary that Main built
	cmd := exec.Command(binary, "serve", "--config", filepath.Join(d.Dir, "config.yaml"))
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=0")
	return cmd
}
