package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

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

// approvalFromLog returns an approval as the log tells, from the event that opened it to the one that closed it:
// closedAt is the sequence of the latter, 0 to look for it. The arguments are not filled in.
func (s *runService) approvalFromLog(ctx context.Context, agent, run string, id, closedAt uint64) (*runnerdv1.Approval, error) {
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
	approval.Agent = agent
	if requested != 0 { // it is about a call
		call, err := s.runner.Event(ctx, run, requested)
		if err != nil {
			return nil, err
		}
		approval.ArgumentDigest = call.GetToolCallRequested().GetArgumentDigest()
		approval.Annotations = call.GetToolCallRequested().GetAnnotations()
		if approval.Rule == "" {
			approval.Rule = call.GetToolCallRequested().GetRule()
		}
	}
	for ev, err := range s.runner.Events(ctx, run, max(id, closedAt-min(closedAt, 1))) {
		if err != nil {
			return nil, err
		}
		if closing := resolutionOf(ev); closing.GetApprovalId() == id {
			approval.Via = closing.GetVia()
			approval.Verdict = closing.GetVerdict()
			approval.Reason = closing.GetReason()
			approval.ClosedBy = ev.GetPrincipal()
			approval.ClosedAt = ev.GetTime()
			break
		}
	}
	return approval, nil
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
		approval.ApprovalDigest, approval.Rule, approval.ExpiresAt = p.GetApprovalDigest(), p.GetRule(), p.GetExpiresAt()
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
	approval.Kind = runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT
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

// What an approver is shown of long arguments in a list.
const (
	maxShownArguments = 4 << 10
	shownEnd          = 2 << 10   // of each end, when they are longer
	maxWholeArguments = 3 << 20   // what GetApproval shows whole
	artifactChunk     = 512 << 10 // of an artifact in one message
)

// showArguments fills in what will run: the exact arguments of the call, from the event that requested it. In a list,
// and over 3 MiB, that is their head and tail with a mark between. An approval that is about no call has none.
func (s *runService) showArguments(ctx context.Context, approval *runnerdv1.Approval, whole bool) error {
	if approval.GetKind() == runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET {
		return nil
	}
	run := approval.GetRunId()
	opening, err := s.runner.Event(ctx, run, approval.GetApprovalId())
	if err != nil {
		return err
	}
	_, requested := opened(opening)
	ev, err := s.runner.Event(ctx, run, requested)
	if err != nil {
		return err
	}
	call := ev.GetToolCallRequested()
	limit := uint64(maxShownArguments)
	if whole {
		limit = maxWholeArguments
	}
	if call.ArgumentsJson == nil && call.GetArgumentsRef() != nil {
		return s.showStored(ctx, approval, call.GetArgumentsRef(), limit)
	}
	text := call.GetArgumentsRaw()
	if call.ArgumentsJson != nil {
		text = call.GetArgumentsJson()
	}
	approval.ArgumentsSize = uint64(len(text))
	approval.ArgumentsCut = approval.ArgumentsSize > limit
	approval.ArgumentsJson = text
	if approval.ArgumentsCut {
		approval.ArgumentsJson = headAndTail(text[:shownEnd], text[len(text)-shownEnd:], len(text))
	}
	return nil
}

// showStored shows arguments that are an artifact.
func (s *runService) showStored(ctx context.Context, approval *runnerdv1.Approval, ref *runnerdv1.ArtifactRef, limit uint64) error {
	run := approval.GetRunId()
	approval.ArgumentsSize = ref.GetSize()
	approval.ArgumentsCut = ref.GetSize() > limit
	if !approval.ArgumentsCut {
		text, err := s.runner.ReadPart(ctx, run, ref)
		if err != nil {
			return err
		}
		approval.ArgumentsJson = string(text)
		return nil
	}
	head, err := s.readRange(ctx, run, ref.GetArtifactId(), 0, shownEnd)
	if err != nil {
		return err
	}
	tail, err := s.readRange(ctx, run, ref.GetArtifactId(), int64(ref.GetSize())-shownEnd, shownEnd)
	if err != nil {
		return err
	}
	approval.ArgumentsJson = headAndTail(string(head), string(tail), int(ref.GetSize()))
	return nil
}

// readRange reads size bytes of an artifact, less at its end.
func (s *runService) readRange(ctx context.Context, run, artifact string, from int64, size int) ([]byte, error) {
	out := make([]byte, 0, size)
	for len(out) < size {
		chunk, err := s.runner.ReadBlob(ctx, run, artifact, from+int64(len(out)))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		out = append(out, chunk[:min(len(chunk), size-len(out))]...)
	}
	return out, nil
}

// headAndTail puts the two ends of a text of some size together, cut on characters, with a mark between that says how
// much is not shown.
func headAndTail(head, tail string, size int) string {
	for len(head) > 0 {
		if r, n := utf8.DecodeLastRuneInString(head); r != utf8.RuneError || n != 1 {
			break
		}
		head = head[:len(head)-1]
	}
	tail = strings.TrimLeftFunc(tail, func(r rune) bool { return r == utf8.RuneError })
	return fmt.Sprintf("%s\n... %d bytes are not shown ...\n%s", head, size-len(head)-len(tail), tail)
}
