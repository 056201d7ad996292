package runner

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"strings"
	"sync"
	"time"
)

// tokens knows the effects in progress and hands out the run tokens that are valid just as long.
type tokens struct {
	mu       sync.Mutex
	hash     hash.Hash                    // keyed by a secret of this process: what was in progress before it is not any more
	progress map[string]map[string]flight // by run and effect key
}

// flight is one effect in progress.
type flight struct {
	since     time.Time
	iteration uint32
	attempt   uint32
	name      string // "decide" or the call id, as heartbeats show it
}

func newTokens() *tokens {
	secret := make([]byte, sha256.Size)
	rand.Read(secret) // never fails
	return &tokens{hash: hmac.New(sha256.New, secret), progress: make(map[string]map[string]flight)}
}

// begin notes that an effect is in progress and returns its token.
func (t *tokens) begin(run, key string, f flight) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.progress[run] == nil {
		t.progress[run] = make(map[string]flight, 1)
	}
	t.progress[run][key] = f
	return run + ":" + key + ":" + t.mac(run, key)
}

// end makes the token of an effect worthless.
func (t *tokens) end(run, key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.progress[run], key)
	if len(t.progress[run]) == 0 {
		delete(t.progress, run)
	}
}

// of returns the effects of a run that are in progress.
func (t *tokens) of(run string) []flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	flights := make([]flight, 0, len(t.progress[run]))
	for _, f := range t.progress[run] {
		flights = append(flights, f)
	}
	return flights
}

// mac is called with mu held: the hash is made once, with its key, and used again.
func (t *tokens) mac(run, key string) string {
	t.hash.Reset()
	t.hash.Write([]byte("runnerd/run-token/v1\x00" + run + "\x00" + key))
	var sum [sha256.Size]byte
	return base64.RawURLEncoding.EncodeToString(t.hash.Sum(sum[:0]))
}

// CheckRunToken returns the run for which a token was handed out with a Decide or a tool call that is in progress now.
func (r *Runner) CheckRunToken(token string) (run string, ok bool) {
	run, rest, _ := strings.Cut(token, ":") // neither run ids nor keys hold a colon
	key, mac, _ := strings.Cut(rest, ":")
	r.tokens.mu.Lock()
	defer r.tokens.mu.Unlock()
	if !hmac.Equal([]byte(mac), []byte(r.tokens.mac(run, key))) {
		return "", false
	}
	if _, ok := r.tokens.progress[run][key]; !ok {
		return "", false
	}
	return run, true
}
