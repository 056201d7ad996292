package runner

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// shortAuth makes everybody's credential good for a minute.
type shortAuth struct{ LocalAuth }

func (a shortAuth) Authenticate(ctx context.Context, caller Caller) (Principal, error) {
	p, err := a.LocalAuth.Authenticate(ctx, caller)
	p.Expires = time.Now().Add(time.Minute)
	return p, err
}

func TestStreamEndsWithItsCredential(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		f.start(f.owner(), "r1", "block:")
		all, err := collect(f.runs.StreamEvents(f.owner(), ofRun("r1", func(r *runnerdv1.StreamEventsRequest) { r.Follow = true })))
		info := wantReason(f.t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
		if len(all) == 0 || info.GetMetadata()["resume_after"] == "" {
			f.t.Errorf("after %d events it is not told where to go on: %v", len(all), info)
		}
		began := time.Now()
		_, err = f.runs.WaitRun(f.owner(), &runnerdv1.WaitRunRequest{RunId: "r1"})
		if waited := time.Since(began); err != nil || waited > time.Minute {
			f.t.Errorf("a wait took %v: %v", waited, err)
		}
	}, func(_ *Config, serve *ServerConfig) { serve.Auth = shortAuth{LocalAuth{ApproverToken: testToken}} })
}

// TestHeadersThatAreTooMuch sends credentials that cannot be any.
func TestHeadersThatAreTooMuch(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		for _, header := range []string{
			"Bearer", "Bearer ", "Bearer  " + testToken, "Bearer " + testToken + " ", "Bearer " + testToken + " x",
			"Basic " + testToken, testToken, "bearer:" + testToken, "Bearer " + strings.Repeat("a", 8<<10), "Bearer " + strings.ToLower(testToken),
			"Bearer " + testToken + "," + testToken,
		} {
			_, err := f.runs.ListApprovals(metadata.AppendToOutgoingContext(t.Context(), "authorization", header), &runnerdv1.ListApprovalsRequest{})
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%.40q: %v", header, err)
			}
			if strings.Contains(status.Convert(err).Message(), testToken) {
				t.Errorf("%v tells the token", err)
			}
		}
		huge := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+strings.Repeat("a", 64<<10))
		if _, err := f.runs.ListApprovals(huge, &runnerdv1.ListApprovalsRequest{}); err == nil {
			t.Error("a header of 64 KiB is taken")
		}
		tokens := slices.Repeat([]string{"r:decide/1/1:AAAA"}, 2000)
		many := metadata.NewOutgoingContext(t.Context(), metadata.MD{"runnerd-run-token": tokens})
		if _, err := f.runs.ListApprovals(many, &runnerdv1.ListApprovalsRequest{}); err == nil {
			t.Error("thousands of headers are taken")
		}
		// Nobody else is hurt by that.
		if _, err := f.runs.ListApprovals(f.owner(), &runnerdv1.ListApprovalsRequest{}); err != nil {
			t.Error(err)
		}
	})
}

func TestOwnerIsExcluded(t *testing.T) {
	t.Parallel()
	bearer := func(ctx context.Context, name string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+name+"/vop/demo")
	}
	auth := func(agent bool) func(*Config, *ServerConfig) {
		return func(cfg *Config, serve *ServerConfig) {
			serve.Auth = spelledAuth{}
			cfg.Agents["demo"].Spec.Approval.ExcludeOwner = agent
		}
	}
	for _, tt := range []struct {
		name           string
		agent, request bool
		want           bool
	}{
		{"by the agent", true, false, true},
		{"by the request", false, true, true},
		{"by both", true, true, true},
		{"by none", false, false, false},
	} {
		rowFace(t, tt.name, func(f *face) {
			t := f.t
			alice, bob := bearer(t.Context(), "alice"), bearer(t.Context(), "bob")
			_, err := f.runs.StartRun(alice, &runnerdv1.StartRunRequest{
				RunId: "r1", Agent: "demo", Task: "deploy:{}\nanswer:done", Approval: &runnerdv1.ApprovalSettings{ExcludeOwner: tt.request},
			})
			if err != nil {
				t.Fatal(err)
			}
			idle := &runnerdv1.WaitRunRequest{RunId: "r1", Until: runnerdv1.WaitUntil_WAIT_UNTIL_IDLE}
			if _, err := f.runs.WaitRun(alice, idle); err != nil {
				t.Fatal(err)
			}
			list, err := f.runs.ListApprovals(alice, &runnerdv1.ListApprovalsRequest{})
			if err != nil || len(list.GetApprovals()) != 1 { // to see what is asked is no answer
				t.Fatalf("the inbox has %v, %v", list, err)
			}
			asked := list.GetApprovals()[0]
			vote := &runnerdv1.SubmitApprovalRequest{
				RunId: "r1", ApprovalId: asked.GetApprovalId(), ApprovalDigest: asked.GetApprovalDigest(), Verdict: voteYes,
			}
			_, err = f.runs.SubmitApproval(alice, vote)
			if !tt.want {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wantReason(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
			vote.Verdict = voteNo
			if _, err := f.runs.SubmitApproval(alice, vote); status.Code(err) != codes.PermissionDenied {
				t.Errorf("the owner says no: %v", err)
			}
			vote.Verdict = voteYes
			if _, err := f.runs.SubmitApproval(bob, vote); err != nil {
				t.Errorf("another approver: %v", err)
			}
		}, auth(tt.agent))
	}
}
