package runstate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// Domains of keyed digests: the same bytes never have one digest in two roles.
const (
	domainArguments = "runnerd/arguments/v1" // canonical arguments: display, repeats
	domainExact     = "runnerd/exact/v1"     // exact arguments: what the start compares
	domainApproval  = "runnerd/approval/v1"  // what an approver agrees to
	domainBudget    = "runnerd/budget/v1"    // what an approver agrees to spend
)

// Key is the digest key of a data folder. Its digests can be shown: without the secret nobody can find out by trying
// what was digested.
type Key struct {
	ID     string
	Secret []byte
}

// Digest is the keyed digest of data in a domain, "<key id>:<hex HMAC-SHA-256>".
func (k Key) Digest(domain string, data []byte) string {
	mac := hmac.New(sha256.New, k.Secret)
	mac.Write([]byte(domain))
	mac.Write([]byte{0})
	mac.Write(data)
	return k.ID + ":" + hex.EncodeToString(mac.Sum(nil))
}

// bind is the keyed digest of fields in a domain. Each text is preceded by its length and all numbers have one, so that
// no two sets of fields give the same bytes.
func (k Key) bind(domain string, texts []string, numbers ...int64) string {
	var b []byte
	for _, s := range texts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	sum := sha256.Sum256(b)
	return k.Digest(domain, sum[:])
}

// unixNano is a time as digests have it; 0: never.
func unixNano(at time.Time) int64 {
	if at.IsZero() {
		return 0
	}
	return at.UnixNano()
}
