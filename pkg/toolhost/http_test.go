package toolhost_test

import (
	"errors"
	"net"
	"net/http"
	"testing"
)

// serveHTTP404 answers every HTTP/2 request without TLS with 404, as a web server at the address of a host would.
func serveHTTP404(t *testing.T, lis net.Listener) string {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: http.NotFoundHandler(), Protocols: protocols}
	done := make(chan error, 1)
	go func() { done <- s.Serve(lis) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return lis.Addr().String()
}
