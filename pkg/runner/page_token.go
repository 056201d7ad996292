package runner

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// defaultPage is how many entries a page has that nobody has asked for a size of.
const defaultPage = 100

// pageTokens makes and opens page tokens: where a page ended, bound to the request it belongs to. They hold no state
// of the server and are good after a restart. Nobody can make one, so what comes out was put in; and nobody can read
// one, for a page may end at a run that the caller may not see.
type pageTokens struct{ cipher cipher.AEAD }

// newPageTokens returns the page tokens of a log with a secret.
func newPageTokens(secret []byte) (pageTokens, error) {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte("runnerd/page/v2"))
	block, err := aes.NewCipher(h.Sum(nil))
	if err != nil {
		return pageTokens{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return pageTokens{aead}, err
}

// make returns the token of the page after one that ended at a place.
func (t pageTokens) make(req proto.Message, place []byte) string {
	return base64.RawURLEncoding.EncodeToString(t.cipher.Seal(nil, nil, place, boundTo(req))) //nolint:gosec // the cipher makes the nonce
}

// open returns the place of a token, nil for the empty token of the first page.
func (t pageTokens) open(req proto.Message, token string) ([]byte, error) {
	if token == "" {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	var place []byte
	if err == nil {
		place, err = t.cipher.Open(nil, nil, raw, boundTo(req))
	}
	if err != nil {
		e := errorf(runnerdv1.ErrorReason_ERROR_REASON_BAD_PAGE_TOKEN,
			"page_token is not one of this call with these filters")
		e.Violations = []Violation{{Field: "page_token", Description: "not a token of this call with these filters"}}
		return nil, e
	}
	return place, nil
}

// boundTo is what a token is bound to: the request without what may change from page to page.
func boundTo(req proto.Message) []byte {
	filters := proto.Clone(req).ProtoReflect()
	for _, name := range []protoreflect.Name{"page_token", "page_size"} {
		if fd := filters.Descriptor().Fields().ByName(name); fd != nil {
			filters.Clear(fd)
		}
	}
	// The encoding is compared only with one made by the same program or, at worst, a token is refused after an upgrade.
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(filters.Interface())
	if err != nil {
		encoded = nil // a request that was decoded can be encoded
	}
	return append([]byte(filters.Descriptor().FullName()+"\x00"), encoded...)
}

// pageLimit is how many entries a page has at most.
func pageLimit(asked uint32) int {
	if asked == 0 {
		return defaultPage
	}
	return int(asked)
}
