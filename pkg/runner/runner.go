package runner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// Key is the digest key of a data folder.
type Key = runstate.Key

// ToolOverride is what the operator says about one tool of a host; it wins over the word of the host.
type ToolOverride = runstate.ToolOverride

// Config is what a [Runner] is made of. Log, Blobs, LogID, Key, Decider and Tools are required.
type Config struct {
	Log     auditstore.Log
	Blobs   auditstore.Blobs
	LogID   string // id of the log, the first part of every cursor; it holds no dot
	Key     Key
	Agents  map[string]*Agent // by name; not changed any more
	Decider Decider
	Tools   Tools

	Logger *slog.Logger // nil: slog.Default()
	// Owner names this process in claims. Empty: a random name.
	Owner string
	// MaxActive is the number of runs that are driven at a time; the others stay QUEUED. 0: 1024.
	MaxActive int
	// DrainTimeout is how long [Runner.Run] lets calls in progress finish when it is told to stop. 0: 8 s.
	DrainTimeout time.Duration
	// Full reports whether the disk is full: new runs are refused then without trying. nil: never.
	Full func() bool
	// Fatal is called when only a restart of the process can tell what is durable. nil: the error is logged.
	Fatal func(error)
}

// Agent is a named configuration for runs.
type Agent struct {
	Name string
	// Spec is what a run gets if its request says nothing: every field is set, but for absent limits.
	Spec *runnerdv1.RunSpec
	// ApprovalModes are the modes a request may choose from; the first is the default. Empty: that of Spec.
	ApprovalModes []runnerdv1.ApprovalMode
	Policies      map[string]*runnerdv1.PolicyLayer // layers that a request may add, by name
	AutoMode      *runnerdv1.AutoMode               // what a run gets whose request switches auto mode on; nil: none may
	Hosts         []HostConfig                      // in the order in which their tools are offered
	ToolTimeout   time.Duration
}

// HostConfig is one tool host of an agent. Addresses and credentials are the business of [Tools].
type HostConfig struct {
	Name    string
	Prefix  string                  // put before the names of its tools
	Timeout time.Duration           // of one attempt of a call; 0: that of the agent
	Tools   map[string]ToolOverride // by the tool's own name
	// Recheck is how old the last listing of the host may be when calls of its tools are let run; an older one is
	// renewed before. nil: 10 s. 0 renews it for every decision.
	Recheck *time.Duration
}

const (
	defaultMaxActive    = 1024
	defaultDrainTimeout = 8 * time.Second
	defaultToolTimeout  = 120 * time.Second
)

func (c *Config) validate() error {
	switch {
	case c.Log == nil, c.Blobs == nil:
		return errors.New("runner: a log and blobs are required")
	case c.LogID == "" || c.Key.ID == "" || len(c.Key.Secret) == 0:
		return errors.New("runner: a log id and a digest key are required")
	case c.Decider == nil, c.Tools == nil:
		return errors.New("runner: a decider and tools are required")
	}
	for name, agent := range c.Agents {
		if agent.Spec == nil || name != agent.Name {
			return fmt.Errorf("runner: agent %q has no spec or another name", name)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = slog.New(RedactLog(c.Logger.Handler()))
	if c.Owner == "" {
		c.Owner = randomID()
	}
	if c.MaxActive <= 0 {
		c.MaxActive = defaultMaxActive
	}
	if c.DrainTimeout <= 0 {
		c.DrainTimeout = defaultDrainTimeout
	}
	if c.Full == nil {
		c.Full = func() bool { return false }
	}
	if c.Fatal == nil {
		logger := c.Logger
		c.Fatal = func(err error) { logger.Error("the process must be restarted", "error", err) }
	}
	return nil
}

// Runner executes runs. All its methods may be called from any goroutine. It does nothing before [Runner.Run] is
// called: calls that concern a run wait for that.
type Runner struct {
	cfg    Config
	log    *slog.Logger
	born   time.Time // with monotonic reading: the process has one clock, whatever is done to that of the machine
	plain  plainSpecs
	store  store
	slots  slots
	hub    *hub
	timers *timers
	tokens *tokens
	lists  *catalogues
	// listings are what hosts listed last, by which a tool is known to have changed.
	listings *listings

	ctx     context.Context // of all engines and effects; ends when a drain is over
	abandon context.CancelCauseFunc
	work    sync.WaitGroup // engines
	effects sync.WaitGroup

	inherited auditstore.Position // what is at or before it an earlier process wrote; set before loaded is closed

	loaded   chan struct{} // closed when open is filled
	ready    chan struct{} // closed when every open run is recovered
	draining chan struct{} // closed when a drain begins

	mu      sync.Mutex
	engines map[string]*engine
	open    map[string]bool // open when this process started, or when their driver failed, and not yet told of it
	stopped map[string]bool // stopped by a bug: the clock does not wake them again
	begun   sync.Once
	drained sync.Once
}

// New returns a Runner. It neither reads nor writes anything.
func New(cfg Config) (*Runner, error) {
	cfg.Agents = maps.Clone(cfg.Agents)
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Runner{
		cfg:      cfg,
		log:      cfg.Logger,
		born:     time.Now(),
		loaded:   make(chan struct{}),
		ready:    make(chan struct{}),
		draining: make(chan struct{}),
		engines:  make(map[string]*engine),
		open:     make(map[string]bool),
		stopped:  make(map[string]bool),
	}
	r.plain = newPlainSpecs(cfg.Agents)
	r.store = store{log: cfg.Log, blobs: cfg.Blobs, key: cfg.Key}
	r.slots = slots{free: cfg.MaxActive}
	r.hub = newHub(cfg.Log)
	r.timers = newTimers()
	r.tokens = newTokens()
	r.lists, r.listings = newCatalogues(), newListings()
	r.ctx, r.abandon = context.WithCancelCause(context.Background())
	return r, nil
}

// now returns the time: the wall clock when the process began and the time since, so that it never jumps.
func (r *Runner) now() time.Time { return r.born.Add(time.Since(r.born)) }

// behind returns how far this process is behind the clock of a run whose last event that an earlier process wrote, and
// whose last event at all, have these times. In this process every run's clock goes on from the start of the process,
// or from the former event if that is later. That stands in the log, so it is the same each time the run is loaded. A
// process beside this one may have written the latter.
func (r *Runner) behind(inherited, last time.Time) time.Duration {
	return max(0, inherited.Sub(r.born), last.Sub(r.now()))
}

// Agents returns the names of the configured agents, sorted.
func (r *Runner) Agents() []string { return slices.Sorted(maps.Keys(r.cfg.Agents)) }

// Ready is closed once every run that was open when the process started goes on.
func (r *Runner) Ready() <-chan struct{} { return r.ready }

// Draining is closed when the runner begins to stop.
func (r *Runner) Draining() <-chan struct{} { return r.draining }

// randomID returns 32 hex digits.
func randomID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
