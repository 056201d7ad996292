package runner

import (
	"context"
	"errors"
	"time"

	"github.com/runnerd/runnerd/pkg/auditstore"
)

// backoff is how long to wait before the store is tried again. The zero value begins.
type backoff struct{ last time.Duration }

const (
	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// next returns the next pause: twice the last.
func (b *backoff) next() time.Duration {
	b.last = min(max(2*b.last, minBackoff), maxBackoff)
	return b.last
}

// pause waits, or returns why ctx ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// patiently repeats what the store could not do now and surely did not do.
func (e *engine) patiently(ctx context.Context, do func() error) error {
	for retry := (backoff{}); ; {
		err := do()
		if !errors.Is(err, auditstore.ErrUnavailable) {
			return err
		}
		if err := pause(ctx, retry.next()); err != nil {
			return err
		}
	}
}
