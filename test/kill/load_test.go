package kill

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// load is runs that go on under the kills, and what was promised about them.
type load struct {
	daemon *harness.Daemon
	brain  *harness.Brain
	hands  *harness.Hands
	seed   uint64

	mu   sync.Mutex
	runs map[string]*run
}

// run is one run as its caller knows it.
type run struct {
	id      string
	seen    [][sha256.Size]byte // public events as they came, by sequence
	inputs  map[uint64]string   // acknowledged, by the sequence that was named
	answers map[uint64]runnerdv1.ApprovalVerdict
	tooLate []uint64 // approvals that were closed before they were answered
}

// choose is a number below n that depends on the seed and the names alone.
func (l *load) choose(n int, names ...any) int {
	h := fnv.New64a()
	fmt.Fprintln(h, append([]any{l.seed}, names...)...)
	sum := h.Sum64()
	return int((sum ^ sum>>32) % uint64(n))
}

func newLoad(seed uint64) (*load, *configv1.Config, error) {
	brain, err := harness.NewBrain()
	if err != nil {
		return nil, nil, err
	}
	hands, err := harness.NewHands(
		harness.Tool("look", "{}", harness.ReadOnly),
		harness.Tool("put", "{}", harness.Idempotent),
		harness.Tool("charge", "{}"),        // of class NONE: never twice
		harness.Tool("deploy_charge", "{}"), // the same, and a person is asked
	)
	if err != nil {
		return nil, nil, err
	}
	agent := func(inDoubt string) *configv1.Agent {
		return &configv1.Agent{
			DecideService: "brain", ToolHosts: []string{"hands"}, Policy: &configv1.Policy{Mode: "allow", ApprovalFor: []string{"deploy_*"}}, InDoubt: inDoubt,
			Budget: &runnerdv1.Budget{ // the kills are not to end runs
				MaxIterations: proto.Uint32(1000), MaxToolCalls: proto.Uint32(1000), MaxConsecutiveFailures: proto.Uint32(0),
				MaxConsecutiveRefusals: proto.Uint32(0), MaxContextTokens: proto.Uint32(1_000_000),
			},
		}
	}
	cfg := &configv1.Config{
		DecideServices: map[string]*configv1.DecideService{"brain": {Address: brain.Addr}},
		ToolHosts:      map[string]*configv1.ToolHost{"hands": {Address: hands.Addr}},
		Agents:         map[string]*configv1.Agent{"tells": agent("fail"), "asks": agent("ask")},
	}
	return &load{brain: brain, hands: hands, seed: seed, runs: map[string]*run{}}, cfg, nil
}

// decide is the script of a run: some rounds of calls, a question among them, then an answer.
func (l *load) decide(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
	run, i := req.GetRunId(), req.GetIteration()
	if err := work(s.Context(), l.choose(10, run, i, "time")); err != nil {
		return err
	}
	switch rounds := 4 + l.choose(6, run); {
	case int(i) > rounds:
		return harness.Send(s, harness.Answer("done "+run))
	case l.choose(8, run, i, "question") == 0:
		return harness.Send(s, harness.Ask(fmt.Sprintf("go on after %d?", i)))
	}
	var calls []string
	for n := range 1 + l.choose(4, run, i) {
		names := []string{"look", "look", "put", "put", "charge", "charge", "look", "deploy_charge"}
		calls = append(calls, names[l.choose(len(names), run, i, n)], fmt.Sprintf(`{"n": %d}`, n))
	}
	return harness.Send(s, harness.Costing(harness.Calls(calls...), 0.01, 10, 1))
}

// call executes a call: its result depends on its key alone.
func (l *load) call(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
	if err := work(s.Context(), l.choose(10, req.GetIdempotencyKey())); err != nil {
		return nil, err
	}
	return &runnerdv1.ToolResult{Text: "result of " + req.GetIdempotencyKey()}, nil
}

// work takes some time, so that kills fall into it.
func work(ctx context.Context, tens int) error {
	select {
	case <-time.After(time.Duration(tens) * 10 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// again repeats a call until the daemon answers it.
func again(ctx context.Context, call func() error) error {
	for {
		err := call()
		if code := status.Code(err); code != codes.Unavailable && code != codes.ResourceExhausted {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// one starts a run, watches it to its end over all kills, and answers what it asks.
func (l *load) one(ctx context.Context, id string) error {
	r := &run{id: id, inputs: map[uint64]string{}, answers: map[uint64]runnerdv1.ApprovalVerdict{}}
	l.brain.Script(id, l.decide)
	l.hands.Script(id, l.call)
	agent := []string{"tells", "asks"}[l.choose(2, id, "agent")]
	err := again(ctx, func() error {
		_, err := l.daemon.Runs.StartRun(ctx, &runnerdv1.StartRunRequest{RunId: id, Agent: agent, Task: "go on until the end"})
		return err
	})
	if err != nil {
		return fmt.Errorf("StartRun %s: %w", id, err)
	}
	l.mu.Lock()
	l.runs[id] = r
	l.mu.Unlock()
	return again(ctx, func() error { return l.watch(ctx, r) })
}

// watch reads on after the last sequence it saw.
func (l *load) watch(ctx context.Context, r *run) error {
	last := uint64(len(r.seen))
	var failed error
	err := l.daemon.Frames(ctx, &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: r.id}, AfterSequence: &last, Follow: true,
	}, func(f harness.Frame) bool {
		if want := uint64(len(r.seen) + 1); f.Event.GetSequence() != want {
			failed = fmt.Errorf("run %s: event %d came where %d was due", r.id, f.Event.GetSequence(), want)
			return false
		}
		r.seen = append(r.seen, f.Digest())
		failed = l.respond(ctx, r, f.Event)
		return failed == nil
	})
	return errors.Join(failed, err)
}

// respond does what people do.
func (l *load) respond(ctx context.Context, r *run, ev *runnerdv1.Event) error {
	switch e := ev.GetPayload().(type) {
	case *runnerdv1.Event_InputRequested:
		id := fmt.Sprintf("answer-%d", ev.GetSequence())
		return again(ctx, func() error {
			answer, err := l.daemon.Runs.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: r.id, RequestId: id, Text: "yes"})
			if err == nil {
				r.inputs[answer.GetSequence()] = id
			}
			return err
		})
	case *runnerdv1.Event_ToolCallPendingApproval:
		verdict := runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
		if l.choose(4, r.id, ev.GetSequence()) == 0 {
			verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
		}
		return l.vote(ctx, r, ev.GetSequence(), e.ToolCallPendingApproval.GetApprovalDigest(), verdict)
	case *runnerdv1.Event_ToolCallInDoubt:
		if e.ToolCallInDoubt.GetNext() != runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
			return nil
		}
		verdict := runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY // never again: the ledger is to show each charge once
		if l.choose(2, r.id, ev.GetSequence()) == 0 {
			verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
		}
		return l.vote(ctx, r, ev.GetSequence(), e.ToolCallInDoubt.GetApprovalDigest(), verdict)
	}
	return nil
}

func (l *load) vote(ctx context.Context, r *run, approval uint64, digest string, verdict runnerdv1.ApprovalVerdict) error {
	req := &runnerdv1.SubmitApprovalRequest{RunId: r.id, ApprovalId: approval, ApprovalDigest: digest, Verdict: verdict}
	if verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE {
		req.Result = &runnerdv1.SettledResult{Text: "a person looked"}
	}
	return again(ctx, func() error {
		_, err := l.daemon.Runs.SubmitApproval(ctx, req)
		switch status.Code(err) {
		case codes.OK:
			r.answers[approval] = verdict
		case codes.FailedPrecondition: // an earlier call of the decision came to nobody knows what: this one will not run
			r.tooLate = append(r.tooLate, approval)
			return nil
		}
		return err
	})
}
