package runner

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/tooldigest"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

const (
	// defaultRecheck is how long it is taken for granted that the tools of a host have not changed.
	defaultRecheck = 10 * time.Second
	// recheckTimeout is how long a host may take to say what its tools are now, before the calls of a decision are
	// judged by what it said last.
	recheckTimeout = 5 * time.Second
)

// listings keep what each host listed last, by its configured name. All runs share them, and the looks that refresh
// them.
type listings struct {
	mu    sync.Mutex
	hosts map[string]*listing
}

// listing is what one host listed last. It is guarded by the mutex of all.
type listing struct {
	asked  time.Time         // when it was asked last; zero: it must be asked again
	tools  map[string]string // digest of each tool by name, empty if the name is listed twice; nil: it never answered
	asking chan struct{}     // closed when the look in progress is over; nil: there is none
}

func newListings() *listings { return &listings{hosts: make(map[string]*listing)} }

// of returns the listing of a host. The mutex is held.
func (l *listings) of(host string) *listing {
	h := l.hosts[host]
	if h == nil {
		h = new(listing)
		l.hosts[host] = h
	}
	return h
}

// doubt makes the next call of a tool of the host ask it again.
func (l *listings) doubt(host string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(host).asked = time.Time{}
}

// heard takes in what a host listed that was asked at that time. What runs that start would share of an older listing
// is forgotten: they begin with the tools as they are now.
func (r *Runner) heard(host string, resp *runnerdv1.ToolHostServiceListToolsResponse, asked time.Time) {
	tools := make(map[string]string, len(resp.GetTools()))
	for _, definition := range resp.GetTools() {
		digest := tooldigest.Of(definition)
		if _, twice := tools[definition.GetName()]; twice {
			digest = ""
		}
		tools[definition.GetName()] = digest
	}
	l := r.listings
	l.mu.Lock()
	h := l.of(host)
	if asked.Before(h.asked) {
		l.mu.Unlock()
		return
	}
	changed := h.tools != nil && !maps.Equal(h.tools, tools)
	h.asked, h.tools = asked, tools
	l.mu.Unlock()
	if changed {
		r.log.Info("a tool host lists other tools than before", "host", host)
		r.forgetLists(host)
	}
}

// current returns the digests of the tools of a host, by name, as of the last look at most so long ago; nil if the host
// never answered. A host that does not answer now says nothing new.
func (r *Runner) current(ctx context.Context, host string, within time.Duration) map[string]string {
	l := r.listings
	l.mu.Lock()
	h := l.of(host)
	switch {
	case h.asking != nil:
		asking := h.asking
		l.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
		}
	case !h.asked.IsZero() && r.now().Sub(h.asked) < within:
		l.mu.Unlock()
	default:
		h.asking = make(chan struct{})
		l.mu.Unlock()
		r.look(host) //nolint:contextcheck // others wait for it too
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.tools
}

// look asks a host what its tools are now, for all who wait for that.
func (r *Runner) look(host string) {
	asked := r.now()
	ctx, cancel := context.WithTimeout(r.ctx, recheckTimeout)
	defer cancel()
	defer func() {
		l := r.listings
		l.mu.Lock()
		defer l.mu.Unlock()
		h := l.of(host)
		if h.asked.Before(asked) { // it did not answer: it is not asked again at once
			h.asked = asked
		}
		close(h.asking)
		h.asking = nil
	}()
	resp, err := r.cfg.Tools.ListTools(ctx, host)
	if err != nil {
		r.log.Debug("a tool host does not say what its tools are now", "host", host, "error", messageOf(err))
		return
	}
	r.heard(host, resp, asked)
}

// recheckOf is how old a listing of a host may be for the runs of an agent. A host that is not configured any more
// cannot be asked.
func (r *Runner) recheckOf(agent, host string) (within time.Duration, configured bool) {
	a := r.cfg.Agents[agent]
	if a == nil {
		return 0, false
	}
	i := slices.IndexFunc(a.Hosts, func(h HostConfig) bool { return h.Name == host })
	if i < 0 {
		return 0, false
	}
	return a.Hosts[i].recheck(), true
}

// recheck is how long it is taken for granted that the tools of the host have not changed.
func (h HostConfig) recheck() time.Duration {
	if h.Recheck == nil {
		return defaultRecheck
	}
	return *h.Recheck
}

// changed reports whether a host says other things about a tool than when it was pinned with a digest. A tool that it
// does not list any more has changed.
func (r *Runner) changed(ctx context.Context, agent, host, tool, pinned string) bool {
	within, configured := r.recheckOf(agent, host)
	if !configured {
		return false
	}
	tools := r.current(ctx, host, within)
	return tools != nil && tools[tool] != pinned
}

// findChanged adds to what was found out about calls which of their tools have changed. Each host is asked at most once.
func (r *Runner) findChanged(
	ctx context.Context, agent string, catalogue *runstate.Catalogue, calls []*runnerdv1.ToolCall, found []runstate.Found,
) []runstate.Found {
	if catalogue == nil {
		return found
	}
	var hosts []string
	tools := make([]*runstate.Tool, len(calls)) // nil: no such tool
	for i, call := range calls {
		if tools[i] = catalogue.Lookup(call.GetName()); tools[i] != nil && !slices.Contains(hosts, tools[i].GetHost()) {
			hosts = append(hosts, tools[i].GetHost())
		}
	}
	var others sync.WaitGroup
	for _, host := range hosts[min(1, len(hosts)):] {
		if within, configured := r.recheckOf(agent, host); configured {
			others.Go(func() { r.current(ctx, host, within) })
		}
	}
	for i, tool := range tools {
		if tool == nil || !r.changed(ctx, agent, tool.GetHost(), tool.GetName(), tool.GetSchemaDigest()) {
			continue
		}
		if found == nil {
			found = make([]runstate.Found, len(calls))
		}
		found[i].Changed = true
	}
	others.Wait()
	return found
}

// changedSince reports whether the tool of the call that an open approval is about has changed since the run began.
func (r *Runner) changedSince(ctx context.Context, asked *runnerdv1.Approval) (bool, error) {
	opening, err := r.Event(ctx, asked.GetRunId(), asked.GetApprovalId())
	if err != nil {
		return false, err
	}
	_, requested := opened(opening)
	if requested == 0 {
		return false, nil // it is about no call
	}
	ev, err := r.Event(ctx, asked.GetRunId(), requested)
	if err != nil {
		return false, err
	}
	call := ev.GetToolCallRequested()
	return r.changed(ctx, asked.GetAgent(), call.GetHost(), call.GetTool(), call.GetSchemaDigest()), nil
}
