package main

import (
	"context"
	"fmt"
	"sync"
)

// tasks are the long-running parts of a program. The first that fails says so;
// all end when they are stopped.
type tasks struct {
	ctx    context.Context //nolint:containedctx // the life of the tasks, which start and stop share
	cancel context.CancelFunc
	failed chan error
	wait   sync.WaitGroup
}

func newTasks(parent context.Context) *tasks {
	t := &tasks{failed: make(chan error, 1)}
	t.ctx, t.cancel = context.WithCancel(parent)
	return t
}

// start runs a part. It may end by itself; an error is a failure.
func (t *tasks) start(name string, run func(context.Context) error) {
	t.wait.Go(func() {
		if err := run(t.ctx); err != nil && t.ctx.Err() == nil {
			sendFirst(t.failed, fmt.Errorf("%s: %w", name, err))
		}
	})
}

// stop ends all parts and waits for them.
func (t *tasks) stop() {
	t.cancel()
	t.wait.Wait()
}

// sendFirst sends to a channel that holds one error, unless it has one.
func sendFirst(to chan<- error, err error) {
	select {
	case to <- err:
	default:
	}
}
