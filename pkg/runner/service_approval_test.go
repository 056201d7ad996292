package runner

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	voteYes    = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
	voteNo     = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
	voteSettle = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE
)

// asked starts a run that asks for an approval and returns it.
func (f *face) asked(run, task string) *runnerdv1.Approval {
	f.t.Helper()
	f.start(f.owner(), run, task)
	got := f.settle(run)
	if len(got.GetApprovals()) != 1 {
		f.t.Fatalf("run %s has no open approval: %v", run, got)
	}
	return got.GetApprovals()[0]
}

// vote answers an approval as the owner.
func (f *face) vote(a *runnerdv1.Approval, verdict runnerdv1.ApprovalVerdict, change ...func(*runnerdv1.SubmitApprovalRequest)) (*runnerdv1.Approval, error) {
	req := &runnerdv1.SubmitApprovalRequest{
		RunId: a.GetRunId(), ApprovalId: a.GetApprovalId(), Verdict: verdict, ApprovalDigest: a.GetApprovalDigest(), Reason: "because",
	}
	for _, c := range change {
		c(req)
	}
	resp, err := f.runs.SubmitApproval(f.owner(), req)
	return resp.GetApproval(), err
}

func TestSubmitApproval(t *testing.T) {
	t.Parallel()
	rowFace(t, "E-43 T-113 an approval lets its call run once", func(f *face) {
		t := f.t
		open := f.asked("r1", "deploy:{\"to\":\"prod\"}\nask:and now?\nanswer:done")
		wrong := func(r *runnerdv1.SubmitApprovalRequest) { r.ApprovalDigest = "k1:00" }
		other := func(r *runnerdv1.SubmitApprovalRequest) { r.ApprovalId = 3 }
		late := func(r *runnerdv1.SubmitApprovalRequest) { r.ApprovalId = 999 }
		withResult := func(r *runnerdv1.SubmitApprovalRequest) { r.Result = &runnerdv1.SettledResult{Text: "it ran"} }
		refused := func(verdict runnerdv1.ApprovalVerdict, code codes.Code, reason string, change ...func(*runnerdv1.SubmitApprovalRequest)) {
			t.Helper()
			_, err := f.vote(open, verdict, change...)
			wantReason(t, err, code, reason)
		}
		refused(voteYes, codes.FailedPrecondition, "DIGEST_MISMATCH", wrong)
		refused(voteYes, codes.NotFound, "APPROVAL_NOT_FOUND", other)
		refused(voteYes, codes.NotFound, "APPROVAL_NOT_FOUND", late)
		refused(voteSettle, codes.InvalidArgument, "INVALID_REQUEST")
		refused(voteYes, codes.InvalidArgument, "INVALID_REQUEST", withResult)
		refused(voteSettle, codes.InvalidArgument, "VERDICT_NOT_POSSIBLE", withResult)
		_, err := f.runs.SubmitApproval(f.anonymous(), &runnerdv1.SubmitApprovalRequest{
			RunId: "r1", ApprovalId: open.GetApprovalId(), Verdict: voteYes, ApprovalDigest: open.GetApprovalDigest(),
		})
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")

		first, err := f.vote(open, voteYes)
		if err != nil {
			t.Fatal(err)
		}
		if first.GetVia() != runnerdv1.Via_VIA_HUMAN || first.GetVerdict() != voteYes || first.GetClosedBy() != "local:owner" ||
			first.GetReason() != "because" || first.GetClosedAt() == nil || first.GetTool() != "deploy" || first.GetAgent() != "demo" {
			t.Errorf("closed: %v", first)
		}
		if run := f.settle("r1"); run.GetToolCalls() != 1 || run.GetState() != runnerdv1.RunState_RUN_STATE_WAITING_INPUT {
			t.Fatalf("the call did not run: %v", run)
		}
		again, err := f.vote(open, voteYes)
		if err != nil || !proto.Equal(again, first) {
			t.Errorf("the same verdict again: %v, %v, first %v", again, err, first)
		}
		refused(voteNo, codes.FailedPrecondition, "ALREADY_RESOLVED")
		refused(voteYes, codes.FailedPrecondition, "DIGEST_MISMATCH", wrong)
		refused(voteSettle, codes.InvalidArgument, "VERDICT_NOT_POSSIBLE", withResult)

		if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "end"}); err != nil {
			t.Fatal(err)
		}
		f.settle("r1")
		refused(voteNo, codes.FailedPrecondition, "RUN_ENDED")
		if last, err := f.vote(open, voteYes); err != nil || !proto.Equal(last, first) {
			t.Errorf("the same verdict after the end: %v, %v", last, err)
		}
		starts := 0
		for _, resp := range f.events(f.owner(), "r1") {
			if resp.GetEvent().GetToolCallStarted() != nil {
				starts++
			}
		}
		if starts != 1 {
			t.Errorf("the call started %d times", starts)
		}
	})
}

func TestApprovalClosedOtherwise(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		timedOut := f.asked("r1", "deploy:{}\nask:what now?")
		time.Sleep(2 * time.Hour)
		f.settle("r1")
		_, err := f.vote(timedOut, voteYes)
		wantReason(t, err, codes.FailedPrecondition, "TIMED_OUT")
		_, err = f.vote(timedOut, voteNo)
		wantReason(t, err, codes.FailedPrecondition, "TIMED_OUT")
		closed, err := f.runs.GetApproval(f.owner(), &runnerdv1.GetApprovalRequest{RunId: "r1", ApprovalId: timedOut.GetApprovalId()})
		if err != nil || closed.GetApproval().GetVia() != runnerdv1.Via_VIA_TIMEOUT || closed.GetApproval().GetArgumentsJson() != "{}" {
			t.Errorf("timed out: %v, %v", closed, err)
		}

		cancelled := f.asked("r2", "deploy:{}")
		if _, err := f.runs.CancelRun(f.owner(), &runnerdv1.CancelRunRequest{RunId: "r2", Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP}); err != nil {
			t.Fatal(err)
		}
		_, err = f.vote(cancelled, voteYes)
		wantReason(t, err, codes.FailedPrecondition, "RUN_ENDED")
	})
}

// TestClosedReason walks what cannot be brought about at will.
func TestClosedReason(t *testing.T) {
	t.Parallel()
	running, done := runnerdv1.RunState_RUN_STATE_RUNNING, runnerdv1.RunState_RUN_STATE_DONE
	for _, tt := range []struct {
		via     runnerdv1.Via
		verdict runnerdv1.ApprovalVerdict
		asked   runnerdv1.ApprovalVerdict
		digest  string
		state   runnerdv1.RunState
		want    string
	}{
		{runnerdv1.Via_VIA_HUMAN, voteYes, voteYes, "d", running, ""},
		{runnerdv1.Via_VIA_HUMAN, voteYes, voteYes, "d", done, ""},
		{runnerdv1.Via_VIA_HUMAN, voteYes, voteYes, "x", running, "DIGEST_MISMATCH"},
		{runnerdv1.Via_VIA_HUMAN, voteYes, voteYes, "x", done, "RUN_ENDED"},
		{runnerdv1.Via_VIA_HUMAN, voteYes, voteNo, "d", running, "ALREADY_RESOLVED"},
		{runnerdv1.Via_VIA_HUMAN, voteNo, voteYes, "x", running, "ALREADY_RESOLVED"},
		{runnerdv1.Via_VIA_HUMAN, voteNo, voteYes, "d", done, "RUN_ENDED"},
		{runnerdv1.Via_VIA_TIMEOUT, voteNo, voteNo, "d", running, "TIMED_OUT"},
		{runnerdv1.Via_VIA_TIMEOUT, voteNo, voteYes, "d", running, "TIMED_OUT"},
		{runnerdv1.Via_VIA_TIMEOUT, voteNo, voteNo, "d", done, "RUN_ENDED"},
		{runnerdv1.Via_VIA_CANCEL, voteNo, voteNo, "d", running, "CANCELLED"},
		{runnerdv1.Via_VIA_CANCEL, voteNo, voteYes, "d", done, "RUN_ENDED"},
		{runnerdv1.Via_VIA_HUMAN, voteYes, voteSettle, "d", running, "VERDICT_NOT_POSSIBLE"},
	} {
		got := ""
		if e := closedReason(
			&runnerdv1.SubmitApprovalRequest{Verdict: tt.asked, ApprovalDigest: tt.digest},
			&loggedApproval{Approval: &runnerdv1.Approval{
				Via: tt.via, Verdict: tt.verdict, ApprovalDigest: "d", Kind: runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL,
			}}, tt.state,
		); e != nil {
			got = ReasonName(e.Reason)
		}
		if got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		big := strings.Repeat("0123456789", 10_000)
		for run, result := range map[string]*runnerdv1.SettledResult{
			"small":  {Text: "it was charged"},
			"failed": {Text: "it was not", IsError: true},
			"large":  {Text: big, StructuredJson: `{"ok":true}`},
		} {
			open := f.asked(run, "charge:{}\nanswer:done")
			if open.GetKind() != runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT || open.GetAttempt() != 1 {
				t.Fatalf("asked %v", open)
			}
			give := func(r *runnerdv1.SubmitApprovalRequest) { r.Result = result }
			bad := func(r *runnerdv1.SubmitApprovalRequest) {
				r.Result = &runnerdv1.SettledResult{StructuredJson: "{"}
			}
			_, err := f.vote(open, voteSettle, bad)
			wantReason(t, err, codes.InvalidArgument, "INVALID_REQUEST")
			first, err := f.vote(open, voteSettle, give)
			if err != nil {
				t.Fatal(err)
			}
			again, err := f.vote(open, voteSettle, give)
			if err != nil || !proto.Equal(again, first) || again.GetVerdict() != voteSettle {
				t.Errorf("again %v, %v, first %v", again, err, first)
			}
			f.settle(run)
			for _, resp := range f.events(f.owner(), run, rawly) {
				if done := resp.GetEvent().GetToolCallCompleted(); done != nil && (result.GetIsError() || !strings.HasPrefix(result.GetText(), done.GetText())) {
					t.Errorf("%s: completed %.80v", run, done)
				}
				if failed := resp.GetEvent().GetToolCallFailed(); failed != nil && (!result.GetIsError() || failed.GetMessage() != "it was not") {
					t.Errorf("%s: failed %.80v", run, failed)
				}
				if done := resp.GetEvent().GetToolCallCompleted(); run == "large" && done != nil {
					if !done.GetTextTruncated() || len(done.GetArtifacts()) != 1 || done.GetStructuredJson() != `{"ok":true}` {
						t.Errorf("large: %.200v", done)
					}
					if got := f.artifact(f.owner(), run, done.GetArtifacts()[0].GetArtifactId(), 0); string(got) != big {
						t.Errorf("large: %d bytes were kept", len(got))
					}
				}
			}
		}
	})
}

// TestNothingIsStoredInVain sends big edits that close nothing and looks for what they may have left behind.
func TestNothingIsStoredInVain(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		big := `{"a":"` + strings.Repeat("x", 100_000) + `"}`
		sum := sha256.Sum256([]byte(big))
		kept := func(a *runnerdv1.Approval) bool {
			_, err := f.readArtifact(f.owner(), a.GetRunId(), fmt.Sprintf("edited.%d.%x", a.GetApprovalId(), sum[:8]), 0)
			return err == nil
		}
		edit := func(r *runnerdv1.SubmitApprovalRequest) { r.EditedArgumentsJson = &big }
		wrong := func(r *runnerdv1.SubmitApprovalRequest) { r.ApprovalDigest = "k1:00" }
		refused := func(a *runnerdv1.Approval, code codes.Code, reason string, change ...func(*runnerdv1.SubmitApprovalRequest)) {
			t.Helper()
			_, err := f.vote(a, voteYes, append(change, edit)...)
			wantReason(t, err, code, reason)
			if kept(a) {
				t.Errorf("an edit of approval %d that is refused with %s is kept", a.GetApprovalId(), reason)
			}
		}
		open := f.asked("r1", "deploy:{}\nask:and?")
		refused(open, codes.FailedPrecondition, "DIGEST_MISMATCH", wrong)
		if _, err := f.vote(open, voteNo); err != nil {
			t.Fatal(err)
		}
		refused(open, codes.FailedPrecondition, "ALREADY_RESOLVED")
		refused(f.asked("r2", "charge:{}"), codes.InvalidArgument, "VERDICT_NOT_POSSIBLE")
		refused(&runnerdv1.Approval{RunId: "r2", ApprovalId: 1, ApprovalDigest: "k1:00"}, codes.NotFound, "APPROVAL_NOT_FOUND")
		taken := f.asked("r3", "deploy:{}\nask:and?")
		if _, err := f.vote(taken, voteYes, edit); err != nil || !kept(taken) {
			t.Errorf("an edit that is taken is not kept: %v", err)
		}
	})
}

func TestListApprovals(t *testing.T) {
	t.Parallel()
	rowFace(t, "E-41 T-110 what will run is shown from the real arguments", func(f *face) {
		t := f.t
		sizes := []int{10, 4096, 4097, 50_000, 200_000}
		arguments := make(map[string]string)
		var order []string
		for i, size := range sizes {
			run := fmt.Sprint("r", i)
			text := `{"a":"` + strings.Repeat("é", (size-8)/2) + `"}`
			text += strings.Repeat(" ", size-len(text))
			arguments[run] = text
			order = append(order, run)
			f.asked(run, "deploy:"+text)
			time.Sleep(time.Second)
		}
		_, err := f.runs.ListApprovals(f.anonymous(), &runnerdv1.ListApprovalsRequest{})
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")

		var got []string
		req := &runnerdv1.ListApprovalsRequest{PageSize: 2}
		for {
			resp, err := f.runs.ListApprovals(f.owner(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range resp.GetApprovals() {
				got = append(got, a.GetRunId())
				text := arguments[a.GetRunId()]
				cut := len(text) > 4096
				if a.GetArgumentsSize() != uint64(len(text)) || a.GetArgumentsCut() != cut || !cut && a.GetArgumentsJson() != text {
					t.Errorf("%s: %d bytes shown as %.100q", a.GetRunId(), len(text), a.GetArgumentsJson())
				}
				if shown := a.GetArgumentsJson(); cut && (len(shown) > 4200 || !strings.HasPrefix(shown, text[:2000]) ||
					!strings.HasSuffix(shown, text[len(text)-2000:]) || !strings.Contains(shown, "not shown")) {
					t.Errorf("%s: cut to %.100q", a.GetRunId(), shown)
				}
				whole, err := f.runs.GetApproval(f.owner(), &runnerdv1.GetApprovalRequest{RunId: a.GetRunId(), ApprovalId: a.GetApprovalId()})
				if err != nil || whole.GetApproval().GetArgumentsJson() != text || whole.GetApproval().GetArgumentsCut() {
					t.Errorf("%s: whole: %v", a.GetRunId(), err)
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if strings.Join(got, " ") != strings.Join(order, " ") {
			t.Errorf("listed %v", got)
		}
		one, err := f.runs.ListApprovals(f.owner(), &runnerdv1.ListApprovalsRequest{RunId: "r3"})
		if err != nil || len(one.GetApprovals()) != 1 || one.GetApprovals()[0].GetRunId() != "r3" {
			t.Errorf("of one run: %v, %v", one, err)
		}
		if _, err := f.vote(one.GetApprovals()[0], voteNo); err != nil {
			t.Fatal(err)
		}
		one, err = f.runs.ListApprovals(f.owner(), &runnerdv1.ListApprovalsRequest{RunId: "r3"})
		if err != nil || len(one.GetApprovals()) != 0 {
			t.Errorf("after the verdict: %v, %v", one, err)
		}
		_, err = f.runs.GetApproval(f.owner(), &runnerdv1.GetApprovalRequest{RunId: "r3", ApprovalId: 1})
		wantReason(t, err, codes.NotFound, "APPROVAL_NOT_FOUND")
		_, err = f.runs.GetApproval(f.owner(), &runnerdv1.GetApprovalRequest{RunId: "none", ApprovalId: 1})
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")
	})
}

// TestVerdictsRace: of many who answer at once one wins, and all who said the same hear the same.
func TestVerdictsRace(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		open := f.asked("r1", "deploy:{}\nask:and?")
		var mu sync.Mutex
		heard := make(map[string]int)
		var all sync.WaitGroup
		for i := range 20 {
			verdict := voteYes
			if i%2 == 1 {
				verdict = voteNo
			}
			all.Go(func() {
				a, err := f.vote(open, verdict)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					heard["refused"]++
				} else {
					heard[a.GetVerdict().String()]++
				}
			})
		}
		all.Wait()
		if heard["refused"] != 10 || len(heard) != 2 {
			t.Errorf("heard %v", heard)
		}
	})
}

func TestHeadAndTail(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("é", 100) // two bytes each
	got := headAndTail(text[:21], text[len(text)-21:], len(text))
	want := strings.Repeat("é", 10) + "\n... 160 bytes are not shown ...\n" + strings.Repeat("é", 10)
	if got != want {
		t.Errorf("%q", got)
	}
}

// artifact reads an artifact from an offset to its end.
func (f *face) artifact(ctx context.Context, run, id string, offset uint64) []byte {
	f.t.Helper()
	data, err := f.readArtifact(ctx, run, id, offset)
	if err != nil {
		f.t.Fatal(err)
	}
	return data
}
