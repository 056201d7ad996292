package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// doubtful is a daemon with a second host that answers GetCall, as the test says by run.
type doubtful struct {
	*world
	desk *harness.Hands

	lines map[string]*relay // by agent: the way to the hands

	mu      sync.Mutex
	lookups map[string]func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error)
}

func newDoubtful(t *testing.T) *doubtful {
	t.Helper()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	d := &doubtful{world: w, lookups: map[string]func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error){}}
	if d.desk, err = harness.NewHands(harness.Tool("order", `{"type":"object"}`)); err != nil {
		t.Fatal(err)
	}
	d.desk.Lookup(func(req *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
		d.mu.Lock()
		lookup := d.lookups[req.GetRunId()]
		d.mu.Unlock()
		if lookup == nil {
			return nil, status.Error(codes.Internal, "no script")
		}
		return lookup(req)
	})
	w.cfg.ToolHosts["desk"] = &configv1.ToolHost{Address: d.desk.Addr}
	for _, name := range []string{"tells", "asks", "repeats"} {
		w.cfg.Agents[name].ToolHosts = []string{"hands", "desk"}
	}
	w.cfg.Agents["hasty"] = &configv1.Agent{
		DecideService: "brain", ToolHosts: []string{"hands"}, InDoubt: "fail", ToolTimeout: durationpb.New(time.Second),
		Policy: w.cfg.Agents["tells"].Policy,
	}
	d.lines = map[string]*relay{}
	for _, policy := range []string{"tells", "asks"} {
		line := &relay{to: w.hands.Addr, addr: "127.0.0.1:0"}
		if err := line.open(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(line.cut)
		name := policy + "-relayed"
		d.lines[name] = line
		w.cfg.ToolHosts[name] = &configv1.ToolHost{Address: line.addr}
		w.cfg.Agents[name] = &configv1.Agent{
			DecideService: "brain", ToolHosts: []string{name}, InDoubt: w.cfg.Agents[policy].InDoubt, Policy: w.cfg.Agents[policy].Policy,
		}
	}
	w.Daemon = harness.Start(t, w.cfg)
	return d
}

// lose lets the first attempts of a call end without an outcome; the effect is counted all the same.
func lose(attempts uint32, effects *atomic.Int32) harness.Handler {
	return func(req *runnerdv1.CallToolRequest, _ harness.CallStream) (*runnerdv1.ToolResult, error) {
		effects.Add(1)
		if req.GetAttempt() <= attempts {
			return nil, status.Error(codes.Unavailable, "the line broke")
		}
		return &runnerdv1.ToolResult{Text: fmt.Sprintf("attempt %d", req.GetAttempt())}, nil
	}
}

// lost is a run whose call of a tool loses its first attempts, and what came of it.
type lost struct {
	run     string
	effects *atomic.Int32
}

func (d *doubtful) lose(t *testing.T, agent, tool string, attempts uint32, changes ...with) lost {
	t.Helper()
	l := lost{effects: &atomic.Int32{}}
	handler := lose(attempts, l.effects)
	changes = append(changes, calls(byTool(map[string]harness.Handler{tool: handler})), func(_ *world, req *runnerdv1.StartRunRequest) {
		d.desk.Script(req.GetRunId(), handler)
	})
	l.run = d.play(t, agent, harness.Steps(harness.Calls(tool, "{}", "put", "{}"), harness.Answer("done")), changes...)
	return l
}

// told checks what the model is told of the first call, and whether the call after it ran.
func (d *doubtful) told(t *testing.T, run string, want runnerdv1.CallReason, next bool) *runnerdv1.Observation {
	t.Helper()
	ended(t, d.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	history := d.brain.Requests(run)[1].GetHistory()
	first, second := history[1].GetObservation(), history[2].GetObservation()
	equal(t, "reason of the first call", first.GetReason(), want)
	after := runnerdv1.CallReason_CALL_REASON_UNSPECIFIED
	if !next {
		after = runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN
	}
	equal(t, "reason of the call after it", second.GetReason(), after)
	return first
}

const (
	unknown   = runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME
	completed = runnerdv1.CallReason_CALL_REASON_UNSPECIFIED
)

// TestInDoubt plays calls without an outcome: each recovery class under each policy.
func TestInDoubt(t *testing.T) {
	t.Parallel()
	d := newDoubtful(t)

	for _, agent := range []string{"tells", "asks", "repeats"} {
		t.Run("REPEAT is sent again with its key, whatever the policy: "+agent, func(t *testing.T) {
			t.Parallel()
			l := d.lose(t, agent, "look", 1)
			equal(t, "result", d.told(t, l.run, completed, true).GetText(), "attempt 2")
			events := d.Events(t, l.run)
			order(t, events, "tool_call_started", "tool_call_retried", "tool_call_completed")
			equal(t, "doubts", harness.Count(events, "tool_call_in_doubt"), 0)
			sent := d.hands.Calls(l.run)
			equal(t, "second key", sent[1].Request.GetIdempotencyKey(), sent[0].Request.GetIdempotencyKey())
			equal(t, "tool calls counted", d.Run(t, l.run).GetToolCalls(), 2)
		})

		t.Run("RECONCILE takes the word of the host, whatever the policy: "+agent, func(t *testing.T) {
			t.Parallel()
			l := d.lose(t, agent, "order", 1, d.found(&runnerdv1.ToolResult{Text: "order 7"}))
			equal(t, "result", d.told(t, l.run, completed, true).GetText(), "order 7")
			done := d.UntilType(t, l.run, "tool_call_completed").GetToolCallCompleted()
			equal(t, "from GetCall", done.GetReconciled(), true)
			equal(t, "effects", l.effects.Load(), 1)
		})
	}

	t.Run("a reader without an outcome in three attempts has none", func(t *testing.T) {
		t.Parallel()
		l := d.lose(t, "tells", "look", 9)
		d.told(t, l.run, runnerdv1.CallReason_CALL_REASON_NO_OUTCOME, true)
		equal(t, "attempts", len(slices.DeleteFunc(d.hands.Calls(l.run), func(c harness.Call) bool { return c.Request.GetName() != "look" })), 3)
	})

	t.Run("RECONCILE: not seen is sent again, once more not seen is not executed", func(t *testing.T) {
		t.Parallel()
		notSeen := func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
			return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_NotSeen{}}, nil
		}
		l := d.lose(t, "tells", "order", 1, d.lookup(notSeen))
		equal(t, "result", d.told(t, l.run, completed, true).GetText(), "attempt 2")
		l = d.lose(t, "tells", "order", 9, d.lookup(notSeen))
		d.told(t, l.run, runnerdv1.CallReason_CALL_REASON_NOT_EXECUTED, true)
	})

	t.Run("RECONCILE: still running is asked again", func(t *testing.T) {
		t.Parallel()
		var asked atomic.Int32
		l := d.lose(t, "tells", "order", 1, d.lookup(func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
			if asked.Add(1) == 1 {
				return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Running{}}, nil
			}
			return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Finished{Finished: &runnerdv1.ToolResult{Text: "late", IsError: true}}}, nil
		}))
		equal(t, "result", d.told(t, l.run, runnerdv1.CallReason_CALL_REASON_TOOL_ERROR, true).GetText(), "late")
		equal(t, "effects", l.effects.Load(), 1)
	})

	// A host that cannot tell leaves a call in doubt as if it had no GetCall.
	for _, tool := range []string{"charge", "order"} {
		t.Run("fail tells the model: "+tool, func(t *testing.T) {
			t.Parallel()
			l := d.lose(t, "tells", tool, 1)
			has(t, d.told(t, l.run, unknown, false).GetText(), "nobody knows whether the call took effect")
			equal(t, "effects", l.effects.Load(), 1)
			doubts := harness.Only(d.Events(t, l.run), "tool_call_in_doubt")
			equal(t, "next", doubts[len(doubts)-1].GetToolCallInDoubt().GetNext(), runnerdv1.InDoubtNext_IN_DOUBT_NEXT_FAIL)
		})

		t.Run("retry sends it again, at most twice: "+tool, func(t *testing.T) {
			t.Parallel()
			l := d.lose(t, "repeats", tool, 2)
			equal(t, "result", d.told(t, l.run, completed, true).GetText(), "attempt 3")
			l = d.lose(t, "repeats", tool, 9)
			d.told(t, l.run, unknown, false)
			equal(t, "effects", l.effects.Load(), 3)
		})

		for name, verdict := range map[string]runnerdv1.ApprovalVerdict{"again": approve, "give up": deny, "settle": settle} {
			for modeName, changes := range map[string][]with{"WAITING_APPROVAL": nil, "PAUSED": {mode(pauseMode)}} {
				t.Run(fmt.Sprintf("ask: %s: %s, %s", tool, name, modeName), func(t *testing.T) {
					t.Parallel()
					l := d.lose(t, "asks", tool, 1, changes...)
					equal(t, "state", d.Idle(t, l.run).GetState().String(), "RUN_STATE_"+modeName)
					a := d.open(t, l.run, 1)[0]
					equal(t, "kind", a.GetKind(), runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT)
					equal(t, "attempt", a.GetAttempt(), 1)
					equal(t, "cause", a.GetCause(), runnerdv1.LostCause_LOST_CAUSE_STREAM)
					equal(t, "arguments", a.GetArgumentsJson(), "{}")
					d.refused(t, otherDigest(a), verdict, "DIGEST_MISMATCH")
					d.vote(t, a, verdict)
					switch verdict {
					case approve:
						equal(t, "result", d.told(t, l.run, completed, true).GetText(), "attempt 2")
						equal(t, "effects", l.effects.Load(), 2)
					case deny:
						d.told(t, l.run, unknown, false)
						equal(t, "effects", l.effects.Load(), 1)
					default:
						equal(t, "result", d.told(t, l.run, completed, true).GetText(), settlement)
						equal(t, "effects", l.effects.Load(), 1)
					}
					d.refused(t, a, otherVerdict(verdict), "RUN_ENDED")
				})
			}
		}
	}

	t.Run("ask: nobody answers in time", func(t *testing.T) {
		t.Parallel()
		l := d.lose(t, "asks", "charge", 1, patient(time.Second))
		d.told(t, l.run, unknown, false)
		failed := d.UntilType(t, l.run, "tool_call_failed").GetToolCallFailed()
		equal(t, "via", failed.GetResolution().GetVia(), runnerdv1.Via_VIA_TIMEOUT)
	})

	t.Run("ask: in mode DENY there is nobody to be asked", func(t *testing.T) {
		t.Parallel()
		d.told(t, d.lose(t, "asks", "charge", 1, mode(denyMode)).run, unknown, false)
	})

	t.Run("ask: a run that is stopped asks nobody", func(t *testing.T) {
		t.Parallel()
		l := d.lose(t, "asks", "charge", 1)
		a := d.open(t, l.run, 1)[0]
		d.Cancel(t, l.run, runnerdv1.CancelMode_CANCEL_MODE_STOP)
		ended(t, d.Done(t, l.run), runnerdv1.StopReason_STOP_REASON_STOPPED, "failed:system")
		failed := d.UntilType(t, l.run, "tool_call_failed").GetToolCallFailed()
		equal(t, "reason", failed.GetReason(), unknown)
		equal(t, "via", failed.GetResolution().GetVia(), runnerdv1.Via_VIA_CANCEL)
		d.refused(t, a, approve, "RUN_ENDED")
	})

	t.Run("a call past its deadline is lost like any other", func(t *testing.T) {
		t.Parallel()
		run := d.play(t, "hasty", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), calls(harness.HangCall))
		ended(t, d.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "cause", d.UntilType(t, run, "tool_call_in_doubt").GetToolCallInDoubt().GetCause(), runnerdv1.LostCause_LOST_CAUSE_TIMEOUT)
		equal(t, "reason", shown(t, d.world, run, 2).GetReason(), unknown)
	})

	t.Run("a call that never left is sent again, whatever its class and the policy", func(t *testing.T) {
		t.Parallel()
		for _, agent := range []string{"tells-relayed", "asks-relayed"} {
			line := d.lines[agent]
			run := d.play(t, agent, harness.Steps(
				func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
					line.cut() // the tools are pinned, nothing is being sent
					return harness.Send(s, harness.Calls("charge", "{}"))
				}, harness.Answer("done")))
			d.UntilType(t, run, "tool_call_started")
			retried := d.UntilType(t, run, "tool_call_retried").GetToolCallRetried()
			if err := line.open(); err != nil {
				t.Fatal(err)
			}
			equal(t, "cause", retried.GetCause(), runnerdv1.LostCause_LOST_CAUSE_NOT_SENT)
			ended(t, d.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			equal(t, "what the model is told", shown(t, d.world, run, 2).GetText(), "ok")
			equal(t, "calls that reached the host", len(d.hands.Calls(run)), 1)
			equal(t, "doubts", harness.Count(d.Events(t, run), "tool_call_in_doubt"), 0)
		}
	})

	t.Run("a call that its host refuses has an outcome", func(t *testing.T) {
		t.Parallel()
		run := d.play(t, "tells", harness.Steps(harness.Calls("charge", "{}"), harness.Answer("done")), calls(refuse(codes.FailedPrecondition)))
		ended(t, d.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "reason", shown(t, d.world, run, 2).GetReason(), runnerdv1.CallReason_CALL_REASON_HOST_REFUSED)
		equal(t, "attempts", len(d.hands.Calls(run)), 1)
	})
}

// lookup tells what GetCall says of the calls of a run.
func (d *doubtful) lookup(get func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error)) with {
	return func(_ *world, req *runnerdv1.StartRunRequest) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.lookups[req.GetRunId()] = get
	}
}

// found lets GetCall say that a call is finished.
func (d *doubtful) found(result *runnerdv1.ToolResult) with {
	return d.lookup(func(*runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
		return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Finished{Finished: result}}, nil
	})
}

func otherVerdict(verdict runnerdv1.ApprovalVerdict) runnerdv1.ApprovalVerdict {
	if verdict == deny {
		return approve
	}
	return deny
}

// relay is a line to a host that can be cut, so that there is nobody to call at its address.
type relay struct {
	to, addr string

	mu    sync.Mutex
	lis   net.Listener
	conns []net.Conn
}

func (r *relay) open() error {
	lis, err := new(net.ListenConfig).Listen(context.Background(), "tcp", r.addr)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lis, r.addr = lis, lis.Addr().String()
	go func() {
		for {
			from, err := lis.Accept()
			if err != nil {
				return
			}
			r.join(from)
		}
	}()
	return nil
}

func (r *relay) join(from net.Conn) {
	to, err := new(net.Dialer).DialContext(context.Background(), "tcp", r.to)
	if err != nil {
		_ = from.Close()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = append(r.conns, from, to)
	for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // ends with the line
			_ = pair[0].Close()
		}()
	}
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.lis.Close()
	for _, conn := range r.conns {
		_ = conn.Close()
	}
	r.conns = nil
}

// TestCrashInCall kills the daemon around one effect: before it, after it, and after its record.
func TestCrashInCall(t *testing.T) {
	t.Parallel()
	w := own(t)
	decision := harness.Calls("deploy_site", `{"cents": 100}`, "put", `{"mail": "paid"}`)
	type crash struct {
		run     string
		at      *gate
		effects atomic.Int32
	}
	// play approves the call and brings the run to the instant of the kill.
	play := func(agent string, handlers func(*crash) map[string]harness.Handler) *crash {
		c := &crash{at: newGate()}
		c.run = w.play(t, agent, harness.Steps(decision, harness.Answer("done")), calls(byTool(handlers(c))))
		w.Approve(t, c.run, approve)
		c.at.await(t)
		return c
	}
	charge := func(c *crash, before, after bool) harness.Handler {
		return func(_ *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
			if before {
				c.at.pass(s.Context())
				return nil, s.Context().Err()
			}
			c.effects.Add(1)
			if after {
				c.at.pass(s.Context())
			}
			return &runnerdv1.ToolResult{Text: "charged"}, nil
		}
	}
	only := func(before, after bool) func(*crash) map[string]harness.Handler {
		return func(c *crash) map[string]harness.Handler {
			return map[string]harness.Handler{"deploy_site": charge(c, before, after)}
		}
	}
	before := play("tells", only(true, false))
	after := play("tells", only(false, true))
	asked := play("asks", only(false, true))
	recorded := play("tells", func(c *crash) map[string]harness.Handler {
		return map[string]harness.Handler{
			"deploy_site": charge(c, false, false),
			"put": func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				if req.GetAttempt() == 1 {
					c.at.pass(s.Context())
				}
				return &runnerdv1.ToolResult{Text: "mailed"}, nil
			},
		}
	})
	w.Kill()
	w.Restart(t)

	for name, c := range map[string]*crash{"before": before, "after": after} {
		t.Run("CASE-17 killed "+name+" the effect: in doubt, never sent again", func(t *testing.T) {
			ended(t, w.Done(t, c.run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
			history := w.brain.Requests(c.run)[1].GetHistory()
			equal(t, "charge", history[1].GetObservation().GetReason(), unknown)
			equal(t, "notify", history[2].GetObservation().GetReason(), runnerdv1.CallReason_CALL_REASON_PRIOR_OUTCOME_UNKNOWN)
			equal(t, "calls at the host", len(w.hands.Calls(c.run)), 1)
			order(t, w.Events(t, c.run), "tool_call_approved", "tool_call_started", "run_recovered", "tool_call_in_doubt",
				"tool_call_failed", "tool_call_blocked", "iteration_started")
		})
	}

	t.Run("CASE-17 killed after the effect: the old approval is spent, a person settles, the next call runs", func(t *testing.T) {
		a := w.open(t, asked.run, 1)[0]
		equal(t, "kind", a.GetKind(), runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT)
		equal(t, "cause", a.GetCause(), runnerdv1.LostCause_LOST_CAUSE_RESTART)
		used := w.UntilType(t, asked.run, "tool_call_started").GetToolCallStarted().GetApprovalId()
		if used == a.GetApprovalId() {
			t.Errorf("the call asks under the approval %d that it used", used)
		}
		w.vote(t, a, settle)
		ended(t, w.Done(t, asked.run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "effects", asked.effects.Load(), 1)
		equal(t, "calls at the host", len(w.hands.Calls(asked.run)), 2)
		equal(t, "what the model is told", w.brain.Requests(asked.run)[1].GetHistory()[1].GetObservation().GetText(), settlement)
	})

	t.Run("CASE-17 killed after the record: it stands, only the idempotent call is sent again", func(t *testing.T) {
		ended(t, w.Done(t, recorded.run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "effects", recorded.effects.Load(), 1)
		sent := w.hands.Calls(recorded.run)
		equal(t, "calls at the host", len(sent), 3)
		equal(t, "key of the second notify", sent[2].Request.GetIdempotencyKey(), sent[1].Request.GetIdempotencyKey())
		history := w.brain.Requests(recorded.run)[1].GetHistory()
		equal(t, "charge", history[1].GetObservation().GetText(), "charged")
		equal(t, "notify", history[2].GetObservation().GetText(), "mailed")
	})
}
