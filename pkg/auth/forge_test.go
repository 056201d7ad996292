package auth_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/runnerd/runnerd/test/identitytest"
)

// algNone is a token that says that it needs no signature.
func algNone(t *testing.T, claims map[string]any) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	return text([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + text(payload) + "."
}

// hs256 is a token whose shared secret is the public key of the issuer, which everybody has.
func hs256(t *testing.T, key *rsa.PublicKey, claims map[string]any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return identitytest.SignWith(t, jose.HS256, jose.JSONWebKey{Key: secret, KeyID: "1"}, claims)
}
