package toolhost_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/grpctest"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// Retries and hedging of the transport would send a call twice behind the back of whoever knows what it does.
func TestTransportNeverRepeatsACall(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	addr, _ := grpctest.ServeTCP(t, (&fakeHost{call: func(*runnerdv1.CallToolRequest, grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
		calls.Add(1)
		return status.Error(codes.Unavailable, "try again")
	}}).register)
	c := newClient(t, toolhost.Endpoint{Address: addr, DialOptions: []grpc.DialOption{grpc.WithDefaultServiceConfig(`{"methodConfig": [{
		"name": [{}],
		"retryPolicy": {"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1, "retryableStatusCodes": ["UNAVAILABLE"]}
	}]}`)}})
	_, err := c.CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
	if outcome(err) != "Unavailable" || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

func TestCallsShareAConnection(t *testing.T) {
	t.Parallel()
	var peers []string
	addr, _ := grpctest.ServeTCP(t, (&fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
		if p, ok := peer.FromContext(stream.Context()); ok {
			peers = append(peers, p.Addr.String())
		}
		return stream.Send(result("r"))
	}}).register)
	c := newClient(t, toolhost.Endpoint{Address: addr})
	for range 3 {
		if _, err := c.CallTool(t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil); err != nil {
			t.Fatal(err)
		}
	}
	if len(peers) != 3 || peers[0] != peers[2] {
		t.Errorf("calls came from %q", peers)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	t.Cleanup(web.Close)
	addr, _ := grpctest.ServeTCP(t, (&fakeHost{call: func(_ *runnerdv1.CallToolRequest, stream grpc.ServerStreamingServer[runnerdv1.CallToolResponse]) error {
		return stream.Send(result("r"))
	}}).register, grpc.Creds(credentials.NewServerTLSFromCert(&web.TLS.Certificates[0])))
	trusted := x509.NewCertPool()
	trusted.AddCert(web.Certificate())
	for _, tt := range []struct {
		name string
		tls  *tls.Config
		want string
	}{
		{"trusted", &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS13}, "ok"},
		{"not trusted", &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}, "not sent"},
		{"plain", nil, "not sent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := newClient(t, toolhost.Endpoint{Address: addr, TLS: tt.tls}).CallTool(
				t.Context(), "host", &runnerdv1.CallToolRequest{}, maxResult, nil)
			if outcome(err) != tt.want {
				t.Errorf("%q %v, want %q", outcome(err), err, tt.want)
			}
		})
	}
}
