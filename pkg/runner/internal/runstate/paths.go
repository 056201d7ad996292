package runstate

import (
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// PathFinding is what is wrong with a path of a call beneath a workspace that runnerd shares with the tools.
type PathFinding struct {
	Layer   string               // whose workspace it is
	Path    string               // as it stands in the arguments
	Reason  runnerdv1.CallReason // PATH_SYMLINK or PATH_OUTSIDE_WORKSPACE
	Message string
}

// pathArgument is one path in the arguments of a call.
type pathArgument struct {
	name string // JSON Pointer of the argument
	path string // as it stands there
}

// pathGate blocks paths that lead out of the workspace of the layer.
func pathGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	return nil
}

// sensitiveGate asks for paths that the layer calls sensitive.
func sensitiveGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	return nil
}
