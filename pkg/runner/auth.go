package runner

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"strings"

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

// Principal is who makes a call. It comes from the transport and never from a request.
type Principal struct {
	// Name stands in events. It is empty for a run token.
	Name string
	// Roles are what it may do.
	Roles Role
	// Credential says that the caller has shown who it is and was not only taken for somebody by where it calls from.
	Credential bool
	// TokenRun is the run whose token the caller has; empty: it has none. A run token reads the artifacts of that run
	// and does nothing else, whatever other credential comes with it.
	TokenRun string
}

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

// An Authenticator tells who calls from what the transport knows. Bearer is the token of the authorization header;
// present says whether there was such a header. From is nil for a call that came through a proxy. An error is what the
// caller is told.
type Authenticator interface {
	Authenticate(from net.Addr, bearer string, present bool) (Principal, error)
}

// LocalAuth is the authentication of a daemon without configured identities: who calls from this machine without a
// credential is local:anonymous, an operator and viewer; the bearer of the approver token is local:owner and has all
// roles. Anyone else is refused.
type LocalAuth struct {
	// ApproverToken is compared in constant time; empty: there is no owner.
	ApproverToken string
}

// Authenticate implements [Authenticator].
func (a LocalAuth) Authenticate(from net.Addr, bearer string, present bool) (Principal, error) {
	if !present {
		if !isLocal(from) {
			return Principal{}, credentialRequired("a credential is required")
		}
		return Principal{Name: PrincipalAnonymous, Roles: RoleOperator | RoleViewer}, nil
	}
	got, want := sha256.Sum256([]byte(bearer)), sha256.Sum256([]byte(a.ApproverToken))
	if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || a.ApproverToken == "" {
		return Principal{}, credentialRequired("the credential is not valid")
	}
	return Principal{Name: PrincipalOwner, Roles: RoleAll, Credential: true}, nil
}

// isLocal reports whether an address is on this machine: a loopback address or a socket in the file system.
func isLocal(addr net.Addr) bool {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	default:
		return false
	}
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

// forwardedKeys are what proxies add to a call that they pass on. Such a call comes from where they say, which nobody
// can check, and not from this machine, whatever the connection says.
var forwardedKeys = []string{"forwarded", "x-forwarded-for", "x-real-ip", "via"}

// origin is where a call comes from, nil if that is not known.
func origin(ctx context.Context, md metadata.MD) net.Addr {
	for _, key := range forwardedKeys {
		if len(md.Get(key)) > 0 {
			return nil
		}
	}
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr
	}
	return nil
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
	var bearer string
	headers := md.Get(authorizationKey)
	if len(headers) > 1 {
		return Principal{}, credentialRequired("more than one authorization header")
	}
	if len(headers) == 1 {
		scheme, token, found := strings.Cut(headers[0], " ")
		if !found || !strings.EqualFold(scheme, "bearer") || token == "" {
			return Principal{}, credentialRequired("the authorization header is not \"Bearer <token>\"")
		}
		bearer = token
	}
	return s.cfg.Auth.Authenticate(origin(ctx, md), bearer, len(headers) == 1)
}
