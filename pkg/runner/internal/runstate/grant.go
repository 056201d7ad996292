package runstate

import (
	"slices"
	"sync"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// maxGrants is the largest number of grants of a run that hold at a time.
const maxGrants = 256

// grant lets later calls of the run pass that would be asked.
type grant struct {
	ID                uint64
	Scope             runnerdv1.GrantScope
	Host, Tool        string
	Argument, Program string `json:",omitempty"` // RUN_PREFIX
	By                string
	At                time.Time
	Uses              uint32 `json:",omitempty"`
}

// coveredBy returns the oldest grant that lets a call pass that must be asked; nil: none does.
func (st *State) coveredBy(c *call) *grant {
	if c.Tier >= ungrantableTier {
		return nil
	}
	command := sync.OnceValues(func() (argument, program string) { return st.commandOf(c) })
	for _, g := range st.ctl.Grants {
		if g.Host != c.Host || g.Tool != c.Tool {
			continue
		}
		if g.Scope == runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL {
			return g
		}
		if argument, program := command(); program != "" && argument == g.Argument && program == g.Program {
			return g
		}
	}
	return nil
}

func (st *State) grant(id uint64) *grant {
	for _, g := range st.ctl.Grants {
		if g.ID == id {
			return g
		}
	}
	return nil
}

// possibleGrants are the grants that may be given with the approval of a call.
func (st *State) possibleGrants(c *call) (scopes []runnerdv1.GrantScope, program string) {
	if c.Status != callPending || c.Tier >= ungrantableTier || len(st.ctl.Grants) >= maxGrants {
		return nil, ""
	}
	scopes = append(scopes, runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL)
	if _, program = st.commandOf(c); program != "" {
		scopes = append(scopes, runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX)
	}
	return scopes, program
}

// commandOf returns the argument of a call that holds a command line, and the program that it runs; an empty program:
// there is none, or it is not a single plain command.
func (st *State) commandOf(c *call) (argument, program string) {
	tool := st.env.Catalogue.find(c.Host, c.Tool)
	if tool == nil || c.arguments.Ref != nil {
		return "", "" // what is over 64 KiB is looked at by a person
	}
	return commandProgram(tool.GetCommandArgument(), c.arguments.Text)
}

// given is the grant that comes with an approval; nil: none.
func (st *State) given(c *call, f Vote) *runnerdv1.Grant {
	if f.Grant == runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED {
		return nil
	}
	g := &runnerdv1.Grant{
		RunId: st.ctl.RunID, GrantId: st.ctl.Sequence + 1, Scope: f.Grant, Host: c.Host, Tool: c.Tool, GrantedBy: f.Principal,
	}
	if f.Grant == runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX {
		g.Argument, g.Program = st.commandOf(c)
	}
	return g
}

// Revoke ends a grant.
type Revoke struct {
	Principal string
	GrantID   uint64
	Reason    string
}

func (Revoke) isFact() {}

// revoke records that a grant does not hold any more. A run that has ended stays ended, but for the leg in which that
// is recorded.
func (t *advance) revoke(f Revoke) Reply {
	st := t.st
	if st.grant(f.GrantID) == nil {
		return Reply{Err: ErrNoGrant}
	}
	if st.Final() {
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED, "the run has ended and so have its grants")
	}
	ended, message, hint := st.ctl.Stop, st.mem.message, st.mem.hint
	t.reopen(f.Principal, runnerdv1.ResumeCause_RESUME_CAUSE_REVOKE)
	seq := t.emit(&runnerdv1.Event{
		Principal: f.Principal,
		Payload:   &runnerdv1.Event_GrantRevoked{GrantRevoked: &runnerdv1.GrantRevoked{GrantId: f.GrantID, Reason: f.Reason}},
	})
	if ended != 0 && ended != runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL {
		t.fail(ended, message, hint)
	}
	return Reply{Sequence: seq}
}

// revoked folds the end of a grant: what it let pass and has not started is asked for again.
func (st *State) revoked(r *runnerdv1.GrantRevoked) error {
	at := slices.IndexFunc(st.ctl.Grants, func(g *grant) bool { return g.ID == r.GetGrantId() })
	if at < 0 {
		return errNoGrant
	}
	st.ctl.Grants = slices.Delete(st.ctl.Grants, at, at+1)
	for _, c := range st.ctl.Calls {
		if c.Status == callApproved && c.GrantID == r.GetGrantId() {
			c.Status, c.GrantID, c.ClosedVia = callRequested, 0, runnerdv1.Via_VIA_UNSPECIFIED
			c.closeApproval()
		}
	}
	return nil
}

// proto is the grant as people are shown it.
func (g *grant) proto(run string) *runnerdv1.Grant {
	return &runnerdv1.Grant{
		RunId: run, GrantId: g.ID, Scope: g.Scope, Host: g.Host, Tool: g.Tool, Argument: g.Argument, Program: g.Program,
		GrantedBy: g.By, GrantedAt: timestamp(g.At), Uses: g.Uses,
	}
}

// Grants returns the grants that hold, oldest first.
func (st *State) Grants() []*runnerdv1.Grant {
	grants := make([]*runnerdv1.Grant, 0, len(st.ctl.Grants))
	for _, g := range st.ctl.Grants {
		grants = append(grants, g.proto(st.ctl.RunID))
	}
	return grants
}
