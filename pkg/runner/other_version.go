package runner

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// errOtherVersion says that a run was started by a version of runnerd that knows rules which this one does not. It can be
// read and is not driven: what would be overlooked may be what it must not do.
var errOtherVersion = errorf(runnerdv1.ErrorReason_ERROR_REASON_OTHER_VERSION,
	"the run was started by another version of runnerd, with rules that this one does not know")

// holdsUnknown reports whether a message, or one in it, has fields that this version does not know.
func holdsUnknown(m proto.Message) bool {
	unknown := false
	look := func(v protoreflect.Value) error {
		if m, ok := v.Interface().(protoreflect.Message); ok && len(m.GetUnknown()) > 0 {
			unknown = true
			return protorange.Terminate
		}
		return nil
	}
	// It ends early by itself, and otherwise does not fail.
	_ = protorange.Range(m.ProtoReflect(), func(p protopath.Values) error { return look(p.Index(-1).Value) })
	return unknown
}
