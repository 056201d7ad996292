package auth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// Issuer is an issuer of OIDC tokens (JWT).
type Issuer struct {
	// URL is the issuer, exactly as in its tokens; its keys are found by OIDC discovery beneath it. It is https, or on
	// this machine.
	URL string
	// Audience must be among those of a token.
	Audience string
	// Claim names the principal; empty: sub. A token whose email is not verified has none.
	Claim string
	// Prefix is put before the claim.
	Prefix string
	// RootCAs sign the certificate of the issuer. Nil: those of the system.
	RootCAs *x509.CertPool
}

const (
	// issuerTimeout bounds one request to an issuer: callers wait for it.
	issuerTimeout = 5 * time.Second
	// issuerPause is how long a request to an issuer is not made again: anybody can show a token whose key is not
	// known, and should not make the daemon ask for keys as often.
	issuerPause = 5 * time.Second
	// maxKeysAge is when the keys of an issuer are asked for anew, so that one that was withdrawn is not good for ever.
	maxKeysAge = time.Hour
)

// errUnavailable is the error about a token that cannot be checked now.
var errUnavailable = errors.New("the issuer of the token cannot be reached")

// issuer verifies the tokens of an issuer.
type issuer struct {
	Issuer
	client *http.Client

	mu       sync.Mutex // held while the issuer is asked: others wait for the same answer
	verifier *oidc.IDTokenVerifier
	found    time.Time // when the verifier was made
	tried    time.Time // when it was last tried to make one
}

func newIssuer(cfg Issuer) (*issuer, error) {
	if err := checkIssuerURL(cfg.URL); err != nil {
		return nil, err
	}
	switch {
	case cfg.Audience == "":
		return nil, errors.New("an audience is required")
	case cfg.Prefix == "" || strings.HasPrefix(cfg.Prefix, localPrefix):
		return nil, errors.New("a prefix is required, and not that of this machine")
	}
	if cfg.Claim == "" {
		cfg.Claim = "sub"
	}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: issuerTimeout}).DialContext,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: cfg.RootCAs},
		TLSHandshakeTimeout:   issuerTimeout,
		ResponseHeaderTimeout: issuerTimeout,
		IdleConnTimeout:       time.Minute,
		ForceAttemptHTTP2:     true,
	}
	return &issuer{Issuer: cfg, client: &http.Client{
		Transport:     &careful{next: transport},
		Timeout:       issuerTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// checkIssuerURL says why a URL cannot be an issuer's, or that of its keys.
func checkIssuerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return errors.New("not a URL")
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return errors.New("not an https URL: its keys could be replaced on the way")
	}
	return nil
}

// issuerOf returns the issuer that a token says it is from, nil if that is none that is configured. Nothing of the
// token is believed before its issuer has verified it.
func (a *Auth) issuerOf(token string) *issuer {
	parts := strings.Split(token, ".")
	if len(a.issuers) == 0 || len(parts) != 3 {
		return nil
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return nil
	}
	for _, i := range a.issuers {
		if i.URL == claims.Issuer {
			return i
		}
	}
	return nil
}

// verify returns who a token names and until when, or why it is not good.
func (i *issuer) verify(ctx context.Context, token string) (name string, expires time.Time, err error) {
	verifier, err := i.ready(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	var outage bool
	got, err := verifier.Verify(context.WithValue(ctx, outageKey{}, &outage), token)
	if outage {
		return "", time.Time{}, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if err != nil {
		return "", time.Time{}, err
	}
	claim, err := i.claim(got)
	if err != nil {
		return "", time.Time{}, err
	}
	name = i.Prefix + claim
	if err := checkName(name); err != nil {
		return "", time.Time{}, fmt.Errorf("claim %s: %w", i.Claim, err)
	}
	return name, got.Expiry, nil
}

// claim returns the claim that names the principal.
func (i *issuer) claim(token *oidc.IDToken) (string, error) {
	var claims map[string]any
	if err := token.Claims(&claims); err != nil {
		return "", err
	}
	text, ok := claims[i.Claim].(string)
	if !ok || text == "" {
		return "", fmt.Errorf("the token has no claim %s that is a text", i.Claim)
	}
	if i.Claim == "email" && claims["email_verified"] != true {
		return "", errors.New("the email of the token is not verified")
	}
	return text, nil
}

// ready returns what verifies tokens. The issuer is asked about itself at the first token and then about once an hour,
// after which its keys are fetched anew; while it does not answer, what was known of it holds.
func (i *issuer) ready(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	if i.verifier != nil && now.Sub(i.found) < maxKeysAge {
		return i.verifier, nil
	}
	if now.Sub(i.tried) >= issuerPause {
		i.tried = now
		verifier, err := i.discover(ctx)
		if err == nil {
			i.verifier, i.found = verifier, now
		} else if i.verifier == nil {
			return nil, fmt.Errorf("%w: %w", errUnavailable, err)
		}
	}
	if i.verifier == nil {
		return nil, errUnavailable
	}
	return i.verifier, nil
}

// discover asks the issuer where its keys are and how it signs.
func (i *issuer) discover(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	// The time is the client's, not the caller's: the answer is for all who come.
	ctx = oidc.ClientContext(context.WithoutCancel(ctx), i.client)
	provider, err := oidc.NewProvider(ctx, i.URL)
	if err != nil {
		return nil, err
	}
	var told struct {
		Keys       string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&told); err != nil {
		return nil, err
	}
	algorithms := slices.DeleteFunc(told.Algorithms, func(a string) bool { return !slices.Contains(signatures, a) })
	return oidc.NewVerifier(i.URL, keys{oidc.NewRemoteKeySet(ctx, told.Keys)}, &oidc.Config{
		ClientID: i.Audience, SupportedSigningAlgs: algorithms, // none: RS256, which all must have
	}), nil
}

// signatures are the algorithms by which a token can be signed so that nobody but the issuer can make one: none that
// takes a shared secret, and not none.
var signatures = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// keys are the keys of an issuer, which note that they could not be had: the verifier makes one text of all errors.
type keys struct{ oidc.KeySet }

type outageKey struct{}

// VerifySignature implements [oidc.KeySet].
func (k keys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.KeySet.VerifySignature(ctx, token)
	if outage, ok := ctx.Value(outageKey{}).(*bool); ok && errors.Is(err, errUnavailable) {
		*outage = true
	}
	return payload, err
}

// whyRefused is what the bearer of a token is told that is not good.
func whyRefused(err error) error {
	var expired *oidc.TokenExpiredError
	switch {
	case errors.Is(err, errUnavailable):
		return &runner.Error{
			Reason:  runnerdv1.ErrorReason_ERROR_REASON_ISSUER_UNAVAILABLE,
			Message: errUnavailable.Error(), Err: err,
		}
	case errors.As(err, &expired):
		return refused("the token has expired")
	}
	return refused("the credential is not valid")
}
