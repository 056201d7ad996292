package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

// published is what an issuer has published about itself at a time: how it signs, and its keys. Both are had, or
// neither: keys that work are not given up for a place where there may be others.
type published struct {
	at       time.Time
	verifier *oidc.IDTokenVerifier
}

// signatures are the algorithms by which a token can be signed so that nobody but the issuer can make one: none that
// takes a shared secret, and not none.
var signatures = []string{
	oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA,
}

// publishes asks the issuer where its keys are and how it signs, and for the keys.
func (i *issuer) publishes(ctx context.Context) (*published, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.URL)
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
	public, err := i.publicKeys(ctx, told.Keys)
	if err != nil {
		return nil, fmt.Errorf("its keys: %w", err)
	}
	algorithms := slices.DeleteFunc(told.Algorithms, func(a string) bool { return !slices.Contains(signatures, a) })
	return &published{at: time.Now(), verifier: oidc.NewVerifier(i.URL, keys{oidc.StaticKeySet{PublicKeys: public}}, &oidc.Config{
		ClientID: i.Audience, SupportedSigningAlgs: algorithms, // none: RS256, which all must have
	})}, nil
}

// publicKeys fetches a set of keys. What is no public key, or one of a kind that signs no token, is left out.
func (i *issuer) publicKeys(ctx context.Context, url string) ([]crypto.PublicKey, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var set jose.JSONWebKeySet
	if err := json.NewDecoder(resp.Body).Decode(&set); err != nil {
		return nil, err
	}
	var public []crypto.PublicKey
	for _, key := range set.Keys {
		switch key.Key.(type) {
		case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
			public = append(public, key.Key)
		}
	}
	if len(public) == 0 {
		return nil, errors.New("there is none that signs tokens")
	}
	return public, nil
}

// errSignature is the error about a token that no known key has signed.
var errSignature = errors.New("no key that is known of the issuer has signed it")

// verify returns what a good token says.
func (p *published) verify(ctx context.Context, token string) (*oidc.IDToken, error) {
	var unsigned bool
	got, err := p.verifier.Verify(context.WithValue(ctx, unsignedKey{}, &unsigned), token)
	if unsigned {
		return nil, fmt.Errorf("%w: %w", errSignature, err)
	}
	return got, err
}

// keys are the keys of an issuer, which note that none of them has signed a token: the verifier makes one text of all
// errors.
type keys struct{ oidc.StaticKeySet }

type unsignedKey struct{}

// VerifySignature implements [oidc.KeySet].
func (k keys) VerifySignature(ctx context.Context, token string) ([]byte, error) {
	payload, err := k.StaticKeySet.VerifySignature(ctx, token)
	if unsigned, ok := ctx.Value(unsignedKey{}).(*bool); ok && err != nil {
		*unsigned = true
	}
	return payload, err
}
