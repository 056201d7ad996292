package auditstore

import "crypto/sha256"

// chainDomain separates the hashes of this log from all other uses of SHA-256.
const chainDomain = "runnerd/event/v1"

// Hash links an event to the one before it in its run:
//
//	SHA-256("runnerd/event/v1" ‖ prev ‖ SHA-256(public))
//
// prev is the hash of the event before, 32 zero bytes for the first. public is
// hashed as stored and never encoded again, since protobuf encoding is not
// canonical. The position is not hashed: it is the store's.
func Hash(prev Digest, public []byte) Digest {
	inner := sha256.Sum256(public)
	var buf [len(chainDomain) + 2*sha256.Size]byte
	n := copy(buf[:], chainDomain)
	n += copy(buf[n:], prev[:])
	copy(buf[n:], inner[:])
	return sha256.Sum256(buf[:])
}
