package runstate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
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
