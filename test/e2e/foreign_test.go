package e2e

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// first is what a stream begins with.
func first[M any](stream grpc.ServerStreamingClient[M], err error) (*M, error) {
	if err != nil {
		return nil, err
	}
	m, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return m, nil
	}
	return m, err
}

// TestForeignRuns has somebody with all roles on another agent ask about a run, in every way that names one: whatever
// else is in the request, they are told what they are told of a run that is not there.
func TestForeignRuns(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	alice, dora := g.as(t, "alices", nil), g.as(t, "doras", nil)
	ctx, run := harness.Context(t), g.RunID(t)
	g.brain.Script(run, harness.Steps(harness.Calls("deploy_site", "{}"), harness.Answer("done")))
	if _, err := alice.StartRun(ctx, &runnerdv1.StartRunRequest{RunId: run, Agent: "coder", Task: "deploy"}); err != nil {
		t.Fatal(err)
	}
	asked := g.Idle(t, run).GetApprovals()
	if len(asked) != 1 {
		t.Fatalf("%d approvals are open", len(asked))
	}
	list, err := alice.ListRuns(ctx, &runnerdv1.ListRunsRequest{PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	id, digest := asked[0].GetApprovalId(), asked[0].GetApprovalDigest()
	absent := strings.Repeat("n", len(run))
	for what, ask := range map[string]func(ctx context.Context, run string) (any, error){
		"GetRun": func(ctx context.Context, run string) (any, error) {
			return dora.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: run})
		},
		"WaitRun": func(ctx context.Context, run string) (any, error) {
			return dora.WaitRun(ctx, &runnerdv1.WaitRunRequest{RunId: run, Timeout: durationpb.New(0)})
		},
		"StreamEvents": func(ctx context.Context, run string) (any, error) {
			return first(dora.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}}))
		},
		"StreamEvents raw": func(ctx context.Context, run string) (any, error) {
			return first(dora.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, IncludeRaw: true}))
		},
		"StreamEvents past the head": func(ctx context.Context, run string) (any, error) {
			return first(dora.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{
				Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, AfterSequence: proto.Uint64(1 << 40),
			}))
		},
		"StreamEvents after a cursor": func(ctx context.Context, run string) (any, error) {
			return first(dora.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: run}, AfterCursor: "x.1.1"}))
		},
		"SubmitApproval": func(ctx context.Context, run string) (any, error) {
			return dora.SubmitApproval(ctx, &runnerdv1.SubmitApprovalRequest{RunId: run, ApprovalId: id, ApprovalDigest: digest, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE})
		},
		"SubmitApproval that cannot be": func(ctx context.Context, run string) (any, error) {
			return dora.SubmitApproval(ctx, &runnerdv1.SubmitApprovalRequest{RunId: run, ApprovalId: id, ApprovalDigest: digest, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE})
		},
		"GetApproval": func(ctx context.Context, run string) (any, error) {
			return dora.GetApproval(ctx, &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: id})
		},
		"ListApprovals": func(ctx context.Context, run string) (any, error) {
			return dora.ListApprovals(ctx, &runnerdv1.ListApprovalsRequest{RunId: run})
		},
		"SubmitInput": func(ctx context.Context, run string) (any, error) {
			return dora.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: run, Text: "x"})
		},
		"CancelRun": func(ctx context.Context, run string) (any, error) {
			return dora.CancelRun(ctx, &runnerdv1.CancelRunRequest{RunId: run, Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT})
		},
		"ResumeRun": func(ctx context.Context, run string) (any, error) {
			return dora.ResumeRun(ctx, &runnerdv1.ResumeRunRequest{RunId: run})
		},
		"ResumeRun more": func(ctx context.Context, run string) (any, error) {
			return dora.ResumeRun(ctx, &runnerdv1.ResumeRunRequest{RunId: run, Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(1)}})
		},
		"ListHistory": func(ctx context.Context, run string) (any, error) {
			return dora.ListHistory(ctx, &runnerdv1.ListHistoryRequest{RunId: run, AtSequence: 1 << 40})
		},
		"ListHistory of another page": func(ctx context.Context, run string) (any, error) {
			return dora.ListHistory(ctx, &runnerdv1.ListHistoryRequest{RunId: run, PageToken: list.GetNextPageToken() + "AAAA"})
		},
		"GetCheckpoint": func(ctx context.Context, run string) (any, error) {
			return dora.GetCheckpoint(ctx, &runnerdv1.GetCheckpointRequest{RunId: run})
		},
		"ListCheckpoints": func(ctx context.Context, run string) (any, error) {
			return dora.ListCheckpoints(ctx, &runnerdv1.ListCheckpointsRequest{RunId: run, PageToken: "AAAA"})
		},
		"ReadArtifact": func(ctx context.Context, run string) (any, error) {
			return first(dora.ReadArtifact(ctx, &runnerdv1.ReadArtifactRequest{RunId: run, ArtifactId: digest, Offset: 1 << 62}))
		},
		"ListGrants": func(ctx context.Context, run string) (any, error) {
			return dora.ListGrants(ctx, &runnerdv1.ListGrantsRequest{RunId: run})
		},
		"RevokeGrant": func(ctx context.Context, run string) (any, error) {
			return dora.RevokeGrant(ctx, &runnerdv1.RevokeGrantRequest{RunId: run, GrantId: id})
		},
		"ExplainPolicy": func(ctx context.Context, run string) (any, error) {
			return dora.ExplainPolicy(ctx, &runnerdv1.ExplainPolicyRequest{Subject: &runnerdv1.ExplainPolicyRequest_RunId{RunId: run}, Tool: "look", ArgumentsJson: "{}"})
		},
	} {
		t.Run(what, func(t *testing.T) {
			tell := func(run string) string {
				answer, err := ask(harness.Context(t), run)
				if err == nil {
					if what != "ListApprovals" {
						t.Errorf("%s is answered: %v", run, answer)
					}
					return prototext.Format(answer.(proto.Message))
				}
				if status.Code(err) != codes.NotFound {
					t.Errorf("got %v", err)
				}
				return strings.ReplaceAll(prototext.Format(status.Convert(err).Proto()), run, "RUN")
			}
			if foreign, missing := tell(run), tell(absent); foreign != missing {
				t.Errorf("of a foreign run: %s\nof none: %s", foreign, missing)
			}
		})
	}

	t.Run("all runs together", func(t *testing.T) {
		head := ""
		stream, err := alice.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}})
		for err == nil {
			var m *runnerdv1.StreamEventsResponse
			if m, err = stream.Recv(); err == nil && head == "" {
				head = m.GetCursor()
			}
		}
		if !errors.Is(err, io.EOF) || head == "" {
			t.Fatal(err)
		}
		for _, after := range []string{"", head} { // a cursor is a place, whoever was given it
			m, err := first(dora.StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}, AfterCursor: after}))
			if err != nil || m.GetEvent() != nil {
				t.Errorf("a foreigner sees %v, %v", m, err)
			}
		}
		_, err = dora.ExplainPolicy(ctx, &runnerdv1.ExplainPolicyRequest{
			Subject: &runnerdv1.ExplainPolicyRequest_Start{Start: &runnerdv1.StartRunRequest{Agent: "coder", Task: "x"}}, Tool: "look", ArgumentsJson: "{}",
		})
		if status.Code(err) != codes.NotFound {
			t.Errorf("a foreign agent is explained: %v", err)
		}
	})
}
