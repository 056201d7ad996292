package runstate

import (
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Resumability says how a run that was ended with a stop reason can go on.
type Resumability int

const (
	// ResumeNever says that the run is final: it can only be forked.
	ResumeNever Resumability = iota
	// ResumeByVote says that the run is paused: a verdict on an open approval goes on with it.
	ResumeByVote
	// ResumeByCall says that ResumeRun goes on with it, after a limit with a raised budget.
	ResumeByCall
	// ResumeByInput says that SubmitInput goes on with it.
	ResumeByInput
)

// ending is what follows from a stop reason.
type ending struct {
	outcome  runnerdv1.Outcome
	category runnerdv1.Category
	resume   Resumability
}

// endings is the table of stop reasons: everything else about the end of a run is a function of the reason.
var endings = map[runnerdv1.StopReason]ending{
	runnerdv1.StopReason_STOP_REASON_COMPLETED:        {outcome: runnerdv1.Outcome_OUTCOME_SUCCESS},
	runnerdv1.StopReason_STOP_REASON_WAITING_APPROVAL: {resume: ResumeByVote},
	runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_MODEL_LOGIC, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_MAX_TOOL_CALLS: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_MAX_COST: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_MAX_DURATION: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_MAX_CONTEXT: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_AUTO_MODE_LIMIT: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_BUDGET_EXCEEDED, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_MAX_FAILURES: {
		runnerdv1.Outcome_OUTCOME_INCOMPLETE, runnerdv1.Category_CATEGORY_MODEL_LOGIC, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_NEEDS_INPUT: {
		runnerdv1.Outcome_OUTCOME_BLOCKED, runnerdv1.Category_CATEGORY_MODEL_LOGIC, ResumeByInput,
	},
	runnerdv1.StopReason_STOP_REASON_DECISION_INVALID: {
		runnerdv1.Outcome_OUTCOME_FAILED, runnerdv1.Category_CATEGORY_MODEL_LOGIC, ResumeNever,
	},
	runnerdv1.StopReason_STOP_REASON_PERMISSION_DENIED: {
		runnerdv1.Outcome_OUTCOME_FAILED, runnerdv1.Category_CATEGORY_PERMISSION, ResumeNever,
	},
	runnerdv1.StopReason_STOP_REASON_POLICY_BLOCKED: {
		runnerdv1.Outcome_OUTCOME_FAILED, runnerdv1.Category_CATEGORY_PERMISSION, ResumeNever,
	},
	runnerdv1.StopReason_STOP_REASON_BUDGET_DECLINED: {
		runnerdv1.Outcome_OUTCOME_CANCELLED, runnerdv1.Category_CATEGORY_SYSTEM, ResumeNever,
	},
	runnerdv1.StopReason_STOP_REASON_STOPPED: {
		runnerdv1.Outcome_OUTCOME_CANCELLED, runnerdv1.Category_CATEGORY_SYSTEM, ResumeNever,
	},
	runnerdv1.StopReason_STOP_REASON_CANCELLED: {
		runnerdv1.Outcome_OUTCOME_CANCELLED, runnerdv1.Category_CATEGORY_SYSTEM, ResumeNever,
	},
	runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR: {
		runnerdv1.Outcome_OUTCOME_FAILED, runnerdv1.Category_CATEGORY_TRANSIENT, ResumeByCall,
	},
	runnerdv1.StopReason_STOP_REASON_INTERNAL_ERROR: {
		runnerdv1.Outcome_OUTCOME_FAILED, runnerdv1.Category_CATEGORY_SYSTEM, ResumeNever,
	},
}

// Outcome is how a run with this stop reason ended; unspecified while a leg is open and for a pause.
func Outcome(reason runnerdv1.StopReason) runnerdv1.Outcome { return endings[reason].outcome }

// Category groups the failure; unspecified where there is none.
func Category(reason runnerdv1.StopReason) runnerdv1.Category { return endings[reason].category }

// Resumable says how a run with this stop reason goes on, if it can. A run that nothing ended is not resumable.
func Resumable(reason runnerdv1.StopReason) Resumability { return endings[reason].resume }

// Status is the stop reason in one word for people and scripts: running, completed, pending_approval or
// failed:<category>.
func Status(reason runnerdv1.StopReason) string {
	end, known := endings[reason]
	switch {
	case !known:
		return "running"
	case end.outcome == runnerdv1.Outcome_OUTCOME_SUCCESS:
		return "completed"
	case end.outcome == runnerdv1.Outcome_OUTCOME_UNSPECIFIED:
		return "pending_approval"
	default:
		return "failed:" + strings.ToLower(strings.TrimPrefix(end.category.String(), "CATEGORY_"))
	}
}
