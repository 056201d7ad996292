package config_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/pkg/internal/answerer"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
	"github.com/runnerd/runnerd/pkg/toolhost"
	"github.com/runnerd/runnerd/test/identitytest"
)

// seen is a tool host that tells, as its tools, what it sees of its caller: the token and the certificate.
type seen struct {
	runnerdv1.UnimplementedToolHostServiceServer
}

func (seen) ListTools(ctx context.Context, _ *runnerdv1.ToolHostServiceListToolsRequest) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	resp := new(runnerdv1.ToolHostServiceListToolsResponse)
	md, _ := metadata.FromIncomingContext(ctx)
	for _, token := range md.Get("authorization") {
		resp.Tools = append(resp.Tools, &runnerdv1.ToolDefinition{Name: token})
	}
	p, _ := peer.FromContext(ctx)
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		for _, cert := range info.State.PeerCertificates {
			resp.Tools = append(resp.Tools, &runnerdv1.ToolDefinition{Name: cert.URIs[0].String()})
		}
	}
	return resp, nil
}

// serveSeen serves such a host and returns its address.
func serveSeen(t *testing.T, creds credentials.TransportCredentials) string {
	t.Helper()
	addr, _ := grpctest.ServeTCP(t, func(s grpc.ServiceRegistrar) { runnerdv1.RegisterToolHostServiceServer(s, seen{}) }, grpc.Creds(creds))
	return addr
}

// ask calls a host and returns what it has seen, and who it was.
func ask(t *testing.T, host *configv1.ToolHost) (saw []string, who string, err error) {
	t.Helper()
	endpoint, err := config.Endpoint(host, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := toolhost.NewClient(map[string]toolhost.Endpoint{"h": endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, name := answerer.Listen(t.Context())
	resp, err := c.ListTools(ctx, "h")
	for _, tool := range resp.GetTools() {
		saw = append(saw, tool.GetName())
	}
	return saw, name(), err
}

func TestServicesAreKnownByTheirCertificate(t *testing.T) {
	t.Parallel()
	const git, shell = "spiffe://example.org/tools/git", "spiffe://example.org/tools/shell"
	ca, other := identitytest.NewCA(t), identitytest.NewCA(t)
	served := func(pair identitytest.Pair) string { return serveSeen(t, credentials.NewServerTLSFromCert(&pair.TLS)) }
	noServer := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	elsewhere := func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{"git.example.org"}, nil }

	twoNames := func(c *x509.Certificate) { c.DNSNames = []string{"model.example.org", "git.example.org"} }

	for name, tt := range map[string]struct {
		host identitytest.Pair
		want *configv1.Tls
		who  string // empty: refused
	}{
		"by its name":                {ca.Issue(t, nil), &configv1.Tls{}, "localhost"},
		"by another name":            {ca.Issue(t, nil, elsewhere), &configv1.Tls{ServerName: "git.example.org"}, "git.example.org"},
		"by the second of its names": {ca.Issue(t, nil, twoNames), &configv1.Tls{ServerName: "git.example.org"}, "git.example.org"},
		"by a name it has not":       {ca.Issue(t, nil), &configv1.Tls{ServerName: "git.example.org"}, ""},
		"by its SPIFFE id":           {ca.Issue(t, []string{git}, elsewhere), &configv1.Tls{SpiffeId: git}, git},
		"as another":                 {ca.Issue(t, []string{shell}), &configv1.Tls{SpiffeId: git}, ""},
		"of another trust domain":    {ca.Issue(t, []string{"spiffe://example.com/tools/git"}), &configv1.Tls{SpiffeId: git}, ""},
		"with two names":             {ca.Issue(t, []string{git, shell}), &configv1.Tls{SpiffeId: git}, ""},
		"without one":                {ca.Issue(t, nil), &configv1.Tls{SpiffeId: git}, ""},
		"signed by somebody":         {other.Issue(t, []string{git}), &configv1.Tls{SpiffeId: git}, ""},
		"expired":                    {ca.Issue(t, []string{git}, identitytest.Expired), &configv1.Tls{SpiffeId: git}, ""},
		"that is none of a server":   {ca.Issue(t, []string{git}, noServer), &configv1.Tls{SpiffeId: git}, ""},
		"by name, signed by another": {other.Issue(t, nil), &configv1.Tls{}, ""},
		"by name, expired":           {ca.Issue(t, nil, identitytest.Expired), &configv1.Tls{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.want.CaFile = ca.File
			saw, who, err := ask(t, &configv1.ToolHost{Address: served(tt.host), Tls: tt.want})
			if who != tt.who || (err == nil) != (tt.who != "") {
				t.Errorf("answered by %q, %v (saw %q); want %q", who, err, saw, tt.who)
			}
			if notSent, ok := errors.AsType[interface {
				error
				NotSent() bool
			}](err); tt.who == "" && (!ok || !notSent.NotSent()) {
				t.Errorf("the call may have been sent: %v", err)
			}
		})
	}
}

func TestPlainServiceElsewhereIsWarnedOf(t *testing.T) {
	t.Parallel()
	for address, warned := range map[string]bool{
		"tools.example.org:443": true, "dns:///tools.example.org:443": true, "192.0.2.1:443": true, "[2001:db8::1]:443": true,
		"127.0.0.1:443": false, "[::1]:443": false, "localhost:443": false, "dns:///localhost:443": false, "unix:///run/tools.sock": false,
		"localhost.example.org:443": true, "127.0.0.1.example.org:443": true,
	} {
		var log strings.Builder
		if _, err := config.Endpoint(&configv1.ToolHost{Address: address}, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "without encryption"); got != warned {
			t.Errorf("%s: warned %v", address, got)
		}
	}
}

func TestRunnerdShowsWhoItIs(t *testing.T) {
	t.Parallel()
	const me = "spiffe://example.org/runnerd"
	ca := identitytest.NewCA(t)
	server := ca.Issue(t, nil)
	addr := serveSeen(t, credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{server.TLS},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool,
	}))
	client := ca.Issue(t, []string{me})
	token := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("secret\n")
	host := &configv1.ToolHost{Address: addr, TokenFile: token, Tls: &configv1.Tls{
		CaFile: ca.File, CertFile: client.CertFile, KeyFile: client.KeyFile,
	}}
	saw, _, err := ask(t, host)
	if got := strings.Join(saw, " "); err != nil || got != "Bearer secret "+me {
		t.Errorf("the host saw %q, %v", got, err)
	}

	// Over a plain connection on this machine, and again when the file changes.
	host = &configv1.ToolHost{Address: serveSeen(t, insecure.NewCredentials()), TokenFile: token}
	endpoint, err := config.Endpoint(host, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	c, err := toolhost.NewClient(map[string]toolhost.Endpoint{"h": endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, want := range []string{"secret", "newer secret is no token", "new-secret"} {
		put(want + "\n")
		if strings.Contains(want, " ") {
			want = "secret" // what cannot be used is not
		}
		resp, err := c.ListTools(t.Context(), "h")
		if err != nil || resp.GetTools()[0].GetName() != "Bearer "+want {
			t.Errorf("the host saw %v, %v; want %s", resp.GetTools(), err, want)
		}
	}
}

// TestServerTLS connects to the API in each way, before and after its files are replaced.
func TestServerTLS(t *testing.T) {
	t.Parallel()
	ca, next := identitytest.NewCA(t), identitytest.NewCA(t)
	pair := ca.Issue(t, nil)
	clients := filepath.Join(t.TempDir(), "clients.pem")
	replace(t, ca.File, clients)
	listen := func(require bool) string {
		t.Helper()
		settings, err := config.ServerTLS(&configv1.ServerTls{
			CertFile: pair.CertFile, KeyFile: pair.KeyFile, ClientCaFile: clients, RequireClientCert: require,
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return serveSeen(t, credentials.NewTLS(settings))
	}
	asked, required := listen(false), listen(true)
	call := func(addr string, roots *identitytest.CA, client *identitytest.Pair, most uint16) ([]string, error) {
		t.Helper()
		c := &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: most, RootCAs: roots.Pool}
		if client != nil { // also one that the server does not ask for
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &client.TLS, nil }
		}
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(c)))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		resp, err := runnerdv1.NewToolHostServiceClient(conn).ListTools(t.Context(), &runnerdv1.ToolHostServiceListToolsRequest{})
		var saw []string
		for _, tool := range resp.GetTools() {
			saw = append(saw, tool.GetName())
		}
		return saw, err
	}
	const me = "spiffe://example.org/me"
	mine, stale := ca.Issue(t, []string{me}), ca.Issue(t, []string{me}, identitytest.Expired)
	foreign := next.Issue(t, []string{me})
	good := func(what, addr string, roots *identitytest.CA, client *identitytest.Pair, want string) {
		t.Helper()
		if saw, err := call(addr, roots, client, tls.VersionTLS13); err != nil || strings.Join(saw, "") != want {
			t.Errorf("%s: the API saw %q, %v; want %q", what, saw, err, want)
		}
	}
	bad := func(what, addr string, roots *identitytest.CA, client *identitytest.Pair, most uint16) {
		t.Helper()
		if saw, err := call(addr, roots, client, most); err == nil {
			t.Errorf("%s is let in: %q", what, saw)
		}
	}
	good("without a certificate", asked, ca, nil, "")
	good("with one", asked, ca, &mine, me)
	good("with one that is required", required, ca, &mine, me)
	bad("no certificate where one is required", required, ca, nil, tls.VersionTLS13)
	bad("an expired certificate", asked, ca, &stale, tls.VersionTLS13)
	bad("a certificate of somebody else's", asked, ca, &foreign, tls.VersionTLS13)
	bad("TLS 1.2", asked, ca, nil, tls.VersionTLS12)

	// New files hold for the next connection. A key that does not fit its certificate changes nothing.
	renewed := next.Issue(t, nil)
	replace(t, renewed.CertFile, pair.CertFile)
	good("while the key is still the old one", asked, ca, &mine, me)
	replace(t, renewed.KeyFile, pair.KeyFile)
	replace(t, next.File, clients)
	good("with the new files", asked, next, &foreign, me)
	bad("a certificate of the former signer", asked, next, &mine, tls.VersionTLS13)
}

// replace puts a file in place of another.
func replace(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(to+".new", to); err != nil {
		t.Fatal(err)
	}
}

func TestMistakesOfIdentitiesAreNamed(t *testing.T) {
	t.Parallel()
	ca := identitytest.NewCA(t)
	pair, other := ca.Issue(t, nil), ca.Issue(t, nil)
	open := filepath.Join(t.TempDir(), "open-key.pem")
	key, err := os.ReadFile(pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(open, key, 0o644); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("CERT", pair.CertFile, "OTHERKEY", other.KeyFile, "OPENKEY", open, "KEY", pair.KeyFile, "CA", ca.File,
		"HASH", strings.Repeat("ab", 32))
	for name, tc := range map[string]struct{ text, want string }{
		"a key that others can read":   {"tls: {cert_file: CERT, key_file: OPENKEY}", "tls.key_file: " + open + ": mode 0644 lets others read it"},
		"a key of something else":      {"tls: {cert_file: CERT, key_file: OTHERKEY}", "tls.key_file: "},
		"no such certificate":          {"tls: {cert_file: /nowhere, key_file: KEY}", "tls.cert_file: open /nowhere"},
		"clients that are not asked":   {"tls: {cert_file: CERT, key_file: KEY, require_client_cert: true}", "tls.require_client_cert: needs a client_ca_file"},
		"signers that are none":        {"tls: {cert_file: CERT, key_file: KEY, client_ca_file: KEY}", "tls.client_ca_file: "},
		"plain and remote":             {"listen: '0.0.0.0:7780'\nauth: {}", "listen: credentials would come to 0.0.0.0:7780 without encryption"},
		"plain and everywhere":         {"listen: ':7780'\nauth: {}", "listen: credentials would come"},
		"certificates without TLS":     {"auth: {certificates: [{uri: 'spiffe://e/a'}]}", "auth.certificates: clients are asked for certificates only"},
		"a hash that is none":          {"auth: {tokens: [{principal: a, sha256: abc}]}", "auth.tokens[0].sha256: "},
		"a name of this machine":       {"auth: {tokens: [{principal: a, sha256: HASH}, {principal: 'local:owner', sha256: HASH}]}", "auth.tokens[1]: names that begin with local:"},
		"one token for two":            {"auth: {tokens: [{principal: a, sha256: HASH}, {principal: b, sha256: HASH}]}", "auth.tokens[1]: another entry has the same token"},
		"an issuer without encryption": {"auth: {oidc: [{issuer: 'http://i.example', audience: a, prefix: 'o:'}]}", "auth.oidc[0]: the issuer is not an https URL"},
		"an issuer without a CA":       {"auth: {oidc: [{issuer: 'https://i.example', audience: a, prefix: 'o:', ca_file: /nowhere}]}", "auth.oidc[0]: open /nowhere"},
		"an issuer of this machine":    {"auth: {oidc: [{issuer: 'https://i.example', audience: a, prefix: 'local:'}]}", "auth.oidc[0]: a prefix is required, and not that of this machine"},
		"a role that is none":          {"auth: {roles: [{principals: [a], roles: [root]}]}", "auth.roles[0].roles[0]: "},
		"an agent that is none":        {"auth: {roles: [{principals: [a], roles: [viewer], agents: ['*', nobody]}]}", `auth.roles[0].agents[1]: no agent "nobody" is configured`},
		"a view that is none":          {"auth: {roles: [{principals: [a], roles: [viewer], view: raw}]}", "auth.roles[0].view: "},
		"a token in plain text":        {"tool_hosts: {h: {address: 'h.example:1', token_file: KEY}}", `tool_hosts["h"].token_file: a token is not sent to h.example:1 without TLS`},
		"no such token":                {"decide_services: {d: {address: '127.0.0.1:1', token_file: /nowhere}}", `decide_services["d"].token_file: open /nowhere`},
		"a token of several lines":     {"tool_hosts: {h: {address: 'unix:///run/h', token_file: KEY}}", `tool_hosts["h"].token_file: ` + pair.KeyFile + " holds no token"},
		"a scripted one with a token":  {"tool_hosts: {h: {scripted: builtin, token_file: KEY}}", `tool_hosts["h"].token_file: a scripted service`},
		"a certificate without a key":  {"tool_hosts: {h: {address: 'h:1', tls: {cert_file: CERT}}}", `tool_hosts["h"].tls.cert_file: needs a key_file`},
		"a key without a certificate":  {"tool_hosts: {h: {address: 'h:1', tls: {key_file: KEY}}}", `tool_hosts["h"].tls.key_file: needs a cert_file`},
		"a SPIFFE id that is none":     {"tool_hosts: {h: {address: 'h:1', tls: {spiffe_id: 'https://h'}}}", `tool_hosts["h"].tls.spiffe_id: `},
		"a name beside a SPIFFE id":    {"tool_hosts: {h: {address: 'h:1', tls: {spiffe_id: 'spiffe://e/h', server_name: h}}}", `tool_hosts["h"].tls.server_name: is not looked at`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(config.Source{File: write(t, fill.Replace(tc.text)), LookupEnv: env("HOME", "/h")})
			wrong, ok := errors.AsType[*config.Error](err)
			if !ok || len(wrong.Problems) != 1 || !strings.Contains(wrong.Problems[0], " "+tc.want) {
				t.Errorf("got %v, want %s", err, tc.want)
			}
		})
	}
	_, err = config.Load(config.Source{
		File: write(t, "auth: {}"), LookupEnv: env("HOME", "/h"),
		Flags: []config.Setting{{Field: "listen", Value: net.JoinHostPort("192.0.2.1", "1"), From: "--listen"}},
	})
	if err == nil || !strings.Contains(err.Error(), "--listen: credentials would come") {
		t.Errorf("a flag that opens the door: %v", err)
	}
}
