package runstate

import (
	"fmt"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// budgetCheck is what a log said about the budget.
type budgetCheck struct {
	given    map[string]bool // warnings
	asked    bool            // whether the run may go on spending, or somebody said no without
	approval approvalCheck
	declined bool
}

// once judges a warning that is given at most once a run.
func (c *checker) once(warning string) {
	c.hold(!c.budget.given[warning], 8, "%s is given a second time", warning)
	if c.budget.given == nil {
		c.budget.given = make(map[string]bool)
	}
	c.budget.given[warning] = true
}

func (c *checker) budgetWarning(w *runnerdv1.BudgetWarning) {
	if w.GetKind() != runnerdv1.BudgetWarningKind_BUDGET_WARNING_KIND_LEVEL {
		c.once(w.GetKind().String())
		return
	}
	c.once(fmt.Sprintf("the warning at %d %%", w.GetLevel()))
	c.sameCost(w.GetCostNanocents())
	c.hold(w.GetCostNanocents() >= levelCost(nanocentsOf(w.GetMaxCostCents()), w.GetLevel()), 8,
		"%d nanocents are not %d %% of %g cents", w.GetCostNanocents(), w.GetLevel(), w.GetMaxCostCents())
}

// sameCost judges a cost that an event tells.
func (c *checker) sameCost(nanocents int64) {
	c.hold(nanocents == c.totals.GetCostNanocents(), 6, "%d nanocents are told, and %d spent", nanocents, c.totals.GetCostNanocents())
}

func (c *checker) budgetAsked(q *runnerdv1.BudgetConfirmationRequested) {
	c.hold(!c.budget.asked, 9, "a person is asked about the budget a second time")
	c.hold(c.spec == nil || c.spec.GetConfirmAt_90(), 9, "nobody need be asked about the budget")
	c.hold(c.decide == 0, 4, "a person is asked about the budget during a Decide")
	c.sameCost(q.GetCostNanocents())
	c.budget.asked = true
	c.budget.approval = approvalCheck{id: c.ev.GetSequence(), digest: q.GetApprovalDigest()}
	if q.GetExpiresAt() != nil {
		c.budget.approval.expires = q.GetExpiresAt().AsTime()
	}
}

func (c *checker) budgetAnswered(p *runnerdv1.BudgetPrompt) {
	if p.GetResolution() == nil && !c.budget.approval.open() {
		c.hold(!c.budget.asked && !p.GetApproved(), 9, "the budget is answered and nobody was asked")
	} else {
		verdict := runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
		if p.GetApproved() {
			verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE
		}
		c.closeApproval(c.budget.approval, p.GetResolution(), verdict)
	}
	c.budget.asked, c.budget.declined, c.budget.approval = true, !p.GetApproved(), approvalCheck{}
}

// mayGoOn judges something that may only happen while nobody is asked about the budget, and nobody said no.
func (c *checker) mayGoOn(what string) {
	c.hold(!c.budget.approval.open() && !c.budget.declined, 4, "%s while the budget is not agreed to", what)
}

// limitsCheck are the limits that hold now; those of a spec that is not known are not.
type limitsCheck struct {
	budget *runnerdv1.Budget
	auto   *runnerdv1.AutoModeLimits
}

// limitsOf are the limits that a run starts with.
func limitsOf(spec *runnerdv1.RunSpec) limitsCheck {
	l := limitsCheck{new(runnerdv1.Budget), new(runnerdv1.AutoModeLimits)}
	if spec.GetBudget() != nil {
		l.budget = spec.GetBudget()
	}
	if auto := autoLimitsOf(spec); auto != nil {
		l.auto = auto
	}
	return l
}

// raise takes in what a new leg changes.
func (l *limitsCheck) raise(r *runnerdv1.RunResumed) {
	if r.GetBudget() != nil {
		l.budget = r.GetBudget()
	}
	if r.GetAutoModeLimits() != nil {
		l.auto = r.GetAutoModeLimits()
	}
}

// within judges that something may start that was started so often before: of the whole run, and of it what auto mode
// counts.
func (c *checker) within(what string, before uint32, limit *uint32, autoBefore uint32, autoLimit *uint32) {
	c.hold(limit == nil || before < *limit, 4, "%s over the budget, after %d", what, before)
	c.hold(autoLimit == nil || autoBefore < *autoLimit, 4, "%s over the limit of auto mode, after %d", what, autoBefore)
}
