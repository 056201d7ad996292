package runstate

import (
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agnivade/levenshtein"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/tooldigest"
)

const (
	// MaxTools is the largest number of tools of an agent.
	MaxTools = 512
	// MaxCatalogue is the largest size of an agent's tools in bytes, schemas and descriptions included: they are
	// recorded with the run and shown in every Decide request.
	MaxCatalogue = 256 << 10
)

// Catalogue is the list of tools pinned for a run, in the form in which calls are checked against it. It is not
// changed after it was made; runs share it and use it concurrently.
type Catalogue struct {
	pb      *runnerdv1.Catalogue
	bytes   []byte
	digest  [32]byte
	tools   map[string]*Tool // by offered name
	own     map[ownName]*Tool
	names   []string        // in the order offered
	getCall map[string]bool // by host
	offered []*runnerdv1.OfferedTool
	size    int // of the offered tools in a request, in bytes
}

// ownName is what a tool is: its host, and its name there.
type ownName struct{ host, tool string }

// Tool is one tool of a catalogue. The message it holds must not be changed.
type Tool struct {
	*runnerdv1.Tool
	compiled func() (*argumentSchema, error) // at most once, at the first call: most tools of a run are never called
}

// NewCatalogue makes a catalogue of its message, which must not be changed any more.
func NewCatalogue(pb *runnerdv1.Catalogue) *Catalogue {
	body := deterministic(pb)
	c := &Catalogue{
		pb:      pb,
		bytes:   body,
		digest:  sha256.Sum256(body),
		tools:   make(map[string]*Tool, len(pb.GetTools())),
		own:     make(map[ownName]*Tool, len(pb.GetTools())),
		names:   make([]string, 0, len(pb.GetTools())),
		getCall: make(map[string]bool, len(pb.GetHostsWithGetCall())),
	}
	for _, tool := range pb.GetTools() {
		c.names = append(c.names, tool.GetOfferedName())
		c.offered = append(c.offered, &runnerdv1.OfferedTool{
			Name: tool.GetOfferedName(), Description: tool.GetDescription(), InputSchemaJson: tool.GetInputSchemaJson(),
			OutputSchemaJson: tool.GetOutputSchemaJson(), Annotations: tool.GetAnnotations(),
		})
		t := &Tool{
			Tool:     tool,
			compiled: sync.OnceValues(func() (*argumentSchema, error) { return compileSchema(tool.GetInputSchemaJson()) }),
		}
		c.tools[tool.GetOfferedName()], c.own[ownName{tool.GetHost(), tool.GetName()}] = t, t
	}
	c.size = proto.Size(&runnerdv1.DecideRequest{Tools: c.offered})
	for _, host := range pb.GetHostsWithGetCall() {
		c.getCall[host] = true
	}
	return c
}

// Proto is the message of the catalogue. It must not be changed.
func (c *Catalogue) Proto() *runnerdv1.Catalogue { return c.pb }

// Bytes is the body that is stored by Digest. It must not be changed.
func (c *Catalogue) Bytes() []byte { return c.bytes }

// Digest is the SHA-256 of Bytes.
func (c *Catalogue) Digest() [32]byte { return c.digest }

// Names lists the offered names in the order offered. The list must not be changed.
func (c *Catalogue) Names() []string { return c.names }

// Offered lists the tools as a decide service is shown them. The list must not be changed.
func (c *Catalogue) Offered() []*runnerdv1.OfferedTool { return c.offered }

// HasGetCall says whether a host can be asked what became of a call.
func (c *Catalogue) HasGetCall(host string) bool { return c.getCall[host] }

// Lookup finds a tool by exactly the name under which it is offered; nil if there is none. A name that is nearly
// right is not a name.
func (c *Catalogue) Lookup(offeredName string) *Tool { return c.tools[offeredName] }

// find returns a tool by its host and its name there; nil if it is not offered.
func (c *Catalogue) find(host, name string) *Tool {
	if c == nil {
		return nil
	}
	return c.own[ownName{host, name}]
}

// Nearest is the offered name most like name, to be named to a model that made a mistake; empty if none is near.
func (c *Catalogue) Nearest(name string) string {
	const maxCompared = 256 // bytes: names are at most 128, and comparing takes time in the product of the lengths
	if name == "" || len(name) > maxCompared {
		return ""
	}
	nearest, best := "", max(2, len(name)/2)+1
	for _, offered := range c.names {
		if distance := levenshtein.ComputeDistance(name, offered); distance < best {
			nearest, best = offered, distance
		}
	}
	return nearest
}

// CheckArguments checks arguments, JSON text of one object, against the input schema of a tool. Text and canonical
// form give the same answer. The error says what is wrong and where, in at most 2 KiB.
func (c *Catalogue) CheckArguments(tool *Tool, arguments []byte) error {
	schema, err := tool.compiled()
	if err != nil {
		return err
	}
	return schema.check(arguments)
}

// HostTools are the tools that one host of an agent lists, and what the operator says about them.
type HostTools struct {
	Host       string // configured name
	Prefix     string // put before the names of the host's tools; empty: none
	Tools      []*runnerdv1.ToolDefinition
	HasGetCall bool
	Timeout    time.Duration           // of one attempt of a call
	Override   map[string]ToolOverride // by the tool's own name
}

// ToolOverride is what the operator says about a tool; it wins over the word of the host.
type ToolOverride struct {
	Tier       *uint32              // nil: by the host's annotations
	Timeout    time.Duration        // 0: that of the host
	Idempotent *bool                // nil: as the host says
	RateLimit  *runnerdv1.RateLimit // nil: none

	PathArguments []string // arguments that hold paths; empty: those that look like it
	NoPaths       bool     // no argument is a path

	CommandArgument string // argument that holds a command line; empty: command, or cmd
}

// BuildCatalogue merges the tools of an agent's hosts, given in the order of the agent. What it leaves out, and why,
// stands in the findings. The result depends on what the hosts list and not on which of them answered first.
func BuildCatalogue(hosts []HostTools) (*Catalogue, []*runnerdv1.Finding) {
	var found findings
	pb := &runnerdv1.Catalogue{}
	offered := countNames(hosts)
	size := 0
	for _, host := range hosts {
		if host.HasGetCall {
			pb.HostsWithGetCall = append(pb.HostsWithGetCall, host.Host)
		}
		tooMany, tooLarge := 0, 0
		for _, definition := range host.Tools {
			tool := pinTool(host, definition)
			full := size+proto.Size(tool) > MaxCatalogue // looked at first: a check takes time in the size
			switch {
			case full:
				tooLarge++
				size = MaxCatalogue // those behind it stay out too
			case !found.lint(host, definition, offered):
			case len(pb.GetTools()) >= MaxTools:
				tooMany++
			default:
				size += proto.Size(tool)
				pb.Tools = append(pb.Tools, tool)
			}
		}
		if tooMany > 0 {
			found.tooMany(host.Host, tooMany)
		}
		if tooLarge > 0 {
			found.tooLarge(host.Host, tooLarge)
		}
	}
	slices.Sort(pb.GetHostsWithGetCall())
	return NewCatalogue(pb), found.list
}

// pinTool is a tool as runs of the agent see it.
func pinTool(host HostTools, definition *runnerdv1.ToolDefinition) *runnerdv1.Tool {
	override := host.Override[definition.GetName()]
	tool := &runnerdv1.Tool{
		Host:             host.Host,
		Name:             definition.GetName(),
		OfferedName:      host.Prefix + definition.GetName(),
		Description:      definition.GetDescription(),
		InputSchemaJson:  definition.GetInputSchemaJson(),
		OutputSchemaJson: definition.GetOutputSchemaJson(),
		Annotations:      definition.GetAnnotations(),
		Tier:             tier(definition.GetAnnotations(), override),
		SchemaDigest:     tooldigest.Of(definition),
		RateLimit:        override.RateLimit,
		PathArguments:    override.PathArguments,
		NoPaths:          override.NoPaths,
		CommandArgument:  override.CommandArgument,
	}
	tool.Recovery = recovery(tool, override, host.HasGetCall)
	timeout := host.Timeout
	if override.Timeout > 0 {
		timeout = override.Timeout
	}
	if timeout > 0 {
		tool.Timeout = durationpb.New(timeout)
	}
	return tool
}

// tier is the risk of a tool: the operator's word, else what the host declares. The host's own word for it can only
// raise it.
func tier(annotations *runnerdv1.Annotations, override ToolOverride) uint32 {
	if override.Tier != nil {
		return *override.Tier
	}
	declared, _ := securityTier(annotations)
	return max(annotatedTier(annotations), declared)
}

// annotatedTier is the tier by what a tool does; what nobody vouches for counts as dangerous.
func annotatedTier(annotations *runnerdv1.Annotations) uint32 {
	switch {
	case annotations.GetReadOnly():
		return 0
	case annotations.GetDestructive():
		return 3
	case annotations != nil && annotations.Destructive != nil: // destructive is explicitly false
		return 2
	default:
		return 3
	}
}

// securityTiers are the words of Annotations.security_tier.
var securityTiers = map[string]uint32{"low": 0, "medium": 2, "high": 3, "critical": 4}

// securityTier is the host's own word for the risk of a tool, 0 if there is none, and whether it is one of the words.
func securityTier(annotations *runnerdv1.Annotations) (tier uint32, known bool) {
	word := annotations.GetSecurityTier()
	if word == "" {
		return 0, true
	}
	tier, known = securityTiers[strings.ToLower(word)]
	return tier, known
}

// recovery is what may be done when the outcome of a call is lost. A tool that the operator put above tier 0 is not
// taken for read-only, whatever its host says.
func recovery(tool *runnerdv1.Tool, override ToolOverride, hasGetCall bool) runnerdv1.Recovery {
	idempotent := tool.GetAnnotations().GetIdempotent()
	if override.Idempotent != nil {
		idempotent = *override.Idempotent
	}
	switch {
	case tool.GetTier() == 0 || idempotent:
		return runnerdv1.Recovery_RECOVERY_REPEAT
	case hasGetCall:
		return runnerdv1.Recovery_RECOVERY_RECONCILE
	default:
		return runnerdv1.Recovery_RECOVERY_NONE
	}
}

// deterministic gives the bytes of a message by which its digest is made.
func deterministic(m proto.Message) []byte {
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		// Only a string that is no UTF-8 or a missing required field can fail: neither gets past decoding.
		panic("runstate: marshal " + string(m.ProtoReflect().Descriptor().FullName()) + ": " + err.Error())
	}
	return body
}
