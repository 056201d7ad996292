package runner

import (
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// The callers of a daemon without configured identities, and what each is.
var callers = map[string]struct {
	addr     net.Addr
	metadata []string
}{
	"anonymous":       {addr: loopback},
	"socket":          {addr: &net.UnixAddr{Name: "/run/runnerd.sock", Net: "unix"}},
	"owner":           {addr: loopback, metadata: []string{"authorization", "Bearer " + testToken}},
	"remote owner":    {addr: remote, metadata: []string{"authorization", "bearer " + testToken}},
	"remote":          {addr: remote},
	"unknown network": {addr: nil},
	"proxied":         {addr: loopback, metadata: []string{"x-forwarded-for", "127.0.0.1"}},
	"proxied owner":   {addr: loopback, metadata: []string{"forwarded", "for=192.0.2.1", "authorization", "Bearer " + testToken}},
	"envoy":           {addr: loopback, metadata: []string{"x-envoy-expected-rq-timeout-ms", "15000"}},
	"gateway":         {addr: loopback, metadata: []string{"X-Forwarded-Proto", "https"}},
	"wrong token":     {addr: loopback, metadata: []string{"authorization", "Bearer " + testToken[1:]}},
	"no scheme":       {addr: loopback, metadata: []string{"authorization", testToken}},
	"empty token":     {addr: loopback, metadata: []string{"authorization", "Bearer "}},
	"two tokens":      {addr: loopback, metadata: []string{"authorization", "Bearer " + testToken, "authorization", "Bearer x"}},
	"bad run token":   {addr: loopback, metadata: []string{"runnerd-run-token", "r:decide/1/1:AAAA"}},
	"both":            {addr: loopback, metadata: []string{"runnerd-run-token", "?", "authorization", "Bearer " + testToken}},
	"run token":       {addr: remote, metadata: []string{"runnerd-run-token", "?"}},
}

const testToken = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LTMyLWI"

var (
	loopback = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}
	remote   = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 4711}
)

// mayCall is who may call what, in words: who of the callers above passes, of all methods of all services. What
// stands here twice as in the table is meant to: a change of the table has to be meant, too.
var mayCall = map[string][]string{
	"/runnerd.v1.RunService/StartRun":        {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/StreamEvents":    {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/SubmitApproval":  {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/SubmitInput":     {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/GetRun":          {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ListRuns":        {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ListHistory":     {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/WaitRun":         {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/CancelRun":       {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ResumeRun":       {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ListApprovals":   {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/GetApproval":     {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/GetCheckpoint":   {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ListCheckpoints": {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ListTools":       {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ReadArtifact":    {"owner", "remote owner", "proxied owner", "run token", "both"},
	"/runnerd.v1.RunService/ListGrants":      {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/RevokeGrant":     {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.RunService/ExplainPolicy":   {"anonymous", "socket", "owner", "remote owner", "proxied owner"},

	"/runnerd.v1.AuditService/VerifyAudit": {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/runnerd.v1.AuditService/ExportAudit": {"owner", "remote owner", "proxied owner"},
	"/runnerd.v1.AuditService/GetHead":     {"anonymous", "socket", "owner", "remote owner", "proxied owner"},

	"/grpc.health.v1.Health/Check": everyone(),
	"/grpc.health.v1.Health/List":  everyone(),
	"/grpc.health.v1.Health/Watch": everyone(),

	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      {"anonymous", "socket", "owner", "remote owner", "proxied owner"},
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": {"anonymous", "socket", "owner", "remote owner", "proxied owner"},

	// Served by others, or by nobody.
	"/runnerd.v1.DecideService/Decide":      {},
	"/runnerd.v1.ToolHostService/CallTool":  {},
	"/runnerd.v1.ToolHostService/ListTools": {},
	"/runnerd.v1.ToolHostService/GetCall":   {},
	"/runnerd.v1.RunService/Erase":          {},
	"/runnerd.v1.RunService/startrun":       {},
	"runnerd.v1.RunService/StartRun":        {},
	"//runnerd.v1.RunService/StartRun":      {},
	"":                                      {},
}

func everyone() []string {
	var names []string
	for name := range callers {
		names = append(names, name)
	}
	return names
}

// noCredential are the callers who are told that they need a credential, whatever they call.
var noCredential = []string{
	"remote", "unknown network", "proxied", "wrong token", "no scheme", "empty token", "two tokens", "bad run token",
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	tokens := newTokens()
	runToken := tokens.begin("run-1", "decide/1/1", flight{})
	s := &Server{cfg: ServerConfig{Auth: LocalAuth{ApproverToken: testToken}, Runner: &Runner{tokens: tokens}}}

	for method, allowed := range mayCall {
		for name, caller := range callers {
			md := slices.Clone(caller.metadata)
			for i := range md {
				md[i] = strings.ReplaceAll(md[i], "?", runToken)
			}
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: caller.addr})
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(md...))
			_, err := s.authorize(ctx, method)
			code := status.Code(statusError(ctx, err))
			switch {
			case slices.Contains(allowed, name):
				if code != codes.OK {
					t.Errorf("%s by %s: %v", method, name, err)
				}
			case slices.Contains(noCredential, name):
				if code != codes.Unauthenticated {
					t.Errorf("%s by %s: %v, want UNAUTHENTICATED", method, name, err)
				}
			case code != codes.PermissionDenied && code != codes.Unauthenticated:
				t.Errorf("%s by %s: %v, want a refusal", method, name, err)
			}
		}
	}
}

// TestAccessTable holds the table against the methods that there are.
func TestAccessTable(t *testing.T) {
	t.Parallel()
	served := make(map[string]bool)
	for _, file := range []protoreflect.FileDescriptor{
		runnerdv1.File_runnerd_v1_run_service_proto, runnerdv1.File_runnerd_v1_audit_service_proto,
		grpc_health_v1.File_grpc_health_v1_health_proto, reflectionv1.File_grpc_reflection_v1_reflection_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := "/" + string(service.FullName()) + "/" + string(service.Methods().Get(j).Name())
				served[method] = true
				if _, ok := accessTable[method]; !ok {
					t.Errorf("%s is in no row of the table: nobody may call it", method)
				}
				if _, ok := mayCall[method]; !ok {
					t.Errorf("%s is not tested", method)
				}
			}
		}
	}
	for method, rule := range accessTable {
		if !served[method] && !strings.Contains(method, "v1alpha") {
			t.Errorf("%s is in the table and not served", method)
		}
		if rule.open != (rule == access{open: true}) {
			t.Errorf("%s is open and has rules", method)
		}
		if !rule.open && rule.roles == 0 {
			t.Errorf("%s can be called by nobody", method)
		}
		if rule.roles == RoleApprover && !rule.credential {
			t.Errorf("%s is for approvers and needs no credential", method)
		}
	}
}

func TestCheckRun(t *testing.T) {
	t.Parallel()
	const owner, agent = "alice", "coder"
	run := &runnerdv1.Run{RunId: "run-1", Agent: agent, Owner: owner}
	on := func(name string, roles Role) Principal {
		return Principal{Name: name, Credential: true, Agents: map[string]Rights{agent: {Roles: roles}}}
	}
	elsewhere := Principal{Name: "eve", Credential: true, Agents: map[string]Rights{"other": {Roles: RoleAll}}}
	for _, tt := range []struct {
		name   string
		method string
		caller Principal
		want   codes.Code
	}{
		{"an operator steers any run", "CancelRun", on("carol", RoleOperator), codes.OK},
		{"so does one of all agents", "CancelRun", Principal{Name: "carol", Everywhere: Rights{Roles: RoleOperator}}, codes.OK},
		{"the owner steers hers", "CancelRun", on(owner, 0), codes.OK},
		{"a viewer does not", "CancelRun", on("bob", RoleViewer), codes.PermissionDenied},
		{"a viewer does not approve", "SubmitApproval", on("bob", RoleViewer), codes.PermissionDenied},
		{"who may not see a run is not told of it", "CancelRun", on("dave", RoleApprover), codes.NotFound},
		{"roles on another agent are none", "CancelRun", elsewhere, codes.NotFound},
		{"not even to see it", "GetRun", elsewhere, codes.NotFound},
		{"the owner reads the history", "ListHistory", on(owner, 0), codes.OK},
		{"an admin reads any", "ListHistory", on("root", RoleAdmin), codes.OK},
		{"an operator reads none", "ListHistory", on("carol", RoleOperator), codes.NotFound},
		{"a token reads artifacts of its run", "ReadArtifact", Principal{TokenRun: "run-1", Credential: true}, codes.OK},
		{"a token knows no other run", "ReadArtifact", Principal{TokenRun: "run-2", Credential: true}, codes.NotFound},
		{"a token cancels nothing", "CancelRun", Principal{TokenRun: "run-1", Credential: true}, codes.NotFound},
		{"no name owns nothing", "CancelRun", Principal{}, codes.NotFound},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rule, ok := accessTable["/runnerd.v1.RunService/"+tt.method]
			if !ok {
				t.Fatalf("no method %s", tt.method)
			}
			err := rule.checkRun(tt.caller, run)
			if got := status.Code(statusError(t.Context(), err)); got != tt.want {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if tt.want == codes.NotFound && err.Error() != runNotFound("run-1").Error() {
				t.Errorf("%q tells that the run exists", err)
			}
		})
	}
	if err := accessTable[runnerdv1.RunService_CancelRun_FullMethodName].checkRun(Principal{}, new(runnerdv1.Run)); err == nil {
		t.Error("a principal without a name owns a run without an owner")
	}
}

func TestSeesRaw(t *testing.T) {
	t.Parallel()
	admin := map[string]Rights{"coder": {Roles: RoleAdmin}}
	for _, tt := range []struct {
		caller Principal
		owner  string
		want   bool
	}{
		{Principal{Name: "a", Credential: true}, "a", true},
		{Principal{Name: "a"}, "a", false}, // only taken for somebody
		{Principal{Name: "a", Credential: true}, "b", false},
		{Principal{Name: "a", Agents: admin, Credential: true}, "b", true},
		{Principal{Name: "a", Agents: map[string]Rights{"other": {Roles: RoleAdmin}}, Credential: true}, "b", false},
		{Principal{Name: "a", Everywhere: Rights{Roles: RoleAdmin}, Credential: true}, "b", true},
		{Principal{Name: "a", Agents: admin}, "b", false},
		{Principal{TokenRun: "r", Credential: true}, "", false},
	} {
		if got := tt.caller.seesRaw(&runnerdv1.Run{Agent: "coder", Owner: tt.owner}); got != tt.want {
			t.Errorf("%+v sees raw of %q: %v", tt.caller, tt.owner, got)
		}
	}
}

func TestRights(t *testing.T) {
	t.Parallel()
	p := Principal{
		Everywhere: Rights{Roles: RoleViewer, View: ViewTypes},
		Agents: map[string]Rights{
			"coder":   {Roles: RoleViewer | RoleOperator, View: ViewOutline},
			"deploy":  {Roles: RoleApprover, View: ViewRedacted}, // says nothing about what a viewer sees
			"private": {},
		},
	}
	for agent, want := range map[string]Rights{
		"coder":   {RoleViewer | RoleOperator, ViewOutline},
		"deploy":  {RoleViewer | RoleApprover, ViewTypes},
		"private": {RoleViewer, ViewTypes},
		"unknown": {RoleViewer, ViewTypes},
	} {
		if got := p.On(agent); got != want {
			t.Errorf("on %s: %+v, want %+v", agent, got, want)
		}
		if p.View(agent) != want.View {
			t.Errorf("on %s: view %d, want %d", agent, p.View(agent), want.View)
		}
	}
	if !p.HasAnywhere(RoleApprover) || p.HasAnywhere(RoleAdmin) {
		t.Error("roles on some agent are not told")
	}
}

func TestPrincipalOfNobody(t *testing.T) {
	t.Parallel()
	p := PrincipalFrom(t.Context())
	if p.Name != "" || p.HasAnywhere(RoleAll) || p.Credential || p.TokenRun != "" {
		t.Errorf("nobody is %+v", p)
	}
	if _, err := (LocalAuth{}).Authenticate(t.Context(), Caller{From: loopback, HasBearer: true}); err == nil {
		t.Error("the empty bearer is the owner of a daemon without a token")
	}
}
