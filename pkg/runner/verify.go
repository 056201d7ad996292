package runner

import (
	"fmt"
	"iter"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// Verify reads the events of one run, from its first on, as a stream gives them, and tells where an invariant of the
// log does not hold; nil if all do. Events with their private part are judged more fully than public ones. It needs
// neither store nor daemon; what only those can show, the hash chain and the replay, is VerifyAudit's.
func Verify(events iter.Seq[*runnerdv1.Event]) []error {
	var broken []error
	for _, v := range runstate.Check(events, runstate.CheckOptions{}) {
		broken = append(broken, fmt.Errorf("event %d: invariant %d: %s", v.Sequence, v.Invariant, v.Message))
	}
	return broken
}
