package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// recording is one run as its file has it.
type recording struct {
	ID          string       `json:"id"`
	Task        string       `json:"task"`
	Tools       []recordTool `json:"tools"`
	Steps       []recordStep `json:"steps"`
	FinalAnswer string       `json:"final_answer"`
}

// recordTool is a tool as it was offered; where only the calls were recorded it is a bare name.
type recordTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	InputSchema json.RawMessage `json:"input_schema"`
}

func (t *recordTool) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(data, []byte(`"`)) {
		return json.Unmarshal(data, &t.Name)
	}
	type plain recordTool
	return json.Unmarshal(data, (*plain)(t))
}

type recordStep struct {
	Kind      string       `json:"kind"` // decision, tool_result, user
	Text      string       `json:"text"`
	ToolCalls []recordCall `json:"tool_calls"`
	Usage     *recordUsage `json:"usage"`
	CostCents *float64     `json:"cost_cents"`
	Content   string       `json:"content"`
	IsError   bool         `json:"is_error"`
	Answers   int          `json:"answers"`
}

type recordCall struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	ArgumentsJSON string `json:"arguments_json"`
}

type recordUsage struct {
	InputTokens       *int64 `json:"input_tokens"`
	OutputTokens      *int64 `json:"output_tokens"`
	CachedInputTokens *int64 `json:"cached_input_tokens"`
}

// folder is where the recordings are, beside the checkout unless the environment names another place.
func folder() string {
	if dir := os.Getenv("RUNNERD_TRAJECTORIES"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "..", "shared", "data", "trajectories")
}

// recordings reads all runs. They are no part of this repository: where the folder is not there the test is skipped,
// loudly. A folder that is there and empty is a failure where nothing may be left out.
func recordings(t *testing.T) []*recording {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder(), "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		if _, err := os.Stat(folder()); err == nil && os.Getenv("RUNNERD_REQUIRE_ALL") == "1" {
			t.Fatalf("%s holds no recordings", folder())
		}
		fmt.Printf("SKIP-COUNTED replay: no recordings in %s (RUNNERD_TRAJECTORIES names the folder)\n", folder())
		t.Skip("the recordings are not there")
	}
	slices.Sort(files)
	var all []*recording
	for _, file := range files {
		all = append(all, read(t, file)...)
	}
	return all
}

func read(t *testing.T, file string) []*recording {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []*recording
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		r := new(recording)
		if err := json.Unmarshal(lines.Bytes(), r); err != nil {
			t.Fatalf("%s, run %d: %v", file, len(all)+1, err)
		}
		for i := range r.Tools { // one that says nothing of itself would be left out
			if strings.TrimSpace(r.Tools[i].Description) == "" {
				r.Tools[i].Description = "recorded without a description"
			}
		}
		all = append(all, r)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// The kinds of differences between a recording and what runnerd makes of it, each decided by its contract.
const (
	notOffered     = "call of a tool that was not offered"      // UNKNOWN_TOOL, the host is not called
	schemaMismatch = "call against its own schema"              // SCHEMA_MISMATCH, the host is not called
	schemaInvalid  = "tool whose schema does not compile"       // it is not offered
	textGoesOn     = "text that is not the end"                 // text alone is an answer, and would end the run
	emptyDecision  = "decision that says nothing"               // decision_invalid
	bigResult      = "result over 50000 bytes"                  // a preview, the whole as an artifact
	noResult       = "last call without a result"               // the double gives one
	inputAfterTool = "user turn straight after a result"        // given as input while its decision is made
	secondUserTurn = "second user turn in a row"                // shown one decision later
	noAnswer       = "recording that does not end in an answer" // the double answers
	goOn           = "(the recording goes on)"                  // input that keeps a run going after a text
	closing        = "(the recording ends here)"                // answer of the double
	missingResult  = "(the recording has no result)"            // result of the double
	maxShownResult = 50_000
)

// play is a recording as runnerd is to run it: its decisions in order, one an iteration.
type play struct {
	*recording
	decisions []turn
	calls     []playCall // in the order of the recording: a result names the ordinal of its call
	answer    string     // at the end
	differs   []string   // what is known before it runs, "kind: where"
}

// turn is one decision and what people say after it.
type turn struct {
	recordStep
	first    int      // ordinal of its first call
	question bool     // a user turn follows its text
	reply    string   // to the question
	meantime []string // inputs that come while it is made
}

type playCall struct {
	recordCall
	offered bool
	result  string
	isError bool
}

// stage brings a recording into the form of a play.
func stage(r *recording) (*play, error) {
	p := &play{recording: r, answer: closing}
	offered := map[string]bool{}
	for _, tool := range r.Tools {
		offered[tool.Name] = true
	}
	answered := map[int]bool{}
	for i, step := range r.Steps {
		switch step.Kind {
		case "decision":
			p.decide(step, offered)
		case "tool_result":
			if step.Answers >= len(p.calls) || answered[step.Answers] {
				return nil, fmt.Errorf("step %d answers call %d, which was not made or is answered", i, step.Answers)
			}
			answered[step.Answers] = true
			p.calls[step.Answers].result, p.calls[step.Answers].isError = step.Content, step.IsError
			if len(step.Content) > maxShownResult {
				p.differ(bigResult, "call %d", step.Answers)
			}
		case "user":
			if len(p.decisions) == 0 {
				return nil, fmt.Errorf("step %d is a user turn before any decision", i)
			}
			p.hear(step.Text)
		default:
			return nil, fmt.Errorf("step %d is a %q", i, step.Kind)
		}
	}
	for i := range p.calls {
		if !answered[i] {
			p.calls[i].result = missingResult
			p.differ(noResult, "call %d", i)
		}
	}
	p.carryOver()
	p.end()
	return p, nil
}

func (p *play) differ(kind, where string, args ...any) {
	p.differs = append(p.differs, kind+": "+fmt.Sprintf(where, args...))
}

func (p *play) decide(step recordStep, offered map[string]bool) {
	p.decisions = append(p.decisions, turn{recordStep: step, first: len(p.calls)})
	for _, c := range step.ToolCalls {
		if !offered[c.Name] {
			p.differ(notOffered, "call %d", len(p.calls))
		}
		p.calls = append(p.calls, playCall{recordCall: c, offered: offered[c.Name]})
	}
	if len(step.ToolCalls) == 0 && strings.TrimSpace(step.Text) == "" {
		p.differ(emptyDecision, "decision %d", len(p.decisions))
	}
}

// hear takes up a user turn: the reply to a question, or an input.
func (p *play) hear(text string) {
	last := &p.decisions[len(p.decisions)-1]
	if len(last.ToolCalls) == 0 && !last.question {
		last.question, last.reply = true, text
		return
	}
	if !last.question {
		p.differ(inputAfterTool, "decision %d", len(p.decisions))
	}
	last.meantime = append(last.meantime, text)
}

// carryOver gives what a user said after a reply to the decision that follows it: the reply alone makes the run go on.
// And it keeps a run going after a text that is not the end.
func (p *play) carryOver() {
	for i := len(p.decisions) - 1; i >= 0; i-- {
		d := &p.decisions[i]
		switch next := i + 1; {
		case d.question && len(d.meantime) > 0:
			p.differ(secondUserTurn, "decision %d", i+1)
			if next == len(p.decisions) {
				p.decisions = append(p.decisions, turn{recordStep: recordStep{Kind: "decision", Text: closing}, first: len(p.calls)})
				p.differ(noAnswer, "decision %d", next+1)
			}
			p.decisions[next].meantime = append(d.meantime, p.decisions[next].meantime...)
			d.meantime = nil
		case len(d.ToolCalls) == 0 && !d.question && d.Text != "" && next < len(p.decisions):
			p.differ(textGoesOn, "decision %d", i+1)
			d.meantime = append(d.meantime, goOn)
		}
	}
}

// end adds an answer to a recording that has none.
func (p *play) end() {
	last := &p.decisions[len(p.decisions)-1]
	if len(last.ToolCalls) == 0 && !last.question && len(last.meantime) == 0 {
		p.answer = last.Text
		return
	}
	p.differ(noAnswer, "decision %d", len(p.decisions)+1)
	p.decisions = append(p.decisions, turn{recordStep: recordStep{Kind: "decision", Text: closing}, first: len(p.calls)})
}

// decision is what the double answers.
func (d *turn) decision() *runnerdv1.Decision {
	out := &runnerdv1.Decision{Text: d.Text}
	if u := d.Usage; u != nil || d.CostCents != nil {
		out.Usage = &runnerdv1.Usage{CostCents: d.CostCents}
		if u != nil {
			out.Usage.InputTokens, out.Usage.OutputTokens = u.InputTokens, u.OutputTokens
			out.Usage.CachedInputTokens = u.CachedInputTokens
		}
	}
	if len(d.ToolCalls) > 0 {
		var calls []*runnerdv1.ToolCall
		for _, c := range d.ToolCalls {
			calls = append(calls, &runnerdv1.ToolCall{Id: c.ID, Name: c.Name, ArgumentsJson: c.ArgumentsJSON})
		}
		out.Next = &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{Calls: calls}}
	} else if d.question {
		out.Next = &runnerdv1.Decision_Question{Question: &runnerdv1.AskUser{}}
	}
	return out
}

// effective is the arguments as the host gets them.
func (c *playCall) effective() string {
	if strings.TrimSpace(c.ArgumentsJSON) == "" {
		return "{}"
	}
	return c.ArgumentsJSON
}
