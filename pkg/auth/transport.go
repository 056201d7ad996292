package auth

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// maxIssuerAnswer bounds what is read of an issuer's answer, in bytes.
const maxIssuerAnswer = 1 << 20

// careful is the transport to an issuer. It goes to no URL that could be read or changed on the way, nor from an issuer
// elsewhere to a plain service of this machine, whatever the issuer's discovery names, and reads no endless answer.
type careful struct {
	next  http.RoundTripper
	plain bool // the issuer itself is on this machine, without TLS
}

// RoundTrip implements [http.RoundTripper].
func (c *careful) RoundTrip(req *http.Request) (*http.Response, error) {
	target := req.URL.String()
	if err := checkIssuerURL(target); err != nil {
		return nil, fmt.Errorf("%s: %w", target, err)
	}
	if req.URL.Scheme != "https" && !c.plain {
		return nil, fmt.Errorf("%s: not an https URL, as that of its issuer is", target)
	}
	resp, err := c.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("it answers %s", resp.Status), resp.Body.Close())
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxIssuerAnswer), resp.Body}
	return resp, nil
}
