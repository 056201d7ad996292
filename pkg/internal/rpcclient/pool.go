package rpcclient

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	// maxHeaderList bounds the headers and trailers of an answer, in bytes. gRPC's own bound of 16 MiB is more than a
	// status message needs.
	maxHeaderList = 256 << 10

	// maxReconnectDelay bounds the time between two dials of an unreachable peer. Calls made meanwhile fail at once,
	// so it stays below the backoff of the callers.
	maxReconnectDelay = 5 * time.Second

	// minConnectTimeout is the least time that one dial may take.
	minConnectTimeout = 10 * time.Second
)

// defaultKeepalive is what gRPC servers of every language tolerate without being told: pings more often than every
// five minutes make them close the connection, and with it the calls in progress. The deadline of a call bounds the
// harm of a peer that is gone meanwhile.
var defaultKeepalive = keepalive.ClientParameters{Time: 5*time.Minute + 10*time.Second, Timeout: 20 * time.Second}

// Endpoint says how to reach one service.
type Endpoint struct {
	// Address is a gRPC target: "host:port", "dns:///host:port", "unix:///path" or "passthrough:///anything".
	Address string
	// TLS secures the connection. Nil: the connection is plain.
	TLS *tls.Config
	// Keepalive replaces the pings that every gRPC server tolerates (one in 5 minutes while a call is in progress).
	// Shorter ones need a server that allows them.
	Keepalive *keepalive.ClientParameters
	// DialOptions come last and win over what is set here.
	DialOptions []grpc.DialOption
}

// Pool holds one connection for each named service. It is safe for concurrent use.
type Pool struct {
	noun  string
	conns map[string]*grpc.ClientConn
}

// Open makes the pool of the services with these names. The noun ("tool host") is for messages. Nothing is dialled
// before the first call, and a connection that broke is dialled again by the next one. An error names the endpoint
// that no connection can be made of.
func Open(noun string, endpoints map[string]Endpoint) (*Pool, error) {
	p := &Pool{noun: noun, conns: make(map[string]*grpc.ClientConn, len(endpoints))}
	for _, name := range slices.Sorted(maps.Keys(endpoints)) {
		conn, err := dial(endpoints[name])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s %q: %w", noun, name, err), p.Close())
		}
		p.conns[name] = conn
	}
	return p, nil
}

func dial(e Endpoint) (*grpc.ClientConn, error) {
	if e.Address == "" {
		return nil, errors.New("no address")
	}
	creds := insecure.NewCredentials()
	if e.TLS != nil {
		creds = credentials.NewTLS(e.TLS)
	}
	alive := defaultKeepalive
	if e.Keepalive != nil {
		alive = *e.Keepalive
	}
	reconnect := backoff.DefaultConfig
	reconnect.BaseDelay = 200 * time.Millisecond
	reconnect.MaxDelay = maxReconnectDelay

	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		// Whether a call may be sent again is decided by whoever knows what the call does, never by the transport or
		// by a service config that a resolver hands out.
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithKeepaliveParams(alive),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: minConnectTimeout}),
		grpc.WithMaxHeaderListSize(maxHeaderList),
		grpc.WithStatsHandler(traceHandler{}),
		grpc.WithUserAgent("runnerd"),
	}
	return grpc.NewClient(e.Address, append(opts, e.DialOptions...)...)
}

// Close closes all connections. Calls in progress end with CANCELED.
func (p *Pool) Close() error {
	var errs []error
	for _, conn := range p.conns {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}
