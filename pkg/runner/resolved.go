package runner

import (
	"encoding/hex"
	"sync"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// resolved is the spec of a run with its body and digest. It is not changed any more, and runs may share it: a policy
// can be long, and most runs of an agent have the same.
type resolved struct {
	spec   *runnerdv1.RunSpec
	body   []byte
	digest auditstore.Digest
}

// hex is the digest as events have it.
func (r *resolved) hex() string { return hex.EncodeToString(r.digest[:]) }

// plainSpecs resolves for each agent, once and when it is first wanted, what a run gets whose request says nothing.
type plainSpecs map[string]func() (*resolved, error)

func newPlainSpecs(agents map[string]*Agent) plainSpecs {
	plain := make(plainSpecs, len(agents))
	for name, agent := range agents {
		plain[name] = sync.OnceValues(func() (*resolved, error) {
			return resolveWhole(agent, &runnerdv1.StartRunRequest{})
		})
	}
	return plain
}

// resolve resolves the spec of a run.
func (p plainSpecs) resolve(agent *Agent, req *runnerdv1.StartRunRequest) (*resolved, error) {
	if plain := p[agent.Name]; plain != nil && !says(req) {
		return plain()
	}
	return resolveWhole(agent, req)
}

func resolveWhole(agent *Agent, req *runnerdv1.StartRunRequest) (*resolved, error) {
	spec, err := resolve(agent, req)
	if err != nil {
		return nil, err
	}
	body, digest := runstate.SpecBytes(spec)
	return &resolved{spec, body, digest}, nil
}

// says reports whether a request has a say in the spec of its run.
func says(req *runnerdv1.StartRunRequest) bool {
	return req.GetBudget() != nil || req.GetApproval() != nil || req.GetPolicy() != nil || len(req.GetPolicies()) > 0 ||
		req.GetPlan() != nil || req.AutoMode != nil
}
