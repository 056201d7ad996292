package runner

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// TestTurnsWithinAnAppend brings decisions, results and inputs that are as big as their bounds allow: whatever the
// world says, what follows fits into one append of the store.
func TestTurnsWithinAnAppend(t *testing.T) {
	many := func(name func(int) string, id, arguments string) *runnerdv1.Decision {
		out := new(runnerdv1.ToolCalls)
		for i := range runstate.MaxCalls {
			out.Calls = append(out.Calls, &runnerdv1.ToolCall{Id: id, Name: name(i), ArgumentsJson: arguments})
		}
		return &runnerdv1.Decision{Next: &runnerdv1.Decision_ToolCalls{ToolCalls: out}}
	}
	named := func(name string) func(int) string { return func(int) string { return name } }
	secret := `"token":"abcdefghijklmnop"`
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, first := range map[string]*runnerdv1.Decision{
		"128 calls that are redacted":    many(named("charge"), long(1024), `{`+secret+`,"x":"`+long(990)+`"}`),
		"128 calls of 7 KiB":             many(named("charge"), long(900), `{`+secret+`,"x":"`+long(6000)+`"}`),
		"128 asks":                       many(named("ask"), long(1024), `{`+secret+`,"x":"`+long(990)+`"}`),
		"128 failed checks":              many(named("strict"), long(1024), `{`+secret+`,"x":"`+long(990)+`"}`),
		"128 unknown tools":              many(func(i int) string { return fmt.Sprint(long(6000), i) }, long(1024), `{`+secret+`}`),
		"a long tool name":               many(named(long(900<<10/runstate.MaxCalls)), "", `{}`),
		"128 arguments that are no JSON": many(named("charge"), long(1024), long(6000)),
		"an answer with huge metadata": {Next: &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{
			Content: "done", MetadataJson: `{"m":"` + long(900<<10) + `"}`,
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{list: strictTools}
				w.decide = func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
					if req.GetIteration() == 1 {
						return first, nil
					}
					return answers("done"), nil
				}
				d := boot(t, memory(nil), w)
				d.begin(t, "run")
				for range 3 {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					got, _, err := d.WaitRun(ctx, "run", true)
					cancel()
					if err != nil {
						t.Fatalf("%v; events %v", err, len(types(t, d, "run")))
					}
					if got.GetState() == runnerdv1.RunState_RUN_STATE_DONE {
						break
					}
					time.Sleep(2 * time.Hour) // asks time out
				}
				if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" && got.GetStopReason() == 0 {
					t.Errorf("got %v", got.GetState())
				}
				if d.stoppedRun("run") {
					t.Error("the run was stopped")
				}
				d.verify(t)
			})
		})
	}
	t.Run("results with many artifacts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newHold()
			w := &world{}
			w.decide = func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
				if req.GetIteration() == 1 {
					return calls("read", "read", "read", "read"), nil
				}
				return answers("done"), nil
			}
			w.call = func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
				out := &runnerdv1.ToolResult{
					Text:           "token=abcdefghijklmnop " + long(maxShown-100),
					StructuredJson: `{` + secret + `,"m":"` + long(64<<10-100) + `"}`,
				}
				for range maxResultBlobs {
					out.Blobs = append(out.Blobs, &runnerdv1.Blob{Name: long(1024), MimeType: long(256), Data: []byte("x")})
				}
				return out, gate.wait(ctx, "")
			}
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			for range 4 {
				<-gate.reached
			}
			close(gate.open)
			if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
				t.Errorf("got %v", got)
			}
			d.verify(t)
		})
	})
	t.Run("a start with all there can be", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := boot(t, memory(nil), &world{})
			req := &runnerdv1.StartRunRequest{
				RunId: "run", Agent: "agent", Task: "token=abcdefghijklmnop " + long(60<<10), MetadataJson: `{` + secret + `,"m":"` + long(16<<10-100) + `"}`,
				ContextJson: `{"c":"` + long(60<<10) + `"}`, Labels: make(map[string]string), Model: long(128), Effort: long(64),
			}
			for i := range 32 {
				req.Labels[fmt.Sprint(i, long(60))] = long(250)
			}
			for range 256 {
				req.InitialObservations = append(req.InitialObservations, &runnerdv1.InitialObservation{
					Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, ToolName: long(128), ProviderCallId: long(256),
					Text: "token=abcdefghijklmnop " + long(1000), StructuredJson: `{` + secret + `,"m":"` + long(1000) + `"}`,
				})
			}
			if _, _, err := d.Start(t.Context(), "alice", req); err != nil {
				t.Fatal(err)
			}
			if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
				t.Errorf("got %v", got)
			}
			d.verify(t)
		})
	})
	t.Run("very many inputs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gate := newHold()
			slow := &slowLog{pause: make(chan struct{})}
			disk := memory(nil)
			slow.Log = disk.log
			disk.log = slow
			w := &world{decide: func(ctx context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
				if req.GetIteration() > 1 {
					return answers("done"), nil
				}
				return answers("done"), gate.wait(ctx, "")
			}}
			d := boot(t, disk, w)
			d.begin(t, "run")
			<-gate.reached
			slow.slow.Store(true)
			failed := make(chan error, 6000)
			for i := range cap(failed) {
				go func() {
					_, err := d.Deliver(t.Context(), "run", runstate.Input{Principal: "alice", Text: "go on", RequestID: fmt.Sprintf("%0100d", i)})
					failed <- err
				}()
			}
			synctest.Wait() // the first is on its way to the store, the others wait for it
			close(slow.pause)
			for range cap(failed) {
				if err := <-failed; err != nil {
					t.Fatal(err)
				}
			}
			close(gate.open)
			if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
				t.Errorf("got %v", got)
			}
		})
	})
}

// slowLog takes a while for appends.
type slowLog struct {
	auditstore.Log
	slow  atomic.Bool
	pause chan struct{}
}

func (l *slowLog) Append(ctx context.Context, c *auditstore.Claim, a auditstore.Append) (auditstore.Position, error) {
	if l.slow.Load() {
		<-l.pause
	}
	return l.Log.Append(ctx, c, a)
}

func strictTools(context.Context, string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	return &runnerdv1.ToolHostServiceListToolsResponse{Tools: []*runnerdv1.ToolDefinition{
		{Name: "charge"},
		{Name: "ask"},
		{Name: "strict", InputSchemaJson: `{"type":"object","required":["a"],"description":"` + strings.Repeat("s", 6000) + `","properties":{"x":{"enum":["` +
			strings.Repeat("e", 6000) + `"]}},"additionalProperties":false}`},
	}}, nil
}

func (d *daemon) stoppedRun(run string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stopped[run]
}
