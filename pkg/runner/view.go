package runner

import (
	"context"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// viewRaw is the view of the owner of a run and of admins: everything as it is.
const viewRaw = ViewRedacted + 1

// viewOf is how much a principal sees of a run. Who is no viewer, and still may do something with the run, sees what
// happened and no more.
func (p Principal) viewOf(run *runnerdv1.Run) View {
	if p.seesRaw(run) {
		return viewRaw
	}
	if p.owns(run) {
		return ViewRedacted
	}
	return p.View(run.GetAgent())
}

// view is what the caller may see of a run.
func view(ctx context.Context, run *runnerdv1.Run) *runnerdv1.Run {
	return show(run, PrincipalFrom(ctx).viewOf(run))
}

// show is what a view shows of a message, which is not changed. Messages that are not about a run have no types: of
// those the outline is shown.
func show[T proto.Message](m T, v View) T {
	switch {
	case v >= viewRaw:
		return m
	case v == ViewRedacted:
		return runstate.RedactMessage(m)
	case v == ViewTypes:
		if what := happened(m); what != nil {
			return what.(T) //nolint:errcheck,forcetypeassert // it is of the type of m
		}
	}
	return runstate.OutlineMessage(m)
}

// happened is what happened when, and no more: no payload, and nobody's name. It is nil for what is not about a run.
func happened(m proto.Message) proto.Message {
	switch m := m.(type) {
	case *runnerdv1.Event:
		return &runnerdv1.Event{
			RunId: m.GetRunId(), Sequence: m.GetSequence(), Type: m.GetType(), Time: m.GetTime(), Leg: m.GetLeg(),
			Iteration: m.GetIteration(), Position: m.GetPosition(),
		}
	case *runnerdv1.Signal:
		return &runnerdv1.Signal{
			RunId: m.GetRunId(), Type: m.GetType(), AfterSequence: m.GetAfterSequence(), Iteration: m.GetIteration(),
			Attempt: m.GetAttempt(),
		}
	case *runnerdv1.Run:
		return &runnerdv1.Run{
			RunId: m.GetRunId(), Agent: m.GetAgent(), State: m.GetState(), Leg: m.GetLeg(), Iteration: m.GetIteration(),
			CreatedAt: m.GetCreatedAt(), UpdatedAt: m.GetUpdatedAt(), HeadSequence: m.GetHeadSequence(),
		}
	case *runnerdv1.Checkpoint:
		return &runnerdv1.Checkpoint{
			RunId: m.GetRunId(), Label: m.GetLabel(), Iteration: m.GetIteration(), Sequence: m.GetSequence(),
			CreatedAt: m.GetCreatedAt(),
		}
	default:
		return nil
	}
}

// viewWire encodes what a view that is less than redacted shows of an event.
func viewWire(rec *auditstore.Record, v View) ([]byte, error) {
	ev, err := decodePublic(rec)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(show(ev, v))
}

// visible is what a view shows of a signal; nil: nothing. Text is for those who see raw events, whether they ask for
// them or not.
func visible(signal *runnerdv1.Signal, v View) *runnerdv1.Signal {
	if v >= viewRaw || signal.GetStreamProgress() != nil {
		return signal
	}
	if signal.GetTextDelta() != nil {
		return nil
	}
	return show(runstate.OutlineMessage(signal), v)
}
