package runner

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/auditstore/auditstoretest"
)

// FuzzRequests sends what it likes to every method of the services that runnerd serves, as several callers, through
// the interceptors and handlers of a daemon in memory whose runs wait for people, have ended, or are in doubt. Nothing
// panics or is our fault, answers come soon, what is refused records nothing, and the log keeps its invariants.
func FuzzRequests(f *testing.F) {
	methods := servedMethods(f)
	var d *fuzzedDaemon
	f.Cleanup(func() { d.end(f) })
	for i, m := range methods {
		for caller := range uint8(len(fuzzCallers)) {
			f.Add(uint8(i), caller, wire(f, filled(m.request, 3)))
		}
		for _, req := range fuzzSeeds {
			if req.ProtoReflect().Descriptor() == m.request.Descriptor() {
				f.Add(uint8(i), uint8(0), wire(f, req))
			}
		}
	}
	f.Fuzz(func(t *testing.T, method, caller uint8, body []byte) {
		m := methods[int(method)%len(methods)]
		req := m.request.New().Interface()
		if proto.Unmarshal(body, req) != nil {
			return // gRPC refuses it
		}
		if d != nil && d.changes > 64 { // what it holds stays small
			d.verify(t)
			d.end(t)
			d = nil
		}
		if d == nil {
			d = newFuzzedDaemon(t)
		}
		d.try(t, m, fuzzCallers[int(caller)%len(fuzzCallers)], req)
	})
}

type fuzzCaller struct {
	addr     net.Addr
	metadata []string
}

var fuzzCallers = []fuzzCaller{
	{addr: loopback, metadata: []string{"authorization", "Bearer " + testToken}}, // of fuzzSeeds
	{addr: loopback},
	{addr: remote},
	{addr: remote, metadata: []string{"runnerd-run-token", "asks:decide/1/1:AAAA"}},
}

// current stands in a seed for the digest of the approval that is open.
const current = "@"

// fuzzSeeds are requests that are taken, and some of those that are only nearly.
var fuzzSeeds = []proto.Message{
	&runnerdv1.StartRunRequest{Agent: "demo", Task: "read:{}\ndeploy:{\"command\":\"make all\"}\nanswer:done"},
	&runnerdv1.StartRunRequest{RunId: "done", Agent: "demo", Task: "answer:ok"},
	&runnerdv1.StartRunRequest{Agent: "demo", Task: "deploy:{}\ncharge:{}", AutoMode: new(true), Model: "m", Effort: "high"},
	&runnerdv1.StartRunRequest{
		Agent: "demo", Task: "blob:{}", ContextJson: `{"a":[1,"\u00e4"]}`, MetadataJson: `{}`, Labels: map[string]string{"k": "v"},
		Kind: runnerdv1.TaskKind_TASK_KIND_EDIT, Budget: &runnerdv1.Budget{MaxIterations: new(uint32(2))},
		Policy:   &runnerdv1.PolicyLayer{Mode: runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT, ApprovalFor: []string{"tool:r*"}},
		Approval: &runnerdv1.ApprovalSettings{Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT, Timeout: durationpb.New(time.Minute)},
		Identity: &runnerdv1.Identity{AgentId: "a", SessionId: "s"},
		InitialObservations: []*runnerdv1.InitialObservation{
			{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, ToolName: "read", Text: "x", StructuredJson: `{"n":1}`},
		},
	},
	&runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: "done"}, AfterSequence: new(uint64(1)), IncludeRaw: true},
	&runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: "asks"}, Follow: true, IncludeSignals: true},
	&runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}, Types: []string{"run_started"}},
	&runnerdv1.SubmitApprovalRequest{RunId: "asks", ApprovalDigest: current, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE},
	&runnerdv1.SubmitApprovalRequest{
		RunId: "asks", ApprovalDigest: current, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
		EditedArgumentsJson: new(`{"command":"make test"}`), Grant: runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX, Reason: "fine",
	},
	&runnerdv1.SubmitApprovalRequest{
		RunId: "asks", ApprovalDigest: current, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
		Grant: runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL,
	},
	&runnerdv1.SubmitApprovalRequest{RunId: "asks", ApprovalDigest: current, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY},
	&runnerdv1.SubmitApprovalRequest{
		RunId: "doubt", ApprovalDigest: current, Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE,
		Result: &runnerdv1.SettledResult{Text: "it was charged"},
	},
	&runnerdv1.SubmitInputRequest{RunId: "question", Text: "the left one", RequestId: "1"},
	&runnerdv1.SubmitInputRequest{RunId: "asks", Text: "stop that"},
	&runnerdv1.GetRunRequest{RunId: "asks"},
	&runnerdv1.ListRunsRequest{Agent: "demo", States: []runnerdv1.RunState{runnerdv1.RunState_RUN_STATE_DONE}, PageSize: 1},
	&runnerdv1.ListHistoryRequest{RunId: "done", PageSize: 1},
	&runnerdv1.WaitRunRequest{RunId: "done"},
	&runnerdv1.WaitRunRequest{RunId: "asks", Until: runnerdv1.WaitUntil_WAIT_UNTIL_IDLE, Timeout: durationpb.New(time.Second)},
	&runnerdv1.CancelRunRequest{RunId: "asks", Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP, Reason: "enough"},
	&runnerdv1.CancelRunRequest{RunId: "doubt", Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT},
	&runnerdv1.ResumeRunRequest{RunId: "short", Budget: &runnerdv1.Budget{MaxIterations: new(uint32(4))}},
	&runnerdv1.ResumeRunRequest{RunId: "short", AutoModeLimits: &runnerdv1.AutoModeLimits{MaxCostCents: new(1.5)}},
	&runnerdv1.ListApprovalsRequest{RunId: "asks", PageSize: 1},
	&runnerdv1.GetApprovalRequest{RunId: "asks", ApprovalId: 7},
	&runnerdv1.ListGrantsRequest{RunId: "asks"},
	&runnerdv1.RevokeGrantRequest{RunId: "asks", GrantId: 8, Reason: "no"},
	&runnerdv1.ExplainPolicyRequest{
		Subject: &runnerdv1.ExplainPolicyRequest_RunId{RunId: "asks"}, Tool: "deploy", ArgumentsJson: `{"path":"../x"}`,
	},
	&runnerdv1.ExplainPolicyRequest{
		Subject: &runnerdv1.ExplainPolicyRequest_Start{Start: &runnerdv1.StartRunRequest{Agent: "demo"}}, Tool: "read", ArgumentsJson: `{}`,
	},
	&runnerdv1.GetCheckpointRequest{RunId: "done", Label: "step-1"},
	&runnerdv1.ListCheckpointsRequest{RunId: "done"},
	&runnerdv1.ListToolsRequest{Agent: "demo"},
	&runnerdv1.ReadArtifactRequest{RunId: "done", ArtifactId: "1.0.0"},
	&runnerdv1.VerifyAuditRequest{RunId: "done"},
	&runnerdv1.VerifyAuditRequest{},
	&runnerdv1.ExportAuditRequest{RunId: "asks", IncludePrivate: true},
	&runnerdv1.GetHeadRequest{RunId: "asks"},
}

// filled is a request in which every field says something.
func filled(kind protoreflect.MessageType, depth int) proto.Message {
	msg := kind.New()
	fields := msg.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		value := func() protoreflect.Value {
			switch field.Kind() {
			case protoreflect.MessageKind, protoreflect.GroupKind:
				if depth == 0 {
					return protoreflect.Value{}
				}
				return protoreflect.ValueOfMessage(filled(msg.NewField(field).Message().Type(), depth-1).ProtoReflect())
			case protoreflect.StringKind:
				return protoreflect.ValueOfString("asks")
			case protoreflect.BytesKind:
				return protoreflect.ValueOfBytes([]byte("asks"))
			case protoreflect.BoolKind:
				return protoreflect.ValueOfBool(true)
			case protoreflect.EnumKind:
				return protoreflect.ValueOfEnum(1)
			case protoreflect.DoubleKind:
				return protoreflect.ValueOfFloat64(1)
			case protoreflect.Uint32Kind:
				return protoreflect.ValueOfUint32(1)
			case protoreflect.Uint64Kind:
				return protoreflect.ValueOfUint64(1)
			case protoreflect.Int32Kind:
				return protoreflect.ValueOfInt32(1)
			case protoreflect.Int64Kind:
				return protoreflect.ValueOfInt64(1)
			default:
				return protoreflect.Value{}
			}
		}
		if field.IsList() || field.IsMap() {
			continue // the seeds have those
		}
		if v := value(); v.IsValid() {
			msg.Set(field, v)
		}
	}
	return msg.Interface()
}

func wire(f *testing.F, req proto.Message) []byte {
	f.Helper()
	body, err := proto.Marshal(req)
	if err != nil {
		f.Fatal(err)
	}
	return body
}

// servedMethod is a method with its handler; one of unary and stream is set.
type servedMethod struct {
	name    string
	request protoreflect.MessageType
	audit   bool // of the audit service
	unary   func(srv any, ctx context.Context, decode func(any) error, i grpc.UnaryServerInterceptor) (any, error)
	stream  grpc.StreamHandler
}

// waits reports whether it is the caller who says how long the call lasts.
func (m *servedMethod) waits() bool {
	return lasts(m.name) || m.name == runnerdv1.RunService_StreamEvents_FullMethodName
}

func servedMethods(f *testing.F) []*servedMethod {
	f.Helper()
	handlers := make(map[string]*servedMethod)
	for _, service := range []*grpc.ServiceDesc{&runnerdv1.RunService_ServiceDesc, &runnerdv1.AuditService_ServiceDesc} {
		audit, prefix := service == &runnerdv1.AuditService_ServiceDesc, "/"+service.ServiceName+"/"
		for _, m := range service.Methods {
			handlers[prefix+m.MethodName] = &servedMethod{audit: audit, unary: m.Handler}
		}
		for _, s := range service.Streams {
			handlers[prefix+s.StreamName] = &servedMethod{audit: audit, stream: s.Handler}
		}
	}
	var all []*servedMethod
	eachRequest(func(method string, request protoreflect.MessageDescriptor) {
		kind, err := protoregistry.GlobalTypes.FindMessageByName(request.FullName())
		if err != nil {
			f.Fatal(err)
		}
		m := handlers[method]
		m.name, m.request = method, kind
		all = append(all, m)
	})
	return all
}

// fuzzedDaemon is a daemon in memory whose handlers are called without a network.
type fuzzedDaemon struct {
	log     *auditstoretest.Memory
	runner  *Runner
	server  *Server
	runs    *runService
	audit   *auditService
	codec   codec
	changes int // requests that have recorded something

	cancel  context.CancelFunc
	stopped chan error
}

func newFuzzedDaemon(t *testing.T) *fuzzedDaemon {
	t.Helper()
	agent := demoAgent("demo")
	agent.AutoMode = &runnerdv1.AutoMode{
		Limits: &runnerdv1.AutoModeLimits{MaxCostCents: new(1.0)}, LimitsMax: &runnerdv1.AutoModeLimits{MaxCostCents: new(2.0)},
	}
	brain := new(brain)
	brain.release()
	d := startFuzzed(t, Config{
		Agents: map[string]*Agent{"demo": agent, "other": demoAgent("other")}, Decider: brain, Tools: new(hands),
	})
	for run, task := range map[string]string{
		"asks": "deploy:{\"command\":\"make all\"}\ndeploy:{\"command\":\"make x\"}\nanswer:done", "doubt": "charge:{}",
		"question": "ask:which?", "done": "blob:{}\nanswer:ok", "short": "read:{}\nread:{}\nread:{}",
	} {
		req := &runnerdv1.StartRunRequest{RunId: run, Agent: "demo", Task: task}
		if run == "short" {
			req.Budget = &runnerdv1.Budget{MaxIterations: new(uint32(1))}
		}
		owner := WithPrincipal(t.Context(), Owner())
		if _, err := d.runs.StartRun(owner, req); err != nil {
			t.Fatal(err)
		}
		d.settle(t, run)
	}
	return d
}

// end stops the daemon; nil: there is none.
func (d *fuzzedDaemon) end(t testing.TB) {
	t.Helper()
	if d == nil {
		return
	}
	d.cancel()
	if err := <-d.stopped; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// verify checks everything that can be checked about the log.
func (d *fuzzedDaemon) verify(t *testing.T) {
	t.Helper()
	err := VerifyLog(t.Context(), d.log, d.log, testKey, "", func(resp *runnerdv1.VerifyAuditResponse) error {
		if f := resp.GetFinding(); f != nil {
			t.Errorf("run %s event %d: %s: %s", f.GetRunId(), f.GetSequence(), f.GetCode(), f.GetMessage())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// answerWithin is how soon a call is answered that waits for nobody.
const answerWithin = 20 * time.Second

func (d *fuzzedDaemon) try(t *testing.T, m *servedMethod, caller fuzzCaller, req proto.Message) {
	t.Helper()
	if vote, ok := req.(*runnerdv1.SubmitApprovalRequest); ok && vote.GetApprovalDigest() == current {
		d.address(t, vote)
	}
	within := answerWithin
	if m.waits() {
		within = 2 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: caller.addr})
	ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(caller.metadata...))

	before := d.head(t)
	resp, err := d.call(ctx, m, req)
	switch code := status.Code(err); {
	case code == codes.Internal, code == codes.Unknown, code == codes.DataLoss, code == codes.DeadlineExceeded && !m.waits():
		t.Fatalf("%s of %v: %v", m.name, req, err)
	}
	if d.head(t) == before {
		return
	}
	if err != nil {
		t.Fatalf("%s of %v is refused (%v), and something is recorded", m.name, req, err)
	}
	d.changes++
	run := ""
	if started, ok := resp.(*runnerdv1.StartRunResponse); ok {
		run = started.GetRun().GetRunId()
	} else if of, ok := req.(interface{ GetRunId() string }); ok {
		run = of.GetRunId()
	}
	d.settle(t, run)
}

// call calls a handler through the interceptors of the server, with the request and what is answered as they are on the
// wire.
func (d *fuzzedDaemon) call(ctx context.Context, m *servedMethod, req proto.Message) (any, error) {
	var srv any = d.runs
	if m.audit {
		srv = d.audit
	}
	decode := func(into any) error {
		msg, ok := into.(proto.Message)
		if !ok {
			return status.Errorf(codes.Internal, "%T is no message", into)
		}
		proto.Merge(msg, req)
		return nil
	}
	if m.stream != nil {
		handler := m.stream
		for _, i := range backwards(d.server.stream()) {
			next := handler
			handler = func(srv any, stream grpc.ServerStream) error {
				return i(srv, stream, &grpc.StreamServerInfo{FullMethod: m.name, IsServerStream: true}, next)
			}
		}
		return nil, handler(srv, &fuzzStream{ctx: ctx, decode: decode, codec: d.codec})
	}
	resp, err := m.unary(srv, ctx, decode, func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		for _, i := range backwards(d.server.unary()) {
			next := handler
			handler = func(ctx context.Context, req any) (any, error) { return i(ctx, req, info, next) }
		}
		return handler(ctx, req)
	})
	if err == nil {
		_, err = d.codec.Marshal(resp)
	}
	return resp, err
}

func backwards[T any](all []T) []T {
	reversed := make([]T, 0, len(all))
	for i := range all {
		reversed = append(reversed, all[len(all)-1-i])
	}
	return reversed
}

// fuzzStream is the stream of a call without a network.
type fuzzStream struct {
	grpc.ServerStream
	ctx    context.Context //nolint:containedctx // it is what a ServerStream has
	decode func(any) error
	codec  codec
}

func (s *fuzzStream) Context() context.Context     { return s.ctx }
func (s *fuzzStream) RecvMsg(m any) error          { return s.decode(m) }
func (s *fuzzStream) SetHeader(metadata.MD) error  { return nil }
func (s *fuzzStream) SendHeader(metadata.MD) error { return nil }
func (s *fuzzStream) SetTrailer(metadata.MD)       {}

func (s *fuzzStream) SendMsg(m any) error {
	if err := s.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	_, err := s.codec.Marshal(m)
	return err
}

// address makes a vote one on the approval that is open.
func (d *fuzzedDaemon) address(t *testing.T, vote *runnerdv1.SubmitApprovalRequest) {
	t.Helper()
	run, err := d.runs.GetRun(WithPrincipal(t.Context(), Owner()), &runnerdv1.GetRunRequest{RunId: vote.GetRunId()})
	if err != nil {
		return // there is no such run
	}
	for _, a := range run.GetRun().GetApprovals() {
		vote.ApprovalId, vote.ApprovalDigest = a.GetApprovalId(), a.GetApprovalDigest()
	}
}

func (d *fuzzedDaemon) head(t *testing.T) auditstore.Position {
	t.Helper()
	at, err := d.log.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// settle waits until a run rests: what it records after that is somebody's doing.
func (d *fuzzedDaemon) settle(t *testing.T, run string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerWithin)
	defer cancel()
	if _, timedOut, err := d.runner.WaitRun(ctx, run, true); err != nil || timedOut {
		t.Fatalf("run %q does not come to rest: %v", run, err)
	}
}
