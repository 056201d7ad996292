package runner

import (
	"context"

	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// access is who may call a method.
type access struct {
	// roles of which one is enough, on the agent that the request is about; 0: no role is enough.
	roles Role
	// owner: the owner of the run may call it too. Which run that is stands in the request, so the handler asks.
	owner bool
	// token: so may the holder of a token of the run; the handler asks too.
	token bool
	// credential: a caller that is only known by where it calls from may not.
	credential bool
	// open: anybody may, unseen.
	open bool
}

// accessTable says who may call what. A method that is not in it may be called by nobody. A test holds it against all
// methods of all services.
var accessTable = map[string]access{
	runnerdv1.RunService_StartRun_FullMethodName:        {roles: RoleOperator},
	runnerdv1.RunService_StreamEvents_FullMethodName:    {roles: RoleViewer}, // include_raw: owner and admin, with a credential
	runnerdv1.RunService_SubmitApproval_FullMethodName:  {roles: RoleApprover, credential: true},
	runnerdv1.RunService_SubmitInput_FullMethodName:     {roles: RoleOperator, owner: true},
	runnerdv1.RunService_GetRun_FullMethodName:          {roles: RoleViewer},
	runnerdv1.RunService_ListRuns_FullMethodName:        {roles: RoleViewer},
	runnerdv1.RunService_ListHistory_FullMethodName:     {roles: RoleAdmin, owner: true, credential: true},
	runnerdv1.RunService_WaitRun_FullMethodName:         {roles: RoleViewer},
	runnerdv1.RunService_CancelRun_FullMethodName:       {roles: RoleOperator, owner: true},
	runnerdv1.RunService_ResumeRun_FullMethodName:       {roles: RoleOperator, owner: true}, // raising a limit: operator
	runnerdv1.RunService_ListApprovals_FullMethodName:   {roles: RoleApprover, credential: true},
	runnerdv1.RunService_GetApproval_FullMethodName:     {roles: RoleApprover, credential: true},
	runnerdv1.RunService_GetCheckpoint_FullMethodName:   {roles: RoleAdmin, owner: true, credential: true},
	runnerdv1.RunService_ListCheckpoints_FullMethodName: {roles: RoleViewer},
	runnerdv1.RunService_ListTools_FullMethodName:       {roles: RoleViewer},
	runnerdv1.RunService_ReadArtifact_FullMethodName:    {roles: RoleAdmin, owner: true, token: true, credential: true},
	runnerdv1.RunService_ListGrants_FullMethodName:      {roles: RoleApprover, credential: true},
	runnerdv1.RunService_RevokeGrant_FullMethodName:     {roles: RoleApprover, credential: true},
	runnerdv1.RunService_ExplainPolicy_FullMethodName:   {roles: RoleOperator | RoleApprover},

	runnerdv1.AuditService_VerifyAudit_FullMethodName: {roles: RoleViewer},
	runnerdv1.AuditService_ExportAudit_FullMethodName: {roles: RoleAdmin, credential: true},
	runnerdv1.AuditService_GetHead_FullMethodName:     {roles: RoleViewer},

	grpc_health_v1.Health_Check_FullMethodName: {open: true},
	grpc_health_v1.Health_List_FullMethodName:  {open: true},
	grpc_health_v1.Health_Watch_FullMethodName: {open: true},

	// To callers who may call anything.
	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      {roles: RoleAll},
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: {roles: RoleAll},
}

// authorize says who calls a method, or why they may not. Method is the name as the transport parsed it. Which agent
// and run a request is about is not looked at here: who has the role on any agent passes, methods for owners let every
// principal pass, and the handler asks.
func (s *Server) authorize(ctx context.Context, method string) (Principal, error) {
	rule, known := accessTable[method]
	if known && rule.open {
		return Principal{}, nil
	}
	p, err := s.authenticate(ctx)
	if err != nil {
		return Principal{}, err
	}
	if !known {
		return Principal{}, permissionDenied("no such method")
	}
	return p, rule.check(p)
}

// check says whether a principal may call at all.
func (a access) check(p Principal) error {
	if p.TokenRun != "" {
		if !a.token {
			return permissionDenied("a run token may not call this method")
		}
		return nil
	}
	if a.credential && !p.Credential {
		return credentialRequired("this method needs a credential")
	}
	if !a.owner && !p.HasAnywhere(a.roles) {
		return permissionDenied("this method needs the role %s", a.roles)
	}
	return nil
}

// checkRun says whether a principal may call a method on a run. A caller who is no viewer of the agent is not told
// that the run exists.
func (a access) checkRun(p Principal, run *runnerdv1.Run) error {
	roles := p.On(run.GetAgent()).Roles
	switch {
	case p.TokenRun != "":
		if a.token && p.TokenRun == run.GetRunId() {
			return nil
		}
	case roles.Has(a.roles), a.owner && p.owns(run):
		return nil
	case roles.Has(RoleViewer) && a.owner:
		return permissionDenied("this method is for the owner of the run, and for the role %s on its agent", a.roles)
	case roles.Has(RoleViewer):
		return permissionDenied("this method needs the role %s on the agent of the run", a.roles)
	}
	return runNotFound(run.GetRunId())
}

// checkAgent says whether a principal may call a method on an agent. A caller who is no viewer of the agent is not told
// that it exists.
func (a access) checkAgent(p Principal, agent string) error {
	roles := p.On(agent).Roles
	switch {
	case roles.Has(a.roles):
		return nil
	case roles.Has(RoleViewer):
		return permissionDenied("this method needs the role %s on the agent", a.roles)
	}
	return agentNotFound(agent)
}

// checkAll says whether a principal may call a method on all runs together, of agents that were removed, too.
func (a access) checkAll(p Principal) error {
	if p.Everywhere.Roles.Has(a.roles) {
		return nil
	}
	return permissionDenied("without a run this method needs the role %s on all agents", a.roles)
}

// owns reports whether a principal started a run.
func (p Principal) owns(run *runnerdv1.Run) bool { return p.Name != "" && p.Name == run.GetOwner() }

// seesRaw reports whether a principal may see of a run what redaction takes from others.
func (p Principal) seesRaw(run *runnerdv1.Run) bool {
	return p.Credential && (p.Has(run.GetAgent(), RoleAdmin) || p.owns(run))
}
