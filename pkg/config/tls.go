package config

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"google.golang.org/grpc"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/internal/credfile"
	"github.com/runnerd/runnerd/pkg/internal/rpcclient"
)

// ServerTLS is the TLS of the API; nil settings are none. Files that change are read again for the connections that
// come after.
func ServerTLS(settings *configv1.ServerTls, log *slog.Logger) (*tls.Config, error) {
	if settings == nil {
		return nil, nil //nolint:nilnil // nil is no TLS
	}
	pair, err := openPair(settings.GetCertFile(), settings.GetKeyFile(), log)
	if err != nil {
		return nil, err
	}
	made := &tls.Config{
		MinVersion:     tls.VersionTLS13,
		NextProtos:     []string{"h2"}, // gRPC adds it to the settings it is given, not to those of a connection
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Get(), nil },
	}
	if settings.GetClientCaFile() == "" {
		return made, nil
	}
	clients, err := openPool(settings.GetClientCaFile(), log)
	if err != nil {
		return nil, err
	}
	made.ClientAuth = tls.VerifyClientCertIfGiven
	if settings.GetRequireClientCert() {
		made.ClientAuth = tls.RequireAndVerifyClientCert
	}
	// Whoever signed a certificate then is not asked again when a session is resumed; so none is.
	made.SessionTicketsDisabled = true
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := made.Clone()
			c.ClientCAs = clients.Get()
			return c, nil
		},
	}, nil
}

// Service is how a decide service or a tool host is reached, as [configv1.DecideService] and [configv1.ToolHost] say.
type Service interface {
	GetAddress() string
	GetScripted() string
	GetTls() *configv1.Tls
	GetTokenFile() string
}

// Endpoint is how a client reaches a service that is not scripted: where, how the connection is encrypted, and the token
// that is shown to it, which is read again when its file changes.
func Endpoint(s Service, log *slog.Logger) (rpcclient.Endpoint, error) {
	e := rpcclient.Endpoint{Address: s.GetAddress()}
	var err error
	if e.TLS, err = TLS(s.GetTls(), log); err != nil {
		return e, err
	}
	if e.TLS == nil && !isLocal(e.Address) {
		log.Warn("calls go out without encryption, and whoever answers is believed: configure tls of the service", "address", e.Address)
	}
	tokenFile := s.GetTokenFile()
	if tokenFile == "" {
		return e, nil
	}
	token, err := credfile.Open(log, func() (string, error) { return readToken(tokenFile) }, tokenFile)
	if err != nil {
		return e, err
	}
	e.DialOptions = []grpc.DialOption{grpc.WithPerRPCCredentials(bearer{token: token, secure: !isLocal(e.Address)})}
	return e, nil
}

// TLS is how a service is reached over TLS; nil settings are a plain connection. The certificate that is shown is read
// again when its files change.
func TLS(settings *configv1.Tls, log *slog.Logger) (*tls.Config, error) {
	if settings == nil {
		return nil, nil //nolint:nilnil // nil is a plain connection
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: settings.GetServerName()}
	if file := settings.GetCaFile(); file != "" {
		pool, err := readPool(file)
		if err != nil {
			return nil, err
		}
		c.RootCAs = pool
	}
	if settings.GetCertFile() != "" {
		pair, err := openPair(settings.GetCertFile(), settings.GetKeyFile(), log)
		if err != nil {
			return nil, err
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(), nil }
	}
	if settings.GetSpiffeId() != "" {
		id, err := spiffeid.FromString(settings.GetSpiffeId())
		if err != nil {
			return nil, err
		}
		roots := c.RootCAs
		c.InsecureSkipVerify = true // the name is not looked at; all else is verified here
		c.VerifyConnection = func(state tls.ConnectionState) error { return verifyID(state.PeerCertificates, roots, id) }
	}
	return c, nil
}

// verifyID says why a service is not the one with a SPIFFE id.
func verifyID(chain []*x509.Certificate, roots *x509.CertPool, want spiffeid.ID) error {
	if len(chain) == 0 {
		return errors.New("the service shows no certificate")
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	leaf := chain[0]
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}); err != nil {
		return err
	}
	if len(leaf.URIs) != 1 {
		return errors.New("the certificate of the service does not have exactly one URI name")
	}
	id, err := spiffeid.FromURI(leaf.URIs[0])
	if err != nil {
		return fmt.Errorf("the certificate of the service: %w", err)
	}
	if id != want {
		return fmt.Errorf("the service is %s and not %s", id, want)
	}
	return nil
}

// openPair opens a certificate and its private key.
func openPair(certFile, keyFile string, log *slog.Logger) (*credfile.File[*tls.Certificate], error) {
	return credfile.Open(log, func() (*tls.Certificate, error) { return readPair(certFile, keyFile) }, certFile, keyFile)
}

func readPair(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := credfile.Read(certFile)
	if err != nil {
		return nil, err
	}
	key, err := credfile.ReadPrivate(keyFile)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return &pair, nil
}

func openPool(file string, log *slog.Logger) (*credfile.File[*x509.CertPool], error) {
	return credfile.Open(log, func() (*x509.CertPool, error) { return readPool(file) }, file)
}

func readPool(file string) (*x509.CertPool, error) {
	pem, err := credfile.Read(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return pool, nil
}

// readToken reads the token that a file holds and nothing else.
func readToken(file string) (string, error) {
	data, err := credfile.ReadPrivate(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s holds no token", file)
	}
	return token, nil
}

// bearer shows the token of a file with every call.
type bearer struct {
	token  *credfile.File[string]
	secure bool // over TLS only
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token.Get()}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return b.secure }

// isLocal reports whether a gRPC target cannot be anywhere but on this machine.
func isLocal(target string) bool {
	if strings.HasPrefix(target, "unix:") || strings.HasPrefix(target, "unix-abstract:") {
		return true
	}
	for _, scheme := range []string{"dns:///", "passthrough:///", "dns:"} {
		target = strings.TrimPrefix(target, scheme)
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
