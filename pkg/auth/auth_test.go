package auth_test

import (
	"crypto/sha256"
	"crypto/x509"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc/codes"

	"github.com/runnerd/runnerd/pkg/auth"
	"github.com/runnerd/runnerd/pkg/runner"
	"github.com/runnerd/runnerd/test/identitytest"
)

var (
	here  = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	there = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}
)

const approverToken = "b3duZXItb3duZXItb3duZXItb3duZXItb3duZXItMzI"

func newAuth(t *testing.T, cfg auth.Config) *auth.Auth {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	a, err := auth.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// shows is a caller from elsewhere with a bearer token.
func shows(token string) runner.Caller {
	return runner.Caller{From: there, HasBearer: true, Bearer: token}
}

// wantName fails unless a caller is somebody; an empty name: is refused.
func wantName(t *testing.T, a *auth.Auth, caller runner.Caller, name string) runner.Principal {
	t.Helper()
	p, err := a.Authenticate(t.Context(), caller)
	if name == "" {
		told, ok := err.(*runner.Error) //nolint:errorlint // it is what the contract says
		if !ok || told.Kind().Code() != codes.Unauthenticated {
			t.Fatalf("got %q and %v, want UNAUTHENTICATED", p.Name, err)
		}
		return p
	}
	if err != nil || p.Name != name {
		t.Fatalf("got %q and %v, want %q", p.Name, err, name)
	}
	return p
}

func TestTokens(t *testing.T) {
	t.Parallel()
	a := newAuth(t, auth.Config{ApproverToken: approverToken, AllowLocal: true, Tokens: []auth.Token{
		{SHA256: sha256.Sum256([]byte("alices")), Principal: "alice"},
		{SHA256: sha256.Sum256([]byte("other of alice")), Principal: "alice"},
		{SHA256: sha256.Sum256([]byte("bobs")), Principal: "bob"},
	}})
	for token, name := range map[string]string{
		"alices": "alice", "other of alice": "alice", "bobs": "bob",
		"": "", "alice": "", "ALICES": "", "alices ": "", " alices": "", "alices\n": "", "alices\x00": "",
		strings.Repeat("a", 16<<10): "", "a.b.c": "", "..": "",
		approverToken: "", // it is for callers on the machine
	} {
		wantName(t, a, shows(token), name)
	}
	if p := wantName(t, a, runner.Caller{From: here, HasBearer: true, Bearer: approverToken}, runner.PrincipalOwner); !p.Has("any", runner.RoleAdmin) || !p.Credential {
		t.Errorf("the owner is %+v", p)
	}
	if p := wantName(t, a, runner.Caller{From: here}, runner.PrincipalAnonymous); p.Credential || p.Has("any", runner.RoleApprover) {
		t.Errorf("who calls from here is %+v", p)
	}
	wantName(t, a, runner.Caller{From: there}, "")
	wantName(t, a, runner.Caller{}, "") // through a proxy
	wantName(t, a, runner.Caller{From: here, HasBearer: true}, "")
	wantName(t, newAuth(t, auth.Config{ApproverToken: approverToken}), runner.Caller{From: here}, "")
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	const ci, odd = "spiffe://example.org/agents/ci", "https://example.org/people/alice"
	a := newAuth(t, auth.Config{
		AllowLocal: true,
		Tokens:     []auth.Token{{SHA256: sha256.Sum256([]byte("bobs")), Principal: "bob"}},
		Certificates: []auth.Certificate{
			{URI: ci, Principal: "ci"}, {URI: odd, Principal: odd},
		},
	})
	ca := identitytest.NewCA(t)
	caller := func(uris ...string) runner.Caller {
		return runner.Caller{From: here, Chain: []*x509.Certificate{ca.Issue(t, uris).TLS.Leaf}}
	}
	if p := wantName(t, a, caller(ci), "ci"); p.Expires.IsZero() || !p.Credential {
		t.Errorf("the bearer of a certificate is %+v", p)
	}
	wantName(t, a, caller(odd), odd)
	for _, uris := range [][]string{
		nil,
		{ci, odd},
		{ci, ci},
		{ci + "/"},
		{ci + "2"},
		{"spiffe://example.com/agents/ci"},
		{"spiffe://EXAMPLE.org/agents/ci"},
		{"spiffe://example.org/agents/%63i"},
		{"spiffe://example.org/agents/../agents/ci"},
		{"spiffe://example.org:1/agents/ci"},
		{"spiffe://example.org/agents/ci?x=1"},
	} {
		wantName(t, a, caller(uris...), "")
	}
	// It shows a certificate, so it is not taken for somebody by where it calls from; and a token wins.
	both := caller("spiffe://example.org/nobody")
	wantName(t, a, both, "")
	both.HasBearer, both.Bearer = true, "bobs"
	wantName(t, a, both, "bob")
	both = caller(ci)
	both.HasBearer, both.Bearer = true, "nobodys"
	wantName(t, a, both, "")
	wantName(t, a, runner.Caller{From: here, Chain: []*x509.Certificate{ca.Issue(t, []string{ci}, identitytest.Expired).TLS.Leaf}}, "")
}

func TestIssuers(t *testing.T) {
	t.Parallel()
	ca := identitytest.NewCA(t)
	main, other, unknown := identitytest.NewIssuer(t, ca), identitytest.NewIssuer(t, ca), identitytest.NewIssuer(t, ca)
	a := newAuth(t, auth.Config{Issuers: []auth.Issuer{
		{URL: main.URL, Audience: "runnerd", Prefix: "main:", RootCAs: ca.Pool},
		{URL: other.URL, Audience: "runnerd", Prefix: "other:", Claim: "email", RootCAs: ca.Pool},
	}})
	good := func(changes map[string]any) string { return main.Sign(t, main.Claims("runnerd", "alice", changes)) }
	mail := func(changes map[string]any) string { return other.Sign(t, other.Claims("runnerd", "alice", changes)) }

	p := wantName(t, a, shows(good(nil)), "main:alice")
	if left := time.Until(p.Expires); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the token is good for %v", left)
	}
	wantName(t, a, shows(good(map[string]any{"aud": []string{"else", "runnerd"}})), "main:alice")
	wantName(t, a, shows(mail(map[string]any{"email": "a@example.org", "email_verified": true})), "other:a@example.org")

	past := time.Now().Add(-time.Minute).Unix()
	parts := strings.Split(good(nil), ".")
	for what, token := range map[string]string{
		"expired":                    good(map[string]any{"exp": past}),
		"without an end":             good(map[string]any{"exp": nil}),
		"of the future":              good(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
		"for somebody else":          good(map[string]any{"aud": "else"}),
		"for nobody":                 good(map[string]any{"aud": nil}),
		"without a subject":          good(map[string]any{"sub": nil}),
		"with an empty subject":      good(map[string]any{"sub": ""}),
		"with a number for subject":  main.Sign(t, main.Claims("runnerd", "", map[string]any{"sub": 7})),
		"with a blank in it":         good(map[string]any{"sub": "alice and bob"}),
		"with a line end in it":      good(map[string]any{"sub": "alice\n"}),
		"with too long a subject":    good(map[string]any{"sub": strings.Repeat("a", 300)}),
		"of another issuer's key":    other.Sign(t, main.Claims("runnerd", "alice", nil)),
		"of an issuer nobody knows":  unknown.Sign(t, unknown.Claims("runnerd", "alice", nil)),
		"of an issuer with a slash":  good(map[string]any{"iss": main.URL + "/"}),
		"without a signature":        parts[0] + "." + parts[1] + ".",
		"cut off":                    parts[0] + "." + parts[1] + "." + parts[2][:20],
		"of alg none":                algNone(t, main.Claims("runnerd", "alice", nil)),
		"of HS256 by the public key": hs256(t, main.Public(), main.Claims("runnerd", "alice", nil)),
		"without a mail":             mail(nil),
		"with a mail not verified":   mail(map[string]any{"email": "a@example.org", "email_verified": false}),
		"with a mail nobody says is": mail(map[string]any{"email": "a@example.org"}),
		"with a mail verified text":  mail(map[string]any{"email": "a@example.org", "email_verified": "true"}),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			wantName(t, a, shows(token), "")
		})
	}
}

// TestSharedSecretIsNoSignature has an issuer that publishes a shared secret, as if it were a key.
func TestSharedSecretIsNoSignature(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t, nil)
	shared := jose.JSONWebKey{Key: []byte(strings.Repeat("everybody knows ", 4)), KeyID: "shared"} // without an algorithm, or the library leaves it out
	issuer.Publish(shared)
	a := newAuth(t, auth.Config{Issuers: []auth.Issuer{{URL: issuer.URL, Audience: "runnerd", Prefix: "o:"}}})
	claims := issuer.Claims("runnerd", "alice", nil)
	wantName(t, a, shows(identitytest.SignWith(t, jose.HS256, shared, claims)), "")
	wantName(t, a, shows(issuer.Sign(t, claims)), "o:alice")
}

// TestIssuerIsAskedSeldom shows tokens with keys that nobody has: the issuer is not asked for its keys by each.
func TestIssuerIsAskedSeldom(t *testing.T) {
	t.Parallel()
	issuer, stranger := identitytest.NewIssuer(t, nil), identitytest.NewIssuer(t, nil)
	a := newAuth(t, auth.Config{Issuers: []auth.Issuer{{URL: issuer.URL, Audience: "runnerd", Prefix: "o:"}}})
	stranger.Rotate(t) // its key has a name that the issuer's have not
	wrong := stranger.Sign(t, issuer.Claims("runnerd", "alice", nil))
	for range 50 {
		wantName(t, a, shows(wrong), "")
	}
	wantName(t, a, shows(issuer.Sign(t, issuer.Claims("runnerd", "alice", nil))), "o:alice")
	if n := issuer.Fetches(); n > 2 {
		t.Errorf("the keys were asked for %d times", n)
	}
}

func TestIssuerAway(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t, nil)
	a := newAuth(t, auth.Config{Issuers: []auth.Issuer{{URL: issuer.URL, Audience: "runnerd", Prefix: "o:"}}})
	token := issuer.Sign(t, issuer.Claims("runnerd", "alice", nil))
	issuer.SetDown(true)
	for range 3 { // also when it is not asked again so soon
		_, err := a.Authenticate(t.Context(), shows(token))
		told, ok := err.(*runner.Error) //nolint:errorlint // it is what the contract says
		if !ok || told.Kind().Code() != codes.Unavailable {
			t.Fatalf("got %v, want UNAVAILABLE", err)
		}
	}
}

func TestConfigThatCannotBe(t *testing.T) {
	t.Parallel()
	hash := sha256.Sum256([]byte("x"))
	issuer := auth.Issuer{URL: "https://issuer.example", Audience: "a", Prefix: "o:"}
	other := func(change func(*auth.Issuer)) auth.Config {
		second := auth.Issuer{URL: "https://other.example", Audience: "a", Prefix: "p:"}
		change(&second)
		return auth.Config{Issuers: []auth.Issuer{issuer, second}}
	}
	for what, cfg := range map[string]auth.Config{
		"a name of this machine":     {Tokens: []auth.Token{{SHA256: hash, Principal: "local:owner"}}},
		"no name":                    {Tokens: []auth.Token{{SHA256: hash}}},
		"one token for two":          {Tokens: []auth.Token{{SHA256: hash, Principal: "a"}, {SHA256: hash, Principal: "b"}}},
		"a URI that is none":         {Certificates: []auth.Certificate{{URI: "ci", Principal: "ci"}}},
		"a SPIFFE id that is none":   {Certificates: []auth.Certificate{{URI: "spiffe://example.org/a//b", Principal: "ci"}}},
		"one certificate for two":    {Certificates: []auth.Certificate{{URI: "spiffe://e/a", Principal: "a"}, {URI: "spiffe://e/a", Principal: "b"}}},
		"a certificate of local":     {Certificates: []auth.Certificate{{URI: "spiffe://e/a", Principal: "local:anonymous"}}},
		"an issuer without TLS":      other(func(i *auth.Issuer) { i.URL = "http://issuer.example" }),
		"an issuer that is no URL":   other(func(i *auth.Issuer) { i.URL = "issuer" }),
		"an issuer without audience": other(func(i *auth.Issuer) { i.Audience = "" }),
		"an issuer without prefix":   other(func(i *auth.Issuer) { i.Prefix = "" }),
		"a prefix of local":          other(func(i *auth.Issuer) { i.Prefix = "local:" }),
		"the same prefix":            other(func(i *auth.Issuer) { i.Prefix = issuer.Prefix }),
		"a prefix of a prefix":       other(func(i *auth.Issuer) { i.Prefix = "o:p:" }),
		"the same issuer":            other(func(i *auth.Issuer) { i.URL = issuer.URL }),
	} {
		if a, err := auth.New(cfg); err == nil || a != nil {
			t.Errorf("%s: is let through", what)
		}
	}
}

// TestNamesOfThisMachine tries to become local:owner by a claim.
func TestNamesOfThisMachine(t *testing.T) {
	t.Parallel()
	issuer := identitytest.NewIssuer(t, nil)
	a := newAuth(t, auth.Config{Issuers: []auth.Issuer{{URL: issuer.URL, Audience: "runnerd", Prefix: "loc"}}})
	wantName(t, a, shows(issuer.Sign(t, issuer.Claims("runnerd", "al:owner", nil))), "")
	wantName(t, a, shows(issuer.Sign(t, issuer.Claims("runnerd", "ust", nil))), "locust")
}

func TestRoles(t *testing.T) {
	t.Parallel()
	viewer := runner.Rights{Roles: runner.RoleViewer, View: runner.ViewOutline}
	a := newAuth(t, auth.Config{
		Tokens: []auth.Token{
			{SHA256: sha256.Sum256([]byte("a")), Principal: "team:alice"},
			{SHA256: sha256.Sum256([]byte("b")), Principal: "team:bob@example.org"},
			{SHA256: sha256.Sum256([]byte("c")), Principal: "carol"},
		},
		Bindings: []auth.Binding{
			{Principals: []string{"team:*"}, Rights: viewer},
			{Principals: []string{"team:alice", "x"}, Agents: []string{"coder", "writer"}, Rights: runner.Rights{Roles: runner.RoleOperator}},
			{Principals: []string{"*@example.org"}, Agents: []string{"coder"}, Rights: runner.Rights{Roles: runner.RoleViewer, View: runner.ViewRedacted}},
			{Principals: []string{"team:alice"}, Agents: []string{"other", "*"}, Rights: runner.Rights{Roles: runner.RoleApprover}},
		},
	})
	type want map[string]runner.Rights
	for token, on := range map[string]want{
		"a": {"coder": {Roles: runner.RoleViewer | runner.RoleOperator | runner.RoleApprover, View: runner.ViewOutline}, "gone": {Roles: runner.RoleViewer | runner.RoleApprover, View: runner.ViewOutline}},
		"b": {"coder": {Roles: runner.RoleViewer, View: runner.ViewRedacted}, "writer": viewer},
		"c": {"coder": {}, "": {}},
	} {
		for range 2 { // found, and remembered
			p, err := a.Authenticate(t.Context(), shows(token))
			if err != nil {
				t.Fatal(err)
			}
			for agent, rights := range on {
				if got := p.On(agent); got != rights {
					t.Errorf("%s on %q: %+v, want %+v", p.Name, agent, got, rights)
				}
			}
		}
	}
}

// TestCertificateEnds makes a call over a connection that is older than the rest of its certificate.
func TestCertificateEnds(t *testing.T) {
	t.Parallel()
	leaf := identitytest.NewCA(t).Issue(t, []string{"spiffe://e/a"}, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2000, 1, 1, 0, 10, 0, 0, time.UTC)
	}).TLS.Leaf
	synctest.Test(t, func(t *testing.T) { // it is midnight of the first day of 2000
		a := newAuth(t, auth.Config{Certificates: []auth.Certificate{{URI: "spiffe://e/a", Principal: "a"}}})
		caller := runner.Caller{From: there, Chain: []*x509.Certificate{leaf}}
		wantName(t, a, caller, "a")
		// Who vouches for it is good for less long than it is.
		between := &x509.Certificate{NotAfter: time.Now().Add(5 * time.Minute)}
		vouched := runner.Caller{From: there, Chain: []*x509.Certificate{leaf, between}}
		if p := wantName(t, a, vouched, "a"); !p.Expires.Equal(between.NotAfter) {
			t.Errorf("it is good until %v, want %v", p.Expires, between.NotAfter)
		}
		time.Sleep(6 * time.Minute)
		wantName(t, a, vouched, "")
		wantName(t, a, caller, "a")
		time.Sleep(5 * time.Minute)
		wantName(t, a, caller, "")
	})
}
