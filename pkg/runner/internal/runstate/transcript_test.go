package runstate

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestTranscripts reads facts from testdata/*.txt and compares what follows: one line an event, then the answer to who
// brought the fact, then what is in progress. With -rewrite it writes down what follows instead. A block is one turn;
// its input lines are further facts of the same turn.
//
//	start [mode=PAUSE] [in_doubt=ASK] [on_denial=FAIL] [on_question=BLOCK] [approval_for=GLOB] [parallel=N]
//	      [max_iterations=N] [max_tool_calls=N] [max_cost_cents=N] [max_failures=N] [max_duration=D] [imported=N]
//	      [policy=MODE] [on_block=FAIL] [auto] [auto_iterations=N] [auto_calls=N] [auto_cents=N] [auto_duration=D]
//	      [auto_allowed=GLOB] [auto_denied=GLOB]
//	      [max_refusals=N] [max_context_tokens=N] [confirm_at_90] [context_warning=PERCENT]
//	      [required=HOST]
//	pin [missing=HOST]
//	decide [attempt=N] [cost=CENTS] [tokens=N] [truncated] [changed=CALL]   input: "answer TEXT", "ask TEXT", or calls: "TOOL ARGUMENTS";
//	                                          cost=none: no usage
//	broken [attempt=N]                        the Decide ended without a decision
//	unreachable [attempt=N] [permanent]       the Decide ended with an error
//	tool CALL [attempt=N] [fails=REASON] [reconciled]
//	lost CALL CAUSE [attempt=N]
//	lookup-failed CALL [attempt=N]
//	approve ID [digest=X] [grant=SCOPE] [edit="ARGUMENTS"] [changed], deny ID, settle ID
//	revoke ID
//	input TEXT [id=X]
//	cancel MODE
//	resume [auto_iterations=N] [auto_calls=N] [auto_cents=N] [auto_duration=D] [max_iterations=N] [max_tool_calls=N] [max_cost_cents=N] [max_context_tokens=N]
//	restart [after=D]                         after that time, negative when the clock was set back
//	tick D                                    time passes; then what the input lines say
//	history                                   shows what the model remembers
func TestTranscripts(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			var w *world
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				t.Helper()
				if d.Cmd == "start" {
					if w != nil {
						w.verify()
					}
					w = newWorld(t, specOf(t, d))
					return shown(w, w.start(importedOf(t, d)...))
				}
				w.t = t
				return transcribe(t, w, d)
			})
			w.t = t
			w.verify()
		})
	}
}

func transcribe(t *testing.T, w *world, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "restart":
		away := "0s"
		d.MaybeScanArgs(t, "after", &away)
		w.pass(t, d, away)
		return shown(w, w.restart())
	case "history":
		return describeHistory(w.st.History())
	case "tick":
		w.pass(t, d, d.CmdArgs[0].Key)
	}
	var facts []Fact
	if d.Cmd != "tick" {
		facts = append(facts, factOf(t, w, d))
	}
	if d.Cmd != "decide" {
		for line := range strings.Lines(d.Input) {
			cmd, args, err := datadriven.ParseLine(strings.TrimSpace(line))
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			facts = append(facts, factOf(t, w, &datadriven.TestData{Pos: d.Pos, Cmd: cmd, CmdArgs: args}))
		}
	}
	return shown(w, w.do(facts...))
}

// pass lets time pass.
func (w *world) pass(t *testing.T, d *datadriven.TestData, by string) {
	t.Helper()
	span, err := time.ParseDuration(by)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	w.now = w.now.Add(span)
}

// shown is a turn as transcripts show it.
func shown(w *world, turn Turn) string {
	var out strings.Builder
	for _, ev := range turn.Events {
		fmt.Fprintln(&out, describeEvent(ev))
	}
	for _, r := range turn.Replies {
		var refusal *Refusal
		switch {
		case errors.As(r.Err, &refusal):
			fmt.Fprintf(&out, "refused: %s\n", short(refusal.Reason, "ERROR_REASON"))
		case r.Err != nil:
			fmt.Fprintf(&out, "error: %v\n", r.Err)
		case r.Sequence != 0:
			fmt.Fprintf(&out, "answered by %d\n", r.Sequence)
		}
	}
	line := "=> " + short(w.st.Status(), "RUN_STATE")
	if turn.Idle {
		line += ", idle"
	}
	if !turn.WakeAt.IsZero() {
		line += ", wakes at " + since(turn.WakeAt)
	}
	for _, e := range turn.Effects {
		line += ", " + e.Key()
	}
	fmt.Fprintln(&out, line)
	return out.String()
}

func factOf(t *testing.T, w *world, d *datadriven.TestData) Fact {
	t.Helper()
	switch d.Cmd {
	case "pin":
		f := Pinned{Catalogue: newCatalogue()}
		host := ""
		if d.MaybeScanArgs(t, "missing", &host) {
			f.Unavailable = []*runnerdv1.ToolHostUnavailable{{Host: host, Message: "connection refused"}}
		}
		return f
	case "decide":
		f := Decided{Iteration: w.st.Iteration(), Attempt: attemptOf(t, d), Decision: decisionFrom(t, d)}
		changed := 0
		if d.MaybeScanArgs(t, "changed", &changed) {
			f.Found = make([]Found, len(f.Decision.GetToolCalls().GetCalls()))
			f.Found[changed-1].Changed = true
		}
		return f
	case "broken":
		return DecideBroken{Iteration: w.st.Iteration(), Attempt: attemptOf(t, d), Code: "no_decision", Message: "nothing came"}
	case "unreachable":
		return DecideFailed{
			Iteration: w.st.Iteration(), Attempt: attemptOf(t, d), Code: "UNAVAILABLE", Message: "refused", Permanent: d.HasArg("permanent"),
		}
	case "tool":
		f := CallFinished{CallID: d.CmdArgs[0].Key, Attempt: attemptOf(t, d), Result: Result{Text: "result of " + d.CmdArgs[0].Key}}
		f.Reconciled = d.HasArg("reconciled")
		f.Result.Reason = enumArg(t, d, "fails", "CALL_REASON", runnerdv1.CallReason_value, runnerdv1.CallReason(0))
		return f
	case "lost":
		cause := runnerdv1.LostCause(enumValue(t, d, "LOST_CAUSE", d.CmdArgs[1].Key, runnerdv1.LostCause_value))
		return CallLost{CallID: d.CmdArgs[0].Key, Attempt: attemptOf(t, d), Cause: cause, Message: "it was lost"}
	case "lookup-failed":
		return LookupFailed{CallID: d.CmdArgs[0].Key, Attempt: attemptOf(t, d), Message: "the host does not know"}
	case "approve", "deny", "settle":
		id, err := strconv.ParseUint(d.CmdArgs[0].Key, 10, 64)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		v := w.vote(id, runnerdv1.ApprovalVerdict(enumValue(t, d, "APPROVAL_VERDICT", strings.ToUpper(d.Cmd), runnerdv1.ApprovalVerdict_value)))
		d.MaybeScanArgs(t, "digest", &v.Digest)
		v.Grant = enumArg(t, d, "grant", "GRANT_SCOPE", runnerdv1.GrantScope_value, v.Grant)
		if arg, ok := d.Arg("edit"); ok {
			v.Edited = &Edit{Text: strings.Join(arg.Vals, ", ")}
		}
		v.Found.Changed = d.HasArg("changed")
		return v
	case "revoke":
		id, err := strconv.ParseUint(d.CmdArgs[0].Key, 10, 64)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return Revoke{Principal: "approver", GrantID: id}
	case "input":
		f := Input{Principal: "owner", Text: d.CmdArgs[0].Key}
		d.MaybeScanArgs(t, "id", &f.RequestID)
		return f
	case "cancel":
		mode := enumValue(t, d, "CANCEL_MODE", d.CmdArgs[0].Key, runnerdv1.CancelMode_value)
		return Cancel{Principal: "owner", Mode: runnerdv1.CancelMode(mode), Reason: "enough"}
	case "resume":
		f := Resume{Principal: "owner"}
		b, auto := &runnerdv1.Budget{}, &runnerdv1.AutoModeLimits{}
		budgetFrom(t, d, b)
		autoFrom(t, d, auto)
		if proto.Size(b) > 0 {
			f.Budget = b
		}
		if proto.Size(auto) > 0 {
			f.AutoLimits = auto
		}
		return f
	}
	d.Fatalf(t, "unknown command %q", d.Cmd)
	return nil
}

func attemptOf(t *testing.T, d *datadriven.TestData) uint32 {
	t.Helper()
	attempt := 1
	d.MaybeScanArgs(t, "attempt", &attempt)
	return uint32(attempt)
}

func decisionFrom(t *testing.T, d *datadriven.TestData) *runnerdv1.Decision {
	t.Helper()
	decision := &runnerdv1.Decision{Truncated: d.HasArg("truncated")}
	cost := "1"
	if d.MaybeScanArgs(t, "cost", &cost); cost != "none" {
		cents, err := strconv.ParseFloat(cost, 64)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		tokens := 10
		d.MaybeScanArgs(t, "tokens", &tokens)
		decision.Usage = &runnerdv1.Usage{CostCents: &cents, InputTokens: new(int64(tokens)), OutputTokens: proto.Int64(1)}
	}
	calls := &runnerdv1.ToolCalls{}
	for line := range strings.Lines(d.Input) {
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch word {
		case "answer":
			decision.Next = &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: rest}}
			return decision
		case "ask":
			decision.Next = &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{Text: rest}}
			return decision
		}
		calls.Calls = append(calls.Calls, &runnerdv1.ToolCall{Id: "x", Name: word, ArgumentsJson: rest})
	}
	decision.Next = &runnerdv1.Decision_ToolCalls{ToolCalls: calls}
	return decision
}

func specOf(t *testing.T, d *datadriven.TestData) *runnerdv1.RunSpec {
	t.Helper()
	spec := newSpec()
	budgetFrom(t, d, spec.GetBudget())
	spec.Approval.Mode = enumArg(t, d, "mode", "APPROVAL_MODE", runnerdv1.ApprovalMode_value, spec.GetApproval().GetMode())
	spec.InDoubt = enumArg(t, d, "in_doubt", "IN_DOUBT_POLICY", runnerdv1.InDoubtPolicy_value, spec.GetInDoubt())
	spec.OnDenial = enumArg(t, d, "on_denial", "ON_REFUSAL", runnerdv1.OnRefusal_value, spec.GetOnDenial())
	spec.OnBlock = enumArg(t, d, "on_block", "ON_REFUSAL", runnerdv1.OnRefusal_value, spec.GetOnBlock())
	spec.OnQuestion = enumArg(t, d, "on_question", "ON_QUESTION", runnerdv1.OnQuestion_value, spec.GetOnQuestion())
	if arg, ok := d.Arg("approval_for"); ok {
		spec.Policy = askFor(arg.Vals...)
	}
	if mode := enumArg(t, d, "policy", "PERMISSION_MODE", runnerdv1.PermissionMode_value, runnerdv1.PermissionMode(0)); mode != 0 {
		spec.Policy = append(spec.Policy, &runnerdv1.PolicyLayer{Name: "agent", Mode: mode})
	}
	if d.HasArg("auto") {
		spec.AutoMode = &runnerdv1.AutoMode{Limits: &runnerdv1.AutoModeLimits{}}
		autoFrom(t, d, spec.GetAutoMode().GetLimits())
		if arg, ok := d.Arg("auto_allowed"); ok {
			spec.AutoMode.AllowedTools = arg.Vals
		}
		if arg, ok := d.Arg("auto_denied"); ok {
			spec.AutoMode.DeniedTools = arg.Vals
		}
	}
	if arg, ok := d.Arg("required"); ok {
		spec.RequiredHosts = arg.Vals
	}
	spec.ConfirmAt_90 = d.HasArg("confirm_at_90")
	percent := 0
	d.MaybeScanArgs(t, "context_warning", &percent)
	spec.ContextWarningPercent = uint32(percent)
	parallel := int(spec.GetMaxParallelTools())
	d.MaybeScanArgs(t, "parallel", &parallel)
	spec.MaxParallelTools = uint32(parallel)
	return spec
}

func budgetFrom(t *testing.T, d *datadriven.TestData, b *runnerdv1.Budget) {
	t.Helper()
	for name, field := range map[string]**uint32{
		"max_iterations": &b.MaxIterations, "max_tool_calls": &b.MaxToolCalls, "max_failures": &b.MaxConsecutiveFailures,
		"max_refusals": &b.MaxConsecutiveRefusals, "max_context_tokens": &b.MaxContextTokens,
	} {
		n := 0
		if d.MaybeScanArgs(t, name, &n) {
			*field = new(uint32(n))
		}
	}
	cents := 0
	if d.MaybeScanArgs(t, "max_cost_cents", &cents) {
		b.MaxCostCents = new(float64(cents))
	}
	duration := ""
	if d.MaybeScanArgs(t, "max_duration", &duration) {
		limit, err := time.ParseDuration(duration)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		b.MaxDuration = durationpb.New(limit)
	}
}

func autoFrom(t *testing.T, d *datadriven.TestData, l *runnerdv1.AutoModeLimits) {
	t.Helper()
	for name, field := range map[string]**uint32{"auto_iterations": &l.MaxIterations, "auto_calls": &l.MaxToolCalls} {
		n := 0
		if d.MaybeScanArgs(t, name, &n) {
			*field = new(uint32(n))
		}
	}
	cents := 0
	if d.MaybeScanArgs(t, "auto_cents", &cents) {
		l.MaxCostCents = new(float64(cents))
	}
	duration := ""
	if d.MaybeScanArgs(t, "auto_duration", &duration) {
		limit, err := time.ParseDuration(duration)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		l.MaxDuration = durationpb.New(limit)
	}
}

func importedOf(t *testing.T, d *datadriven.TestData) []*runnerdv1.Observation {
	t.Helper()
	n := 0
	d.MaybeScanArgs(t, "imported", &n)
	var list []*runnerdv1.Observation
	for range n {
		list = append(list, &runnerdv1.Observation{
			Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, Text: "earlier", Imported: true,
		})
	}
	return list
}

func enumArg[E ~int32](t *testing.T, d *datadriven.TestData, key, prefix string, values map[string]int32, absent E) E {
	t.Helper()
	name := ""
	if !d.MaybeScanArgs(t, key, &name) {
		return absent
	}
	return E(enumValue(t, d, prefix, name, values))
}

func enumValue(t *testing.T, d *datadriven.TestData, prefix, name string, values map[string]int32) int32 {
	t.Helper()
	value, ok := values[prefix+"_"+name]
	if !ok {
		d.Fatalf(t, "there is no %s_%s", prefix, name)
	}
	return value
}

// describeHistory shows one entry a line.
func describeHistory(entries []*runnerdv1.HistoryEntry) string {
	var out strings.Builder
	for _, e := range entries {
		if d := e.GetDecision(); d != nil {
			fmt.Fprintf(&out, "decision %q", d.GetText())
			for _, c := range d.GetCalls() {
				fmt.Fprintf(&out, " %s:%s(%s)", c.GetCallId(), c.GetToolName(), c.GetArgumentsRaw())
			}
			fmt.Fprintln(&out)
			continue
		}
		o := e.GetObservation()
		line := strings.ToLower(short(o.GetKind(), "OBSERVATION_KIND"))
		if o.GetCallId() != "" {
			line += " " + o.GetCallId()
		}
		if o.GetReason() != 0 {
			line += " " + short(o.GetReason(), "CALL_REASON")
		}
		fmt.Fprintf(&out, "%s %q\n", line, cutText(o.GetText(), 80))
	}
	return out.String()
}
