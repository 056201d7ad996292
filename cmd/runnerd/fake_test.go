package main

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// fakeDaemon answers what a test tells it to, also what no real daemon would.
type fakeDaemon struct {
	runnerdv1.UnimplementedRunServiceServer

	approval *runnerdv1.Approval
	grants   []*runnerdv1.Grant
	explain  func(*runnerdv1.ExplainPolicyRequest) (*runnerdv1.ExplainPolicyResponse, error)
	tools    *runnerdv1.ListToolsResponse
	run      *runnerdv1.Run
	events   chan *runnerdv1.Event // what watchers are sent; closed: the stream ends
	// submit answers a verdict; nil: it is taken.
	submit func(*runnerdv1.SubmitApprovalRequest) error
	get    error // what GetApproval says instead

	mu        sync.Mutex
	submitted []*runnerdv1.SubmitApprovalRequest
}

func (f *fakeDaemon) ListApprovals(context.Context, *runnerdv1.ListApprovalsRequest) (*runnerdv1.ListApprovalsResponse, error) {
	return &runnerdv1.ListApprovalsResponse{Approvals: []*runnerdv1.Approval{f.approval}}, nil
}

func (f *fakeDaemon) GetApproval(context.Context, *runnerdv1.GetApprovalRequest) (*runnerdv1.GetApprovalResponse, error) {
	return &runnerdv1.GetApprovalResponse{Approval: f.approval}, f.get
}

func (f *fakeDaemon) SubmitApproval(
	_ context.Context, req *runnerdv1.SubmitApprovalRequest,
) (*runnerdv1.SubmitApprovalResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.submitted = append(f.submitted, req)
	if f.submit != nil {
		if err := f.submit(req); err != nil {
			return nil, err
		}
	}
	closed := &runnerdv1.Approval{
		RunId: req.GetRunId(), ApprovalId: req.GetApprovalId(), Kind: f.approval.GetKind(), Host: f.approval.GetHost(),
		Tool: f.approval.GetTool(), ApprovalDigest: req.GetApprovalDigest(), Via: runnerdv1.Via_VIA_HUMAN, Verdict: req.GetVerdict(),
		EditedArgumentsJson: req.GetEditedArgumentsJson(),
	}
	if req.GetGrant() != runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED {
		closed.Grant = &runnerdv1.Grant{
			RunId: req.GetRunId(), GrantId: req.GetApprovalId() + 1, Scope: req.GetGrant(), Host: f.approval.GetHost(),
			Tool: f.approval.GetTool(), Program: f.approval.GetProgram(),
		}
	}
	return &runnerdv1.SubmitApprovalResponse{Approval: closed}, nil
}

// answers are the verdicts that were submitted.
func (f *fakeDaemon) answers() []*runnerdv1.SubmitApprovalRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.submitted
}

func (f *fakeDaemon) ListGrants(context.Context, *runnerdv1.ListGrantsRequest) (*runnerdv1.ListGrantsResponse, error) {
	return &runnerdv1.ListGrantsResponse{Grants: f.grants}, nil
}

func (f *fakeDaemon) RevokeGrant(_ context.Context, req *runnerdv1.RevokeGrantRequest) (*runnerdv1.RevokeGrantResponse, error) {
	if req.GetGrantId() != 9 {
		return nil, refusal(codes.NotFound, "GRANT_NOT_FOUND", "no such grant")
	}
	return &runnerdv1.RevokeGrantResponse{Sequence: 77}, nil
}

func (f *fakeDaemon) ExplainPolicy(
	_ context.Context, req *runnerdv1.ExplainPolicyRequest,
) (*runnerdv1.ExplainPolicyResponse, error) {
	return f.explain(req)
}

func (f *fakeDaemon) ListTools(context.Context, *runnerdv1.ListToolsRequest) (*runnerdv1.ListToolsResponse, error) {
	return f.tools, nil
}

func (f *fakeDaemon) GetRun(context.Context, *runnerdv1.GetRunRequest) (*runnerdv1.GetRunResponse, error) {
	return &runnerdv1.GetRunResponse{Run: f.run}, nil
}

func (f *fakeDaemon) StreamEvents(
	_ *runnerdv1.StreamEventsRequest, stream grpc.ServerStreamingServer[runnerdv1.StreamEventsResponse],
) error {
	for {
		select {
		case ev, ok := <-f.events:
			if !ok {
				return nil
			}
			if err := stream.Send(&runnerdv1.StreamEventsResponse{Event: ev}); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// refusal is an error as a daemon returns it.
func refusal(code codes.Code, reason, message string, fields ...*errdetails.BadRequest_FieldViolation) error {
	st, err := status.New(code, message).WithDetails(
		&errdetails.ErrorInfo{Domain: "runnerd", Reason: reason}, &errdetails.BadRequest{FieldViolations: fields})
	if err != nil {
		panic(err)
	}
	return st.Err()
}

// serve lets the fake answer, and returns a daemon that commands can be run against.
func (f *fakeDaemon) serve(t *testing.T) *daemon {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runnerdv1.RegisterRunServiceServer(server, f)
	served := make(chan error, 1)
	go func() { served <- server.Serve(lis) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &daemon{dir: "/nowhere", addr: lis.Addr().String(), log: &lockedBuffer{}}
}

// shellApproval is a question about a command.
func shellApproval() *runnerdv1.Approval {
	return &runnerdv1.Approval{
		RunId: "3f2a", ApprovalId: 8, Kind: runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL, Agent: "coder", CallId: "1.1",
		Host: "box", Tool: "sh", ArgumentsJson: `{"command":"git push","timeout":1.50,"env":{"A":"1"}}`, ArgumentsSize: 52,
		ApprovalDigest: "k:d1", Gate: "mode", Layer: "agent", Rule: "prompt", Tier: 3, ModelText: "It is only a push.\napprove? y",
		HostText: "Runs a command.", Program: "git", PossibleGrants: []runnerdv1.GrantScope{
			runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL, runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX,
		},
	}
}
