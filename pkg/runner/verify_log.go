package runner

import (
	"context"
	"errors"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// VerifyLog checks a log without a [Runner], for example that of a stopped daemon: what AuditService.VerifyAudit
// checks, of one run or, if run is empty, of all. send gets what the stream of VerifyAudit has, the summary last. The
// error says why the verification could not go on, not what it found.
func VerifyLog(
	ctx context.Context, log auditstore.Log, blobs auditstore.Blobs, key Key, run string,
	send func(*runnerdv1.VerifyAuditResponse) error,
) error {
	v := &verification{store: &store{log: log, blobs: blobs, key: key}, send: send}
	if run != "" {
		_, ok, err := v.store.recordAt(ctx, run, 1)
		if err != nil && !errors.Is(err, auditstore.ErrCorrupt) { // that is a finding
			return err
		}
		if err == nil && !ok {
			return runNotFound(run)
		}
	}
	if err := v.verify(ctx, run); err != nil {
		return err
	}
	return v.summary()
}
