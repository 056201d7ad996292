package runstate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// FuzzCanonical: the canonical form of arguments is a spelling of them, the same for every spelling, and another as
// soon as anything in them is.
func FuzzCanonical(f *testing.F) {
	for i, seed := range []string{
		"{}", `{"a":[1,{"b":"\u00e9\ud83d\ude00/"}],"":null}`, `{"b":1.50e+2,"a":{"z":true,"y":[]}}`, `{"k":"\n\u0001<&>\u2028"}`,
	} {
		f.Add(seed, uint64(i))
	}
	f.Fuzz(func(t *testing.T, raw string, luck uint64) {
		got, err := ParseArguments(raw)
		if err != nil {
			return
		}
		value := valueOf(t, got.Text)
		if diff := cmp.Diff(value, valueOf(t, string(got.Canonical))); diff != "" {
			t.Fatalf("%q says something else than %q: %s", got.Canonical, got.Text, diff)
		}
		random := rand.New(rand.NewPCG(luck, 1)) // it repeats itself
		var other strings.Builder
		spell(&other, random, value)
		again, err := ParseArguments(other.String())
		if err != nil || string(again.Canonical) != string(got.Canonical) {
			t.Fatalf("%q has the form %q, and spelled %q the form %q (%v)", raw, got.Canonical, other.String(), again.Canonical, err)
		}
		other.Reset()
		spell(&other, random, altered(random, value))
		changed, err := ParseArguments(other.String())
		if err == nil && string(changed.Canonical) == string(got.Canonical) {
			t.Fatalf("%q and %q have one form %q", raw, other.String(), got.Canonical)
		}
	})
}

func valueOf(t *testing.T, text string) any {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return v
}

// spell writes a value with its keys in any order, and blanks and escapes as luck has it.
func spell(b *strings.Builder, random *rand.Rand, v any) {
	blank := func() { b.WriteString([]string{"", "", " ", "\n\t"}[random.IntN(4)]) }
	blank()
	defer blank()
	switch v := v.(type) {
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		b.WriteByte('{')
		for i, key := range keys {
			if i > 0 {
				b.WriteByte(',')
			}
			blank()
			spellText(b, random, key)
			blank()
			b.WriteByte(':')
			spell(b, random, v[key])
		}
		blank()
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			spell(b, random, item)
		}
		blank()
		b.WriteByte(']')
	case string:
		spellText(b, random, v)
	case nil:
		b.WriteString("null")
	default:
		fmt.Fprint(b, v) // a number as it was written, or a boolean
	}
}

func spellText(b *strings.Builder, random *rand.Rand, text string) {
	b.WriteByte('"')
	for _, r := range text {
		switch {
		case r < ' ' || r == '"' || r == '\\' || r < 0x10000 && random.IntN(3) == 0:
			fmt.Fprintf(b, [2]string{`\u%04x`, `\u%04X`}[random.IntN(2)], r)
		case r >= 0x10000 && random.IntN(2) == 0:
			fmt.Fprintf(b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		case r == '/' && random.IntN(2) == 0:
			b.WriteString(`\/`)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}

// altered is another value: something somewhere in it is changed.
func altered(random *rand.Rand, v any) any {
	switch v := v.(type) {
	case map[string]any:
		other := maps.Clone(v)
		keys := slices.Sorted(maps.Keys(v))
		if len(keys) == 0 || random.IntN(4) == 0 {
			other[strings.Join(keys, "")+"x"] = nil
			return other
		}
		key := keys[random.IntN(len(keys))]
		other[key] = altered(random, v[key])
		return other
	case []any:
		if len(v) == 0 || random.IntN(4) == 0 {
			return append(slices.Clone(v), nil)
		}
		other, at := slices.Clone(v), random.IntN(len(v))
		other[at] = altered(random, v[at])
		return other
	case string:
		_, size := utf8.DecodeRuneInString(v)
		return "x" + v[size:] + v[:size]
	case json.Number:
		return v + "1"
	case bool:
		return !v
	default:
		return false
	}
}

// FuzzApply folds an event that stands at its place in a log and says anything: it is refused, or there is a state that
// can be shown, checked and planned from.
func FuzzApply(f *testing.F) {
	log := eventfulLog(f)
	for i, ev := range log {
		bytes, err := proto.Marshal(ev)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), bytes)
		f.Add(uint8(i+1), bytes)
	}
	env := Env{Key: testKey, Spec: eventfulSpec()}
	f.Fuzz(func(t *testing.T, at uint8, body []byte) {
		ev := new(runnerdv1.Event)
		if proto.Unmarshal(body, ev) != nil {
			return
		}
		before := log[:int(at)%(len(log)+1)]
		ev.RunId, ev.Sequence = "r", uint64(len(before)+1)
		st := New(env, "r")
		for _, earlier := range before {
			if err := Apply(st, earlier); err != nil {
				t.Fatal(err)
			}
		}
		if st.CatalogueDigest() != "" {
			st.SetCatalogue(newCatalogue())
		}
		Check(slices.Values(append(slices.Clone(before), ev)), CheckOptions{Env: env})
		if err := Apply(st, ev); err != nil {
			return
		}
		st.View()
		st.History()
		st.NextDeadline()
		if _, err := st.Body(); err != nil {
			t.Fatal(err)
		}
	})
}

func eventfulSpec() *runnerdv1.RunSpec {
	spec := newSpec()
	spec.Policy, spec.InDoubt, spec.ConfirmAt_90 = askFor("charge"), runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK, true
	return spec
}

// eventfulLog is the log of a run in which much happens.
func eventfulLog(f *testing.F) []*runnerdv1.Event {
	f.Helper()
	w := newWorld(f, eventfulSpec())
	w.start(&runnerdv1.Observation{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: "a note"})
	w.do(Pinned{Catalogue: newCatalogue()})
	called := func(cost float64, tools ...string) *runnerdv1.Decision {
		calls := &runnerdv1.ToolCalls{}
		for _, tool := range tools {
			calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{Name: tool, ArgumentsJson: `{"n":1}`})
		}
		return &runnerdv1.Decision{Usage: &runnerdv1.Usage{CostCents: &cost}, Next: &runnerdv1.Decision_ToolCalls{ToolCalls: calls}}
	}
	result := func(id string) CallFinished {
		return CallFinished{CallID: id, Attempt: 1, Result: Result{Text: "result"}}
	}
	open := func() uint64 { return w.st.Approvals()[0].GetApprovalId() }
	approve := func(grant runnerdv1.GrantScope) Vote {
		v := w.vote(open(), runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE)
		v.Grant = grant
		return v
	}
	w.do(DecideBroken{Iteration: 1, Attempt: 1, Code: "no_decision", Message: "nothing came"})
	w.do(Decided{Iteration: 2, Attempt: 1, Decision: called(1, "charge", "charge", "nothing")})
	w.do(w.vote(open(), runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY))
	w.do(approve(runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL))
	w.do(CallLost{CallID: "2.2", Attempt: 1, Cause: runnerdv1.LostCause_LOST_CAUSE_STREAM, Message: "lost"})
	w.do(w.vote(open(), runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE))
	w.do(Decided{Iteration: 3, Attempt: 1, Decision: called(1, "charge", "read", "list", "write")})
	w.do(result("3.1"))
	w.do(Revoke{Principal: "approver", GrantID: w.st.Grants()[0].GetGrantId()})
	w.restart()
	w.do(CallFinished{CallID: "3.2", Attempt: 2, Result: Result{Text: "result"}})
	w.do(CallFinished{CallID: "3.3", Attempt: 2, Result: Result{Text: "result"}})
	w.do(result("3.4"))
	w.do(Decided{Iteration: w.st.Iteration(), Attempt: 1, Decision: called(90, "read")})
	w.do(approve(runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED))
	w.do(result(fmt.Sprintf("%d.1", w.st.Iteration())))
	w.do(Decided{Iteration: w.st.Iteration(), Attempt: 1, Decision: &runnerdv1.Decision{
		Text: "which?", Next: &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: "which?"}},
	}})
	w.do(Input{Principal: "owner", Text: "the left one", RequestID: "1"})
	w.do(Cancel{Principal: "owner", Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP})
	w.do(Decided{Iteration: w.st.Iteration(), Attempt: 1, Decision: answerDecision("done")})
	w.verify()
	return w.events
}

// FuzzRestore reads checkpoint bodies that say anything: they are refused or read.
func FuzzRestore(f *testing.F) {
	env := Env{Key: testKey, Spec: eventfulSpec()}
	st := New(env, "r")
	for i, ev := range eventfulLog(f) {
		if err := Apply(st, ev); err != nil {
			f.Fatal(err)
		}
		if i%8 == 0 {
			f.Add([]byte(bodyOf(f, st)))
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		restored, err := Restore(env, body)
		if _, _, digestErr := BodyDigests(body); err == nil && digestErr != nil {
			t.Fatalf("a body that can be restored has no digests: %v", digestErr)
		}
		if err != nil {
			return
		}
		again, err := Restore(env, []byte(bodyOf(t, restored)))
		if err != nil || bodyOf(t, again) != bodyOf(t, restored) {
			t.Fatalf("the body of what was restored gives something else (%v)", err)
		}
	})
}
