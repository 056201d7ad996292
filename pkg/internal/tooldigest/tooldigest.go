// Package tooldigest knows a tool by all that its host says about it. runnerd pins tools by it, and a host made with
// pkg/toolhost refuses calls that were decided for another.
package tooldigest

import (
	"crypto/sha256"
	"encoding/hex"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Of is the SHA-256, lower-case hex, of the definition in protobuf encoding, fields in the order of their numbers.
// Fields that this version does not know are not part of it. Text that is no UTF-8 cannot come out of decoding and
// panics.
func Of(d *runnerdv1.ToolDefinition) string {
	known := &runnerdv1.ToolDefinition{
		Name:             d.GetName(),
		Description:      d.GetDescription(),
		InputSchemaJson:  d.GetInputSchemaJson(),
		OutputSchemaJson: d.GetOutputSchemaJson(),
	}
	if a := d.GetAnnotations(); a != nil {
		known.Annotations = &runnerdv1.Annotations{
			ReadOnly: a.ReadOnly, Destructive: a.Destructive, Idempotent: a.Idempotent, Stateful: a.Stateful,
			SecurityTier: a.GetSecurityTier(),
		}
	}
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(known)
	if err != nil {
		panic("tooldigest: " + err.Error())
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
