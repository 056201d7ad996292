package runner

import (
	"context"
	"errors"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// runAgents tells the agents of runs to one reader of many runs. It remembers what it has looked up; a run keeps its
// agent for ever. It is not safe for concurrent use.
type runAgents struct {
	store *store
	known map[string]string
}

// maxRunAgents is how many agents are remembered. What is forgotten is looked up again.
const maxRunAgents = 4096

// of returns the agent of a run. It is empty, which is no agent's name, for a run whose row is damaged: then nobody
// knows whose it is, and only who may see all agents may see the run.
func (a *runAgents) of(ctx context.Context, run string) (string, error) {
	if agent, ok := a.known[run]; ok {
		return agent, nil
	}
	found, err := a.store.row(ctx, run)
	if err != nil && !errors.Is(err, errNoRun) && !errors.Is(err, auditstore.ErrCorrupt) {
		return "", err
	}
	var agent string
	if err == nil {
		agent = found.GetRun().GetAgent()
	}
	if a.known == nil || len(a.known) >= maxRunAgents {
		a.known = make(map[string]string)
	}
	a.known[run] = agent
	return agent, nil
}

// viewer says which runs a principal sees as a viewer, and how much of them; nil: all of them, redacted.
func (s *runService) viewer(p Principal) func(context.Context, string) (View, bool, error) {
	if p.Everywhere.Roles.Has(RoleViewer) && p.Everywhere.View >= ViewRedacted {
		return nil
	}
	agents := runAgents{store: &s.runner.store}
	return func(ctx context.Context, run string) (View, bool, error) {
		agent, err := agents.of(ctx, run)
		return p.viewOf(&runnerdv1.Run{Agent: agent}), err == nil && p.Has(agent, RoleViewer), err
	}
}
