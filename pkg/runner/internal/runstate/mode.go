package runstate

import (
	"fmt"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// modeCells says by mode and tier, from 0 to 4, what becomes of a call.
var modeCells = map[runnerdv1.PermissionMode][5]runnerdv1.Verdict{
	runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY:          {allow, block, block, block, block},
	runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE:    {allow, allow, allow, block, block},
	runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT:             {allow, ask, allow, ask, ask},
	runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW:              {allow, allow, allow, allow, ask},
	runnerdv1.PermissionMode_PERMISSION_MODE_DANGER_FULL_ACCESS: {allow, allow, allow, allow, allow},
}

const (
	allow = runnerdv1.Verdict_VERDICT_ALLOW
	ask   = runnerdv1.Verdict_VERDICT_ASK
	block = runnerdv1.Verdict_VERDICT_BLOCK
)

// ModeNames are the modes as people write them.
var ModeNames = map[runnerdv1.PermissionMode]string{
	runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY:          "read-only",
	runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE:    "workspace-write",
	runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT:             "prompt",
	runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW:              "allow",
	runnerdv1.PermissionMode_PERMISSION_MODE_DANGER_FULL_ACCESS: "danger-full-access",
}

// ungrantableTier is the tier whose calls are asked for each time, or not at all: no grant and no auto mode covers it.
const ungrantableTier = 4

// modeGate looks up the cell of the mode of the layer and the tier of the tool.
func modeGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	cells, ok := modeCells[layer.GetMode()]
	if !ok {
		return nil
	}
	tier := min(s.tool.GetTier(), uint32(len(cells)-1))
	name := ModeNames[layer.GetMode()]
	o := &objection{verdict: cells[tier], rule: fmt.Sprintf("mode:%s/tier:%d", name, tier)}
	switch o.verdict {
	case allow:
		return o
	case ask:
		o.message = fmt.Sprintf("in mode %s a tool of tier %d is asked for", name, tier)
		return o
	}
	o.reason = runnerdv1.CallReason_CALL_REASON_WORKSPACE_WRITE_MODE
	if layer.GetMode() == runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY {
		o.reason = runnerdv1.CallReason_CALL_REASON_READ_ONLY_MODE
	}
	o.message = fmt.Sprintf("not run: in mode %s a tool of tier %d is not allowed", name, tier)
	return o
}
