package harness

import (
	"context"
	"sync"

	"google.golang.org/grpc"
)

// turnstile lets one audit stream in at a time: the daemon takes few, and tests that end together check their runs
// together.
type turnstile chan struct{}

func (t turnstile) open(ctx context.Context, open func() (grpc.ClientStream, error)) (grpc.ClientStream, error) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	leave := sync.OnceFunc(func() { <-t })
	stream, err := open()
	if err != nil {
		leave()
		return nil, err
	}
	context.AfterFunc(ctx, leave)
	return &passing{stream, leave}, nil
}

// passing leaves the turnstile when its stream has ended.
type passing struct {
	grpc.ClientStream
	leave func()
}

// RecvMsg receives a message.
func (p *passing) RecvMsg(m any) error {
	err := p.ClientStream.RecvMsg(m)
	if err != nil {
		p.leave()
	}
	return err
}
