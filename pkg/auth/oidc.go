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
	// issuerTimeout bounds what is asked of an issuer: callers wait for it.
	issuerTimeout = 5 * time.Second
	// issuerPause is how long an issuer is not asked again: anybody can show a token whose key is not known, and should
	// not make the daemon ask for keys as often.
	issuerPause = 5 * time.Second
	// keysPause is how long keys that are old are used without asking again when the issuer did not answer, so that few
	// callers wait for one that is away.
	keysPause = time.Minute
	// maxKeysAge is when the keys of an issuer are asked for anew, so that one that was withdrawn is not good for ever.
	maxKeysAge = time.Hour
	// maxWaiting bounds the callers that wait for an issuer: anybody can be one, and each takes the place of a call.
	maxWaiting = 256
)

// errUnavailable is the error about a token that cannot be checked now.
var errUnavailable = errors.New("the issuer of the token cannot be reached")

// issuer verifies the tokens of an issuer.
type issuer struct {
	Issuer
	client *http.Client

	mu      sync.Mutex // never held while the issuer is asked
	known   *published
	asking  chan struct{} // closed when the answer is there; nil: nothing is asked
	waiting int           // for it
	asked   time.Time     // when an answer last came, or was given up
	failed  error         // why none came
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
		Transport:     &careful{next: transport, plain: strings.HasPrefix(cfg.URL, "http:")},
		Timeout:       issuerTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// checkIssuerURL says why a URL cannot be an issuer's, or that of its keys.
func checkIssuerURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return errors.New("the issuer is not a URL")
	}
	ip := net.ParseIP(u.Hostname())
	local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
	if u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return errors.New("the issuer is not an https URL: its keys could be replaced on the way")
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
	got, err := i.check(ctx, token)
	if err != nil {
		return "", time.Time{}, err
	}
	claim, err := i.claim(got)
	if err != nil {
		return "", time.Time{}, err
	}
	name = i.Prefix + claim
	if err := CheckName(name); err != nil {
		return "", time.Time{}, fmt.Errorf("claim %s: %w", i.Claim, err)
	}
	return name, got.Expiry, nil
}

// check returns what a good token says. One that no known key has signed may be of a key that is new.
func (i *issuer) check(ctx context.Context, token string) (*oidc.IDToken, error) {
	known, err := i.ready(ctx)
	if err != nil {
		return nil, err
	}
	got, err := known.verify(ctx, token)
	if !errors.Is(err, errSignature) {
		return got, err
	}
	newer, unknown := i.newer(ctx, known)
	switch {
	case unknown != nil:
		return nil, unknown
	case newer == known:
		return nil, err
	}
	return newer.verify(ctx, token)
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

// ready returns what the issuer has published. It is asked at the first token and then about once an hour; while it
// does not answer, what is known of it holds.
func (i *issuer) ready(ctx context.Context) (*published, error) {
	i.mu.Lock()
	known, asked := i.known, i.asked
	i.mu.Unlock()
	if known != nil && (time.Since(known.at) < maxKeysAge || time.Since(asked) < keysPause) {
		return known, nil
	}
	newer, err := i.newer(ctx, known)
	if err != nil && known != nil {
		return known, nil
	}
	return newer, err
}

// newer returns what the issuer publishes now, or the same as before if it was asked a moment ago. All callers wait for
// one answer, each for as long as its own call lasts.
func (i *issuer) newer(ctx context.Context, than *published) (*published, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.known == than && i.asking == nil && time.Since(i.asked) >= issuerPause {
		i.asking = make(chan struct{})
		go i.ask(context.WithoutCancel(ctx), i.asking) // the answer is for all who come
	}
	if asking := i.asking; i.known == than && asking != nil {
		if i.waiting >= maxWaiting {
			return nil, fmt.Errorf("%w: too many wait for it", errUnavailable)
		}
		i.waiting++
		i.mu.Unlock()
		err := await(ctx, asking)
		i.mu.Lock()
		i.waiting--
		if err != nil {
			return nil, err
		}
	}
	if i.known != than {
		return i.known, nil
	}
	return than, i.failed
}

// await returns when an answer is there, or why nobody waits for it any more.
func await(ctx context.Context, answer <-chan struct{}) error {
	select {
	case <-answer:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errUnavailable, context.Cause(ctx))
	}
}

// ask asks the issuer and closes done when it knows.
func (i *issuer) ask(ctx context.Context, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, issuerTimeout)
	defer cancel()
	answer, err := i.publishes(ctx)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asking, i.asked, i.failed = nil, time.Now(), nil
	if err != nil {
		i.failed = fmt.Errorf("%w: %w", errUnavailable, err)
	} else {
		i.known = answer
	}
	close(done)
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
