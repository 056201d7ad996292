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
	// roles of which one is enough; 0: no role is enough.
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

// authorize says who calls a method, or why they may not. Method is the name as the transport parsed it. Which run a
// request is about is not looked at here: methods for owners let every principal pass and ask in the handler.
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
	if !a.owner && !p.Roles.Has(a.roles) {
		return permissionDenied("this method needs another role")
	}
	return nil
}

// checkRun says whether a principal may call a method on a run that has this owner. A caller who is no viewer is not
// told that the run exists.
func (a access) checkRun(p Principal, run, owner string) error {
	switch {
	case p.TokenRun != "":
		if a.token && p.TokenRun == run {
			return nil
		}
	case p.Roles.Has(a.roles), a.owner && p.Name != "" && p.Name == owner:
		return nil
	case p.Roles.Has(RoleViewer):
		return permissionDenied("only the owner of the run may do that")
	}
	return runNotFound(run)
}

// seesRaw reports whether a principal may see what redaction takes from others.
func (p Principal) seesRaw(owner string) bool {
	return p.Credential && (p.Roles.Has(RoleAdmin) || p.Name != "" && p.Name == owner)
}
