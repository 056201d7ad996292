package script

import (
	_ "embed" // the example
	"fmt"
	"iter"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/internal/scriptfile"
)

//go:embed example.yaml
var example string

// Example is a script that shows most of what scripts can do.
func Example() string { return example }

// Script is a checked script.
type Script struct {
	steps steps
	runs  []runSteps
}

type runSteps struct {
	pattern string
	steps   steps
}

// Load reads and checks a script file. Errors name the file and the line.
func Load(file string) (*Script, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return Parse(file, data)
}

// Parse checks a script. The name stands in errors, which have the line.
func Parse(name string, data []byte) (*Script, error) {
	s := new(Script)
	if err := scriptfile.Decode(name, data, s); err != nil {
		return nil, err
	}
	if len(s.steps) == 0 && len(s.runs) == 0 {
		return nil, fmt.Errorf("%s: %w", name, scriptfile.ErrEmpty)
	}
	return s, nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Script) UnmarshalYAML(n *yaml.Node) error {
	var file struct {
		Decisions steps            `yaml:"decisions"`
		Runs      map[string]steps `yaml:"runs"`
	}
	if err := scriptfile.Fields(n, &file); err != nil {
		return err
	}
	s.steps = file.Decisions
	// Of several patterns that match, the one with more text wins: r1 before r*.
	patterns := slices.SortedFunc(maps.Keys(file.Runs), func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil {
			return scriptfile.Errorf(n, "pattern %q of a run: %v", p, err)
		}
		s.runs = append(s.runs, runSteps{p, file.Runs[p]})
	}
	return nil
}

// find returns what the script says for a request.
func (s *Script) find(req *runnerdv1.DecideRequest) (*step, bool) {
	steps := s.steps
	for _, r := range s.runs {
		if ok, err := path.Match(r.pattern, req.GetRunId()); err == nil && ok {
			steps = r.steps
			break
		}
	}
	st, _ := at(steps, uint64(req.GetIteration())-1)
	if st == nil {
		return nil, false
	}
	for c := range st.alternatives() {
		if c.When.holds(req) {
			return c, true
		}
	}
	return nil, false
}

// farBeyond is an index that no iteration reaches, small enough to count with.
const farBeyond = 1 << 33

// at returns the decision at an index, from 0, or nil and how many there are.
func at(steps steps, index uint64) (*step, uint64) {
	var passed uint64
	for _, s := range steps {
		size := uint64(1)
		if s.Steps != nil {
			_, size = at(s.Steps, math.MaxUint64)
		}
		left := index - passed
		if left/size < s.times() {
			if s.Steps == nil {
				return s, 0
			}
			return at(s.Steps, left%size)
		}
		passed += min(size*s.times(), farBeyond)
	}
	return nil, min(passed, farBeyond)
}

// steps is a list of steps, at least one.
type steps []*step

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *steps) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		return scriptfile.Errorf(n, "want a list of steps")
	}
	for _, item := range n.Content {
		if item.Tag == "!!null" {
			return scriptfile.Errorf(item, "the step is empty; {} decides nothing at all")
		}
		st := new(step)
		if err := item.Decode(st); err != nil {
			return err
		}
		*s = append(*s, st)
	}
	return nil
}

// step is one decision, a group or a choice.
type step struct {
	Repeat repeat `yaml:"repeat"`
	Steps  steps  `yaml:"steps"`
	Cases  steps  `yaml:"cases"`

	When     when                `yaml:"when"`
	Delay    scriptfile.Duration `yaml:"delay"`
	Deltas   []string            `yaml:"deltas"`
	Faults   []fault             `yaml:"faults"`
	Template bool                `yaml:"template"`

	Text          string  `yaml:"text"`
	Reasoning     string  `yaml:"reasoning"`
	Answer        *string `yaml:"answer"`
	Metadata      string  `yaml:"metadata"`
	Question      *string `yaml:"question"`
	Calls         []call  `yaml:"calls"`
	Truncated     bool    `yaml:"truncated"`
	Usage         *usage  `yaml:"usage"`
	ProviderState string  `yaml:"provider_state"`
	Transport     string  `yaml:"transport"`
	Size          int     `yaml:"size"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *step) UnmarshalYAML(n *yaml.Node) error {
	type plain step
	if err := scriptfile.Fields(n, (*plain)(s)); err != nil {
		return err
	}
	kinds := map[string]bool{
		"answer": s.Answer != nil, "question": s.Question != nil, "calls": s.Calls != nil,
		"steps": s.Steps != nil, "cases": s.Cases != nil,
	}
	if err := scriptfile.One(n, kinds); err != nil {
		return err
	}
	for _, nested := range s.Cases {
		if nested.Steps != nil || nested.Cases != nil || nested.Repeat != 0 {
			return scriptfile.Errorf(n, "a case is one decision")
		}
	}
	if s.Template {
		for _, text := range s.strings() {
			if _, err := parse(*text); err != nil {
				return scriptfile.Errorf(n, "%v", err)
			}
		}
	}
	return scriptfile.CheckSize(n, s.Size)
}

func (s *step) times() uint64 { return max(uint64(s.Repeat), 1) }

// alternatives are the decisions of which the first whose condition holds is taken.
func (s *step) alternatives() iter.Seq[*step] {
	if s.Cases != nil {
		return slices.Values(s.Cases)
	}
	return slices.Values(steps{s})
}

// strings are the fields that may be templates.
func (s *step) strings() []*string {
	fields := []*string{&s.Text, &s.Reasoning, &s.Metadata}
	for _, p := range []*string{s.Answer, s.Question} {
		if p != nil {
			fields = append(fields, p)
		}
	}
	for i := range s.Deltas {
		fields = append(fields, &s.Deltas[i])
	}
	for i := range s.Calls {
		fields = append(fields, &s.Calls[i].Tool, &s.Calls[i].Arguments)
	}
	return fields
}

func parse(text string) (*template.Template, error) {
	return template.New("").Option("missingkey=error").Funcs(template.FuncMap{"json": jsonString}).Parse(text)
}

// repeat is how often a step is given; 0 is once, too.
type repeat uint64

// forever is more often than a run has iterations.
const forever repeat = 1 << 30

// UnmarshalYAML implements yaml.Unmarshaler.
func (r *repeat) UnmarshalYAML(n *yaml.Node) error {
	if n.Value == "forever" {
		*r = forever
		return nil
	}
	v, err := strconv.ParseUint(n.Value, 10, 30)
	if err != nil || v == 0 {
		return scriptfile.Errorf(n, "repeat is a number from 1, or forever, and not %q", n.Value)
	}
	*r = repeat(v)
	return nil
}

type call struct {
	ID        string `yaml:"id"`
	Tool      string `yaml:"tool"`
	Arguments string `yaml:"arguments"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *call) UnmarshalYAML(n *yaml.Node) error {
	type plain call
	return scriptfile.Fields(n, (*plain)(c))
}

type usage struct {
	CostCents         *float64 `yaml:"cost_cents"`
	InputTokens       *int64   `yaml:"input_tokens"`
	OutputTokens      *int64   `yaml:"output_tokens"`
	CachedInputTokens *int64   `yaml:"cached_input_tokens"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (u *usage) UnmarshalYAML(n *yaml.Node) error {
	type plain usage
	return scriptfile.Fields(n, (*plain)(u))
}

// when is a condition: all that is set has to hold.
type when struct {
	Contains string `yaml:"contains"`
	Kind     kind   `yaml:"kind"`
	Attempt  uint32 `yaml:"attempt"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (w *when) UnmarshalYAML(n *yaml.Node) error {
	type plain when
	return scriptfile.Fields(n, (*plain)(w))
}

func (w *when) holds(req *runnerdv1.DecideRequest) bool {
	last := lastObservation(req)
	return (w.Contains == "" || strings.Contains(last.GetText(), w.Contains)) &&
		(w.Kind == 0 || runnerdv1.ObservationKind(w.Kind) == last.GetKind()) &&
		(w.Attempt == 0 || w.Attempt == req.GetAttempt())
}

func lastObservation(req *runnerdv1.DecideRequest) *runnerdv1.Observation {
	for _, e := range slices.Backward(req.GetHistory()) {
		if o := e.GetObservation(); o != nil {
			return o
		}
	}
	return nil
}

// kind is a kind of observation by its short name.
type kind runnerdv1.ObservationKind

// UnmarshalYAML implements yaml.Unmarshaler.
func (k *kind) UnmarshalYAML(n *yaml.Node) error {
	v, ok := runnerdv1.ObservationKind_value["OBSERVATION_KIND_"+strings.ToUpper(n.Value)]
	if !ok || v == 0 {
		return scriptfile.Errorf(n, "%q is not a kind of observation", n.Value)
	}
	*k = kind(v)
	return nil
}

// fault is what happens instead of a decision.
type fault struct {
	Attempts     uint32           `yaml:"attempts"`
	Code         scriptfile.Code  `yaml:"code"`
	Message      string           `yaml:"message"`
	Hang         bool             `yaml:"hang"`
	NoDecision   bool             `yaml:"no_decision"`
	TwoDecisions bool             `yaml:"two_decisions"`
	Raw          scriptfile.Bytes `yaml:"raw"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (f *fault) UnmarshalYAML(n *yaml.Node) error {
	type plain fault
	if err := scriptfile.Fields(n, (*plain)(f)); err != nil {
		return err
	}
	kinds := map[string]bool{
		"code": f.Code != 0, "hang": f.Hang, "no_decision": f.NoDecision, "two_decisions": f.TwoDecisions,
		"raw": f.Raw != nil,
	}
	if !slices.Contains(slices.Collect(maps.Values(kinds)), true) {
		return scriptfile.Errorf(n, "the fault does not say what happens")
	}
	return scriptfile.One(n, kinds)
}

// fault is the one that applies to an attempt, or nil.
func (s *step) fault(attempt uint32) *fault {
	for i := range s.Faults {
		if f := &s.Faults[i]; f.Attempts == 0 || attempt <= f.Attempts {
			return f
		}
	}
	return nil
}
