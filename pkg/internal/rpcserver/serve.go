// Package rpcserver serves the gRPC services that authors of tools and decide services write.
package rpcserver

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

const (
	// DrainTime is how long the calls in progress at a server of somebody's may still take when it is told to stop.
	DrainTime = 10 * time.Second

	// pingInterval is how often a client may ask whether the connection is alive.
	pingInterval = 20 * time.Second
)

// Serve serves the services that register adds, with health and reflection, until ctx ends. Then it refuses new
// calls, lets those in progress end for the drain time, cuts the rest, and returns nil once their handlers have
// returned. It closes the listener.
func Serve(
	ctx context.Context, lis net.Listener, drain time.Duration, register func(grpc.ServiceRegistrar),
	opts ...grpc.ServerOption,
) error {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.WaitForHandlers(true),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
	}, opts...)...)
	register(server)
	reflection.Register(server)
	alive := health.NewServer()
	for name := range server.GetServiceInfo() {
		alive.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	healthpb.RegisterHealthServer(server, alive)

	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		alive.Shutdown()
		cut := time.AfterFunc(drain, server.Stop)
		defer cut.Stop()
		server.GracefulStop()
	})
	err := server.Serve(lis)
	if !stop() {
		<-drained
	}
	if err != nil && ctx.Err() == nil {
		server.Stop()
		return fmt.Errorf("serve %s: %w", lis.Addr(), err)
	}
	return nil
}

// ListenAndServe is Serve, with DrainTime, on a TCP address, such as "127.0.0.1:7790", or a Unix socket, such as
// "unix:///run/x.sock".
func ListenAndServe(ctx context.Context, addr string, register func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) error {
	network := "tcp"
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		network, addr = "unix", path
	}
	lis, err := new(net.ListenConfig).Listen(ctx, network, addr)
	if err != nil {
		return err
	}
	return Serve(ctx, lis, DrainTime, register, opts...)
}
