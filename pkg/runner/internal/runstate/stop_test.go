package runstate

import (
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// The table says it in other words than the code, and leaves out no stop reason that the contract has.
func TestStopReasons(t *testing.T) {
	t.Parallel()
	type row struct {
		outcome, category, status string
		resume                    Resumability
	}
	want := map[string]row{
		"UNSPECIFIED":       {"UNSPECIFIED", "UNSPECIFIED", "running", ResumeNever},
		"COMPLETED":         {"SUCCESS", "UNSPECIFIED", "completed", ResumeNever},
		"WAITING_APPROVAL":  {"UNSPECIFIED", "UNSPECIFIED", "pending_approval", ResumeByVote},
		"MAX_ITERATIONS":    {"INCOMPLETE", "MODEL_LOGIC", "failed:model_logic", ResumeByCall},
		"MAX_TOOL_CALLS":    {"INCOMPLETE", "BUDGET_EXCEEDED", "failed:budget_exceeded", ResumeByCall},
		"MAX_COST":          {"INCOMPLETE", "BUDGET_EXCEEDED", "failed:budget_exceeded", ResumeByCall},
		"MAX_DURATION":      {"INCOMPLETE", "BUDGET_EXCEEDED", "failed:budget_exceeded", ResumeByCall},
		"MAX_CONTEXT":       {"INCOMPLETE", "BUDGET_EXCEEDED", "failed:budget_exceeded", ResumeByCall},
		"AUTO_MODE_LIMIT":   {"INCOMPLETE", "BUDGET_EXCEEDED", "failed:budget_exceeded", ResumeByCall},
		"BUDGET_DECLINED":   {"CANCELLED", "SYSTEM", "failed:system", ResumeNever},
		"MAX_FAILURES":      {"INCOMPLETE", "MODEL_LOGIC", "failed:model_logic", ResumeByCall},
		"NEEDS_INPUT":       {"BLOCKED", "MODEL_LOGIC", "failed:model_logic", ResumeByInput},
		"DECISION_INVALID":  {"FAILED", "MODEL_LOGIC", "failed:model_logic", ResumeNever},
		"PERMISSION_DENIED": {"FAILED", "PERMISSION", "failed:permission", ResumeNever},
		"POLICY_BLOCKED":    {"FAILED", "PERMISSION", "failed:permission", ResumeNever},
		"STOPPED":           {"CANCELLED", "SYSTEM", "failed:system", ResumeNever},
		"CANCELLED":         {"CANCELLED", "SYSTEM", "failed:system", ResumeNever},
		"TRANSPORT_ERROR":   {"FAILED", "TRANSIENT", "failed:transient", ResumeByCall},
		"INTERNAL_ERROR":    {"FAILED", "SYSTEM", "failed:system", ResumeNever},
	}
	for number, name := range runnerdv1.StopReason_name {
		reason := runnerdv1.StopReason(number)
		short := name[len("STOP_REASON_"):]
		expected, ok := want[short]
		if !ok {
			t.Errorf("%s has no row", name)
			continue
		}
		got := row{
			Outcome(reason).String()[len("OUTCOME_"):], Category(reason).String()[len("CATEGORY_"):], Status(reason), Resumable(reason),
		}
		if got != expected {
			t.Errorf("%s: got %v, want %v", name, got, expected)
		}
	}
	if len(want) != len(runnerdv1.StopReason_name) {
		t.Errorf("%d rows for %d stop reasons", len(want), len(runnerdv1.StopReason_name))
	}
}
