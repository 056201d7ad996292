package runstate

import "testing"

func TestKeyDigest(t *testing.T) {
	t.Parallel()
	key := Key{ID: "k1", Secret: []byte("0123456789abcdef0123456789abcdef")}
	// HMAC-SHA-256 over "d", a zero byte and "x", computed elsewhere.
	const want = "k1:53216229f114e9410436ddf008f700cb928328208b011c0861bce4211da336a6"
	if got := key.Digest("d", []byte("x")); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for name, other := range map[string]string{
		"domain": key.Digest("e", []byte("x")),
		"data":   key.Digest("d", []byte("y")),
		"border": key.Digest("dx", nil),
		"secret": Key{ID: "k1", Secret: []byte("another")}.Digest("d", []byte("x")),
		"key id": Key{ID: "k2", Secret: key.Secret}.Digest("d", []byte("x")),
	} {
		if other == want {
			t.Errorf("the digest does not depend on the %s", name)
		}
	}
}
