package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
)

// connection is how a command reaches a daemon.
type connection struct {
	addr      string
	tokenFile string
	dataDir   string
	tls       bool
	caFile    string
	certFile  string
	keyFile   string
}

// maxMessage is the largest message a daemon sends.
const maxMessage = 4 << 20

// addConnectionFlags gives a command the flags to reach a daemon.
func (p *program) addConnectionFlags(cmd *cobra.Command) *connection {
	c := &connection{}
	flags := cmd.Flags()
	flags.StringVar(&c.addr, "addr", "", "address of the daemon (RUNNERD_ADDR, else "+config.DefaultListen+")")
	flags.StringVar(&c.tokenFile, "token-file", "", "file with the token to show (else RUNNERD_TOKEN, else approver.token of the data folder)")
	flags.StringVar(&c.dataDir, "data-dir", "", "data folder to take approver.token from (RUNNERD_DATA_DIR)")
	flags.BoolVar(&c.tls, "tls", false, "use TLS with the certificates of the system")
	flags.StringVar(&c.caFile, "tls-ca", "", "use TLS with the certificates of this PEM file (RUNNERD_TLS_CA)")
	flags.StringVar(&c.certFile, "tls-cert", "", "use TLS and show the certificate of this PEM file (RUNNERD_TLS_CERT)")
	flags.StringVar(&c.keyFile, "tls-key", "", "PEM file with the private key of --tls-cert (RUNNERD_TLS_KEY)")
	return c
}

// client is a daemon, as a command sees it.
type client struct {
	runnerdv1.RunServiceClient
	audit      runnerdv1.AuditServiceClient
	conn       *grpc.ClientConn
	credential bool // a token or a certificate is shown
}

// dial prepares a connection; nothing is sent before the first call.
func (p *program) dial(c *connection) (*client, error) {
	addr := firstOf(c.addr, p.env("RUNNERD_ADDR"), config.DefaultListen)
	c.caFile = firstOf(c.caFile, p.env("RUNNERD_TLS_CA"))
	c.certFile = firstOf(c.certFile, p.env("RUNNERD_TLS_CERT"))
	c.keyFile = firstOf(c.keyFile, p.env("RUNNERD_TLS_KEY"))
	transport, secure, err := c.transport()
	if err != nil {
		return nil, err
	}
	local := isLocal(addr)
	token, err := p.token(c, local)
	if err != nil {
		return nil, err
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.WithUserAgent("runnerd-cli/" + version()),
	}
	if token != "" {
		if !secure && !local {
			return nil, usageError{fmt.Errorf("a token is not sent to %s without TLS: use --tls or --tls-ca", addr)}
		}
		options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
	}
	conn, err := grpc.NewClient(addr, options...)
	if err != nil {
		return nil, usageError{fmt.Errorf("--addr %s: %w", addr, err)}
	}
	return &client{
		RunServiceClient: runnerdv1.NewRunServiceClient(conn),
		audit:            runnerdv1.NewAuditServiceClient(conn),
		conn:             conn,
		credential:       token != "" || c.certFile != "",
	}, nil
}

func (c *client) close() {
	_ = c.conn.Close() // closing twice is the only error it has
}

func (c *connection) transport() (creds credentials.TransportCredentials, secure bool, err error) {
	if !c.tls && c.caFile == "" && c.certFile == "" && c.keyFile == "" {
		return insecure.NewCredentials(), false, nil
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS13}
	if c.caFile != "" {
		pem, err := os.ReadFile(c.caFile)
		if err != nil {
			return nil, false, usageError{fmt.Errorf("--tls-ca: %w", err)}
		}
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(pem) {
			return nil, false, usageError{fmt.Errorf("--tls-ca: %s holds no certificate", c.caFile)}
		}
	}
	if (c.certFile != "") != (c.keyFile != "") {
		return nil, false, usageError{errors.New("--tls-cert and --tls-key belong together: give both")}
	}
	if c.certFile != "" {
		pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
		if err != nil {
			return nil, false, usageError{fmt.Errorf("--tls-cert and --tls-key: %w", err)}
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(settings), true, nil
}

// token finds the token to show: a named file, the environment, or, to a
// daemon on this machine, approver.token of its data folder if this user may
// read it and shows no certificate.
func (p *program) token(c *connection, local bool) (string, error) {
	if c.tokenFile != "" {
		data, err := os.ReadFile(c.tokenFile)
		if err != nil {
			return "", usageError{fmt.Errorf("--token-file: %w", err)}
		}
		return cleanToken("--token-file", string(data))
	}
	if token := p.env("RUNNERD_TOKEN"); token != "" {
		return cleanToken("RUNNERD_TOKEN", token)
	}
	if !local || c.certFile != "" {
		return "", nil
	}
	dir, err := p.dataDir(c.dataDir)
	if err != nil {
		return "", nil //nolint:nilerr // there is no such folder, so there is no token
	}
	data, err := os.ReadFile(filepath.Join(dir, "approver.token"))
	if err != nil {
		return "", nil //nolint:nilerr // not the owner of the daemon: go on without
	}
	return cleanToken("approver.token", string(data))
}

// dataDir is the data folder that a command means.
func (p *program) dataDir(flag string) (string, error) {
	if dir := firstOf(flag, p.env(config.EnvName("data_dir"))); dir != "" {
		return dir, nil
	}
	return config.DefaultDataDir(p.lookupEnv)
}

func cleanToken(where, text string) (string, error) {
	token := strings.TrimSpace(text)
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", usageError{fmt.Errorf("%s holds no token", where)}
	}
	return token, nil
}

// bearer shows a token with every call. dial has looked at where it goes.
type bearer string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (bearer) RequireTransportSecurity() bool { return false }

// isLocal reports whether an address cannot leave this machine.
func isLocal(addr string) bool {
	if strings.HasPrefix(addr, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(strings.TrimPrefix(strings.TrimPrefix(addr, "passthrough:///"), "dns:///"))
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// call gives a single call of a command its time.
func call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, time.Minute)
}

// readText takes a text from an argument, or from a file ("-": standard input).
func (p *program) readText(argument, file string) (string, error) {
	switch {
	case argument != "" && file != "":
		return "", usageError{errors.New("give the text or a file, not both")}
	case file == "":
		return argument, nil
	case file == "-":
		data, err := readAllOf(p.in)
		return string(data), err
	}
	f, err := os.Open(file)
	if err != nil {
		return "", usageError{err}
	}
	defer f.Close()
	data, err := readAllOf(f)
	return string(data), err
}
