package runner

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"net"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Role is a set of what a principal may do.
type Role uint8

// The roles. They do not contain each other.
const (
	RoleViewer   Role = 1 << iota // sees runs, redacted
	RoleOperator                  // starts and steers runs
	RoleApprover                  // answers approvals
	RoleAdmin                     // sees everything raw, exports

	// RoleAll is every role.
	RoleAll = RoleViewer | RoleOperator | RoleApprover | RoleAdmin
)

// Has reports whether the set has any of the wanted roles.
func (r Role) Has(wanted Role) bool { return r&wanted != 0 }

// String is the roles as people write them, joined by or.
func (r Role) String() string {
	var names []string
	for i, name := range []string{"viewer", "operator", "approver", "admin"} {
		if r.Has(1 << i) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// View is how much of events and runs a viewer sees. The greater is the wider.
type View uint8

// The views. The owner of a run and admins see more than any of them.
const (
	ViewTypes    View = iota // what happened when
	ViewOutline              // no text, arguments or results
	ViewRedacted             // everything but secrets
)

// Rights are what a principal may do on an agent and its runs.
type Rights struct {
	// Roles are what it may do.
	Roles Role
	// View is how much it sees where Roles has RoleViewer.
	View View
}

// And returns the rights of who has both: all roles, and the wider view of those that a viewer has.
func (r Rights) And(other Rights) Rights {
	view := ViewTypes
	for _, one := range []Rights{r, other} {
		if one.Roles.Has(RoleViewer) {
			view = max(view, one.View)
		}
	}
	return Rights{Roles: r.Roles | other.Roles, View: view}
}

// Principal is who makes a call. It comes from the transport and never from a request.
type Principal struct {
	// Name stands in events. It is empty for a run token.
	Name string
	// Everywhere are its rights on all agents, those that are not configured any more included.
	Everywhere Rights
	// Agents are its rights on single agents, besides those. It is not changed.
	Agents map[string]Rights
	// Credential says that the caller has shown who it is and was not only taken for somebody by where it calls from.
	Credential bool
	// Expires is when the credential is not good any more; zero: nobody knows. A stream ends then.
	Expires time.Time
	// TokenRun is the run whose token the caller has; empty: it has none. A run token reads the artifacts of that run
	// and does nothing else, whatever other credential comes with it.
	TokenRun string
}

// On returns the rights of a principal on an agent and its runs.
func (p Principal) On(agent string) Rights { return p.Everywhere.And(p.Agents[agent]) }

// Has reports whether a principal has any of the wanted roles on an agent.
func (p Principal) Has(agent string, wanted Role) bool { return p.On(agent).Roles.Has(wanted) }

// HasAnywhere reports whether a principal has any of the wanted roles on some agent.
func (p Principal) HasAnywhere(wanted Role) bool {
	if p.Everywhere.Roles.Has(wanted) {
		return true
	}
	for _, rights := range p.Agents {
		if rights.Roles.Has(wanted) {
			return true
		}
	}
	return false
}

// View returns how much a principal sees of an agent and its runs as a viewer.
func (p Principal) View(agent string) View { return p.On(agent).View }

// The principals that exist without configuration of identities.
const (
	// PrincipalAnonymous is who calls from this machine without a credential.
	PrincipalAnonymous = "local:anonymous"
	// PrincipalOwner is who has the approver token of the data folder.
	PrincipalOwner = "local:owner"
)

type principalKey struct{}

// WithPrincipal returns a context whose calls are made by p.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns who makes the call of ctx. Without one it is a principal that may do nothing.
func PrincipalFrom(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// calls returns a context whose call is made by p, and which ends when its credential does.
func (p Principal) calls(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx = WithPrincipal(ctx, p)
	if p.Expires.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, p.Expires, credentialRequired("the credential has expired"))
}

// Caller is what the transport knows of who makes a call.
type Caller struct {
	// From is where the call comes from; nil: that is not known, because it came through a proxy.
	From net.Addr
	// HasBearer says whether there was an authorization header, Bearer is its token.
	HasBearer bool
	Bearer    string
	// Chain is the certificate of the client and those that vouch for it, up to the root, as the transport has verified
	// it; nil: it showed none.
	Chain []*x509.Certificate
}

// Local reports whether a call is made on this machine: from a loopback address or over a socket in the file system.
func (c Caller) Local() bool {
	switch a := c.From.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	default:
		return false
	}
}

// An Authenticator tells who makes a call. Its error is what the caller is told: an [*Error], whose reason says whether
// the credential is missing or wrong (CREDENTIAL_REQUIRED) or cannot be checked now (ISSUER_UNAVAILABLE). A principal without
// roles is no error: it is refused where roles are needed.
type Authenticator interface {
	Authenticate(ctx context.Context, caller Caller) (Principal, error)
}

// LocalAuth is the authentication of a daemon without configured identities: who calls from this machine without a
// credential is local:anonymous, an operator and viewer; the bearer of the approver token is local:owner and has all
// roles. Anyone else is refused.
type LocalAuth struct {
	// ApproverToken is compared in constant time; empty: there is no owner.
	ApproverToken string
}

// Authenticate implements [Authenticator].
func (a LocalAuth) Authenticate(_ context.Context, caller Caller) (Principal, error) {
	if !caller.HasBearer {
		if !caller.Local() {
			return Principal{}, credentialRequired("a credential is required")
		}
		return Anonymous(), nil
	}
	if !a.IsOwner(caller.Bearer) {
		return Principal{}, credentialRequired("the credential is not valid")
	}
	return Owner(), nil
}

// IsOwner reports whether a token is the approver token.
func (a LocalAuth) IsOwner(bearer string) bool {
	got, want := sha256.Sum256([]byte(bearer)), sha256.Sum256([]byte(a.ApproverToken))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && a.ApproverToken != ""
}

// Anonymous is who calls from this machine without a credential, where that is allowed: a viewer and operator.
func Anonymous() Principal {
	return Principal{Name: PrincipalAnonymous, Everywhere: Rights{Roles: RoleOperator | RoleViewer, View: ViewRedacted}}
}

// Owner is who has the approver token of the data folder. It has all roles.
func Owner() Principal {
	return Principal{Name: PrincipalOwner, Everywhere: Rights{Roles: RoleAll, View: ViewRedacted}, Credential: true}
}

func credentialRequired(message string) *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_CREDENTIAL_REQUIRED, "%s", message)
}

func permissionDenied(format string, args ...any) *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, format, args...)
}

// Metadata keys of credentials. Neither is ever logged.
const (
	authorizationKey = "authorization"
	runTokenKey      = "runnerd-run-token"
)

// Metadata by which a proxy can be known: what proxies add to a call that they pass on. Such a call comes from where
// they say, which nobody can check, and not from this machine, whatever the connection says.
var (
	proxyKeys     = []string{"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
	proxyPrefixes = []string{"x-forwarded-", "x-envoy-"}
)

func isProxyKey(key string) bool {
	return slices.Contains(proxyKeys, key) ||
		slices.ContainsFunc(proxyPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// origin is where a call comes from, nil if that is not known.
func origin(ctx context.Context, md metadata.MD) net.Addr {
	for key := range md { // in lower case, as the transport has it
		if isProxyKey(key) {
			return nil
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
}

// chain is the client certificate of the connection of a call and what vouches for it, nil if it has none that was
// verified. Of several ways to vouch for it, that one which does so longest.
func chain(ctx context.Context) []*x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return slices.MaxFunc(info.State.VerifiedChains, func(a, b []*x509.Certificate) int {
		return ChainEnd(a).Compare(ChainEnd(b))
	})
}

// ChainEnd is when the first certificate of a chain expires, and with it the chain.
func ChainEnd(chain []*x509.Certificate) time.Time {
	var end time.Time
	for _, cert := range chain {
		if end.IsZero() || cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	return end
}

// authenticate finds out who makes the call of ctx.
func (s *Server) authenticate(ctx context.Context) (Principal, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if tokens := md.Get(runTokenKey); len(tokens) > 0 {
		run, ok := s.checkRunToken(tokens[0])
		if len(tokens) > 1 || !ok {
			return Principal{}, credentialRequired("the run token is not valid")
		}
		return Principal{TokenRun: run, Credential: true}, nil
	}
	caller := Caller{From: origin(ctx, md), Chain: chain(ctx)}
	headers := md.Get(authorizationKey)
	if len(headers) > 1 {
		return Principal{}, credentialRequired("more than one authorization header")
	}
	if len(headers) == 1 {
		scheme, token, found := strings.Cut(headers[0], " ")
		if !found || !strings.EqualFold(scheme, "bearer") || token == "" {
			return Principal{}, credentialRequired("the authorization header is not \"Bearer <token>\"")
		}
		caller.HasBearer, caller.Bearer = true, token
	}
	return s.cfg.Auth.Authenticate(ctx, caller)
}
