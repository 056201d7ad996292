package runstate

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// timeZero is when test runs start.
var timeZero = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// event fills in the envelope of an event of the run "r" in leg 1, iteration 1.
func event(sequence uint64, ev *runnerdv1.Event) *runnerdv1.Event {
	ev.RunId, ev.Sequence, ev.Type, ev.Leg, ev.Iteration = "r", sequence, typeOf(ev), 1, 1
	ev.Time = timestamppb.New(timeZero)
	return ev
}
