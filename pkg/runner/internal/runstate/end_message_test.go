package runstate

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// failed is the last event, which ends the run.
func (w *world) failed() *runnerdv1.RunFailed {
	w.t.Helper()
	f := w.events[len(w.events)-1].GetRunFailed()
	if f == nil {
		w.t.Fatalf("the run has not failed\n%s", w)
	}
	return f
}

func TestEndMessages(t *testing.T) {
	t.Parallel()
	t.Run("a revocation does not change why the run ended", func(t *testing.T) {
		t.Parallel()
		spec := newSpec()
		spec.Policy = askFor("charge")
		w := newWorld(t, spec)
		w.start()
		w.do(Pinned{Catalogue: newCatalogue()})
		w.do(w.decided("charge"))
		v := w.vote(w.open(), approve)
		v.Grant = runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL
		w.do(v)
		w.finish("1.1", 1)
		w.do(DecideFailed{Iteration: 2, Attempt: 1, Code: "NOT_FOUND", Message: "no such model", Permanent: true})
		before := w.failed()
		w.do(Revoke{Principal: "approver", GrantID: w.st.Grants()[0].GetGrantId()})
		after := w.failed()
		if before == after || after.GetStopReason() != before.GetStopReason() || after.GetMessage() != before.GetMessage() ||
			after.GetHint() != before.GetHint() {
			t.Errorf("the run ended with\n%v, and after a revocation with\n%v", before, after)
		}
	})
	t.Run("the limit of auto mode that ended the run is named", func(t *testing.T) {
		t.Parallel()
		spec := newSpec()
		spec.AutoMode = &runnerdv1.AutoMode{Limits: &runnerdv1.AutoModeLimits{
			MaxIterations: new(uint32(1)), MaxDuration: durationpb.New(time.Minute),
		}}
		w := newWorld(t, spec)
		w.start()
		w.do(Pinned{Catalogue: newCatalogue()})
		w.now = w.now.Add(time.Minute)
		w.do()
		if got, want := w.failed().GetMessage(), "the time of auto mode is used up: 1m0s"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
