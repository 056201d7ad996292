package script

import (
	_ "embed" // the example
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

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
	tools   map[string]*tool
	list    []*runnerdv1.ToolDefinition
	getCall []answer
	crashes bool
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
	if len(s.list) == 0 {
		return nil, fmt.Errorf("%s: %w", name, scriptfile.ErrEmpty)
	}
	return s, nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Script) UnmarshalYAML(n *yaml.Node) error {
	var file struct {
		Tools   []*tool  `yaml:"tools"`
		GetCall []answer `yaml:"get_call"`
	}
	if err := scriptfile.Fields(n, &file); err != nil {
		return err
	}
	s.tools = make(map[string]*tool, len(file.Tools))
	for _, t := range file.Tools {
		if t == nil {
			return scriptfile.Errorf(n, "an empty tool stands in tools")
		}
		// Names that are no use, and two tools of one name, are what a host may well list.
		if _, taken := s.tools[t.Name]; !taken {
			s.tools[t.Name] = t
		}
		s.list = append(s.list, t.definition())
		s.crashes = s.crashes || t.crashes()
	}
	s.getCall = file.GetCall
	return nil
}

type tool struct {
	Name         string   `yaml:"name"`
	Description  string   `yaml:"description"`
	InputSchema  schema   `yaml:"input_schema"`
	OutputSchema schema   `yaml:"output_schema"`
	ReadOnly     *bool    `yaml:"read_only"`
	Destructive  *bool    `yaml:"destructive"`
	Idempotent   *bool    `yaml:"idempotent"`
	Results      []result `yaml:"results"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (t *tool) UnmarshalYAML(n *yaml.Node) error {
	type plain tool
	return scriptfile.Fields(n, (*plain)(t))
}

func (t *tool) definition() *runnerdv1.ToolDefinition {
	return &runnerdv1.ToolDefinition{
		Name: t.Name, Description: t.Description,
		InputSchemaJson: string(t.InputSchema), OutputSchemaJson: string(t.OutputSchema),
		Annotations: &runnerdv1.Annotations{ReadOnly: t.ReadOnly, Destructive: t.Destructive, Idempotent: t.Idempotent},
	}
}

func (t *tool) idempotent() bool { return t.Idempotent != nil && *t.Idempotent }

func (t *tool) crashes() bool {
	for _, r := range t.Results {
		for _, c := range r.alternatives() {
			if slices.ContainsFunc(c.Faults, func(f fault) bool { return f.Crash }) {
				return true
			}
		}
	}
	return false
}

// result is what the script says for the n-th call of a tool in a run, from 0.
func (t *tool) result(n int, req *runnerdv1.CallToolRequest) (*result, bool) {
	if len(t.Results) == 0 {
		return &result{}, true
	}
	for _, c := range t.Results[min(n, len(t.Results)-1)].alternatives() {
		if c.When.holds(req) {
			return c, true
		}
	}
	return nil, false
}

// schema is a JSON Schema as JSON text. Text is taken as it stands, valid or not.
type schema string

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *schema) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		*s = schema(n.Value)
		return nil
	}
	var v any
	if err := n.Decode(&v); err != nil {
		return err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return scriptfile.Errorf(n, "%v", err)
	}
	*s = schema(text)
	return nil
}

// result is one result of a tool, or a choice of them.
type result struct {
	Cases []*result `yaml:"cases"`

	When         when                `yaml:"when"`
	Progress     []progress          `yaml:"progress"`
	Delay        scriptfile.Duration `yaml:"delay"`
	IgnoreCancel bool                `yaml:"ignore_cancel"`
	Faults       []fault             `yaml:"faults"`

	Text       string `yaml:"text"`
	Echo       bool   `yaml:"echo"`
	Structured string `yaml:"structured"`
	IsError    bool   `yaml:"is_error"`
	Size       int    `yaml:"size"`
	Blobs      []blob `yaml:"blobs"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (r *result) UnmarshalYAML(n *yaml.Node) error {
	type plain result
	if err := scriptfile.Fields(n, (*plain)(r)); err != nil {
		return err
	}
	for _, c := range r.Cases {
		if c == nil || c.Cases != nil {
			return scriptfile.Errorf(n, "a case is one result")
		}
	}
	if r.IgnoreCancel && slices.ContainsFunc(r.Faults, func(f fault) bool { return f.Hang }) {
		return scriptfile.Errorf(n, "a call that hangs and ignores its cancel would never end")
	}
	if err := scriptfile.One(n, map[string]bool{"text": r.Text != "", "echo": r.Echo}); err != nil {
		return err
	}
	return scriptfile.CheckSize(n, r.Size)
}

func (r *result) alternatives() []*result {
	if r.Cases != nil {
		return r.Cases
	}
	return []*result{r}
}

func (r *result) proto(req *runnerdv1.CallToolRequest) *runnerdv1.ToolResult {
	text := r.Text
	if r.Echo {
		text = req.GetArgumentsJson()
	}
	out := &runnerdv1.ToolResult{Text: scriptfile.Pad(text, r.Size), StructuredJson: r.Structured, IsError: r.IsError}
	for _, b := range r.Blobs {
		out.Blobs = append(out.Blobs, &runnerdv1.Blob{
			MimeType: b.MIME, Name: b.Name, Data: []byte(scriptfile.Pad(b.Text, b.Size)),
		})
	}
	return out
}

// fault is the one that applies to an attempt, or one that does nothing.
func (r *result) fault(attempt uint32) *fault {
	for i := range r.Faults {
		if f := &r.Faults[i]; f.Attempts == 0 || attempt <= f.Attempts {
			return f
		}
	}
	return &fault{}
}

type progress struct {
	Message  string              `yaml:"message"`
	Fraction *float64            `yaml:"fraction"`
	Delay    scriptfile.Duration `yaml:"delay"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *progress) UnmarshalYAML(n *yaml.Node) error {
	type plain progress
	return scriptfile.Fields(n, (*plain)(p))
}

type blob struct {
	MIME string `yaml:"mime"`
	Name string `yaml:"name"`
	Text string `yaml:"text"`
	Size int    `yaml:"size"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *blob) UnmarshalYAML(n *yaml.Node) error {
	type plain blob
	if err := scriptfile.Fields(n, (*plain)(b)); err != nil {
		return err
	}
	return scriptfile.CheckSize(n, b.Size)
}

// when is a condition: all that is set has to hold.
type when struct {
	Contains string `yaml:"contains"`
	Attempt  uint32 `yaml:"attempt"`
	Run      string `yaml:"run"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (w *when) UnmarshalYAML(n *yaml.Node) error {
	type plain when
	if err := scriptfile.Fields(n, (*plain)(w)); err != nil {
		return err
	}
	if _, err := path.Match(w.Run, ""); err != nil {
		return scriptfile.Errorf(n, "pattern %q: %v", w.Run, err)
	}
	return nil
}

func (w *when) holds(req *runnerdv1.CallToolRequest) bool {
	if w.Run != "" {
		if ok, err := path.Match(w.Run, req.GetRunId()); err != nil || !ok {
			return false
		}
	}
	return strings.Contains(req.GetArgumentsJson(), w.Contains) && (w.Attempt == 0 || w.Attempt == req.GetAttempt())
}

// point is where in a call a fault happens.
type point int

const (
	beforeEffect point = iota
	afterEffect
	afterEnd
)

var points = []string{beforeEffect: "before_effect", afterEffect: "after_effect", afterEnd: "after_end"}

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *point) UnmarshalYAML(n *yaml.Node) error {
	i := slices.Index(points, n.Value)
	if i < 0 {
		return scriptfile.Errorf(n, "%q is none of %s", n.Value, strings.Join(points, ", "))
	}
	*p = point(i)
	return nil
}

// fault is something that goes wrong in a call.
type fault struct {
	Attempts   uint32           `yaml:"attempts"`
	At         point            `yaml:"at"`
	Code       scriptfile.Code  `yaml:"code"`
	Message    string           `yaml:"message"`
	Hang       bool             `yaml:"hang"`
	Crash      bool             `yaml:"crash"`
	NoResult   bool             `yaml:"no_result"`
	TwoResults bool             `yaml:"two_results"`
	Raw        scriptfile.Bytes `yaml:"raw"`
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (f *fault) UnmarshalYAML(n *yaml.Node) error {
	type plain fault
	if err := scriptfile.Fields(n, (*plain)(f)); err != nil {
		return err
	}
	kinds := map[string]bool{
		"code": f.Code != 0, "hang": f.Hang, "crash": f.Crash, "no_result": f.NoResult, "two_results": f.TwoResults,
		"raw": f.Raw != nil,
	}
	if !slices.Contains(slices.Collect(maps.Values(kinds)), true) {
		return scriptfile.Errorf(n, "the fault does not say what happens")
	}
	if (f.NoResult || f.TwoResults || f.Raw != nil) && f.At != beforeEffect {
		return scriptfile.Errorf(n, "no_result, two_results and raw happen at the end, and take no at")
	}
	return scriptfile.One(n, kinds)
}

// answer is how a question of GetCall is answered.
type answer struct {
	word string
	code scriptfile.Code
}

// The answers to GetCall that are no codes.
const (
	answerLedger  = "ledger"
	answerRunning = "running"
	answerNotSeen = "not_seen"
	answerUnknown = "unknown"
)

// UnmarshalYAML implements yaml.Unmarshaler.
func (a *answer) UnmarshalYAML(n *yaml.Node) error {
	switch n.Value {
	case answerLedger, answerRunning, answerNotSeen, answerUnknown:
		a.word = n.Value
		return nil
	}
	if err := a.code.UnmarshalYAML(n); err != nil {
		return scriptfile.Errorf(n, "%q is none of ledger, running, not_seen, unknown, or a gRPC code", n.Value)
	}
	return nil
}
