package e2e

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
	"github.com/runnerd/runnerd/test/identitytest"
)

const (
	gitID     = "spiffe://example.org/tools/git"
	runnerdID = "spiffe://example.org/runnerd"
	batchID   = "spiffe://example.org/agents/batch"
)

// guarded is a daemon that knows who calls, with services that know who calls them.
type guarded struct {
	*harness.Daemon
	ca     *identitytest.CA
	issuer *identitytest.Issuer
	api    identitytest.Pair
	brain  *harness.Brain
	hands  *harness.Hands

	mu   sync.Mutex
	seen []string // by the tool host, of each call: authorization and URI name
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func newGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{ca: identitytest.NewCA(t)}
	g.issuer = identitytest.NewIssuer(t, g.ca)
	g.api = g.ca.Issue(t, nil)
	decide, git, me := g.ca.Issue(t, nil), g.ca.Issue(t, []string{gitID}), g.ca.Issue(t, []string{runnerdID})
	var err error
	if g.brain, err = harness.NewBrain(grpc.Creds(credentials.NewServerTLSFromCert(&decide.TLS))); err != nil {
		t.Fatal(err)
	}
	mutual := credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{git.TLS},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.ca.Pool,
	})
	g.hands, err = harness.NewHandsWith([]grpc.ServerOption{grpc.Creds(mutual), grpc.StreamInterceptor(g.note)}, tools...)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(t.TempDir(), "git.token")
	if err := os.WriteFile(token, []byte("for-git-only\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	agent := func() *configv1.Agent {
		return &configv1.Agent{
			DecideService: "brain", ToolHosts: []string{"git"}, Policy: &configv1.Policy{Mode: "allow", ApprovalFor: []string{"deploy_*"}},
			Approval: &configv1.Approval{ExcludeOwner: true},
		}
	}
	g.Daemon = harness.Start(t, &configv1.Config{
		Tls: &configv1.ServerTls{CertFile: g.api.CertFile, KeyFile: g.api.KeyFile, ClientCaFile: g.ca.File},
		Auth: &configv1.Auth{
			Tokens: []*configv1.Token{
				{Principal: "alice", Sha256: hashOf("alices")},
				{Principal: "dora", Sha256: strings.ToUpper(hashOf("doras"))},
			},
			Certificates: []*configv1.Certificate{{Uri: batchID, Principal: "batch"}},
			Oidc: []*configv1.Oidc{{
				Issuer: g.issuer.URL, Audience: "runnerd", Claim: "email", Prefix: "mail:", CaFile: g.ca.File,
			}},
			Roles: []*configv1.RoleBinding{
				{Principals: []string{"alice", "batch"}, Agents: []string{"coder"}, Roles: []string{"operator", "viewer", "approver"}},
				{Principals: []string{"mail:*@example.org"}, Agents: []string{"coder"}, Roles: []string{"approver"}},
				{Principals: []string{"dora"}, Agents: []string{"writer"}, Roles: []string{"operator", "viewer", "approver", "admin"}},
			},
		},
		DecideServices: map[string]*configv1.DecideService{"brain": {Address: g.brain.Addr, Tls: &configv1.Tls{CaFile: g.ca.File}}},
		ToolHosts: map[string]*configv1.ToolHost{"git": {
			Address: g.hands.Addr, TokenFile: token,
			Tls: &configv1.Tls{CaFile: g.ca.File, SpiffeId: gitID, CertFile: me.CertFile, KeyFile: me.KeyFile},
		}},
		Agents: map[string]*configv1.Agent{"coder": agent(), "writer": agent()},
	})
	return g
}

// note writes down who calls the tool host.
func (g *guarded) note(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	g.mu.Lock()
	g.seen = append(g.seen, strings.Join(md.Get("authorization"), ",")+" "+peerURI(stream.Context()))
	g.mu.Unlock()
	return next(srv, stream)
}

// peerURI is the URI name in the certificate of who calls.
func peerURI(ctx context.Context) string {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 || len(info.State.PeerCertificates[0].URIs) == 0 {
		return ""
	}
	return info.State.PeerCertificates[0].URIs[0].String()
}

// as is the API for somebody who shows a token, a certificate, both or neither.
func (g *guarded) as(t *testing.T, token string, pair *identitytest.Pair) runnerdv1.RunServiceClient {
	t.Helper()
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: g.ca.Pool}
	if pair != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair.TLS, nil }
	}
	opts := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(c))}
	if token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer(token)))
	}
	conn, err := grpc.NewClient(g.Addr(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return runnerdv1.NewRunServiceClient(conn)
}

type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return true }

func (g *guarded) mail(t *testing.T, address string) string {
	return g.issuer.Sign(t, g.issuer.Claims("runnerd", "1", map[string]any{"email": address, "email_verified": true}))
}

func TestIdentities(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	batch := g.ca.Issue(t, []string{batchID})

	t.Run("who calls", func(t *testing.T) {
		t.Parallel()
		other := identitytest.NewCA(t)
		expired, stranger := g.ca.Issue(t, []string{batchID}, identitytest.Expired), g.ca.Issue(t, []string{"spiffe://example.com/agents/batch"})
		forged, unnamed, server := other.Issue(t, []string{batchID}), g.ca.Issue(t, nil), g.ca.Issue(t, []string{batchID}, func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		})
		past := g.issuer.Sign(t, g.issuer.Claims("runnerd", "1", map[string]any{
			"email": "lead@example.org", "email_verified": true, "exp": time.Now().Add(-time.Minute).Unix(),
		}))
		foreign := g.issuer.Sign(t, g.issuer.Claims("elsewhere", "1", map[string]any{"email": "lead@example.org", "email_verified": true}))
		for _, tt := range []struct {
			who   string
			token string
			pair  *identitytest.Pair
			want  codes.Code // of ListRuns, which is for viewers
		}{
			{"a token", "alices", nil, codes.OK},
			{"another token", "doras", nil, codes.OK},
			{"a wrong token", "alice", nil, codes.Unauthenticated},
			{"a certificate", "", &batch, codes.OK},
			{"a token over a connection with a certificate", "alices", &batch, codes.OK},
			{"a wrong token over a connection with a certificate", "nobodys", &batch, codes.Unauthenticated},
			{"a token over a connection with a certificate of nobody", "alices", &stranger, codes.OK},
			{"an approver who is no viewer", g.mail(t, "lead@example.org"), nil, codes.PermissionDenied},
			{"a mail without any role", g.mail(t, "lead@example.com"), nil, codes.PermissionDenied},
			{"an expired JWT", past, nil, codes.Unauthenticated},
			{"a JWT for somebody else", foreign, nil, codes.Unauthenticated},
			{"nobody, although on this machine", "", nil, codes.Unauthenticated},
			{"a certificate of another trust domain", "", &stranger, codes.Unauthenticated},
			{"a certificate without a name", "", &unnamed, codes.Unauthenticated},
			{"an expired certificate", "", &expired, codes.Unavailable}, // there is no connection
			{"a certificate that somebody else signed", "", &forged, codes.Unavailable},
			{"a certificate of a server", "", &server, codes.Unavailable},
		} {
			t.Run(tt.who, func(t *testing.T) {
				t.Parallel()
				_, err := g.as(t, tt.token, tt.pair).ListRuns(harness.Context(t), &runnerdv1.ListRunsRequest{})
				if status.Code(err) != tt.want {
					t.Errorf("got %v, want %v", err, tt.want)
				}
			})
		}
	})

	t.Run("two persons take part, and the log says who answered", func(t *testing.T) {
		t.Parallel()
		alice, lead := g.as(t, "alices", nil), g.as(t, g.mail(t, "lead@example.org"), nil)
		dora := g.as(t, "doras", nil)
		ctx, run := harness.Context(t), g.RunID(t)
		g.brain.Script(run, harness.Steps(harness.Calls("look", "{}"), harness.Calls("deploy_site", "{}"), harness.Answer("done")))
		if _, err := alice.StartRun(ctx, &runnerdv1.StartRunRequest{RunId: run, Agent: "coder", Task: "deploy"}); err != nil {
			t.Fatal(err)
		}
		asked := g.Idle(t, run).GetApprovals()
		if len(asked) != 1 {
			t.Fatalf("%d approvals are open", len(asked))
		}
		vote := &runnerdv1.SubmitApprovalRequest{
			RunId: run, ApprovalId: asked[0].GetApprovalId(), ApprovalDigest: asked[0].GetApprovalDigest(), Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
		}
		if _, err := alice.SubmitApproval(ctx, vote); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "owner") {
			t.Errorf("the owner approves: %v", err)
		}
		// Somebody with all roles on another agent is told what is told of a run that does not exist.
		_, foreign := dora.SubmitApproval(ctx, vote)
		vote.RunId = "none"
		_, missing := dora.SubmitApproval(ctx, vote)
		vote.RunId = run
		if want := strings.ReplaceAll(status.Convert(missing).Message(), "none", run); status.Code(foreign) != codes.NotFound || status.Convert(foreign).Message() != want {
			t.Errorf("a foreigner is told %v, and of no run %v", foreign, missing)
		}
		inbox, err := dora.ListApprovals(ctx, &runnerdv1.ListApprovalsRequest{})
		if err != nil || len(inbox.GetApprovals()) != 0 {
			t.Errorf("a foreigner's inbox has %v, %v", inbox, err)
		}
		if list, err := dora.ListRuns(ctx, &runnerdv1.ListRunsRequest{}); err != nil || len(list.GetRuns()) != 0 {
			t.Errorf("a foreigner sees %v, %v", list, err)
		}
		if _, err := dora.StartRun(ctx, &runnerdv1.StartRunRequest{Agent: "coder", Task: "x"}); status.Code(err) != codes.NotFound {
			t.Errorf("a foreigner starts a run: %v", err)
		}
		if _, err := lead.SubmitApproval(ctx, vote); err != nil {
			t.Fatal(err)
		}
		if done := g.Done(t, run); done.GetStopReason() != runnerdv1.StopReason_STOP_REASON_COMPLETED || done.GetOwner() != "alice" {
			t.Errorf("the run of %s ended %v", done.GetOwner(), done.GetStopReason())
		}
		var answered, voted []string
		for _, ev := range g.Public(t, run) {
			if d := ev.GetDecisionMade(); d != nil {
				answered = append(answered, "decide "+d.GetAnsweredBy())
			}
			if c := ev.GetToolCallCompleted(); c != nil {
				answered = append(answered, "tool "+c.GetAnsweredBy())
			}
			if ev.GetToolCallApproved() != nil {
				voted = append(voted, ev.GetPrincipal())
			}
		}
		if got, want := strings.Join(answered, ", "), "decide localhost, tool "+gitID+", decide localhost, tool "+gitID+", decide localhost"; got != want {
			t.Errorf("answered by %s, want %s", got, want)
		}
		if got := strings.Join(voted, ", "); got != "mail:lead@example.org" {
			t.Errorf("approved by %s", got)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, seen := range g.seen {
			if seen != "Bearer for-git-only "+runnerdID { // and never what alice has shown
				t.Errorf("the tool host saw %q", seen)
			}
		}
		if len(g.seen) == 0 {
			t.Error("the tool host saw nobody")
		}
		g.Check(t, run)
	})

	t.Run("the approver token is for this machine", func(t *testing.T) {
		t.Parallel()
		if _, err := g.Runs.ListApprovals(harness.Context(t), &runnerdv1.ListApprovalsRequest{}); err != nil {
			t.Error(err)
		}
		proxied := metadata.AppendToOutgoingContext(harness.Context(t), "x-forwarded-for", "192.0.2.1")
		if _, err := g.Runs.ListApprovals(proxied, &runnerdv1.ListApprovalsRequest{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("through a proxy: %v", err)
		}
	})

	t.Run("health needs no credential", func(t *testing.T) {
		t.Parallel()
		conn, err := grpc.NewClient(g.Addr(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: g.ca.Pool})))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := healthv1.NewHealthClient(conn).Check(harness.Context(t), &healthv1.HealthCheckRequest{}); err != nil {
			t.Error(err)
		}
	})
}

// TestImpostors runs against services that are not who they should be: nothing is sent to them.
func TestImpostors(t *testing.T) {
	t.Parallel()
	ca := identitytest.NewCA(t)
	shell := ca.Issue(t, []string{"spiffe://example.org/tools/shell"})
	var asked atomic.Int64
	hands, err := harness.NewHandsWith([]grpc.ServerOption{
		grpc.Creds(credentials.NewServerTLSFromCert(&shell.TLS)),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			asked.Add(1)
			return next(ctx, req)
		}),
	}, tools...)
	if err != nil {
		t.Fatal(err)
	}
	brain, err := harness.NewBrain()
	if err != nil {
		t.Fatal(err)
	}
	d := harness.Start(t, &configv1.Config{
		DecideServices: map[string]*configv1.DecideService{"brain": {Address: brain.Addr}},
		ToolHosts: map[string]*configv1.ToolHost{"git": {
			Address: hands.Addr, Required: true, Tls: &configv1.Tls{CaFile: ca.File, SpiffeId: gitID},
		}},
		Agents: map[string]*configv1.Agent{"coder": {DecideService: "brain", ToolHosts: []string{"git"}}},
	})
	list, err := d.Runs.ListTools(harness.Context(t), &runnerdv1.ListToolsRequest{Agent: "coder"})
	if err != nil || len(list.GetTools()) != 0 || len(list.GetFindings()) == 0 {
		t.Errorf("an impostor's tools are %v, %v", list, err)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("an impostor was asked %d times", n)
	}
}
