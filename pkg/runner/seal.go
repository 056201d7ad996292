package runner

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

// sealSize is how many bytes a seal has.
const sealSize = sha256.Size

// sealBody puts a seal before a checkpoint body. A body holds what a run may do: counters, grants, approvals. It is
// taken for the fold of the events only if it was written by who has the key of the data folder, for that run and that
// sequence; else the events are folded again.
func sealBody(key Key, run string, sequence uint64, body []byte) []byte {
	return append(bodySeal(key, run, sequence, body), body...)
}

// openBody takes the seal off; ok is false if it is not the right one.
func openBody(key Key, run string, sequence uint64, sealed []byte) (body []byte, ok bool) {
	if len(sealed) < sealSize {
		return nil, false
	}
	body = sealed[sealSize:]
	return body, hmac.Equal(sealed[:sealSize], bodySeal(key, run, sequence, body))
}

func bodySeal(key Key, run string, sequence uint64, body []byte) []byte {
	mac := hmac.New(sha256.New, key.Secret)
	mac.Write([]byte("runnerd/body/v1\x00" + run + "\x00"))
	mac.Write(binary.BigEndian.AppendUint64(nil, sequence))
	mac.Write(body)
	return mac.Sum(nil)
}
