package runstate

import (
	"fmt"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// approvalGlobGate asks for the tools that the layer names.
func approvalGlobGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	for _, glob := range layer.GetApprovalFor() {
		if matchesTool(glob, s.tool) {
			return &objection{
				verdict: runnerdv1.Verdict_VERDICT_ASK, rule: "approval_for:" + glob, message: fmt.Sprintf("the policy asks for %q", glob),
			}
		}
	}
	return nil
}

// matchesTool reports whether a glob means the tool: by its own name, or by the name under which it is offered; "tool:"
// may stand before it.
func matchesTool(glob string, tool *Tool) bool {
	glob = strings.TrimPrefix(glob, "tool:")
	return matchesName(glob, tool.GetName()) || tool.GetOfferedName() != tool.GetName() && matchesName(glob, tool.GetOfferedName())
}
