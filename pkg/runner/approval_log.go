package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"

	storagev1 "github.com/runnerd/runnerd/gen/runnerd/storage/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// approvalOfKey returns the approval id at the end of an ask/ key, 0 if there is none.
func approvalOfKey(key []byte) uint64 {
	id, err := strconv.ParseUint(string(key[bytes.LastIndexByte(key, '/')+1:]), 10, 64)
	if err != nil {
		return 0
	}
	return id
}

// loggedApproval is an approval with what of the log it is made from.
type loggedApproval struct {
	*runnerdv1.Approval
	requested *runnerdv1.Event            // of its call; nil: it is about none
	ran       *runnerdv1.ToolCallApproved // that let the call run which is in doubt; nil: there is none
	approved  *runnerdv1.ToolCallApproved // that closed it; nil: nothing has, or something else
}

// asked returns the arguments that it is about.
func (a *loggedApproval) asked() runstate.Part {
	if part, edited := editOf(a.ran); edited {
		return part
	}
	call := a.requested.GetToolCallRequested()
	if call.ArgumentsJson != nil {
		return runstate.Part{Text: call.GetArgumentsJson()}
	}
	return runstate.Part{Text: call.GetArgumentsRaw(), Ref: call.GetArgumentsRef()}
}

// editOf returns what an approver let run instead of what was asked; ok is false if nothing was edited.
func editOf(p *runnerdv1.ToolCallApproved) (part runstate.Part, ok bool) {
	return runstate.Part{Text: p.GetEditedArgumentsJson(), Ref: p.GetEditedArgumentsRef()},
		p != nil && (p.EditedArgumentsJson != nil || p.GetEditedArgumentsRef() != nil)
}

// editedTo reports whether the approval was closed with this edit; nil: with none.
func (a *loggedApproval) editedTo(text *string) bool {
	part, ok := editOf(a.approved)
	if text == nil || !ok {
		return text == nil && !ok
	}
	arguments, err := runstate.ParseArguments(*text)
	if err != nil {
		return false
	}
	if part.Ref == nil {
		return arguments.Text == part.Text
	}
	sum := sha256.Sum256([]byte(arguments.Text))
	return hex.EncodeToString(sum[:]) == part.Ref.GetSha256()
}

// openFromLog adds to an open approval of a row what stands in the log.
func (s *runService) openFromLog(ctx context.Context, row *storagev1.Row, open *runnerdv1.Approval) (*loggedApproval, error) {
	opening, err := s.runner.Event(ctx, row.GetRun().GetRunId(), open.GetApprovalId())
	if err != nil {
		return nil, err
	}
	_, requested := opened(opening)
	return s.aboutCall(ctx, open, requested)
}

// aboutCall adds the request of its call to an approval; 0: it is about none.
func (s *runService) aboutCall(ctx context.Context, approval *runnerdv1.Approval, requested uint64) (*loggedApproval, error) {
	a := &loggedApproval{Approval: approval}
	if requested == 0 {
		return a, nil
	}
	var err error
	a.requested, err = s.runner.Event(ctx, approval.GetRunId(), requested)
	if err != nil || approval.GetKind() != runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT {
		return a, err
	}
	// What is in doubt may have run with edited arguments.
	for ev, err := range s.runner.Events(ctx, approval.GetRunId(), requested) {
		if err != nil {
			return nil, err
		}
		if ev.GetSequence() >= approval.GetApprovalId() {
			break
		}
		if p := ev.GetToolCallApproved(); p.GetCallId() == approval.GetCallId() {
			a.ran = p
		}
	}
	return a, nil
}

// approvalFromLog returns an approval as the log tells, from the event that opened it to the one that closed it:
// closedAt is the sequence of the latter, 0 to look for it. Arguments and words are not filled in.
func (s *runService) approvalFromLog(ctx context.Context, row *storagev1.Row, id, closedAt uint64) (*loggedApproval, error) {
	run := row.GetRun().GetRunId()
	opening, err := s.runner.Event(ctx, run, id)
	if e := (*Error)(nil); errors.As(err, &e) && e.Reason == runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD {
		return nil, approvalNotFound(run, id)
	}
	if err != nil {
		return nil, err
	}
	approval, requested := opened(opening)
	if approval == nil {
		return nil, approvalNotFound(run, id)
	}
	approval.Agent = row.GetRun().GetAgent()
	logged, err := s.aboutCall(ctx, approval, requested)
	if err != nil {
		return nil, err
	}
	if call := logged.requested.GetToolCallRequested(); call != nil {
		approval.ArgumentDigest, approval.Annotations, approval.Tier = call.GetArgumentDigest(), call.GetAnnotations(), call.GetTier()
		if logged.ran != nil {
			approval.ArgumentDigest = logged.ran.GetArgumentDigest()
		}
	}
	for ev, err := range s.runner.Events(ctx, run, max(id, closedAt-min(closedAt, 1))) {
		if err != nil {
			return nil, err
		}
		if resolutionOf(ev).GetApprovalId() == id {
			return logged, s.closedBy(ctx, logged, ev)
		}
	}
	return logged, nil
}

// closedBy adds to an approval how an event closed it.
func (s *runService) closedBy(ctx context.Context, a *loggedApproval, ev *runnerdv1.Event) error {
	closing := resolutionOf(ev)
	a.Via, a.Verdict, a.Reason = closing.GetVia(), closing.GetVerdict(), closing.GetReason()
	a.ClosedBy, a.ClosedAt = ev.GetPrincipal(), ev.GetTime()
	a.approved = ev.GetToolCallApproved()
	if id := a.approved.GetGrantId(); id != 0 { // one that was given before
		var err error
		if ev, err = s.runner.Event(ctx, a.GetRunId(), id); err != nil {
			return err
		}
	}
	a.Grant = grantOf(ev)
	return nil
}

// grantOf returns the grant that an event gives, nil if it gives none.
func grantOf(ev *runnerdv1.Event) *runnerdv1.Grant {
	g := ev.GetToolCallApproved().GetGrant()
	if g != nil {
		g.GrantedAt = ev.GetTime()
	}
	return g
}

func approvalNotFound(run string, id uint64) *Error {
	return errorf(runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_FOUND, "run %q never opened an approval %d", run, id)
}

// opened returns the approval that an event opens, nil if it opens none, and the sequence of the request of the call, 0
// if it is about none.
func opened(ev *runnerdv1.Event) (approval *runnerdv1.Approval, requested uint64) {
	approval = &runnerdv1.Approval{RunId: ev.GetRunId(), ApprovalId: ev.GetSequence(), OpenedAt: ev.GetTime()}
	if p := ev.GetToolCallPendingApproval(); p != nil {
		approval.Kind = runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL
		approval.CallId, approval.Host, approval.Tool = p.GetCallId(), p.GetHost(), p.GetTool()
		approval.Gate, approval.Rule, approval.Layer = p.GetGate(), p.GetRule(), p.GetLayer()
		approval.ApprovalDigest, approval.ExpiresAt = p.GetApprovalDigest(), p.GetExpiresAt()
		return approval, p.GetRequestedSequence()
	}
	if p := ev.GetBudgetConfirmationRequested(); p != nil {
		approval.Kind, approval.Rule = runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET, runstate.ConfirmRule
		approval.ApprovalDigest, approval.ExpiresAt = p.GetApprovalDigest(), p.GetExpiresAt()
		approval.Budget = &runnerdv1.BudgetQuestion{
			Level: p.GetLevel(), Percent: p.GetPercent(), CostNanocents: p.GetCostNanocents(),
			CostCents: p.GetCostCents(), MaxCostCents: p.GetMaxCostCents(),
		}
		return approval, 0
	}
	p := ev.GetToolCallInDoubt()
	if p.GetNext() != runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
		return nil, 0
	}
	approval.Kind, approval.Rule = runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT, runstate.DoubtRule
	approval.CallId, approval.Host, approval.Tool = p.GetCallId(), p.GetHost(), p.GetTool()
	approval.Attempt, approval.Cause = p.GetAttempt(), p.GetCause()
	approval.ApprovalDigest, approval.ExpiresAt = p.GetApprovalDigest(), p.GetExpiresAt()
	return approval, p.GetRequestedSequence()
}

// resolutionOf returns how an event closes an approval, nil if it closes none.
func resolutionOf(ev *runnerdv1.Event) *runnerdv1.Resolution {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_BudgetPrompt:
		return p.BudgetPrompt.GetResolution()
	case *runnerdv1.Event_ToolCallApproved:
		return p.ToolCallApproved.GetResolution()
	case *runnerdv1.Event_ToolCallDenied:
		return p.ToolCallDenied.GetResolution()
	case *runnerdv1.Event_ToolCallRetried:
		return p.ToolCallRetried.GetResolution()
	case *runnerdv1.Event_ToolCallCompleted:
		return p.ToolCallCompleted.GetResolution()
	case *runnerdv1.Event_ToolCallFailed:
		return p.ToolCallFailed.GetResolution()
	default:
		return nil
	}
}
