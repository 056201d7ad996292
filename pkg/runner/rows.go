package runner

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	storagev1 "github.com/runnerd/runnerd/gen/runnerd/storage/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// Prefixes of the index keys. Times are nanoseconds since 1970 in 20 digits, so that keys sort as times do; inverted
// ones sort newest first.
const (
	prefixOpen  = "open/"  // open/<run>: goes on by itself (QUEUED, RUNNING)
	prefixWake  = "wake/"  // wake/<time>/<run>: rests, and has a deadline; a time of the process that wrote it
	prefixAsk   = "ask/"   // ask/<time opened>/<run>/<approval id in 20 digits>: an approval is open
	prefixList  = "list/"  // list/<inverted time started>/<run>
	prefixAgent = "agent/" // agent/<agent>/<inverted time started>/<run>
)

func nanos(t time.Time) string { return fmt.Sprintf("%020d", max(t.UnixNano(), 0)) }
func invertedNanos(t time.Time) string {
	return fmt.Sprintf("%020d", math.MaxInt64-max(t.UnixNano(), 0))
}

// goesOn reports whether a run in this state goes on by itself.
func goesOn(state runnerdv1.RunState) bool {
	return state == runnerdv1.RunState_RUN_STATE_QUEUED || state == runnerdv1.RunState_RUN_STATE_RUNNING
}

// keysOf returns the index keys that a run should have, sorted.
func keysOf(run *runnerdv1.Run, wakeAt time.Time) [][]byte {
	id, started := run.GetRunId(), invertedNanos(run.GetCreatedAt().AsTime())
	keys := [][]byte{
		[]byte(prefixList + started + "/" + id),
		[]byte(prefixAgent + run.GetAgent() + "/" + started + "/" + id),
	}
	if goesOn(run.GetState()) {
		keys = append(keys, []byte(prefixOpen+id))
	} else if !wakeAt.IsZero() {
		keys = append(keys, wakeKey(wakeAt, id))
	}
	for _, a := range run.GetApprovals() {
		opened := nanos(a.GetOpenedAt().AsTime())
		keys = append(keys, fmt.Appendf(nil, "%s%s/%s/%020d", prefixAsk, opened, id, a.GetApprovalId()))
	}
	slices.SortFunc(keys, bytes.Compare)
	return keys
}

func wakeKey(at time.Time, run string) []byte { return []byte(prefixWake + nanos(at) + "/" + run) }

func isWakeKey(key []byte) bool { return bytes.HasPrefix(key, []byte(prefixWake)) }

// wakeTime returns the time in a wake key.
func wakeTime(key []byte) time.Time {
	digits, _, _ := bytes.Cut(bytes.TrimPrefix(key, []byte(prefixWake)), []byte("/"))
	n, err := strconv.ParseInt(string(digits), 10, 64)
	if err != nil {
		return time.Time{} // due at once: the run is looked at and its keys are put right
	}
	return time.Unix(0, n)
}

// missing returns the keys of want that are not in have. Both are sorted.
func missing(want, have [][]byte) [][]byte {
	var out [][]byte
	for _, key := range want {
		if _, ok := slices.BinarySearchFunc(have, key, bytes.Compare); !ok {
			out = append(out, key)
		}
	}
	return out
}

// maxListed is how much of a text lists show, in bytes.
const maxListed = 2 << 10

// summary is what lists show of a run: redacted, long texts cut, and without the spec, which is stored once by its
// digest, and the grants, which have a list of their own.
func summary(st *runstate.State) *runnerdv1.Run {
	run := st.View()
	run.Spec, run.Grants = nil, nil
	run = proto.CloneOf(runstate.RedactRun(run))
	run.Task = cutBytes(run.GetTask(), maxListed)
	run.ErrorMessage = cutBytes(run.GetErrorMessage(), maxListed)
	if run.GetFinalAnswer() != nil {
		run.FinalAnswer.Content = cutBytes(run.GetFinalAnswer().GetContent(), maxListed)
	}
	if run.GetQuestion() != nil {
		run.Question.Text = cutBytes(run.GetQuestion().GetText(), maxListed)
	}
	return run
}

// row is a run as the store's row tells, with the newest epoch.
type row struct {
	*storagev1.Row
	epoch auditstore.Epoch
}

// row returns the row of a run, or [errNoRun].
func (s *store) row(ctx context.Context, run string) (row, error) {
	key := []byte(auditstore.RunPrefix + run)
	// Of the keys that begin with this one it is the first, if it is there.
	found, err := s.log.Rows(ctx, key, nil, 1)
	if err != nil {
		return row{}, fmt.Errorf("row of run %s: %w", run, err)
	}
	if len(found) == 0 || !bytes.Equal(found[0].Key, key) {
		return row{}, errNoRun
	}
	return decodeRow(&found[0])
}

func decodeRow(raw *auditstore.Row) (row, error) {
	if raw.Damage != nil {
		return row{}, fmt.Errorf("row of run %s: %w", raw.Run, raw.Damage)
	}
	out := row{Row: new(storagev1.Row), epoch: raw.Epoch}
	if err := proto.Unmarshal(raw.Row, out.Row); err != nil {
		return row{}, fmt.Errorf("row of run %s: %w: %w", raw.Run, auditstore.ErrCorrupt, err)
	}
	return out, nil
}

// Row returns the row of a run: what is known of it without reading its events. Errors have the reason RUN_NOT_FOUND.
func (r *Runner) Row(ctx context.Context, runID string) (*storagev1.Row, error) {
	found, err := r.store.row(ctx, runID)
	if err != nil {
		return nil, notFound(runID, err)
	}
	return found.Row, nil
}

// notFound gives callers the one answer about a run that is not there.
func notFound(run string, err error) error {
	if err == errNoRun { //nolint:errorlint // never wrapped
		return runNotFound(run)
	}
	return err
}
