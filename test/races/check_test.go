package races

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// closure is how the log says that an approval was closed.
type closure struct {
	via     runnerdv1.Via
	verdict runnerdv1.ApprovalVerdict
	edit    string
	grant   runnerdv1.GrantScope
}

func (c closure) String() string {
	text := strings.TrimPrefix(c.via.String(), "VIA_") + " " + strings.TrimPrefix(c.verdict.String(), "APPROVAL_VERDICT_")
	if c.edit != "" {
		text += ", edited"
	}
	if c.grant != 0 {
		text += ", grants " + strings.TrimPrefix(c.grant.String(), "GRANT_SCOPE_")
	}
	return text
}

// is reports whether a vote is the one that closed the approval.
func (c closure) is(v vote) bool {
	return c.via == runnerdv1.Via_VIA_HUMAN && !v.wrong && c == closure{c.via, v.verdict, v.edit, v.grant}
}

// record is what a log says of the calls of a run.
type record struct {
	asked    []uint64           // approvals, in order
	closed   map[uint64]closure // by approval
	started  map[string]uint64  // by call: the approval that was used
	may      map[string]string  // by call: the arguments that may run
	grants   map[uint64]bool    // that were ever given
	revoked  map[uint64]int     // how often
	ended    bool               // by a cancel
	problems []string
}

// read reads a log, and finds out what in it cannot be.
func read(log []*runnerdv1.Event) record {
	r := record{
		closed: make(map[uint64]closure), started: make(map[string]uint64), may: make(map[string]string),
		grants: make(map[uint64]bool), revoked: make(map[uint64]int),
	}
	problem := func(format string, args ...any) { r.problems = append(r.problems, fmt.Sprintf(format, args...)) }
	shut := func(res *runnerdv1.Resolution, edit string, grant runnerdv1.GrantScope) {
		id := res.GetApprovalId()
		if id == 0 {
			return
		}
		if was, twice := r.closed[id]; twice {
			problem("approval %d is closed by %v, and was by %v", id, res, was)
		}
		r.closed[id] = closure{res.GetVia(), res.GetVerdict(), edit, grant}
	}
	raw, used := make(map[string]string), make(map[uint64]string)
	for _, ev := range log {
		switch p := ev.GetPayload().(type) {
		case *runnerdv1.Event_ToolCallRequested:
			raw[p.ToolCallRequested.GetCallId()] = p.ToolCallRequested.GetArgumentsRaw()
		case *runnerdv1.Event_ToolCallPendingApproval:
			r.asked = append(r.asked, ev.GetSequence())
		case *runnerdv1.Event_ToolCallApproved:
			a := p.ToolCallApproved
			shut(a.GetResolution(), a.GetEditedArgumentsJson(), a.GetGrant().GetScope())
			r.may[a.GetCallId()] = raw[a.GetCallId()]
			if a.EditedArgumentsJson != nil {
				r.may[a.GetCallId()] = a.GetEditedArgumentsJson()
			}
			if a.GetGrant() != nil {
				r.grants[ev.GetSequence()] = true
			}
			if id := a.GetGrantId(); id != 0 && (!r.grants[id] || r.revoked[id] > 0) {
				problem("call %s passes by grant %d, which does not hold", a.GetCallId(), id)
			}
		case *runnerdv1.Event_ToolCallDenied:
			shut(p.ToolCallDenied.GetResolution(), "", 0)
			delete(r.may, p.ToolCallDenied.GetCallId())
		case *runnerdv1.Event_GrantRevoked:
			r.revoked[p.GrantRevoked.GetGrantId()]++
		case *runnerdv1.Event_ToolCallStarted:
			s := p.ToolCallStarted
			if _, twice := r.started[s.GetCallId()]; twice {
				problem("call %s starts twice", s.GetCallId())
			}
			if id := s.GetApprovalId(); id != 0 {
				if by, twice := used[id]; twice {
					problem("approval %d is used by %s and %s", id, by, s.GetCallId())
				}
				used[id] = s.GetCallId()
				if c := r.closed[id]; c.verdict != approve {
					problem("call %s starts on approval %d, closed by %v", s.GetCallId(), id, c)
				}
			}
			r.started[s.GetCallId()] = s.GetApprovalId()
		case *runnerdv1.Event_CancelRequested:
			r.ended = true
		}
	}
	return r
}

// check holds log, ledger and answers against each other and returns how many approvals were raced for.
func check(t *testing.T, w *world, p plot, log []*runnerdv1.Event, answers []answer, told *tally) int {
	r := read(log)
	for _, v := range runner.Verify(slices.Values(log)) {
		r.problems = append(r.problems, v.Error())
	}
	for _, id := range r.asked {
		if c, ok := r.closed[id]; ok {
			told.add("closed: " + c.String())
		} else {
			r.problems = append(r.problems, fmt.Sprintf("approval %d is never closed", id))
		}
	}
	for i := range p.calls {
		r.problems = append(r.problems, ledgerProblems(w, p, r, fmt.Sprintf("1.%d", i+1))...)
	}
	for _, a := range answers {
		text := "OK"
		if a.reason != "" {
			text = a.reason
		}
		told.add(a.what + ": " + text)
		if bad := lie(a, r); bad != "" {
			r.problems = append(r.problems, fmt.Sprintf("%s %+v of %d is told %s (%v): %s", a.what, a.vote, a.approval, text, a.err, bad))
		}
	}
	if len(r.problems) > 0 {
		t.Errorf("%+v\n%s\n%s", p, strings.Join(r.problems, "\n"), lines(log))
	}
	return len(r.asked)
}

// ledgerProblems says what of a call at the host is not as the log says.
func ledgerProblems(w *world, p plot, r record, call string) (problems []string) {
	paid := w.hands.paid(p.run + "/" + call)
	_, started := r.started[call]
	switch {
	case len(paid) > 1:
		problems = append(problems, fmt.Sprintf("call %s ran %d times", call, len(paid)))
	case len(paid) == 1 && !started:
		problems = append(problems, fmt.Sprintf("call %s ran and never started", call))
	case len(paid) == 1 && paid[0] != r.may[call]:
		problems = append(problems, fmt.Sprintf("call %s ran with %s, and %s may", call, paid[0], r.may[call]))
	case len(paid) == 0 && started && !r.ended:
		problems = append(problems, fmt.Sprintf("call %s started and never ran", call))
	}
	return problems
}

// lie says why what somebody was told cannot be true; empty: it can.
func lie(a answer, r record) string {
	switch a.what {
	case "cancel":
		if a.reason != "" {
			return "a cancel is never refused"
		}
		return ""
	case "revoke":
		switch {
		case a.reason == "" && r.revoked[a.grant] == 1:
		case a.reason == "RUN_ENDED":
		default:
			return fmt.Sprintf("grant %d is revoked %d times", a.grant, r.revoked[a.grant])
		}
		return ""
	}
	c := r.closed[a.approval]
	switch a.reason {
	case "":
		if !c.is(a.vote) {
			return "it was closed by " + c.String()
		}
		if a.told.GetVia() != c.via || a.told.GetVerdict() != c.verdict || a.told.GetEditedArgumentsJson() != c.edit || a.told.GetGrant().GetScope() != c.grant {
			return fmt.Sprintf("it is told %v", a.told)
		}
	case "DIGEST_MISMATCH":
		if !a.vote.wrong {
			return "the digest is right"
		}
	case "EDIT_REFUSED":
		if !a.vote.refusedEdit() {
			return "the edit is good"
		}
	case "ALREADY_RESOLVED":
		if c.is(a.vote) || c.via != runnerdv1.Via_VIA_HUMAN && c.via != runnerdv1.Via_VIA_GRANT {
			return "it was closed by " + c.String()
		}
	case "TIMED_OUT":
		if c.via != runnerdv1.Via_VIA_TIMEOUT {
			return "it was closed by " + c.String()
		}
	case "CANCELLED":
		if c.via != runnerdv1.Via_VIA_CANCEL {
			return "it was closed by " + c.String()
		}
	case "RUN_ENDED":
		if c.is(a.vote) {
			return "it is the vote that closed it"
		}
	default:
		return "nobody is told that"
	}
	return ""
}

func lines(log []*runnerdv1.Event) string {
	var b strings.Builder
	for _, ev := range log {
		line := fmt.Sprintf("%d %s %s %v", ev.GetSequence(), ev.GetType(), ev.GetPrincipal(), ev.GetPayload())
		fmt.Fprintln(&b, line[:min(len(line), 300)])
	}
	return b.String()
}
