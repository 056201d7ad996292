package identitytest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer is an OIDC issuer.
type Issuer struct {
	// URL is what its tokens name as their issuer.
	URL string

	mu      sync.Mutex
	kid     int
	key     *rsa.PrivateKey
	old     []jose.JSONWebKey
	mux     *http.ServeMux
	fetches atomic.Int64
	down    atomic.Bool
}

// NewIssuer serves an issuer whose certificate is of a CA; without one it is served without TLS.
func NewIssuer(t testing.TB, ca *CA) *Issuer {
	t.Helper()
	i := UnservedIssuer(t, "")
	server := httptest.NewUnstartedServer(i)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if ca == nil {
		server.Start()
	} else {
		server.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{ca.Issue(t, nil).TLS}}
		server.StartTLS()
	}
	t.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

// UnservedIssuer is an issuer that is an http.Handler and nothing else.
func UnservedIssuer(t testing.TB, url string) *Issuer {
	t.Helper()
	i := &Issuer{URL: url, mux: http.NewServeMux()}
	i.Rotate(t)
	i.mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.answer(w, map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256", "HS256", "none"}, // two of them must not be believed
		})
	})
	i.mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		i.fetches.Add(1)
		i.mu.Lock()
		keys := append([]jose.JSONWebKey{i.public()}, i.old...)
		i.mu.Unlock()
		i.answer(w, map[string]any{"keys": keys})
	})
	return i
}

// ServeHTTP implements [http.Handler].
func (i *Issuer) ServeHTTP(w http.ResponseWriter, req *http.Request) { i.mux.ServeHTTP(w, req) }

// Publish adds a key to those that the issuer names as its own.
func (i *Issuer) Publish(key jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.old = append(i.old, key)
}

// Withdraw forgets all keys but the newest.
func (i *Issuer) Withdraw() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.old = nil
}

// answer sends JSON, unless the issuer is down.
func (i *Issuer) answer(w http.ResponseWriter, v any) {
	if i.down.Load() {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(err)
	}
}

// SetDown makes the issuer answer nothing of use, or well again.
func (i *Issuer) SetDown(down bool) { i.down.Store(down) }

// Fetches is how often its keys were asked for.
func (i *Issuer) Fetches() int { return int(i.fetches.Load()) }

// Rotate makes a new key; what it has signed is good all the same.
func (i *Issuer) Rotate(t testing.TB) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.key != nil {
		i.old = append(i.old, i.public())
	}
	i.key = key
	i.kid++
}

func (i *Issuer) public() jose.JSONWebKey {
	return jose.JSONWebKey{Key: i.key.Public(), KeyID: fmt.Sprint(i.kid), Algorithm: "RS256", Use: "sig"}
}

// Public is its public key.
func (i *Issuer) Public() *rsa.PublicKey { return &i.key.PublicKey }

// Claims are those of a good token of the issuer for an audience, changed by some; nil takes one out.
func (i *Issuer) Claims(audience, subject string, changes map[string]any) map[string]any {
	claims := map[string]any{
		"iss": i.URL, "aud": audience, "sub": subject, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return claims
}

// Sign makes a token of claims.
func (i *Issuer) Sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	return SignWith(t, jose.RS256, jose.JSONWebKey{Key: i.key, KeyID: fmt.Sprint(i.kid)}, claims)
}

// SignWith makes a token of claims with any key.
func SignWith(t testing.TB, algorithm jose.SignatureAlgorithm, key any, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}
