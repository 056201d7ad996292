package runstate

import (
	"slices"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	// confirmLevel is the share of the cost cap in percent at which a person is asked, where the agent wants that.
	confirmLevel = 90
	// readOnlyLevel is the share at which it is suggested to only look from now on.
	readOnlyLevel = 100
)

// budgetLevels are the shares of the cost cap in percent at which people are warned, each once a run.
var budgetLevels = [...]uint32{50, 80, confirmLevel, readOnlyLevel}

// ConfirmRule is the rule that asks about the budget, as approvals show it.
const ConfirmRule = "confirm_at_90"

// confirmStatus is where the question is whether the run may go on spending. It is asked at most once a run.
type confirmStatus string

const (
	confirmOpen     confirmStatus = "open"
	confirmApproved confirmStatus = "approved"
	confirmDeclined confirmStatus = "declined"
)

// confirmation is the question whether the run may go on spending.
type confirmation struct {
	Status   confirmStatus // empty: never asked
	Approval uint64        `json:",omitempty"`
	Digest   string        `json:",omitempty"`
	Opened   time.Time     `json:",omitzero"`
	Expires  time.Time     `json:",omitzero"` // zero: never
	Spent    int64         `json:",omitempty"`
	MaxCents float64       `json:",omitempty"`
}

func (c *confirmation) open() bool { return c.Status == confirmOpen }

// spending is how far the cost of a run has got.
type spending struct {
	nano, limit int64 // nanocents
	maxCents    float64
}

// spending is how far the cost has got; capped is false where there is no share to speak of: without a cap, and with
// one of 0.
func (st *State) spending() (s spending, capped bool) {
	limit, capped := st.costCap()
	return spending{st.ctl.Usage.CostNano, limit, st.ctl.Budget.GetMaxCostCents()}, capped && limit > 0
}

func (s spending) cents() float64   { return float64(s.nano) / 1e9 }
func (s spending) percent() float64 { return percent(s.nano, s.limit) }

// reached reports whether at least so many percent of the cap are spent, exactly.
func (s spending) reached(level uint32) bool { return s.nano >= levelCost(s.limit, level) }

// percent is the share of a part in a whole.
func percent(part, whole int64) float64 { return 100 * (float64(part) / float64(whole)) }

// levelCost is the least cost, in nanocents, that is so many percent of a limit.
func levelCost(limit int64, level uint32) int64 {
	return limit/100*int64(level) + (limit%100*int64(level)+99)/100 // the product may not fit
}

// warnBudget records all levels of the cost cap that were passed and not warned of yet.
func (t *advance) warnBudget() {
	s, capped := t.st.spending()
	if !capped {
		return
	}
	suggest := false
	for _, level := range budgetLevels {
		if !s.reached(level) || slices.Contains(t.st.ctl.Warned, level) {
			continue
		}
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_BudgetWarning{BudgetWarning: &runnerdv1.BudgetWarning{
			Kind: runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_LEVEL, Level: level,
			Percent: s.percent(), CostCents: s.cents(), CostNanocents: s.nano, MaxCostCents: s.maxCents,
		}}})
		suggest = suggest || level == readOnlyLevel
	}
	if suggest {
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_BudgetReadOnlySuggested{
			BudgetReadOnlySuggested: &runnerdv1.BudgetReadOnlySuggested{
				Percent: s.percent(), CostCents: s.cents(), CostNanocents: s.nano, MaxCostCents: s.maxCents,
			},
		}})
	}
}

// mustConfirm reports whether a person must agree before anything starts. Who was asked once is not asked again, and
// who raised the cap so far that less than the level is spent need not be asked.
func (st *State) mustConfirm() bool {
	s, capped := st.spending()
	return st.env.Spec.GetConfirmAt_90() && st.ctl.Confirm.Status == "" && capped && s.reached(confirmLevel) && !st.ends()
}

// ends reports whether what the model decided ends the run: there is nothing to hold up.
func (st *State) ends() bool {
	c := &st.ctl
	blocks := st.env.Spec.GetOnQuestion() == runnerdv1.OnQuestion_ON_QUESTION_BLOCK
	return c.Unread == 0 && (c.Phase == phaseAnswer || c.Phase == phaseQuestion && blocks)
}

// confirm asks a person whether the run may go on spending, or says no where nobody is there to be asked. While the
// question is open nothing starts. It reports whether the run is held up, and whether it took a step.
func (t *advance) confirm() (held, stepped bool) {
	st := t.st
	switch {
	case st.ctl.Confirm.open():
		return true, t.pause()
	case !st.mustConfirm():
		return false, false
	case st.env.Spec.GetApproval().GetMode() == runnerdv1.ApprovalMode_APPROVAL_MODE_DENY:
		s, _ := st.spending()
		t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_BudgetPrompt{BudgetPrompt: &runnerdv1.BudgetPrompt{
			Percent: s.percent(), CostCents: s.cents(), CostNanocents: s.nano, MaxCostCents: s.maxCents,
		}}})
		return true, true
	}
	s, _ := st.spending()
	expires := t.approvalExpiry()
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_BudgetConfirmationRequested{
		BudgetConfirmationRequested: &runnerdv1.BudgetConfirmationRequested{
			Level: confirmLevel, Percent: s.percent(), CostCents: s.cents(), CostNanocents: s.nano, MaxCostCents: s.maxCents,
			ApprovalDigest: st.budgetDigest(s.nano, s.maxCents, expires), ExpiresAt: timestamp(expires),
		},
	}})
	return true, true
}

// budgetDigest binds a verdict to exactly what it is about.
func (st *State) budgetDigest(spent int64, maxCents float64, expires time.Time) string {
	return st.env.Key.bind(domainBudget, []string{st.ctl.RunID, st.ctl.SpecDigest},
		int64(runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET), confirmLevel, spent, nanocentsOf(maxCents), unixNano(expires))
}

// closeConfirm closes the open question whether the run may go on spending.
func (t *advance) closeConfirm(principal string, via runnerdv1.Via, verdict runnerdv1.ApprovalVerdict, said string) uint64 {
	c := &t.st.ctl.Confirm
	limit := nanocentsOf(c.MaxCents)
	return t.emit(&runnerdv1.Event{
		Principal: principal,
		Payload: &runnerdv1.Event_BudgetPrompt{BudgetPrompt: &runnerdv1.BudgetPrompt{
			Approved: verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
			Percent:  percent(c.Spent, limit), CostCents: float64(c.Spent) / 1e9, CostNanocents: c.Spent, MaxCostCents: c.MaxCents,
			Resolution: &runnerdv1.Resolution{
				ApprovalId: c.Approval, Via: via, Verdict: verdict, ApprovalDigest: c.Digest, Reason: said,
			},
		}},
	})
}

// expireConfirm closes the question when its deadline has passed.
func (t *advance) expireConfirm() {
	c := &t.st.ctl.Confirm
	if c.open() && !c.Expires.IsZero() && !t.now.Before(c.Expires) {
		t.closeConfirm("", runnerdv1.Via_VIA_TIMEOUT, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY, "")
	}
}

// voteBudget takes an approver's verdict on the budget.
func (t *advance) voteBudget(f Vote) Reply {
	if f.Verdict == runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_SETTLE {
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE, "SETTLE is possible only for a call in doubt")
	}
	if f.Digest != t.st.ctl.Confirm.Digest {
		return refuse(runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH,
			"approval_digest is not that of approval %d; look at what was spent and answer that", f.ApprovalID)
	}
	t.reopen(f.Principal, runnerdv1.ResumeCause_RESUME_CAUSE_APPROVAL)
	return Reply{Sequence: t.closeConfirm(f.Principal, runnerdv1.Via_VIA_HUMAN, f.Verdict, f.Reason)}
}

// budgetEvent folds the events about the budget.
func (st *State) budgetEvent(ev *runnerdv1.Event, now time.Time) error {
	c := &st.ctl.Confirm
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_BudgetWarning:
		if w := p.BudgetWarning; w.GetKind() == runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_LEVEL {
			st.ctl.Warned = append(st.ctl.Warned, w.GetLevel())
		} else {
			st.ctl.CostWarned = true
		}
	case *runnerdv1.Event_BudgetConfirmationRequested:
		if c.Status != "" || st.working() || st.ctl.Phase == phaseDecide || st.ctl.Phase == phaseQueued {
			return errPhase
		}
		q := p.BudgetConfirmationRequested
		*c = confirmation{
			Status: confirmOpen, Approval: ev.GetSequence(), Digest: q.GetApprovalDigest(), Opened: now,
			Spent: q.GetCostNanocents(), MaxCents: q.GetMaxCostCents(),
		}
		if q.GetExpiresAt() != nil {
			c.Expires = q.GetExpiresAt().AsTime()
		}
	case *runnerdv1.Event_BudgetPrompt:
		r := p.BudgetPrompt.GetResolution()
		if r.GetApprovalId() != c.Approval || c.open() != (r != nil) || c.Status != "" && !c.open() {
			return errPhase
		}
		if r.GetApprovalDigest() != c.Digest {
			return errDigest
		}
		*c = confirmation{Status: confirmDeclined}
		if p.BudgetPrompt.GetApproved() {
			c.Status = confirmApproved
		}
	}
	return nil
}

// budgetApproval is the open question about the budget as approvers are shown it.
func (st *State) budgetApproval() *runnerdv1.Approval {
	c := &st.ctl.Confirm
	return &runnerdv1.Approval{
		RunId: st.ctl.RunID, ApprovalId: c.Approval, Kind: runnerdv1.ApprovalKind_APPROVAL_KIND_BUDGET,
		Agent: st.mem.started.GetAgent(), ApprovalDigest: c.Digest, Rule: ConfirmRule,
		OpenedAt: timestamp(c.Opened), ExpiresAt: timestamp(c.Expires),
		Budget: &runnerdv1.BudgetQuestion{
			Level: confirmLevel, Percent: percent(c.Spent, nanocentsOf(c.MaxCents)), CostNanocents: c.Spent,
			CostCents: float64(c.Spent) / 1e9, MaxCostCents: c.MaxCents,
		},
	}
}
