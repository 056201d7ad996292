package replay

import (
	"fmt"
	"slices"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// compare checks one run against its recording.
func (w *world) compare(t *testing.T, r *run) {
	if r.err != nil {
		t.Fatalf("its watcher ended with %v", r.err)
	}
	w.daemon.Check(t, r.ID)
	if events := w.daemon.Events(t, r.ID); len(events) != len(r.events) {
		t.Errorf("its watcher saw %d events over all restarts, its log has %d", len(r.events), len(events))
	}
	refused := r.refused(t)
	read := map[string]string{}
	whole := func(id string) string {
		if _, ok := read[id]; !ok {
			read[id] = string(w.daemon.Artifact(t, r.ID, id))
		}
		return read[id]
	}

	for _, req := range w.brain.Requests(r.ID) {
		where := fmt.Sprintf("Decide %d, attempt %d", req.GetIteration(), req.GetAttempt())
		if req.GetTask() != r.Task {
			t.Errorf("%s was given another task", where)
		}
		r.offered(t, where, req.GetTools())
		want := r.memory(int(req.GetIteration()), refused)
		if diff := firstDifference(r.memoryOf(req.GetHistory(), refused, whole), want); diff != "" {
			t.Fatalf("%s: %s", where, diff)
		}
	}
	want := r.memory(len(r.decisions)+1, refused)
	if diff := firstDifference(r.memoryInLog(r.events, refused, whole), want); diff != "" {
		t.Errorf("the log: %s", diff)
	}
	r.executed(t, refused)

	end := w.daemon.Run(t, r.ID)
	if end.GetStopReason() != runnerdv1.StopReason_STOP_REASON_COMPLETED || end.GetFinalAnswer().GetContent() != r.answer {
		t.Errorf("it ended %s with the answer %q, want %q", end.GetStopReason(), end.GetFinalAnswer().GetContent(), r.answer)
	}
	if got := int(end.GetIteration()); got != len(r.decisions) {
		t.Errorf("it took %d iterations, want %d", got, len(r.decisions))
	}
	if got := int(end.GetToolCalls()); got != len(r.calls)-len(refused) {
		t.Errorf("it counts %d tool calls, want %d", got, len(r.calls)-len(refused))
	}
	r.billed(t, end.GetUsage())
}

// refused is the calls that were not executed, by the log, and notes them as differences from the recording.
func (r *run) refused(t *testing.T) outcomes {
	t.Helper()
	out := outcomes{}
	var invalid []string
	for _, ev := range r.events {
		for _, f := range ev.GetToolsPinned().GetFindings() {
			if f.GetCode() == "invalid_input_schema" {
				invalid = append(invalid, f.GetTool())
				r.differ(schemaInvalid, "%s", f.GetTool())
			}
		}
		failed := ev.GetToolCallFailed()
		ordinal := r.ordinal(failed.GetCallId())
		switch failed.GetReason() {
		case runnerdv1.CallReason_CALL_REASON_SCHEMA_MISMATCH:
			r.differ(schemaMismatch, "call %d", ordinal)
		case runnerdv1.CallReason_CALL_REASON_UNKNOWN_TOOL:
			if c := r.calls[ordinal]; c.offered && !slices.Contains(invalid, c.Name) {
				t.Errorf("call %d of the offered tool %s failed as UNKNOWN_TOOL", ordinal, c.Name)
			}
		default:
			continue
		}
		out[ordinal] = failed.GetReason()
	}
	for i, c := range r.calls {
		if _, refused := out[i]; !c.offered && !refused {
			t.Errorf("call %d of %s, which was not offered, was not refused", i, c.Name)
		}
	}
	return out
}

// offered checks the tools a Decide was offered.
func (r *run) offered(t *testing.T, where string, tools []*runnerdv1.OfferedTool) {
	t.Helper()
	var want, got []string
	for _, tool := range r.Tools {
		if !slices.Contains(r.differs, schemaInvalid+": "+tool.Name) {
			want = append(want, tool.Name+" "+tool.Description+" "+string(tool.InputSchema))
		}
	}
	for _, tool := range tools {
		got = append(got, tool.GetName()+" "+tool.GetDescription()+" "+tool.GetInputSchemaJson())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s was offered\n%q\nwant\n%q", where, got, want)
	}
}

// executed checks by the host's own ledger what was executed.
func (r *run) executed(t *testing.T, refused outcomes) {
	t.Helper()
	attempts := map[int]int{}
	latest := -1 // first call of the decision of the call before
	for _, call := range r.host.Calls(r.ID) {
		req := call.Request
		ordinal := r.ordinal(req.GetCallId())
		if ordinal < 0 || ordinal >= len(r.calls) {
			t.Errorf("the host was asked for call %s, which is not in the recording", req.GetCallId())
			continue
		}
		attempts[ordinal]++
		want := &r.calls[ordinal]
		if req.GetName() != want.Name || req.GetArgumentsJson() != want.effective() {
			t.Errorf("the host got %s(%s), want %s(%s)", req.GetName(), req.GetArgumentsJson(), want.Name, want.effective())
		}
		if key := r.ID + "/" + req.GetCallId(); req.GetIdempotencyKey() != key {
			t.Errorf("key is %q, want %q", req.GetIdempotencyKey(), key)
		}
		var iteration, n int
		if _, err := fmt.Sscanf(req.GetCallId(), "%d.%d", &iteration, &n); err != nil {
			t.Error(err)
		}
		if iteration < latest {
			t.Errorf("call %s was executed after one of decision %d", req.GetCallId(), latest)
		}
		latest = max(latest, iteration)
	}
	for i := range r.calls {
		_, isRefused := refused[i]
		switch n := attempts[i]; {
		case isRefused && n > 0:
			t.Errorf("call %d failed its checks and was executed %d times", i, n)
		case !isRefused && (n < 1 || n > 1+r.hits):
			t.Errorf("call %d was executed %d times under %d kills", i, n, r.hits)
		}
	}
}

// billed checks the sums of usage.
func (r *run) billed(t *testing.T, got *runnerdv1.UsageTotals) {
	t.Helper()
	var input, output, without int64
	for _, d := range r.decisions {
		if d.Usage == nil {
			if d.CostCents == nil {
				without++
			}
			continue
		}
		if d.Usage.InputTokens != nil {
			input += *d.Usage.InputTokens
		}
		if d.Usage.OutputTokens != nil {
			output += *d.Usage.OutputTokens
		}
	}
	if got.GetInputTokens() != input || got.GetOutputTokens() != output || int64(got.GetDecisionsWithoutUsage()) != without {
		t.Errorf("usage is %v, want %d tokens in, %d out, %d decisions without", got, input, output, without)
	}
}
