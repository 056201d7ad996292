package auth

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
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
		time.Sleep(keysPause)
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
	for _, url := range []string{"http://issuer.example/keys", "http://127.0.0.1:2375/keys", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd", "https:///keys"} {
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

// slow answers when it is told to.
type slow struct {
	next http.RoundTripper
	hold chan struct{} // nil: at once
}

func (s *slow) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
	}
	return s.next.RoundTrip(req)
}

// TestIssuerThatHangs shows that callers wait for one answer together, no longer than they want to, and, where keys
// are known, seldom.
func TestIssuerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := identitytest.UnservedIssuer(t, "https://issuer.example")
		near, err := newIssuer(Issuer{URL: far.URL, Audience: "runnerd", Prefix: "o:"})
		if err != nil {
			t.Fatal(err)
		}
		way := &slow{next: inMemory{far}, hold: make(chan struct{})}
		near.client.Transport = &careful{next: way}
		token := far.Sign(t, far.Claims("runnerd", "alice", map[string]any{"exp": time.Now().Add(12 * time.Hour).Unix()}))

		start, done := time.Now(), make(chan time.Duration)
		const callers = maxWaiting + 50
		for range callers {
			go func() {
				if _, _, err := near.verify(t.Context(), token); !errors.Is(err, errUnavailable) {
					t.Errorf("an issuer that hangs: %v", err)
				}
				done <- time.Since(start)
			}()
		}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := near.verify(hurried, token); !errors.Is(err, errUnavailable) || time.Since(start) > time.Second {
			t.Errorf("who has a second is told %v after %s", err, time.Since(start))
		}
		early := 0
		for range callers {
			if <-done < time.Second {
				early++
			}
		}
		if most := callers - maxWaiting + 1; early < most-1 || early > most { // one place may be that of who has a second
			t.Errorf("%d callers were not let wait", early)
		}
		if waited := time.Since(start); waited > issuerTimeout {
			t.Errorf("%d callers waited %s", callers, waited)
		}

		way.hold = nil
		time.Sleep(issuerPause)
		if _, _, err := near.verify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		time.Sleep(maxKeysAge)
		way.hold = make(chan struct{})
		for _, most := range []time.Duration{issuerTimeout, 0, 0} {
			start := time.Now()
			if _, _, err := near.verify(t.Context(), token); err != nil || time.Since(start) > most {
				t.Errorf("known keys: %v after %s, want at most %s", err, time.Since(start), most)
			}
			time.Sleep(issuerPause)
		}
	})
}

// TestKeysAreKept shows that keys that are known are good while the place of the keys is away and that of the
// discovery is not, whatever else is shown meanwhile.
func TestKeysAreKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		far := identitytest.UnservedIssuer(t, "https://issuer.example")
		near, err := newIssuer(Issuer{URL: far.URL, Audience: "runnerd", Prefix: "o:"})
		if err != nil {
			t.Fatal(err)
		}
		away := false
		near.client.Transport = &careful{next: inMemory{http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if away && !strings.HasSuffix(req.URL.Path, "/.well-known/openid-configuration") {
				w.WriteHeader(http.StatusBadGateway)
				return
			}
			far.ServeHTTP(w, req)
		})}}
		token := far.Sign(t, far.Claims("runnerd", "alice", map[string]any{"exp": time.Now().Add(12 * time.Hour).Unix()}))
		for range 3 {
			if _, _, err := near.verify(t.Context(), token); err != nil {
				t.Fatal(err)
			}
			away = true
			time.Sleep(maxKeysAge)
		}
	})
}
