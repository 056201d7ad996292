package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	toolName    = "work"
	resultBytes = 1 << 10
	iterations  = 10 // of a run of workload agent-run

	argumentBytes = 1 << 10 // of a call that writes a file
)

// toolResult is what every call gives: 1 KiB of words.
var toolResult = strings.Repeat("the tool said so, ", resultBytes/18+1)[:resultBytes]

// work is what the task of a run says: how many iterations before the answer and how long the tool takes. With hold,
// the first Decide does not come back before the stub is told to release the run, whose id
// must be used once only. With files, each call writes one: its arguments are 1 KiB and have a path.
type work struct {
	Iterations int           `json:"iterations"`
	Pace       time.Duration `json:"pace,omitempty"`
	Hold       bool          `json:"hold,omitempty"`
	Files      bool          `json:"files,omitempty"`
}

// task spells the work as the task of a run.
func (w work) task() string {
	return fmt.Sprintf("%d iterations, %d ns a call, hold %t, files %t", w.Iterations, w.Pace, w.Hold, w.Files)
}

func parseTask(task string) (w work, err error) {
	_, err = fmt.Sscanf(task, "%d iterations, %d ns a call, hold %t, files %t", &w.Iterations, &w.Pace, &w.Hold, &w.Files)
	if err != nil {
		return work{}, fmt.Errorf("task %q: %w", task, err)
	}
	return w, nil
}

// decide is what the model of the workload says in an iteration.
func (w work) decide(iteration int) *runnerdv1.Decision {
	d := &runnerdv1.Decision{
		Usage: &runnerdv1.Usage{
			CostCents: new(0.001), InputTokens: new(int64(300 * iteration)), OutputTokens: new(int64(20)),
		},
	}
	if iteration > w.Iterations {
		d.Next = &runnerdv1.Decision_Answer{Answer: &runnerdv1.Answer{Content: "all is done"}}
		return d
	}
	d.Next = &runnerdv1.Decision_ToolCalls{ToolCalls: &runnerdv1.ToolCalls{Calls: []*runnerdv1.ToolCall{{
		Id: "call_" + strconv.Itoa(iteration), Name: toolName, ArgumentsJson: w.arguments(iteration),
	}}}}
	return d
}

// arguments tells the tool which step it is and how long to take.
func (w work) arguments(iteration int) string {
	plain := fmt.Sprintf(`{"step":%d,"pace_ns":%d}`, iteration, w.Pace)
	if !w.Files {
		return plain
	}
	file := fmt.Sprintf(`%s,"path":"internal/store/step_%d.go","content":"`, strings.TrimSuffix(plain, "}"), iteration)
	return file + toolResult[:argumentBytes-len(file)-len(`"}`)] + `"}`
}

func paceOf(arguments string) (time.Duration, error) {
	var step, pace int64
	if _, err := fmt.Sscanf(arguments, `{"step":%d,"pace_ns":%d`, &step, &pace); err != nil {
		return 0, fmt.Errorf("arguments %q: %w", arguments, err)
	}
	return time.Duration(pace), nil
}

// inputSchema is what the tool says of its arguments.
const inputSchema = `{"type":"object","properties":{"step":{"type":"integer"},"pace_ns":{"type":"integer"},` +
	`"path":{"type":"string","maxLength":4096},"content":{"type":"string"}},"required":["step"]}`
