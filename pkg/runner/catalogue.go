package runner

import (
	"context"
	"encoding/hex"
	"slices"
	"sync"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

const (
	// freshFor is how long runs that start share what the hosts of their agent listed at most: no longer than calls
	// may rely on it.
	freshFor = 60 * time.Second
	// listTimeout is how long a host may take to list its tools, also if it is asked several times.
	listTimeout = 20 * time.Second
	// maxListAttempts is how often a host is asked without whose tools a run must not begin, and that is not there.
	maxListAttempts = 3
)

// catalogues keeps what the hosts of each agent listed last. Runs that need it at the same time share one look.
type catalogues struct {
	mu     sync.Mutex
	latest map[string]*look // by agent
}

// look is one time at which the hosts of an agent were asked.
type look struct {
	done   chan struct{}
	pinned runstate.Pinned
	until  time.Time // runs that start before may have it
}

func newCatalogues() *catalogues { return &catalogues{latest: make(map[string]*look)} }

// fresh returns the tools of an agent if they are known and not old. A host that was not there is asked again.
func (c *catalogues) fresh(agent *Agent, now time.Time) (runstate.Pinned, bool) {
	c.mu.Lock()
	l := c.latest[agent.Name]
	c.mu.Unlock()
	if l == nil {
		return runstate.Pinned{}, false
	}
	select {
	case <-l.done:
		return l.pinned, l.fresh(now)
	default:
		return runstate.Pinned{}, false
	}
}

func (l *look) fresh(now time.Time) bool {
	return len(l.pinned.Unavailable) == 0 && now.Before(l.until)
}

// freshFor is how long runs of an agent that start share what its hosts listed.
func (a *Agent) freshFor() time.Duration {
	span := freshFor
	for _, host := range a.Hosts {
		span = min(span, host.recheck())
	}
	return span
}

// forgetLists drops what runs that start would share of the tools of a host.
func (r *Runner) forgetLists(host string) {
	r.lists.mu.Lock()
	defer r.lists.mu.Unlock()
	for name, l := range r.lists.latest {
		select {
		case <-l.done:
			if slices.Contains(hostNames(r.cfg.Agents[name]), host) {
				delete(r.lists.latest, name)
			}
		default: // its hosts are being asked
		}
	}
}

// pin returns the tools for a run that is about to begin.
func (r *Runner) pin(ctx context.Context, spec *runnerdv1.RunSpec) runstate.Pinned {
	agent := r.cfg.Agents[spec.GetAgent()]
	if agent == nil || !slices.Equal(hostNames(agent), spec.GetToolHosts()) {
		return r.ask(ctx, r.hostsOf(agent, spec), spec.GetRequiredHosts()) // the configuration has changed since the run was started
	}
	c := r.lists
	c.mu.Lock()
	l := c.latest[agent.Name]
	if l != nil {
		select {
		case <-l.done:
			if !l.fresh(r.now()) {
				l = nil
			}
		default: // somebody asks right now
		}
	}
	mine := l == nil
	if mine {
		l = &look{done: make(chan struct{})}
		c.latest[agent.Name] = l
	}
	c.mu.Unlock()
	if mine {
		// Not with ctx: others wait for it too.
		l.until = r.now().Add(agent.freshFor())
		l.pinned = r.ask(r.ctx, r.hostsOf(agent, spec), spec.GetRequiredHosts()) //nolint:contextcheck // see above
		close(l.done)
	}
	select {
	case <-l.done:
		return l.pinned
	case <-ctx.Done():
		return r.pinNothing(spec, context.Cause(ctx))
	}
}

// pinNothing is what a run gets if none of its hosts can be asked.
func (r *Runner) pinNothing(spec *runnerdv1.RunSpec, err error) runstate.Pinned {
	out := runstate.Pinned{}
	for _, host := range spec.GetToolHosts() {
		out.Unavailable = append(out.Unavailable, &runnerdv1.ToolHostUnavailable{Host: host, Message: messageOf(err)})
	}
	return r.merge(nil, out)
}

func hostNames(agent *Agent) []string {
	names := make([]string, 0, len(agent.Hosts))
	for _, host := range agent.Hosts {
		names = append(names, host.Name)
	}
	return names
}

// askedHost is a host as it is asked for its tools; configured is false if it is not known any more.
type askedHost struct {
	HostConfig
	timeout    time.Duration // of a call
	configured bool
}

// hostsOf returns the hosts of a spec, configured as they are now.
func (r *Runner) hostsOf(agent *Agent, spec *runnerdv1.RunSpec) []askedHost {
	hosts := make([]askedHost, 0, len(spec.GetToolHosts()))
	for _, name := range spec.GetToolHosts() {
		host := askedHost{HostConfig: HostConfig{Name: name}, timeout: defaultToolTimeout}
		if agent != nil {
			if agent.ToolTimeout > 0 {
				host.timeout = agent.ToolTimeout
			}
			if i := slices.Index(hostNames(agent), name); i >= 0 {
				host.HostConfig, host.configured = agent.Hosts[i], true
			}
		}
		if host.Timeout > 0 {
			host.timeout = host.Timeout
		}
		hosts = append(hosts, host)
	}
	return hosts
}

// ask asks hosts for their tools, all at the same time, and merges what they say in their order. Those that are required
// are asked again if they are not there.
func (r *Runner) ask(ctx context.Context, hosts []askedHost, required []string) runstate.Pinned {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	listed := make([]*runnerdv1.ToolHostServiceListToolsResponse, len(hosts))
	problems := make([]string, len(hosts))
	var wg sync.WaitGroup
	for i, host := range hosts {
		if !host.configured {
			problems[i] = "the host is not configured any more"
			continue
		}
		wg.Go(func() {
			attempts := 1
			if slices.Contains(required, host.Name) {
				attempts = maxListAttempts
			}
			var err error
			if listed[i], err = r.list(ctx, host.Name, attempts); err != nil {
				problems[i] = messageOf(err)
			}
		})
	}
	wg.Wait()
	var out runstate.Pinned
	var tools []runstate.HostTools
	for i, host := range hosts {
		if problems[i] != "" || listed[i] == nil {
			out.Unavailable = append(out.Unavailable, &runnerdv1.ToolHostUnavailable{Host: host.Name, Message: problems[i]})
			continue
		}
		tools = append(tools, runstate.HostTools{
			Host: host.Name, Prefix: host.Prefix, Tools: listed[i].GetTools(), HasGetCall: listed[i].GetHasGetCall(),
			Timeout: host.timeout, Override: host.Tools,
		})
	}
	return r.merge(tools, out)
}

// list asks one host for its tools, and again, after a while, if it is not there.
func (r *Runner) list(ctx context.Context, host string, attempts int) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
	for wait := firstLook; ; wait *= 2 {
		asked := r.now()
		resp, err := r.cfg.Tools.ListTools(ctx, host)
		if err == nil {
			r.heard(host, resp, asked)
			return resp, nil
		}
		if attempts--; attempts <= 0 || !notThere(err) || pause(ctx, wait) != nil {
			return nil, err
		}
	}
}

// merge makes the catalogue and keeps it for the runs that will be folded with it.
func (r *Runner) merge(tools []runstate.HostTools, out runstate.Pinned) runstate.Pinned {
	out.Catalogue, out.Findings = runstate.BuildCatalogue(tools)
	digest := out.Catalogue.Digest()
	r.store.shared.put(hex.EncodeToString(digest[:]), out.Catalogue)
	return out
}

// ListTools asks the hosts of an agent for their tools now. A host that cannot list them is a finding. Errors have the
// reason AGENT_NOT_FOUND.
func (r *Runner) ListTools(ctx context.Context, agent string) (*runstate.Catalogue, []*runnerdv1.Finding, error) {
	a := r.cfg.Agents[agent]
	if a == nil {
		return nil, nil, agentNotFound(agent)
	}
	pinned := r.ask(ctx, r.hostsOf(a, &runnerdv1.RunSpec{ToolHosts: hostNames(a)}), nil)
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	findings := slices.Clone(pinned.Findings)
	for _, u := range pinned.Unavailable {
		severity := runnerdv1.FindingSeverity_FINDING_SEVERITY_WARNING
		if slices.Contains(a.Spec.GetRequiredHosts(), u.GetHost()) {
			severity = runnerdv1.FindingSeverity_FINDING_SEVERITY_ERROR // no run begins without it
		}
		findings = append(findings, &runnerdv1.Finding{
			Host: u.GetHost(), Code: "host_unavailable", Severity: severity, Message: u.GetMessage(),
		})
	}
	return pinned.Catalogue, findings, nil
}
