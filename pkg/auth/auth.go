package auth

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// Config is who callers are and what they may do.
type Config struct {
	// ApproverToken is the token of local:owner, who has all roles and calls from this machine only. Empty: there is
	// no such principal.
	ApproverToken string
	// AllowLocal makes a caller on this machine without a credential local:anonymous, a viewer and operator.
	AllowLocal bool
	// Tokens are the bearer tokens.
	Tokens []Token
	// Certificates are the client certificates.
	Certificates []Certificate
	// Issuers are the issuers of OIDC tokens.
	Issuers []Issuer
	// Bindings give roles.
	Bindings []Binding
	// Logger is told why a token was refused, never what it was. Nil: slog.Default().
	Logger *slog.Logger
}

// Token is a bearer token, which is not kept but known again.
type Token struct {
	// SHA256 is the hash of the token.
	SHA256 [sha256.Size]byte
	// Principal is who has it.
	Principal string
}

// Certificate is a client certificate. Who signs it is for the transport to check.
type Certificate struct {
	// URI is its one URI name.
	URI string
	// Principal is who has it.
	Principal string
}

// Auth is the authentication and the roles of a daemon. It implements [runner.Authenticator] and is safe for concurrent
// use.
type Auth struct {
	local        runner.LocalAuth
	allowLocal   bool
	tokens       map[[sha256.Size]byte]string
	certificates map[string]string
	issuers      []*issuer
	roles        roles
	log          *slog.Logger
}

// EntryError says which entry of a [Config] cannot be, and why.
type EntryError struct {
	Kind  string // token, certificate or issuer
	Index int    // among those of its kind
	Err   error
}

func (e *EntryError) Error() string { return fmt.Sprintf("%s %d: %v", e.Kind, e.Index+1, e.Err) }

func (e *EntryError) Unwrap() error { return e.Err }

// New returns the authentication that a configuration describes. No issuer is called before a token of it comes. The
// error joins an [*EntryError] for each entry that cannot be.
func New(cfg Config) (*Auth, error) {
	a := &Auth{
		local:        runner.LocalAuth{ApproverToken: cfg.ApproverToken},
		allowLocal:   cfg.AllowLocal,
		tokens:       make(map[[sha256.Size]byte]string, len(cfg.Tokens)),
		certificates: make(map[string]string, len(cfg.Certificates)),
		roles:        roles{bindings: cfg.Bindings},
		log:          cfg.Logger,
	}
	if a.log == nil {
		a.log = slog.Default()
	}
	var wrong []error
	note := func(kind string, i int, err error) {
		if err != nil {
			wrong = append(wrong, &EntryError{Kind: kind, Index: i, Err: err})
		}
	}
	for i, t := range cfg.Tokens {
		note("token", i, a.addToken(t))
	}
	for i, c := range cfg.Certificates {
		note("certificate", i, a.addCertificate(c))
	}
	for n, i := range cfg.Issuers {
		note("issuer", n, a.addIssuer(i))
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return a, nil
}

func (a *Auth) addToken(t Token) error {
	if err := CheckName(t.Principal); err != nil {
		return err
	}
	if _, twice := a.tokens[t.SHA256]; twice {
		return errors.New("another entry has the same token")
	}
	a.tokens[t.SHA256] = t.Principal
	return nil
}

func (a *Auth) addCertificate(c Certificate) error {
	if err := errors.Join(checkURI(c.URI), CheckName(c.Principal)); err != nil {
		return err
	}
	if _, twice := a.certificates[c.URI]; twice {
		return errors.New("another entry has the same URI name")
	}
	a.certificates[c.URI] = c.Principal
	return nil
}

func (a *Auth) addIssuer(cfg Issuer) error {
	for _, other := range a.issuers {
		switch {
		case cfg.URL == other.URL:
			return errors.New("another entry has the same issuer")
		case strings.HasPrefix(cfg.Prefix, other.Prefix), strings.HasPrefix(other.Prefix, cfg.Prefix):
			return fmt.Errorf("its prefix %q begins as %q of %s does, so one could speak for the principals of the other",
				cfg.Prefix, other.Prefix, other.URL)
		}
	}
	i, err := newIssuer(cfg)
	if err != nil {
		return err
	}
	a.issuers = append(a.issuers, i)
	return nil
}

// maxName bounds the name of a principal in bytes: it stands in events and rows.
const maxName = 256

// localPrefix is what the names of callers on this machine begin with.
const localPrefix = "local:"

// CheckName says why a name cannot be that of a principal who is configured, or whom an issuer names.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a principal needs a name")
	case len(name) > maxName:
		return fmt.Errorf("the name of a principal has at most %d bytes", maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("the name of a principal has visible ASCII characters only")
	case strings.HasPrefix(name, localPrefix):
		return errors.New("names that begin with local: belong to callers of this machine")
	}
	return nil
}

// Authenticate implements [runner.Authenticator].
func (a *Auth) Authenticate(ctx context.Context, caller runner.Caller) (runner.Principal, error) {
	switch {
	case caller.HasBearer:
		return a.bearer(ctx, caller)
	case len(caller.Chain) > 0:
		return a.certificate(caller.Chain)
	case a.allowLocal && caller.Local():
		return runner.Anonymous(), nil
	}
	return runner.Principal{}, refused("a credential is required")
}

// bearer finds out whose token a caller shows.
func (a *Auth) bearer(ctx context.Context, caller runner.Caller) (runner.Principal, error) {
	// The hash of what is shown is looked up, not what is shown: how long that takes tells nothing of the token.
	if name, ok := a.tokens[sha256.Sum256([]byte(caller.Bearer))]; ok {
		return a.principal(name, time.Time{}), nil
	}
	if a.local.IsOwner(caller.Bearer) {
		if !caller.Local() {
			return runner.Principal{}, refused("the approver token is for callers on the machine of the daemon")
		}
		return runner.Owner(), nil
	}
	if issuer := a.issuerOf(caller.Bearer); issuer != nil {
		name, expires, err := issuer.verify(ctx, caller.Bearer)
		if err != nil {
			a.log.InfoContext(ctx, "a token was refused", "issuer", issuer.URL, "error", err)
			return runner.Principal{}, whyRefused(err)
		}
		return a.principal(name, expires), nil
	}
	return runner.Principal{}, refused("the credential is not valid")
}

// certificate finds out whose certificate a caller shows. The transport has verified who signed it, and when.
func (a *Auth) certificate(chain []*x509.Certificate) (runner.Principal, error) {
	uri, err := uriName(chain[0])
	if err != nil {
		return runner.Principal{}, refused("the client certificate cannot be used: " + err.Error())
	}
	name, ok := a.certificates[uri]
	if !ok {
		return runner.Principal{}, refused("the client certificate is nobody's who is configured")
	}
	end := runner.ChainEnd(chain)
	if time.Now().After(end) { // it was good when the connection was made
		return runner.Principal{}, refused("the client certificate has expired")
	}
	return a.principal(name, end), nil
}

func (a *Auth) principal(name string, expires time.Time) runner.Principal {
	p := runner.Principal{Name: name, Credential: true, Expires: expires}
	p.Everywhere, p.Agents = a.roles.of(name)
	return p
}

// refused is what a caller with a wrong credential is told, or one without any.
func refused(message string) error {
	return &runner.Error{Reason: runnerdv1.ErrorReason_ERROR_REASON_CREDENTIAL_REQUIRED, Message: message}
}
