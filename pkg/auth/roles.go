package auth

import (
	"slices"
	"strings"
	"sync"

	"github.com/runnerd/runnerd/pkg/runner"
)

// Binding gives principals rights on agents.
type Binding struct {
	// Principals are names, where * stands for any characters.
	Principals []string
	// Agents are names of agents; empty, or with * among them: all agents.
	Agents []string
	// Rights are what they get.
	Rights runner.Rights
}

// roles tells the rights of principals. What was found is kept: with OIDC there are more principals than are
// configured, and bindings may be many.
type roles struct {
	bindings []Binding

	mu    sync.Mutex
	known map[string]rights
}

type rights struct {
	everywhere runner.Rights
	agents     map[string]runner.Rights
}

// maxKnown is of how many principals the rights are kept. What is forgotten is found again.
const maxKnown = 4096

// of returns the rights of a principal on all agents, and on single ones besides. The map must not be changed.
func (r *roles) of(name string) (everywhere runner.Rights, agents map[string]runner.Rights) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.known[name]
	if !ok {
		found = r.find(name)
		if r.known == nil || len(r.known) >= maxKnown {
			r.known = make(map[string]rights)
		}
		r.known[name] = found
	}
	return found.everywhere, found.agents
}

func (r *roles) find(name string) rights {
	found := rights{agents: make(map[string]runner.Rights)}
	for _, b := range r.bindings {
		if !b.Names(name) {
			continue
		}
		if len(b.Agents) == 0 || slices.Contains(b.Agents, "*") {
			found.everywhere = found.everywhere.And(b.Rights)
			continue
		}
		for _, agent := range b.Agents {
			found.agents[agent] = found.agents[agent].And(b.Rights)
		}
	}
	return found
}

// Names reports whether the binding is one of a principal.
func (b Binding) Names(principal string) bool {
	return slices.ContainsFunc(b.Principals, func(pattern string) bool { return matches(pattern, principal) })
}

// matches reports whether a name is what a pattern says, where * stands for any characters.
func matches(pattern, name string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return strings.HasSuffix(name, last)
}
