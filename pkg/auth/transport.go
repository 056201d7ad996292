package auth

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// maxIssuerAnswer bounds what is read of an issuer's answer, in bytes.
const maxIssuerAnswer = 1 << 20

// careful is the transport to an issuer. It asks for no URL more often than every issuerPause, goes to no URL that
// could be read or changed on the way, whatever the issuer's discovery names, and reads no endless answer.
type careful struct {
	next http.RoundTripper

	mu   sync.Mutex
	last map[string]asked
}

// asked is the last request for a URL.
type asked struct {
	at     time.Time
	failed bool
}

// errKnown is the error of a request that is not made because its answer is known well enough.
var errKnown = errors.New("it was asked a moment ago")

// RoundTrip implements [http.RoundTripper].
func (c *careful) RoundTrip(req *http.Request) (*http.Response, error) {
	target := req.URL.String()
	if err := checkIssuerURL(target); err != nil {
		return nil, fmt.Errorf("%s: %w", target, err)
	}
	c.mu.Lock()
	last := c.last[target]
	c.mu.Unlock()
	if time.Since(last.at) < issuerPause {
		if last.failed {
			return nil, errUnavailable
		}
		return nil, errKnown
	}
	resp, err := c.next.RoundTrip(req)
	c.mu.Lock()
	if c.last == nil || len(c.last) > 16 { // two are usual: the discovery and the keys
		c.last = make(map[string]asked)
	}
	failed := err != nil || resp.StatusCode != http.StatusOK
	c.last[target] = asked{at: time.Now(), failed: failed}
	c.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if failed {
		return nil, errors.Join(fmt.Errorf("%w: it answers %s", errUnavailable, resp.Status), resp.Body.Close())
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxIssuerAnswer), resp.Body}
	return resp, nil
}
