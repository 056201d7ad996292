package auditstore

import (
	"crypto/sha256"

	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of the trailer in the event message. They are the message's
// largest, so that stored bytes followed by a trailer are the message in the
// order a protobuf encoder would write it.
const (
	TrailerPosition protowire.Number = 1001 // uint64
	TrailerPrevHash protowire.Number = 1002 // bytes
	TrailerHash     protowire.Number = 1003 // bytes
)

// MaxTrailer is the most bytes that [AppendTrailer] adds.
const MaxTrailer = 2 + 10 + 2*(2+1+sha256.Size)

// AppendTrailer appends position, prev_hash and hash as protobuf fields to dst,
// which holds an event as stored.
func AppendTrailer(dst []byte, pos Position, prev, hash Digest) []byte {
	dst = protowire.AppendTag(dst, TrailerPosition, protowire.VarintType)
	dst = protowire.AppendVarint(dst, uint64(pos))
	dst = protowire.AppendTag(dst, TrailerPrevHash, protowire.BytesType)
	dst = protowire.AppendBytes(dst, prev[:])
	dst = protowire.AppendTag(dst, TrailerHash, protowire.BytesType)
	return protowire.AppendBytes(dst, hash[:])
}
