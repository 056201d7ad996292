package auth

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnerd/runnerd/test/identitytest"
)

// inMemory serves requests by a handler, so that time in a bubble goes on as they do.
type inMemory struct{ http.Handler }

func (m inMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	m.ServeHTTP(w, req)
	return w.Result(), nil
}

func TestKeysOfAnIssuer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := identitytest.UnservedIssuer(t, "https://issuer.example")
		near, err := newIssuer(Issuer{URL: far.URL, Audience: "runnerd", Prefix: "o:"})
		if err != nil {
			t.Fatal(err)
		}
		near.client.Transport = &careful{next: inMemory{far}}
		token := func() string {
			return far.Sign(t, far.Claims("runnerd", "alice", map[string]any{"exp": time.Now().Add(12 * time.Hour).Unix()}))
		}
		good := func(token string) {
			t.Helper()
			if name, _, err := near.verify(t.Context(), token); err != nil || name != "o:alice" {
				t.Fatalf("got %q and %v", name, err)
			}
		}
		first := token()
		good(first)

		far.Rotate(t)
		second := token()
		time.Sleep(issuerPause)
		good(second) // the new key is asked for
		good(first)  // and the old one stands beside it

		// A key that was withdrawn is not good for ever; an issuer that is away for a while changes nothing.
		far.Withdraw()
		far.SetDown(true)
		time.Sleep(maxKeysAge)
		good(first)
		far.SetDown(false)
		time.Sleep(issuerPause)
		good(second)
		if _, _, err := near.verify(t.Context(), first); err == nil || errors.Is(err, errUnavailable) {
			t.Errorf("a token of a key that was withdrawn: %v", err)
		}
	})
}

// TestCarefulTransport shows where an issuer cannot lead the daemon.
func TestCarefulTransport(t *testing.T) {
	t.Parallel()
	asked := 0
	c := &careful{next: inMemory{http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.WriteHeader(http.StatusOK)
	})}}
	for _, url := range []string{"http://issuer.example/keys", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "https:///keys"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := c.RoundTrip(req); err == nil {
			resp.Body.Close()
			t.Errorf("%s is asked", url)
		}
	}
	if asked != 0 {
		t.Errorf("%d requests were sent", asked)
	}
}
