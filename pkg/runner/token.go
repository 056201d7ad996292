package runner

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"sync"
	"time"
)

// tokens knows the effects in progress and hands out the run tokens that are valid just as long.
type tokens struct {
	secret [32]byte // of this process: what was in progress before it is not any more

	mu       sync.Mutex
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
	t := &tokens{progress: make(map[string]map[string]flight)}
	rand.Read(t.secret[:]) // never fails
	return t
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

func (t *tokens) mac(run, key string) string {
	mac := hmac.New(sha256.New, t.secret[:])
	mac.Write([]byte("runnerd/run-token/v1\x00" + run + "\x00" + key))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// CheckRunToken returns the run for which a token was handed out with a Decide or a tool call that is in progress now.
func (r *Runner) CheckRunToken(token string) (run string, ok bool) {
	run, rest, _ := strings.Cut(token, ":") // neither run ids nor keys hold a colon
	key, mac, _ := strings.Cut(rest, ":")
	if !hmac.Equal([]byte(mac), []byte(r.tokens.mac(run, key))) {
		return "", false
	}
	r.tokens.mu.Lock()
	defer r.tokens.mu.Unlock()
	if _, ok := r.tokens.progress[run][key]; !ok {
		return "", false
	}
	return run, true
}
