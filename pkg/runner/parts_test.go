package runner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// resultOf runs one call with a result and returns its outcome and what the next Decide was shown.
func resultOf(t *testing.T, res *runnerdv1.ToolResult, look func(*daemon, *runnerdv1.Event, *runnerdv1.DecideRequest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{rounds: 1, call: func(context.Context, *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return res, nil
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		d.rest(t, "run")
		look(d, events(t, d, "run")[6], w.decides[1])
		d.verify(t)
	})
}

func TestResults(t *testing.T) {
	whole := func(t *testing.T, d *daemon, ref *runnerdv1.ArtifactRef, want string) {
		t.Helper()
		got, err := d.ReadPart(context.Background(), "run", ref)
		if err != nil || string(got) != want {
			t.Errorf("artifact %v: %d bytes, %v; want %d", ref, len(got), err, len(want))
		}
	}
	t.Run("long text", func(t *testing.T) {
		text := strings.Repeat("é", 300_000) // two chunks, and it would fit into a request
		resultOf(t, &runnerdv1.ToolResult{Text: text}, func(d *daemon, ev *runnerdv1.Event, req *runnerdv1.DecideRequest) {
			got := ev.GetToolCallCompleted()
			if !got.GetTextTruncated() || len(got.GetText()) > 50_000 || !utf8.ValidString(got.GetText()) || got.GetText() == "" {
				t.Fatalf("a preview of %d bytes", len(got.GetText()))
			}
			if ref := got.GetArtifacts()[0]; ref.GetArtifactId() != "1.1.1.0" || ref.GetSize() != uint64(len(text)) {
				t.Errorf("artifact %v", ref)
			}
			whole(t, d, got.GetArtifacts()[0], text)
			if len(req.GetBlobs()) != 0 {
				t.Error("the whole of what is cut rides along")
			}
		})
	})
	t.Run("blobs", func(t *testing.T) {
		resultOf(t, &runnerdv1.ToolResult{Text: "two pictures", Blobs: []*runnerdv1.Blob{
			{MimeType: "image/png", Name: "a", Data: []byte("aaa")}, {Data: []byte("bbb")},
		}}, func(d *daemon, ev *runnerdv1.Event, req *runnerdv1.DecideRequest) {
			refs := ev.GetToolCallCompleted().GetArtifacts()
			if len(refs) != 2 || refs[0].GetMimeType() != "image/png" || refs[0].GetName() != "a" || refs[1].GetMimeType() != mimeBytes {
				t.Fatalf("artifacts %v", refs)
			}
			whole(t, d, refs[1], "bbb")
			if len(req.GetBlobs()) != 2 || string(req.GetBlobs()[0].GetData()) != "aaa" {
				t.Errorf("riding along: %v", req.GetBlobs())
			}
		})
	})
	t.Run("text that is no UTF-8", func(t *testing.T) {
		resultOf(t, &runnerdv1.ToolResult{Blobs: []*runnerdv1.Blob{{MimeType: "text/plain", Data: []byte("a\xffb")}}},
			func(d *daemon, ev *runnerdv1.Event, _ *runnerdv1.DecideRequest) {
				got := ev.GetToolCallCompleted()
				if got.GetText() != "a\uFFFDb" || !got.GetTextRepaired() || got.GetTextTruncated() {
					t.Errorf("got %v", got)
				}
				whole(t, d, got.GetArtifacts()[0], "a\xffb")
			})
	})
	t.Run("structured", func(t *testing.T) {
		big := `"` + strings.Repeat("x", 70<<10) + `"`
		resultOf(t, &runnerdv1.ToolResult{StructuredJson: big}, func(d *daemon, ev *runnerdv1.Event, _ *runnerdv1.DecideRequest) {
			got := ev.GetToolCallCompleted()
			if got.GetStructuredJson() != "" || got.GetStructuredRef().GetMimeType() != mimeJSON {
				t.Fatalf("got %v", got)
			}
			whole(t, d, got.GetStructuredRef(), big)
		})
		resultOf(t, &runnerdv1.ToolResult{StructuredJson: `{"a":`}, func(d *daemon, ev *runnerdv1.Event, _ *runnerdv1.DecideRequest) {
			got := ev.GetToolCallCompleted()
			if got.GetStructuredJson() != "" || got.GetStructuredRef() != nil || len(got.GetArtifacts()) != 1 {
				t.Fatalf("what is no JSON: %v", got)
			}
			whole(t, d, got.GetArtifacts()[0], `{"a":`)
		})
	})
	t.Run("error", func(t *testing.T) {
		resultOf(t, &runnerdv1.ToolResult{Text: "no", IsError: true}, func(_ *daemon, ev *runnerdv1.Event, _ *runnerdv1.DecideRequest) {
			got := ev.GetToolCallFailed()
			if got.GetReason() != runnerdv1.CallReason_CALL_REASON_TOOL_ERROR || got.GetMessage() != "no" {
				t.Errorf("got %v", got)
			}
		})
	})
	t.Run("too large", func(t *testing.T) {
		res := &runnerdv1.ToolResult{Text: "x", Blobs: []*runnerdv1.Blob{{Data: make([]byte, 16<<20)}}}
		resultOf(t, res, func(_ *daemon, ev *runnerdv1.Event, _ *runnerdv1.DecideRequest) {
			if got := ev.GetToolCallFailed().GetReason(); got != runnerdv1.CallReason_CALL_REASON_RESULT_TOO_LARGE {
				t.Errorf("got %v", got)
			}
		})
	})
}

// TestBigParts moves everything that is big out of the events and back into the next request.
func TestBigParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		task, text, state := strings.Repeat("t", 200<<10), strings.Repeat("x", 100<<10), strings.Repeat("s", 90<<10)
		arguments := `{"n":"` + strings.Repeat("a", 300<<10) + `"}`
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() > 1 {
				return answers(text), nil
			}
			d := calls("read", "read")
			d.Text, d.ProviderState = text, []byte(state)
			d.GetToolCalls().GetCalls()[0].ArgumentsJson = arguments
			return d, nil
		}}
		d := boot(t, memory(nil), w)
		if _, _, err := d.Start(t.Context(), "alice", &runnerdv1.StartRunRequest{
			RunId: "run", Agent: "agent", Task: task, ContextJson: `{"c":"` + strings.Repeat("c", 100<<10) + `"}`,
			InitialObservations: []*runnerdv1.InitialObservation{{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: text}},
		}); err != nil {
			t.Fatal(err)
		}
		got := d.rest(t, "run")
		if ref := got.GetFinalAnswer().GetContentRef(); ref.GetSize() != uint64(len(text)) {
			t.Errorf("the answer: %v", got.GetFinalAnswer())
		}
		for _, ev := range events(t, d, "run") {
			if size := proto.Size(ev); size > maxInlineFact+16<<10 {
				t.Errorf("%s has %d bytes", ev.GetType(), size)
			}
		}
		req := w.decides[1]
		if req.GetTask() != task || len(req.GetContextJson()) < 100<<10 || req.GetHistory()[0].GetObservation().GetText() != text {
			t.Error("what the run was started with is not whole in the request")
		}
		decision := req.GetHistory()[1].GetDecision()
		if decision.GetText() != text || string(decision.GetProviderState()) != state || decision.GetCalls()[0].GetArgumentsRaw() != arguments {
			t.Error("the first decision is not whole in the second request")
		}
		for _, call := range w.calls {
			if call.GetCallId() == "1.1" && call.GetArgumentsJson() != arguments {
				t.Error("the host did not get the arguments")
			}
		}
		d.verify(t)
	})
}

func TestBigInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return answers("too early"), gate.wait(ctx, "")
			}
			return answers("done"), nil
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		<-gate.reached
		text := strings.Repeat("i", 100<<10)
		if _, err := d.Deliver(t.Context(), "run", runstate.Input{Principal: "alice", Text: text}); err != nil {
			t.Fatal(err)
		}
		close(gate.open)
		d.rest(t, "run")
		history := w.decides[1].GetHistory()
		if got := history[len(history)-1].GetObservation(); got.GetText() != text {
			t.Errorf("the model is shown %d bytes", len(got.GetText()))
		}
		d.verify(t)
	})
}

// TestManyApprovals opens more approvals at once than an append takes keys.
func TestManyApprovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls(strings.Fields(strings.Repeat("ask ", 128))...), nil
			}
			return answers("done"), nil
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		waiting := d.rest(t, "run")
		if asks := d.keysWith(t, prefixAsk); len(asks) != 128 || len(waiting.GetApprovals()) != 128 {
			t.Fatalf("%d keys for %d approvals", len(asks), len(waiting.GetApprovals()))
		}
		if _, err := d.Deliver(t.Context(), "run", vote(waiting.GetApprovals()[5], approve)); err != nil {
			t.Fatal(err)
		}
		if asks := d.keysWith(t, prefixAsk); len(asks) != 127 {
			t.Errorf("%d keys after a verdict", len(asks))
		}
		time.Sleep(2 * time.Hour) // the rest times out
		if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
			t.Errorf("got %v", got)
		}
		if asks := d.keysWith(t, prefixAsk); len(asks) != 0 {
			t.Errorf("%d keys are left", len(asks))
		}
		d.verify(t)
	})
}

// TestStatesOfThePast folds a run to each of its events, from the nearest checkpoint body.
func TestStatesOfThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{rounds: 60}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		d.rest(t, "run")
		all := events(t, d, "run")
		bodies := 0
		st, err := d.At(t.Context(), "run", 1)
		if err != nil {
			t.Fatal(err)
		}
		for i, ev := range all {
			if i > 0 {
				if err := d.store.apply(t.Context(), st, ev); err != nil {
					t.Fatal(err)
				}
			}
			at, body, err := d.store.fold(t.Context(), "run", ev.GetSequence(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if body == ev.GetSequence() {
				bodies++
			}
			if ev.GetSequence()-body > bodyEvery+8 {
				t.Errorf("event %d is %d events after the nearest body", ev.GetSequence(), ev.GetSequence()-body)
			}
			if !proto.Equal(at.View(), st.View()) || len(at.History()) != len(st.History()) {
				t.Errorf("at %d: the fold from a body differs from that from the first event", ev.GetSequence())
			}
		}
		if bodies < len(all)/bodyEvery {
			t.Errorf("%d bodies for %d events", bodies, len(all))
		}
		for _, iteration := range []uint32{1, 17, 60} {
			point, err := d.Checkpoint(t.Context(), "run", iteration)
			if err != nil || point.GetLabel() != fmt.Sprint("step-", iteration) || point.GetToolCalls() != iteration {
				t.Errorf("checkpoint %d: %v, %v", iteration, point, err)
			}
		}
		if _, err := d.Checkpoint(t.Context(), "run", 62); toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_CHECKPOINT_NOT_FOUND {
			t.Errorf("a checkpoint that is not there: %v", err)
		}
		points, err := d.Checkpoints(t.Context(), "run", 10, 20)
		if err != nil || len(points) != 20 || points[0].GetIteration() != 11 {
			t.Errorf("a page of checkpoints: %d, %v", len(points), err)
		}
		if _, err := d.At(t.Context(), "run", uint64(len(all))+1); toError(err).Reason != runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD {
			t.Errorf("past the head: %v", err)
		}
	})
}

// TestRowsStayStill: an iteration of a run changes neither its row nor its keys.
func TestRowsStayStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := memory(nil)
		counting := &countingLog{Log: disk.log}
		disk.log = counting
		d := boot(t, disk, &world{rounds: 50})
		d.begin(t, "run")
		d.rest(t, "run")
		if counting.rows > 3 { // started, pinned, ended
			t.Errorf("the row was written %d times", counting.rows)
		}
		if counting.appends != 2*50+3 {
			t.Errorf("%d appends for 50 iterations, an answer and a start", counting.appends)
		}
	})
}

type countingLog struct {
	auditstore.Log
	appends, rows int
}

func (c *countingLog) Append(ctx context.Context, claim *auditstore.Claim, a auditstore.Append) (auditstore.Position, error) {
	c.appends++
	if a.Row != nil {
		c.rows++
	}
	return c.Log.Append(ctx, claim, a)
}

// TestBigCatalogue pins more than goes with an append and finds them again after a restart.
func TestBigCatalogue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{list: func(context.Context, string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
			out := new(runnerdv1.ToolHostServiceListToolsResponse)
			for i := range 20 {
				out.Tools = append(out.Tools, &runnerdv1.ToolDefinition{
					Name: fmt.Sprint("tool", i), Description: strings.Repeat("d", 10<<10),
				})
			}
			return out, nil
		}}
		w.decide = func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("tool7"), gate.wait(ctx, "")
			}
			return answers("done"), nil
		}
		disk := memory(nil)
		d := boot(t, disk, w)
		d.begin(t, "run")
		<-gate.reached
		d.crash(t)
		d = boot(t, disk, w)
		close(gate.open)
		if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
			t.Errorf("got %v", got)
		}
		if n := len(w.decides[len(w.decides)-1].GetTools()); n != 20 {
			t.Errorf("%d tools are offered after the restart", n)
		}
		d.verify(t)
	})
}

// TestBiggestTurn ends a run with all that one turn can hold, in a script in which redaction cuts nothing short.
func TestBiggestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		secret := " token=abcdefghijklmnop"
		text := strings.Repeat("語", (64<<10-100)/3) + secret
		w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			d := answers(text)
			d.Reasoning = text
			d.GetAnswer().MetadataJson = `{"m":"` + strings.Repeat("m", 16<<10-100) + `"}`
			return d, gate.wait(ctx, "")
		}}
		d := boot(t, memory(nil), w)
		if _, _, err := d.Start(t.Context(), "alice", &runnerdv1.StartRunRequest{
			RunId: "run", Agent: "agent", Task: text, ContextJson: `{"c":"` + strings.Repeat("c", 60<<10) + `"}`,
			MetadataJson: `{"m":"` + strings.Repeat("m", 16<<10-100) + `"}`,
		}); err != nil {
			t.Fatal(err)
		}
		<-gate.reached
		close(gate.open)
		got := d.rest(t, "run")
		if got.GetFinalAnswer().GetContent() != text || got.GetState() != runnerdv1.RunState_RUN_STATE_DONE {
			t.Errorf("got %v", got.GetState())
		}
		d.verify(t)
	})
}
