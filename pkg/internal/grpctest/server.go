// Package grpctest serves gRPC in tests: in memory, fit for a testing/synctest bubble, or over TCP.
package grpctest

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// bufferSize is how much either side of an in-memory connection may write ahead, in bytes.
const bufferSize = 256 << 10

// Server is a gRPC server in memory, until the test ends.
type Server struct {
	listener *bufconn.Listener
	server   *grpc.Server
}

// Serve starts a server in memory with the services that register adds. It is stopped, and its handlers have
// returned, when the test ends.
func Serve(tb testing.TB, register func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) *Server {
	tb.Helper()
	s := &Server{
		listener: bufconn.Listen(bufferSize),
		server:   grpc.NewServer(append([]grpc.ServerOption{grpc.WaitForHandlers(true)}, opts...)...),
	}
	register(s.server)
	start(tb, s.server, s.listener)
	return s
}

// Target is the address under which DialOptions reach the server.
func (s *Server) Target() string { return "passthrough:///bufconn" }

// DialOption makes a connection to Target reach the server.
func (s *Server) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return s.listener.DialContext(ctx)
	})
}

// Stop ends the server at once, with the connections and calls in progress.
func (s *Server) Stop() { s.server.Stop() }

// ServeTCP is Serve on a free port of the loopback interface. It returns the address and a function that ends the
// server at once, with the connections and calls in progress.
func ServeTCP(tb testing.TB, register func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) (addr string, stop func()) {
	tb.Helper()
	lis, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(append([]grpc.ServerOption{grpc.WaitForHandlers(true)}, opts...)...)
	register(server)
	start(tb, server, lis)
	return lis.Addr().String(), server.Stop
}

func start(tb testing.TB, server *grpc.Server, lis net.Listener) {
	tb.Helper()
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	tb.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
}
