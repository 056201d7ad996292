package races

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// answer is what somebody was told.
type answer struct {
	what     string // vote, cancel, revoke
	vote     vote
	approval uint64 // of the vote
	grant    uint64 // of the revocation
	told     *runnerdv1.Approval
	reason   string // empty: OK
	err      error
}

func reasonOf(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	if err != nil {
		return status.Code(err).String()
	}
	return ""
}

// game is one run while it is played.
type game struct {
	t  *testing.T
	w  *world
	p  plot
	wg sync.WaitGroup

	mu      sync.Mutex
	answers []answer
}

// play plays a run to its end and returns its log, and what everybody was told.
func (w *world) play(t *testing.T, p plot) (log []*runnerdv1.Event, answers []answer) {
	g := &game{t: t, w: w, p: p}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := w.client(0).StartRun(ctx, &runnerdv1.StartRunRequest{RunId: p.run, Agent: p.agent, Task: strconv.Itoa(p.calls)}); err != nil {
		t.Errorf("StartRun: %v", err)
		return nil, nil
	}
	stream, err := w.client(1).StreamEvents(ctx, &runnerdv1.StreamEventsRequest{
		Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: p.run}, Follow: true, IncludeRaw: true,
	})
	if err != nil {
		t.Errorf("StreamEvents: %v", err)
		return nil, nil
	}
	var asked []*runnerdv1.Event
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Errorf("run %s: StreamEvents: %v", p.run, err)
			return log, nil
		}
		ev := m.GetEvent()
		log = append(log, ev)
		switch {
		case ev.GetToolCallPendingApproval() != nil:
			if asked = append(asked, ev); len(asked) == p.calls {
				g.begin(ctx, asked)
			} else if len(asked) > p.calls { // asked again after a revocation
				g.wg.Go(func() { g.cast(ctx, vote{verdict: deny}, ev) })
			}
		case ev.GetToolCallApproved().GetGrant() != nil && p.revoke:
			g.wg.Go(func() { g.revoke(ctx, ev.GetSequence()) })
		}
	}
	g.wg.Wait()
	return log, g.answers
}

// begin lets all that was plotted happen at once, and then denies what is still open.
func (g *game) begin(ctx context.Context, asked []*runnerdv1.Event) {
	start := make(chan struct{})
	var contest sync.WaitGroup
	for i, v := range g.p.votes {
		contest.Go(func() {
			<-start
			g.cast(ctx, v, asked[v.call], i)
		})
	}
	if g.p.cancel != runnerdv1.CancelMode_CANCEL_MODE_UNSPECIFIED {
		contest.Go(func() {
			<-start
			_, err := g.w.client(2).CancelRun(ctx, &runnerdv1.CancelRunRequest{RunId: g.p.run, Mode: g.p.cancel})
			g.note(answer{what: "cancel", reason: reasonOf(err), err: err})
		})
	}
	g.wg.Go(func() {
		time.Sleep(g.p.wait) // towards the deadline of the approvals
		close(start)
		contest.Wait()
		for _, ev := range asked {
			g.cast(ctx, vote{verdict: deny}, ev)
		}
	})
}

func (g *game) note(a answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answers = append(g.answers, a)
}

// cast gives a vote on what an event asks.
func (g *game) cast(ctx context.Context, v vote, asked *runnerdv1.Event, client ...int) {
	req := &runnerdv1.SubmitApprovalRequest{
		RunId: g.p.run, ApprovalId: asked.GetSequence(), Verdict: v.verdict, Grant: v.grant,
		ApprovalDigest: asked.GetToolCallPendingApproval().GetApprovalDigest(),
	}
	if v.edit != "" {
		req.EditedArgumentsJson = &v.edit
	}
	if v.wrong {
		req.ApprovalDigest = "k:0"
	}
	n := 3
	if len(client) > 0 {
		n = client[0]
	}
	resp, err := g.w.client(n).SubmitApproval(ctx, req)
	g.note(answer{what: "vote", vote: v, approval: asked.GetSequence(), told: resp.GetApproval(), reason: reasonOf(err), err: err})
}

func (g *game) revoke(ctx context.Context, grant uint64) {
	_, err := g.w.client(3).RevokeGrant(ctx, &runnerdv1.RevokeGrantRequest{RunId: g.p.run, GrantId: grant})
	g.note(answer{what: "revoke", grant: grant, reason: reasonOf(err), err: err})
}
