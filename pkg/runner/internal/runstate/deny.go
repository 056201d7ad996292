package runstate

import (
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// denyGate blocks what a deny rule of the layer matches; the first that does gives the message.
func denyGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	for _, rule := range layer.GetDeny() {
		if !denies(rule, s) {
			continue
		}
		o := &objection{
			verdict: block, rule: "deny:" + rule.GetId(), reason: runnerdv1.CallReason_CALL_REASON_FILE_POLICY_DENIED,
			message: rule.GetMessage(),
		}
		if o.message == "" {
			o.message = "not run: denied by rule " + rule.GetId()
		}
		return o
	}
	return nil
}

// denies reports whether a rule matches a call: its tool, and all of its patterns the whole value of their argument.
func denies(rule *runnerdv1.DenyRule, s *subject) bool {
	if rule.GetTools() != "" && !matchesTool(rule.GetTools(), s.tool) {
		return false
	}
	for key, pattern := range rule.GetArguments() {
		if v := s.root().at(key); v == nil || !matchesText(pattern, v.text) {
			return false
		}
	}
	return true
}
