package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// must is a value as JSON.
func must(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// sent is the arguments of the calls of a run as they came to the host.
func (w *world) sent(run string) (arguments []string) {
	for _, call := range w.hands.Calls(run) {
		arguments = append(arguments, call.Request.GetArgumentsJson())
	}
	return arguments
}

// TestApprovedIsWhatRan plays a payment that is changed on the way to its approval.
func TestApprovedIsWhatRan(t *testing.T) {
	t.Parallel()
	w := governed(t)
	const asked = `{"amount":10}`
	paying := func() harness.Step {
		return harness.Steps(harness.Calls("deploy_site", asked), harness.Calls("book", `{"q":1}`), harness.Answer("done"))
	}
	as := func() string { return w.play(t, "std", paying()) }
	plain, wrong, edited, twice := as(), as(), as(), as()
	strict := w.play(t, "prompted", harness.Steps(harness.Calls("charge", asked), harness.Answer("done")))
	open := map[string]*runnerdv1.Approval{}
	for _, run := range []string{plain, wrong, edited, twice, strict} {
		open[run] = w.open(t, run, 1)[0]
	}
	w.Kill()
	w.Restart(t)

	t.Run("CASE-18 after a restart what was approved runs, and nobody decides anew", func(t *testing.T) {
		w.vote(t, open[plain], approve)
		w.Done(t, plain)
		equal(t, "sent", w.sent(plain)[0], asked)
		equal(t, "decisions about it", len(w.brain.Requests(plain)), 3)
		started := w.UntilType(t, plain, "tool_call_started").GetToolCallStarted()
		equal(t, "digest at the start", started.GetApprovalDigest(), open[plain].GetApprovalDigest())
	})

	t.Run("CASE-18 the digest of something else is refused and leaves it open", func(t *testing.T) {
		other := proto.CloneOf(open[wrong])
		other.ApprovalDigest = open[edited].GetApprovalDigest() // of another run, with the same arguments
		w.refused(t, other, approve, "DIGEST_MISMATCH")
		w.refused(t, otherDigest(open[wrong]), approve, "DIGEST_MISMATCH")
		_, err := w.say(t, otherDigest(open[wrong]), editing(`{"amount":1000}`))
		harness.Code(t, err, codes.FailedPrecondition, "DIGEST_MISMATCH")
		w.open(t, wrong, 1)
		w.vote(t, open[wrong], deny)
		w.Done(t, wrong)
		if got := w.sent(wrong); slices.Contains(got, asked) || len(got) != 1 {
			t.Errorf("sent are %q", got)
		}
	})

	t.Run("CASE-18 edited arguments run as they were written, and the record says whose they are", func(t *testing.T) {
		const edit = `{"amount":10.0}` // not the same text, so not the same arguments
		closed := w.agree(t, open[edited], editing(edit))
		equal(t, "edited", closed.GetEditedArgumentsJson(), edit)
		w.Done(t, edited)
		equal(t, "sent", w.sent(edited)[0], edit)
		ev := w.UntilType(t, edited, "tool_call_approved")
		p := ev.GetToolCallApproved()
		equal(t, "recorded", p.GetEditedArgumentsJson(), edit)
		equal(t, "by", ev.GetPrincipal()+" "+p.GetApprovedBy(), "local:owner local:owner")
		requested := w.UntilType(t, edited, "tool_call_requested").GetToolCallRequested()
		equal(t, "what the model wrote", requested.GetArgumentsRaw(), asked)
		started := w.UntilType(t, edited, "tool_call_started").GetToolCallStarted()
		equal(t, "hash of what ran", started.GetArgumentsHash(), p.GetArgumentsHash())
		equal(t, "digest of what ran", started.GetApprovalDigest(), p.GetApprovalDigest())
		for what, pair := range map[string][2]string{
			"argument digest": {p.GetArgumentDigest(), requested.GetArgumentDigest()},
			"hash":            {p.GetArgumentsHash(), requested.GetArgumentsHash()},
			"approval digest": {p.GetApprovalDigest(), open[edited].GetApprovalDigest()},
		} {
			if pair[0] == pair[1] {
				t.Errorf("the %s of the edit is that of what was asked", what)
			}
		}
		whole := w.approval(t, edited, open[edited].GetApprovalId())
		equal(t, "asked", whole.GetArgumentsJson(), asked)
		equal(t, "edited, as told later", whole.GetEditedArgumentsJson(), edit)
		told := shown(t, w, edited, 2)
		equal(t, "the model is told", told.GetArgumentsEdited(), true)
		equal(t, "of what ran", told.GetEditedArgumentsJson(), edit)
		equal(t, "what nobody edited is not said to be", shown(t, w, edited, 3).GetArgumentsEdited(), false)
	})

	t.Run("CASE-18 an edit that fails its checks or gates is refused and leaves it open", func(t *testing.T) {
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", "{}"), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		for _, bad := range []string{"{", "null", "[]", `"{}"`, `{"a":1,"a":2}`, `{"a":"\ud800"}`, "{} {}"} {
			_, err := w.say(t, a, editing(bad))
			harness.Code(t, err, codes.InvalidArgument, "EDIT_REFUSED")
			if fields := harness.Fields(err); !slices.Equal(fields, []string{"edited_arguments_json"}) {
				t.Errorf("%s: fields are %q", bad, fields)
			}
		}
		w.open(t, run, 1)
		w.vote(t, a, deny)
		w.Done(t, run)
		equal(t, "calls", len(w.hands.Calls(run)), 0)

		run = w.play(t, "prompted", harness.Steps(harness.Calls("run", `{"command":"make"}`), harness.Answer("done")))
		a = w.open(t, run, 1)[0]
		head := w.Run(t, run).GetHeadSequence()
		_, err := w.say(t, a, editing(`{"command":7}`))
		harness.Code(t, err, codes.InvalidArgument, "EDIT_REFUSED")
		has(t, err.Error(), "schema")
		equal(t, "head", w.Run(t, run).GetHeadSequence(), head)
		w.agree(t, a, editing(`{"command":"make test"}`))
		w.Done(t, run)
		equal(t, "sent", w.sent(run)[0], `{"command":"make test"}`)
	})

	t.Run("the same verdict again is the one with the same edit", func(t *testing.T) {
		const edit = `{"amount":5}`
		first := w.agree(t, open[twice], editing(edit))
		w.Done(t, twice)
		if again := w.agree(t, open[twice], editing(edit)); !proto.Equal(again, first) {
			t.Errorf("again it is %v, was %v", again, first)
		}
		for _, other := range [][]ballot{nil, {editing(asked)}, {editing(`{"amount":5.0}`)}, {editing(edit), granting(runTool)}, {editing("{")}} {
			_, err := w.say(t, open[twice], other...)
			harness.Code(t, err, codes.FailedPrecondition, "RUN_ENDED")
		}
		equal(t, "sent", len(w.sent(twice)), 2)
	})

	t.Run("only a yes to a call has something to edit", func(t *testing.T) {
		a := open[strict]
		no := func(r *runnerdv1.SubmitApprovalRequest) { r.Verdict = deny }
		_, err := w.say(t, a, editing("{}"), no)
		harness.Code(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		w.hands.Script(strict, func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
			return nil, nil // the outcome is lost
		})
		const edit = `{"amount":3}`
		w.agree(t, a, editing(edit))
		doubt := w.open(t, strict, 1)[0]
		equal(t, "kind", doubt.GetKind(), runnerdv1.ApprovalKind_APPROVAL_KIND_IN_DOUBT)
		equal(t, "what may have run", doubt.GetArgumentsJson(), edit)
		equal(t, "whole", w.approval(t, strict, doubt.GetApprovalId()).GetArgumentsJson(), edit)
		_, err = w.say(t, doubt, editing(asked))
		harness.Code(t, err, codes.InvalidArgument, "VERDICT_NOT_POSSIBLE")
		w.hands.Script(strict, harness.Result("paid"))
		w.vote(t, doubt, approve)
		w.Done(t, strict)
		if got := w.sent(strict); !slices.Equal(got, []string{edit, edit}) {
			t.Errorf("sent are %q", got)
		}
		equal(t, "what may have run, as told later", w.approval(t, strict, doubt.GetApprovalId()).GetArgumentDigest(), doubt.GetArgumentDigest())
	})
}

func TestEdits(t *testing.T) {
	t.Parallel()
	w := governed(t)

	t.Run("an edit over 64 KiB is kept beside the log and sent whole", func(t *testing.T) {
		t.Parallel()
		big := fmt.Sprintf(`{"text":%q}`, strings.Repeat("0123456789", 20_000))
		run := w.play(t, "std", asking())
		a := w.open(t, run, 1)[0]
		w.agree(t, a, editing(big))
		w.Done(t, run)
		equal(t, "sent whole", w.sent(run)[0] == big, true)
		p := w.UntilType(t, run, "tool_call_approved").GetToolCallApproved()
		if p.EditedArgumentsJson != nil || p.GetEditedArgumentsRef().GetSize() != uint64(len(big)) {
			t.Errorf("the event has %d bytes and %v", len(p.GetEditedArgumentsJson()), p.GetEditedArgumentsRef())
		}
		kept := w.Artifact(t, run, p.GetEditedArgumentsRef().GetArtifactId())
		if string(kept) != big {
			t.Errorf("%d bytes are kept", len(kept))
		}
		equal(t, "shown whole", w.approval(t, run, a.GetApprovalId()).GetEditedArgumentsJson() == big, true)
		told := shown(t, w, run, 2)
		equal(t, "the model is told", told.GetArgumentsEdited(), true)
		equal(t, "and not shown what is too long", told.GetEditedArgumentsJson(), "")
		w.agree(t, a, editing(big))
		_, err := w.say(t, a, editing(big+" "))
		harness.Code(t, err, codes.FailedPrecondition, "RUN_ENDED")
	})

	t.Run("an edit survives the restart between the yes and its turn", func(t *testing.T) {
		t.Parallel()
		w := governed(t)
		g := newGate()
		run := w.play(t, "std", harness.Steps(harness.Calls("look", "{}", "deploy_site", `{"n":1}`, "deploy_site", `{"n":2}`), harness.Answer("done")),
			calls(byTool(map[string]harness.Handler{"look": func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
				if req.GetAttempt() == 1 {
					g.pass(s.Context())
				}
				return &runnerdv1.ToolResult{Text: "seen"}, nil
			}})))
		g.await(t)
		asks := w.open(t, run, 2)
		big := fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 100_000))
		w.agree(t, asks[0], editing(`{"n":7}`))
		w.agree(t, asks[1], editing(big))
		w.Kill()
		w.Restart(t)
		w.Done(t, run)
		sent := w.sent(run)
		if want := []string{`{"n":7}`, big}; !slices.Equal(sent[len(sent)-2:], want) {
			t.Errorf("sent are %.200q", sent)
		}
	})

	t.Run("a grant by program is for what runs, not for what was asked", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "prompted", harness.Steps(
			harness.Calls("run", `{"command":"rm build"}`),
			harness.Calls("run", `{"command":"make clean"}`, "run", `{"command":"rm x"}`), harness.Answer("done")))
		a := w.open(t, run, 1)[0]
		equal(t, "program", a.GetProgram(), "rm")
		_, err := w.say(t, a, editing(`{"command":"make clean; rm x"}`), granting(runPrefix))
		harness.Code(t, err, codes.InvalidArgument, "GRANT_NOT_POSSIBLE")
		closed := w.agree(t, a, editing(`{"command":"make clean"}`), granting(runPrefix))
		equal(t, "granted", closed.GetGrant().GetProgram(), "make")
		left := w.open(t, run, 1)[0]
		equal(t, "asked for", left.GetArgumentsJson(), `{"command":"rm x"}`)
		w.vote(t, left, deny)
		w.Done(t, run)
		if got := w.sent(run); !slices.Equal(got, []string{`{"command":"make clean"}`, `{"command":"make clean"}`}) {
			t.Errorf("sent are %q", got)
		}
	})

	t.Run("a blank edit is no arguments", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", asking())
		w.agree(t, w.open(t, run, 1)[0], editing(strings.Repeat(" ", 100_000)))
		w.Done(t, run)
		equal(t, "sent", w.sent(run)[0], "{}")
	})

	t.Run("T-100 an approval is of its run, call, arguments and time, and used once", func(t *testing.T) {
		t.Parallel()
		script := func() harness.Step {
			return harness.Steps(harness.Calls("deploy_site", `{"n":1}`, "deploy_site", `{"n":1}`), harness.Answer("done"))
		}
		first, second := w.play(t, "std", script(), mode(pauseMode)), w.play(t, "std", script(), mode(pauseMode))
		var digests []string
		asks := append(w.open(t, first, 2), w.open(t, second, 2)...)
		for _, a := range asks {
			digests = append(digests, a.GetApprovalDigest())
			equal(t, "argument digest", a.GetArgumentDigest(), asks[0].GetArgumentDigest())
		}
		slices.Sort(digests)
		equal(t, "digests", len(slices.Compact(digests)), 4)
		for i, a := range asks {
			borrowed := proto.CloneOf(a)
			borrowed.ApprovalDigest = asks[(i+1)%len(asks)].GetApprovalDigest()
			w.refused(t, borrowed, approve, "DIGEST_MISMATCH")
		}
		for _, a := range asks {
			w.vote(t, a, approve)
		}
		for _, run := range []string{first, second} {
			w.Done(t, run)
			equal(t, "calls", len(w.hands.Calls(run)), 2)
		}
		for _, a := range asks {
			w.vote(t, a, approve)
		}
		equal(t, "calls after the same votes again", len(w.hands.Calls(first)), 2)
	})

	t.Run("T-101 the argument digest knows no order of keys, and names its key", func(t *testing.T) {
		t.Parallel()
		run := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", `{"a":1,"b":{"c":2,"d":3}}`, "deploy_site", `{ "b" : {"d":3,"c":2}, "a" : 1 }`,
			"deploy_site", `{"a":1.0,"b":{"c":2,"d":3}}`), harness.Answer("done")))
		asks := w.open(t, run, 3)
		key, hex, _ := strings.Cut(asks[0].GetArgumentDigest(), ":")
		if key == "" || len(hex) != 64 {
			t.Errorf("the digest is %q", asks[0].GetArgumentDigest())
		}
		equal(t, "other order", asks[1].GetArgumentDigest(), asks[0].GetArgumentDigest())
		if asks[2].GetArgumentDigest() == asks[0].GetArgumentDigest() {
			t.Error("another number has the same digest")
		}
		if asks[1].GetApprovalDigest() == asks[0].GetApprovalDigest() {
			t.Error("an approval binds the exact arguments, and both have one digest")
		}
		w.Cancel(t, run, runnerdv1.CancelMode_CANCEL_MODE_STOP)
		w.Done(t, run)
	})
}

// TestDamagedApproval damages the event that asks, behind the back of a stopped daemon.
func TestDamagedApproval(t *testing.T) {
	t.Parallel()
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	if w.Daemon, err = harness.Launch(t.TempDir(), w.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil { // not Close: its log says that something is damaged
			t.Error(err)
		}
	})

	t.Run("T-102 a damaged approval lets nothing run, and its files are the owner's", func(t *testing.T) {
		const run = "damaged"
		w.brain.Script(run, asking())
		if _, err := w.Runs.StartRun(harness.Context(t), &runnerdv1.StartRunRequest{RunId: run, Agent: "std"}); err != nil {
			t.Fatal(err)
		}
		a := w.open(t, run, 1)[0]
		if err := w.Stop(); err != nil {
			t.Fatal(err)
		}
		data := filepath.Join(w.Dir, "data")
		err := filepath.WalkDir(data, func(path string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %s", path, info.Mode())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		edit(t, data, func(tx *bbolt.Tx) error {
			appends, err := appendsOf(tx, run)
			if err != nil {
				return err
			}
			asked := appends[len(appends)-1]
			if asked.first > a.GetApprovalId() {
				return fmt.Errorf("the last append begins at %d", asked.first)
			}
			asked.value[len(asked.value)-1] ^= 1 // of the event that asks, which is its last
			return tx.Bucket([]byte("appends")).Put(asked.key, asked.value)
		})
		w.Restart(t)
		for _, changes := range [][]ballot{nil, {granting(runTool)}, {editing("{}")}} {
			_, err := w.say(t, a, changes...)
			harness.Code(t, err, codes.DataLoss, "CORRUPT")
		}
		equal(t, "calls", len(w.hands.Calls(run)), 0)
	})
}
