// Package answerer carries the name of who answered a call from the transport to whoever made it, beside the answer.
package answerer

import (
	"context"
	"sync/atomic"
)

type key struct{}

// Listen returns a context for calls, and a function that tells who answered the last of them: the name that the
// transport has verified, or nothing.
func Listen(ctx context.Context) (context.Context, func() string) {
	name := new(atomic.Pointer[string])
	return context.WithValue(ctx, key{}, name), func() string {
		if told := name.Load(); told != nil {
			return *told
		}
		return ""
	}
}

// Tell notes who answered the call of ctx. An empty name says that nobody knows. Without a listener nothing happens.
func Tell(ctx context.Context, name string) {
	if to, ok := ctx.Value(key{}).(*atomic.Pointer[string]); ok {
		to.Store(&name)
	}
}
