package runner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/access.txt as it is")

// rolesByLetter are how the matrix writes roles.
var rolesByLetter = map[rune]Role{'v': RoleViewer, 'o': RoleOperator, 'p': RoleApprover, 'a': RoleAdmin}

// roleSets are all sets of roles.
func roleSets() []string {
	var sets []string
	for n := range 1 << 4 {
		set := ""
		for i, letter := range "vopa" {
			if n&(1<<i) != 0 {
				set += string(letter)
			}
		}
		if set == "" {
			set = "-"
		}
		sets = append(sets, set)
	}
	return sets
}

// spelledAuth believes a bearer that says who it is and what it may do: name/roles/agent. All else is local.
type spelledAuth struct{ LocalAuth }

func (a spelledAuth) Authenticate(ctx context.Context, caller Caller) (Principal, error) {
	name, rest, ok := strings.Cut(caller.Bearer, "/")
	if !ok {
		return a.LocalAuth.Authenticate(ctx, caller)
	}
	set, agent, _ := strings.Cut(rest, "/")
	var roles Role
	for _, letter := range set {
		roles |= rolesByLetter[letter]
	}
	rights := Rights{Roles: roles, View: ViewRedacted}
	if agent == "*" {
		return Principal{Name: name, Credential: true, Everywhere: rights}, nil
	}
	return Principal{Name: name, Credential: true, Agents: map[string]Rights{agent: rights}}, nil
}

// asked is one way to call a method: a row of blocks in the matrix. The run is alice's, of the agent demo.
type asked struct {
	method string // as in the table of access
	about  string // what tells several ways to call a method apart
	call   func(ctx context.Context, f *face) (sees string, err error)
}

// unaryAsk is a call by name with a request.
func unaryAsk[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](method, about string, req PReq, sees func(PResp) bool) asked {
	return asked{method, about, func(ctx context.Context, f *face) (string, error) {
		resp := PResp(new(Resp))
		if err := f.conn.Invoke(ctx, method, req, resp); err != nil || sees == nil {
			return "", err
		}
		if sees(resp) {
			return "sees", nil
		}
		return "empty", nil
	}}
}

// streamAsk is a call by name that is answered by a stream, of which the first message is read.
func streamAsk[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](method, about string, req PReq, sees func(PResp) bool) asked {
	return asked{method, about, func(ctx context.Context, f *face) (string, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := f.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
		if err != nil {
			return "", err
		}
		if err := stream.SendMsg(req); err != nil && !errors.Is(err, io.EOF) { // which says: see what RecvMsg says
			return "", err
		}
		if err := stream.CloseSend(); err != nil {
			return "", err
		}
		for {
			resp := PResp(new(Resp))
			err := stream.RecvMsg(resp)
			switch {
			case err == nil && sees == nil:
				return "", nil
			case err == nil && sees(resp):
				return "sees", nil
			case err != nil && errors.Is(err, io.EOF):
				if sees != nil {
					return "empty", nil
				}
				return "", nil
			case err != nil:
				return "", err
			}
		}
	}}
}

// asks are all calls of the matrix. Those that pass change nothing that another could notice.
func asks() []asked {
	const target, ended = "target", "ended"
	return []asked{
		unaryAsk[runnerdv1.StartRunRequest, runnerdv1.StartRunResponse](runnerdv1.RunService_StartRun_FullMethodName, "", &runnerdv1.StartRunRequest{RunId: ended, Agent: "demo", Task: "answer:done"}, nil),
		streamAsk[runnerdv1.StreamEventsRequest](runnerdv1.RunService_StreamEvents_FullMethodName, "", ofRun(ended), func(r *runnerdv1.StreamEventsResponse) bool { return r.GetEvent().GetRunId() == ended }),
		streamAsk[runnerdv1.StreamEventsRequest, runnerdv1.StreamEventsResponse](runnerdv1.RunService_StreamEvents_FullMethodName, "raw", ofRun(ended, func(r *runnerdv1.StreamEventsRequest) { r.IncludeRaw = true }), nil),
		streamAsk(runnerdv1.RunService_StreamEvents_FullMethodName, "all", &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}}, func(r *runnerdv1.StreamEventsResponse) bool { return r.GetEvent() != nil }),
		streamAsk[runnerdv1.StreamEventsRequest, runnerdv1.StreamEventsResponse](runnerdv1.RunService_StreamEvents_FullMethodName, "all, raw", &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}, IncludeRaw: true}, nil),
		unaryAsk[runnerdv1.SubmitApprovalRequest, runnerdv1.SubmitApprovalResponse](runnerdv1.RunService_SubmitApproval_FullMethodName, "", &runnerdv1.SubmitApprovalRequest{RunId: target, ApprovalId: 6, Verdict: voteYes, ApprovalDigest: strings.Repeat("0", 64)}, nil),
		unaryAsk[runnerdv1.SubmitInputRequest, runnerdv1.SubmitInputResponse](runnerdv1.RunService_SubmitInput_FullMethodName, "", &runnerdv1.SubmitInputRequest{RunId: ended, Text: "more", RequestId: "1"}, nil),
		unaryAsk[runnerdv1.GetRunRequest, runnerdv1.GetRunResponse](runnerdv1.RunService_GetRun_FullMethodName, "", &runnerdv1.GetRunRequest{RunId: target}, nil),
		unaryAsk(runnerdv1.RunService_ListRuns_FullMethodName, "", &runnerdv1.ListRunsRequest{}, func(r *runnerdv1.ListRunsResponse) bool { return len(r.GetRuns()) > 0 }),
		unaryAsk(runnerdv1.RunService_ListRuns_FullMethodName, "of the agent", &runnerdv1.ListRunsRequest{Agent: "demo"}, func(r *runnerdv1.ListRunsResponse) bool { return len(r.GetRuns()) > 0 }),
		unaryAsk[runnerdv1.ListHistoryRequest, runnerdv1.ListHistoryResponse](runnerdv1.RunService_ListHistory_FullMethodName, "", &runnerdv1.ListHistoryRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.WaitRunRequest, runnerdv1.WaitRunResponse](runnerdv1.RunService_WaitRun_FullMethodName, "", &runnerdv1.WaitRunRequest{RunId: ended}, nil),
		unaryAsk[runnerdv1.CancelRunRequest, runnerdv1.CancelRunResponse](runnerdv1.RunService_CancelRun_FullMethodName, "", &runnerdv1.CancelRunRequest{RunId: ended, Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP}, nil),
		unaryAsk[runnerdv1.ResumeRunRequest, runnerdv1.ResumeRunResponse](runnerdv1.RunService_ResumeRun_FullMethodName, "", &runnerdv1.ResumeRunRequest{RunId: ended}, nil),
		unaryAsk[runnerdv1.ResumeRunRequest, runnerdv1.ResumeRunResponse](runnerdv1.RunService_ResumeRun_FullMethodName, "with a budget", &runnerdv1.ResumeRunRequest{RunId: ended, Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(9)}}, nil),
		unaryAsk(runnerdv1.RunService_ListApprovals_FullMethodName, "", &runnerdv1.ListApprovalsRequest{}, func(r *runnerdv1.ListApprovalsResponse) bool { return len(r.GetApprovals()) > 0 }),
		unaryAsk[runnerdv1.GetApprovalRequest, runnerdv1.GetApprovalResponse](runnerdv1.RunService_GetApproval_FullMethodName, "", &runnerdv1.GetApprovalRequest{RunId: target, ApprovalId: 6}, nil),
		unaryAsk[runnerdv1.GetCheckpointRequest, runnerdv1.GetCheckpointResponse](runnerdv1.RunService_GetCheckpoint_FullMethodName, "", &runnerdv1.GetCheckpointRequest{RunId: target, Label: "step-9"}, nil),
		unaryAsk[runnerdv1.ListCheckpointsRequest, runnerdv1.ListCheckpointsResponse](runnerdv1.RunService_ListCheckpoints_FullMethodName, "", &runnerdv1.ListCheckpointsRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.ListToolsRequest, runnerdv1.ListToolsResponse](runnerdv1.RunService_ListTools_FullMethodName, "", &runnerdv1.ListToolsRequest{Agent: "demo"}, nil),
		streamAsk[runnerdv1.ReadArtifactRequest, runnerdv1.ReadArtifactResponse](runnerdv1.RunService_ReadArtifact_FullMethodName, "", &runnerdv1.ReadArtifactRequest{RunId: "busy", ArtifactId: "none"}, nil),
		unaryAsk[runnerdv1.ListGrantsRequest, runnerdv1.ListGrantsResponse](runnerdv1.RunService_ListGrants_FullMethodName, "", &runnerdv1.ListGrantsRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.RevokeGrantRequest, runnerdv1.RevokeGrantResponse](runnerdv1.RunService_RevokeGrant_FullMethodName, "", &runnerdv1.RevokeGrantRequest{RunId: target, GrantId: 99}, nil),
		unaryAsk[runnerdv1.ExplainPolicyRequest, runnerdv1.ExplainPolicyResponse](runnerdv1.RunService_ExplainPolicy_FullMethodName, "a run", &runnerdv1.ExplainPolicyRequest{
			Subject: &runnerdv1.ExplainPolicyRequest_RunId{RunId: target}, Tool: "deploy", ArgumentsJson: "{}",
		}, nil),
		unaryAsk[runnerdv1.ExplainPolicyRequest, runnerdv1.ExplainPolicyResponse](runnerdv1.RunService_ExplainPolicy_FullMethodName, "an agent", &runnerdv1.ExplainPolicyRequest{
			Subject: &runnerdv1.ExplainPolicyRequest_Start{Start: &runnerdv1.StartRunRequest{Agent: "demo", Task: "x"}}, Tool: "deploy", ArgumentsJson: "{}",
		}, nil),
		streamAsk[runnerdv1.VerifyAuditRequest, runnerdv1.VerifyAuditResponse](runnerdv1.AuditService_VerifyAudit_FullMethodName, "a run", &runnerdv1.VerifyAuditRequest{RunId: ended}, nil),
		streamAsk[runnerdv1.VerifyAuditRequest, runnerdv1.VerifyAuditResponse](runnerdv1.AuditService_VerifyAudit_FullMethodName, "all", &runnerdv1.VerifyAuditRequest{}, nil),
		streamAsk[runnerdv1.ExportAuditRequest, runnerdv1.ExportAuditResponse](runnerdv1.AuditService_ExportAudit_FullMethodName, "a run", &runnerdv1.ExportAuditRequest{RunId: ended, IncludePrivate: true}, nil),
		streamAsk[runnerdv1.ExportAuditRequest, runnerdv1.ExportAuditResponse](runnerdv1.AuditService_ExportAudit_FullMethodName, "all", &runnerdv1.ExportAuditRequest{}, nil),
		unaryAsk[runnerdv1.GetHeadRequest, runnerdv1.GetHeadResponse](runnerdv1.AuditService_GetHead_FullMethodName, "a run", &runnerdv1.GetHeadRequest{RunId: ended}, nil),
		unaryAsk[runnerdv1.GetHeadRequest, runnerdv1.GetHeadResponse](runnerdv1.AuditService_GetHead_FullMethodName, "all", &runnerdv1.GetHeadRequest{}, nil),
		unaryAsk[grpc_health_v1.HealthCheckRequest, grpc_health_v1.HealthCheckResponse](grpc_health_v1.Health_Check_FullMethodName, "", &grpc_health_v1.HealthCheckRequest{}, nil),
		unaryAsk[grpc_health_v1.HealthListRequest, grpc_health_v1.HealthListResponse](grpc_health_v1.Health_List_FullMethodName, "", &grpc_health_v1.HealthListRequest{}, nil),
		streamAsk[grpc_health_v1.HealthCheckRequest, grpc_health_v1.HealthCheckResponse](grpc_health_v1.Health_Watch_FullMethodName, "", &grpc_health_v1.HealthCheckRequest{}, nil),
		streamAsk[reflectionv1.ServerReflectionRequest, reflectionv1.ServerReflectionResponse](reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName, "", &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}, nil),
		streamAsk[reflectionv1.ServerReflectionRequest, reflectionv1.ServerReflectionResponse](reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName, "", &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}, nil),
		unaryAsk[runnerdv1.GetRunRequest, runnerdv1.GetRunResponse]("/runnerd.v1.RunService/Erase", "unknown", &runnerdv1.GetRunRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.GetRunRequest, runnerdv1.GetRunResponse]("/runnerd.v1.RunService/getrun", "unknown", &runnerdv1.GetRunRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.GetRunRequest, runnerdv1.GetRunResponse]("//runnerd.v1.RunService/GetRun", "unknown", &runnerdv1.GetRunRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.GetRunRequest, runnerdv1.GetRunResponse]("/runnerd.v1.RunService/GetRun/", "unknown", &runnerdv1.GetRunRequest{RunId: target}, nil),
		unaryAsk[runnerdv1.CallToolRequest, runnerdv1.CallToolResponse](runnerdv1.ToolHostService_CallTool_FullMethodName, "unknown", &runnerdv1.CallToolRequest{}, nil),
	}
}

// refusals are the reasons by which a caller learns that it may not, and how the matrix writes them. Any other error is
// about what was asked, by somebody who may.
var refusals = map[string]string{
	"PERMISSION_DENIED": "denied", "CREDENTIAL_REQUIRED": "who?", "RUN_NOT_FOUND": "no run", "AGENT_NOT_FOUND": "no agent",
}

// cell is the outcome of a call in the matrix.
func cell(t *testing.T, sees string, err error) string {
	t.Helper()
	if err == nil {
		if sees != "" {
			return sees
		}
		return "ok"
	}
	st := status.Convert(err)
	if st.Code() == codes.Unimplemented {
		return "not served"
	}
	reason := detail[*errdetails.ErrorInfo](st).GetReason()
	word, refused := refusals[reason]
	if !refused {
		if reason == "" {
			t.Errorf("an error without a reason: %v", err)
		}
		return "ok"
	}
	want := map[string]codes.Code{
		"denied": codes.PermissionDenied, "who?": codes.Unauthenticated, "no run": codes.NotFound, "no agent": codes.NotFound,
	}[word]
	if st.Code() != want {
		t.Errorf("%v has the reason %s", err, reason)
	}
	return word
}

// TestAccessMatrix calls every method by everybody: each set of roles, on the agent of the run and on another one, by
// the owner of the run and by somebody else; by holders of run tokens; by nobody. What each is told stands in
// testdata/access.txt, which people have read: a change of it is meant.
func TestAccessMatrix(t *testing.T) {
	t.Parallel()
	const file = "testdata/access.txt"
	var got strings.Builder
	inFace(t, func(f *face) {
		t := f.t
		as := func(keysAndValues ...string) context.Context {
			return metadata.AppendToOutgoingContext(f.t.Context(), keysAndValues...)
		}
		bearer := func(name, set, agent string) context.Context {
			return as("authorization", "Bearer "+name+"/"+set+"/"+agent)
		}
		alice := bearer("alice", "vopa", "demo")
		f.start(alice, "busy", "block:")
		token := f.brain.lastToken()
		f.start(alice, "child", "block:")
		childToken := f.brain.lastToken()
		f.start(alice, "ended", "answer:done")
		f.start(alice, "target", "deploy:{}")
		synctest.Wait()
		remote := as("x-forwarded-for", "192.0.2.1")

		for _, a := range asks() {
			name := strings.TrimPrefix(a.method, "/runnerd.v1.")
			if a.about != "" {
				name += " (" + a.about + ")"
			}
			fmt.Fprintf(&got, "%s\n", name)
			line := func(who string, cells ...string) { fmt.Fprintf(&got, "  %-16s%s\n", who, strings.Join(cells, " ")) }
			outcome := func(ctx context.Context) string {
				sees, err := a.call(ctx, f)
				return cell(t, sees, err)
			}
			for _, relation := range []struct{ who, name, agent string }{
				{"owner", "alice", "demo"},
				{"other", "bob", "demo"},
				{"owner, foreign", "alice", "other"},
				{"foreign", "bob", "other"},
				{"all agents", "bob", "*"},
			} {
				byOutcome, order := map[string][]string{}, []string{}
				for _, set := range roleSets() {
					o := outcome(bearer(relation.name, set, relation.agent))
					if byOutcome[o] == nil {
						order = append(order, o)
					}
					byOutcome[o] = append(byOutcome[o], set)
				}
				var cells []string
				for _, o := range order {
					sets := strings.Join(byOutcome[o], ",")
					if len(order) == 1 {
						sets = "any"
					}
					cells = append(cells, fmt.Sprintf("[%s: %s]", o, sets))
				}
				line(relation.who, cells...)
			}
			line("local", outcome(f.anonymous()))
			line("nobody", outcome(remote))
			line("wrong token", outcome(as("authorization", "Bearer nobodys")))
			line("run token", outcome(as("runnerd-run-token", token)))
			line("of another run", outcome(as("runnerd-run-token", childToken)))
			line("token and roles", outcome(as("runnerd-run-token", token, "authorization", "Bearer alice/vopa/*")))
			line("forged token", outcome(as("runnerd-run-token", token+"A")))
		}
	}, func(_ *Config, serve *ServerConfig) { serve.Auth = spelledAuth{LocalAuth{ApproverToken: testToken}} })

	for method := range accessTable {
		if !slices.ContainsFunc(asks(), func(a asked) bool { return a.method == method }) {
			t.Errorf("%s is not called", method)
		}
	}
	if *rewrite {
		if err := os.MkdirAll("testdata", 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("%s (-written +is):\n%s", file, diff)
	}
}

// TestPathsThatAreNoMethods calls methods by names that a looser look would take for them.
func TestPathsThatAreNoMethods(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		ctx := f.owner()
		for _, path := range []string{
			"runnerd.v1.RunService/ListRuns", "//runnerd.v1.RunService/ListRuns", "/runnerd.v1.RunService//ListRuns",
			"/runnerd.v1.RunService/ListRuns/", "/runnerd.v1.RunService/ListRuns?x=1", "/runnerd.v1.RunService/ListRuns#x",
			"/runnerd.v1.RunService%2FListRuns", "/runnerd.v1.RunService/%4cistRuns", "/runnerd.v1.RunService/./ListRuns",
			"/runnerd.v1.RunService/listRuns", "/RUNNERD.V1.RUNSERVICE/ListRuns", "/runnerd.v1.runservice/ListRuns",
			"/runnerd.v1.RunService/ListRuns ", "/ runnerd.v1.RunService/ListRuns", "/runnerd.v1.RunService", "/ListRuns", "/",
			"/grpc.health.v1.Health/Check/../../runnerd.v1.RunService/ListRuns", "/grpc.health.v1.Health/check",
		} {
			err := f.conn.Invoke(ctx, path, &runnerdv1.ListRunsRequest{}, new(runnerdv1.ListRunsResponse))
			if code := status.Code(err); code != codes.PermissionDenied && code != codes.Unimplemented {
				f.t.Errorf("%q: %v", path, err)
			}
			// And by nobody it is not even told whether there is such a method.
			err = f.conn.Invoke(metadata.AppendToOutgoingContext(f.t.Context(), "forwarded", "for=192.0.2.1"), path,
				&runnerdv1.ListRunsRequest{}, new(runnerdv1.ListRunsResponse))
			if code := status.Code(err); code != codes.Unauthenticated && code != codes.Unimplemented {
				f.t.Errorf("%q by nobody: %v", path, err)
			}
		}
		if _, err := f.runs.ListRuns(ctx, &runnerdv1.ListRunsRequest{}); err != nil {
			f.t.Error(err)
		}
	})
}

func TestRoleIsNamed(t *testing.T) {
	t.Parallel()
	for role, want := range map[Role]string{
		RoleApprover: "approver", RoleOperator | RoleApprover: "operator or approver", RoleAll: "viewer or operator or approver or admin",
	} {
		err := access{roles: role}.check(Principal{Name: "nobody"})
		if err == nil || err.Error() != "this method needs the role "+want {
			t.Errorf("%d: %v, want the role %s", role, err, want)
		}
	}
}
