package runstate

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/prototext"
	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	toolCallKind = runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL
	inDoubtKind  = runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT
)

// TestApprovalDigestIsAsDocumented computes a digest from the words of docs/approvals.md, and holds it against one that
// another program has computed from them.
func TestApprovalDigestIsAsDocumented(t *testing.T) {
	t.Parallel()
	st := &State{env: Env{Key: Key{ID: "k1", Secret: []byte("secret")}}}
	st.ctl.RunID, st.ctl.SpecDigest = "run-1", "5bec"
	c := &call{ID: "2.1", Host: "files", Tool: "delete", SchemaDigest: "5c4e", ArgumentsHash: "k1:a465", Rule: "mode:prompt/tier:3"}
	expires := time.Unix(1_800_000_000, 5)
	var fields []byte
	for _, text := range []string{"run-1", "2.1", "files", "delete", "5c4e", "5bec", "k1:a465", "mode:prompt/tier:3"} {
		fields = append(binary.BigEndian.AppendUint64(fields, uint64(len(text))), text...)
	}
	for _, n := range []uint64{1, 0, 1_800_000_000_000_000_005} { // kind, attempt, expiry in nanoseconds
		fields = binary.BigEndian.AppendUint64(fields, n)
	}
	sum := sha256.Sum256(fields)
	mac := hmac.New(sha256.New, []byte("secret"))
	mac.Write(append([]byte("runnerd/approval/v1\x00"), sum[:]...))
	want := "k1:" + hex.EncodeToString(mac.Sum(nil))
	got := st.approvalDigest(c, toolCallKind, expires)
	if got != want {
		t.Errorf("got %s, by the words it is %s", got, want)
	}
	if golden := "k1:59e93b5d688e0e22522344d86755c539ebdf7561356e7e144c1736db39ad2060"; got != golden {
		t.Errorf("got %s, golden is %s", got, golden)
	}
}

// approvedWorld is a run with a call that is approved and waits for its turn, behind one that a person is asked about.
func approvedWorld(t tester) *world {
	spec := newSpec()
	spec.Policy = askFor("charge", "order")
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("order", "charge"))
	w.do(w.vote(w.st.Approvals()[1].GetApprovalId(), approve))
	return w
}

// another is a text near to one, and not the same.
func another(text string, n int) string {
	switch n % 4 {
	case 0:
		return text + strconv.Itoa(n)
	case 1:
		return strconv.Itoa(n) + text
	case 2:
		at := n % (len(text) + 1)
		return text[:at] + "\x00" + text[at:] + strconv.Itoa(n)
	default:
		return strconv.Itoa(n)
	}
}

// TestWhatWasApprovedIsWhatStarts changes each thing that an approval binds, a thousand times, between the yes and the
// turn of the call, and expects that it does not start.
func TestWhatWasApprovedIsWhatStarts(t *testing.T) {
	t.Parallel()
	const times = 1000
	for field, change := range map[string]func(st *State, c *call, n int){
		"run":               func(st *State, _ *call, n int) { st.ctl.RunID = another(st.ctl.RunID, n) },
		"call":              func(_ *State, c *call, n int) { c.ID = another(c.ID, n) },
		"host":              func(_ *State, c *call, n int) { c.Host = another(c.Host, n) },
		"tool":              func(_ *State, c *call, n int) { c.Tool = another(c.Tool, n) },
		"schema":            func(_ *State, c *call, n int) { c.SchemaDigest = another(c.SchemaDigest, n) },
		"spec":              func(st *State, _ *call, n int) { st.ctl.SpecDigest = another(st.ctl.SpecDigest, n) },
		"hash of arguments": func(_ *State, c *call, n int) { c.ArgumentsHash = another(c.ArgumentsHash, n) },
		"arguments":         func(_ *State, c *call, n int) { c.arguments.Text = fmt.Sprintf(`{"n":%d}`, n+2) },
		"blanks":            func(_ *State, c *call, n int) { c.arguments.Text = fmt.Sprintf(`{"n":%*d}`, n+2, 1) },
		"rule":              func(_ *State, c *call, n int) { c.Rule = another(c.Rule, n) },
		"expiry": func(_ *State, c *call, n int) {
			c.ApprovalExpires = c.ApprovalExpires.Add(time.Duration(n+1) * time.Nanosecond)
		},
		"key":                func(st *State, _ *call, n int) { st.env.Key.Secret = []byte(another("secret", n)) },
		"name of the key":    func(st *State, _ *call, n int) { st.env.Key.ID = another(st.env.Key.ID, n) },
		"what was agreed to": func(_ *State, c *call, n int) { c.ApprovalDigest = another(c.ApprovalDigest, n) },
	} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			w := approvedWorld(t)
			body := []byte(bodyOf(t, w.st))
			for n := range times {
				st := w.again(t, body)
				change(st, st.ctl.Calls[1], n)
				turn, err := Advance(st, []Fact{w.vote(w.open(), deny)}, w.now)
				if !errors.Is(err, ErrIllegalEvent) {
					t.Fatalf("changed for the time %d it starts: %v, %v", n, turn.Events, err)
				}
			}
			st := w.again(t, body)
			turn, err := Advance(st, []Fact{w.vote(w.open(), deny)}, w.now)
			if err != nil || turn.Events[len(turn.Events)-1].GetToolCallStarted() == nil {
				t.Fatalf("unchanged it does not start: %v, %v", turn.Events, err)
			}
		})
	}
}

// again is the state at a checkpoint body with the memory of the whole log.
func (w *world) again(t *testing.T, body []byte) *State {
	t.Helper()
	st, err := Restore(w.env, body)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range w.events {
		if err := st.Remember(ev); err != nil {
			t.Fatal(err)
		}
	}
	st.SetCatalogue(newCatalogue())
	return st
}

// TestVoteBindsKindAndAttempt answers a call in doubt with digests of the same call in another matter.
func TestVoteBindsKindAndAttempt(t *testing.T) {
	t.Parallel()
	spec := newSpec()
	spec.InDoubt = runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK
	w := newWorld(t, spec)
	w.start()
	w.do(Pinned{Catalogue: newCatalogue()})
	w.do(w.decided("charge"))
	w.lose("1.1", stream)
	c := *w.st.ctl.Calls[0]
	right := w.vote(w.open(), approve)
	if right.Digest != w.st.approvalDigest(&c, inDoubtKind, c.ApprovalExpires) {
		t.Fatal("the digest is not that of the call in doubt")
	}
	refused := func(digest string) {
		t.Helper()
		v := right
		v.Digest = digest
		head := len(w.events)
		turn := w.do(v)
		var refusal *Refusal
		if !errors.As(turn.Replies[0].Err, &refusal) || refusal.Reason != runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH || len(w.events) != head {
			t.Fatalf("answered with %v", turn.Replies[0])
		}
	}
	for n := range time.Duration(50) { // each is checked against the whole log
		refused(w.st.approvalDigest(&c, toolCallKind, c.ApprovalExpires.Add(n)))
		other := c
		other.Attempt += 1 + uint32(n)
		refused(w.st.approvalDigest(&other, inDoubtKind, c.ApprovalExpires))
	}
	seen := map[string]bool{right.Digest: true}
	for n := range uint32(1000) {
		other := c
		other.Attempt += 1 + n
		for _, digest := range []string{
			w.st.approvalDigest(&other, inDoubtKind, c.ApprovalExpires),
			w.st.approvalDigest(&c, toolCallKind, c.ApprovalExpires.Add(time.Duration(n))),
		} {
			if seen[digest] {
				t.Fatalf("two matters have the digest %s", digest)
			}
			seen[digest] = true
		}
	}
}

// TestRenderingChangesWithTheDigest draws calls and expects that what an approver is shown differs wherever what they
// agree to does, also beside the digest itself where the difference is one that people can see.
func TestRenderingChangesWithTheDigest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type shownCall struct {
			run, id, host, tool, arguments, rule string
			attempt                              uint32
			doubt                                bool
			expires                              time.Duration
		}
		draw := func(label string) shownCall {
			pick := func(what string, values ...string) string { return rapid.SampledFrom(values).Draw(t, label+" "+what) }
			return shownCall{
				run: pick("run", "r", "r1"), id: pick("call", "1.1", "1.2"), host: pick("host", "a", "ab"), tool: pick("tool", "b", "bc"),
				arguments: pick("arguments", `{"n":1}`, `{"n":1.0}`, `{"n": 1}`, `{}`, `{"n":1,"m":2}`, `{"m":2,"n":1}`),
				rule:      pick("rule", "approval_for:*", "mode:prompt/tier:3"), doubt: rapid.Bool().Draw(t, label+" doubt"),
				attempt: rapid.Uint32Range(1, 2).Draw(t, label+" attempt"), expires: time.Duration(rapid.IntRange(0, 2).Draw(t, label+" expires")),
			}
		}
		show := func(s shownCall) (digest, rendering, words string) {
			st := &State{env: Env{Key: testKey, Spec: newSpec()}, mem: memory{started: &runnerdv1.RunStarted{Agent: "agent"}}}
			st.ctl.RunID = s.run
			c := &call{ID: s.id, Host: s.host, Tool: s.tool, Rule: s.rule, Tier: 3, Attempt: s.attempt, Status: callPending, arguments: Part{Text: s.arguments}}
			c.ArgumentsHash = testKey.Digest(domainExact, []byte(s.arguments))
			kind := toolCallKind
			if s.doubt {
				c.Status, kind = callDoubt, inDoubtKind
			}
			expires := timeZero.Add(s.expires)
			c.ask(7, timeZero, st.approvalDigest(c, kind, expires), timestamp(expires))
			a := st.approval(c)
			a.ArgumentsJson = s.arguments // as it is shown: the exact text
			rendering = prototext.Format(a)
			a.ApprovalDigest, a.ArgumentDigest = "", ""
			return c.ApprovalDigest, rendering, prototext.Format(a)
		}
		one, other := draw("one"), draw("other")
		digest1, rendering1, words1 := show(one)
		digest2, rendering2, words2 := show(other)
		if digest1 == digest2 {
			return
		}
		if rendering1 == rendering2 {
			t.Fatalf("%+v and %+v are shown alike:\n%s", one, other, rendering1)
		}
		if one.doubt && other.doubt {
			one.rule, other.rule = "", "" // of the first question, which is settled
		}
		if one != other && words1 == words2 {
			t.Fatalf("%+v and %+v are shown alike but for the digest:\n%s", one, other, words1)
		}
	})
}
