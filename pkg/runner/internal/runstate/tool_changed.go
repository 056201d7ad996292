package runstate

import (
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// changedGate blocks a tool that is not what it was when the catalogue was pinned.
func changedGate(_ *runnerdv1.RunSpec, s *subject) *objection {
	if !s.found.Changed {
		return nil
	}
	return &objection{
		verdict: runnerdv1.Verdict_VERDICT_BLOCK, rule: "tool_changed", reason: runnerdv1.CallReason_CALL_REASON_TOOL_CHANGED,
		message: "not run: the host has changed the tool since this run began; only a new run can use it",
	}
}
