package runner

import (
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/encoding/protowire"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// A rule that this version cannot read may be the one that forbids what a run is about to do.
func TestRunsOfOtherVersionsAreNotDriven(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		next := decides(w)
		d := boot(t, memory(nil), w, func(c *Config) {
			rule := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "no calls on Fridays")
			c.Agents["agent"].Spec.GetPolicy()[0].ProtoReflect().SetUnknown(rule)
		})
		d.begin(t, "run")
		next <- calls("ask")
		open := d.rest(t, "run").GetApprovals()[0]
		d.crash(t)

		d = boot(t, d.disk, w)
		_, err := d.Deliver(t.Context(), "run", vote(open, approve))
		if e, ok := errors.AsType[*Error](err); !ok || e.Reason != runnerdv1.ErrorReason_ERROR_REASON_OTHER_VERSION {
			t.Errorf("approving gives %v", err)
		}
		if n := len(w.attempts()); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
		if got, err := d.Snapshot(t.Context(), "run"); err != nil || len(got.Run.GetApprovals()) != 1 {
			t.Errorf("the run cannot be read: %v, %v", got, err)
		}
	})
}
