package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/pkg/decide"
	"github.com/runnerd/runnerd/pkg/toolhost"
)

// builtin is the scripted decide service and tool host that are part of
// runnerd. They are reached as any other: by gRPC, though within the process.
type builtin struct {
	decide, tools *bufconn.Listener
	tasks         *tasks
}

// builtinBuffer is how much a connection to them holds, in bytes.
const builtinBuffer = 256 << 10

func startBuiltin(ctx context.Context, log *slog.Logger) *builtin {
	b := &builtin{
		decide: bufconn.Listen(builtinBuffer), tools: bufconn.Listen(builtinBuffer),
		tasks: newTasks(ctx),
	}
	host := builtinTools(log)
	b.tasks.start("builtin decide service", func(ctx context.Context) error {
		return decide.Serve(ctx, b.decide, decide.Func(builtinDecide))
	})
	b.tasks.start("builtin tool host", func(ctx context.Context) error {
		return host.Serve(ctx, b.tools)
	})
	return b
}

func (b *builtin) stop() { b.tasks.stop() }

// dialInside reaches a service inside the process.
func dialInside(l *bufconn.Listener) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return l.DialContext(ctx)
	})}
}

// insideAddress is a target that no resolver looks at.
const insideAddress = "passthrough:///builtin"

func newDecider(cfg *configv1.Config, inside *builtin, log *slog.Logger) (*decide.Client, error) {
	endpoints := map[string]decide.Endpoint{}
	for name, service := range cfg.GetDecideServices() {
		if service.GetScripted() != "" {
			endpoints[name] = decide.Endpoint{Address: insideAddress, DialOptions: dialInside(inside.decide)}
			continue
		}
		endpoint, err := config.Endpoint(service, log)
		if err != nil {
			return nil, fmt.Errorf("decide service %s: %w", name, err)
		}
		endpoints[name] = endpoint
	}
	return decide.NewClient(endpoints)
}

func newTools(cfg *configv1.Config, inside *builtin, log *slog.Logger) (*toolhost.Client, error) {
	endpoints := map[string]toolhost.Endpoint{}
	for name, host := range cfg.GetToolHosts() {
		if host.GetScripted() != "" {
			endpoints[name] = toolhost.Endpoint{Address: insideAddress, DialOptions: dialInside(inside.tools)}
			continue
		}
		endpoint, err := config.Endpoint(host, log)
		if err != nil {
			return nil, fmt.Errorf("tool host %s: %w", name, err)
		}
		endpoints[name] = endpoint
	}
	return toolhost.NewClient(endpoints)
}

// maxWait is the longest time the tool wait takes.
const maxWait = time.Hour

// builtinTools is a tool host with tools that do no harm.
func builtinTools(log *slog.Logger) *toolhost.Server {
	host := toolhost.NewServer(toolhost.WithLogger(log))
	host.Tool(toolhost.Typed(toolhost.Definition{
		Name: "echo", Description: "Says what it is told.", ReadOnly: toolhost.Yes, Idempotent: toolhost.Yes,
	}, func(_ context.Context, in struct {
		Text string `json:"text" jsonschema:"what to say"`
	},
	) (string, error) {
		return in.Text, nil
	}))
	host.Tool(toolhost.Typed(toolhost.Definition{
		Name: "clock", Description: "Tells the time in UTC.", ReadOnly: toolhost.Yes, Idempotent: toolhost.Yes,
	}, func(context.Context, struct{}) (string, error) {
		return time.Now().UTC().Format(time.RFC3339), nil
	}))
	host.Tool(toolhost.Definition{
		Name: "wait", Description: "Waits for some seconds, and tells how far it is.",
		InputSchema: `{"type":"object","properties":{"seconds":{"type":"number","minimum":0,"maximum":3600}},"required":["seconds"],"additionalProperties":false}`,
		ReadOnly:    toolhost.Yes, Idempotent: toolhost.Yes,
	}, waitTool)
	var announced atomic.Int64
	host.Tool(toolhost.Typed(toolhost.Definition{
		Name: "announce", Description: "Announces something; a person is asked first.", Destructive: toolhost.No,
	}, func(_ context.Context, in struct {
		Text string `json:"text" jsonschema:"what to announce"`
	},
	) (string, error) {
		if strings.TrimSpace(in.Text) == "" {
			return "", errors.New("there is nothing to announce")
		}
		return fmt.Sprintf("announced (%d so far): %s", announced.Add(1), in.Text), nil
	}))
	return host
}

func waitTool(ctx context.Context, call *toolhost.Call) (*toolhost.Result, error) {
	var in struct {
		Seconds float64 `json:"seconds"`
	}
	if err := call.Decode(&in); err != nil {
		return nil, err
	}
	whole := min(time.Duration(in.Seconds*float64(time.Second)), maxWait)
	start, tick := time.Now(), time.NewTicker(max(whole/20, 100*time.Millisecond))
	defer tick.Stop()
	end := time.NewTimer(whole)
	defer end.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-end.C:
			return toolhost.Text("waited " + whole.String()), nil
		case <-tick.C:
			call.Progress("waiting", min(float64(time.Since(start))/float64(whole), 1))
		}
	}
}

var (
	waitWord   = regexp.MustCompile(`(?i)\bwait (\d{1,4})\b`)
	wordInTask = func(word string) func(string) bool {
		return regexp.MustCompile(`(?i)\b` + word + `\b`).MatchString
	}
	asksClock    = wordInTask("time")
	asksAnnounce = wordInTask("announce")
	asksQuestion = wordInTask("ask")
	asksForever  = wordInTask("forever")
)

// builtinDecide is a decide service that looks for words in the task:
//
//	time      calls clock
//	wait N    calls wait
//	announce  calls announce, for which a person is asked
//	ask       asks a question
//	forever   calls clock again and again, until a limit ends the run
//
// It takes one step an iteration, in this order, and at last answers with what
// it saw; a task without any of the words is echoed. What it decides depends on
// the request alone, so asking again gives the same.
func builtinDecide(ctx context.Context, req *runnerdv1.DecideRequest, text decide.TextSink) (*runnerdv1.Decision, error) {
	steps := builtinSteps(req.GetTask())
	taken := 0
	for _, entry := range req.GetHistory() {
		if entry.GetDecision() != nil {
			taken++
		}
	}
	var decision *runnerdv1.Decision
	switch {
	case asksForever(req.GetTask()):
		decision = decide.Calls(decide.Call("clock", struct{}{}))
	case taken < len(steps):
		decision = steps[taken]()
	default:
		answer := builtinAnswer(req.GetHistory())
		for _, word := range strings.SplitAfter(answer, " ") {
			text(word)
		}
		decision = decide.Answer(answer)
	}
	decision.Usage = &runnerdv1.Usage{
		CostCents:    new(0.01),
		InputTokens:  new(int64(proto.Size(req) / 4)),
		OutputTokens: new(int64(proto.Size(decision) / 4)),
	}
	return decision, ctx.Err()
}

func builtinSteps(task string) []func() *runnerdv1.Decision {
	var steps []func() *runnerdv1.Decision
	call := func(tool string, arguments any) {
		steps = append(steps, func() *runnerdv1.Decision { return decide.Calls(decide.Call(tool, arguments)) })
	}
	if asksClock(task) {
		call("clock", struct{}{})
	}
	if m := waitWord.FindStringSubmatch(task); m != nil {
		seconds, _ := strconv.Atoi(m[1]) // four digits at most
		call("wait", map[string]int{"seconds": seconds})
	}
	if asksAnnounce(task) {
		call("announce", map[string]string{"text": task})
	}
	if asksQuestion(task) {
		steps = append(steps, func() *runnerdv1.Decision { return decide.Question("What do you want to tell me?") })
	}
	if len(steps) == 0 {
		call("echo", map[string]string{"text": task})
	}
	return steps
}

// builtinAnswer says what came of the steps.
func builtinAnswer(history []*runnerdv1.HistoryEntry) string {
	var seen []string
	for _, entry := range history {
		o := entry.GetObservation()
		switch o.GetKind() {
		case runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT:
			seen = append(seen, o.GetToolName()+": "+o.GetText())
		case runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR, runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL:
			seen = append(seen, o.GetToolName()+" did not work: "+o.GetText())
		case runnerdv1.ObservationKind_OBSERVATION_KIND_USER_INPUT:
			seen = append(seen, "you said: "+o.GetText())
		case runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, runnerdv1.ObservationKind_OBSERVATION_KIND_UNSPECIFIED:
		}
	}
	if len(seen) == 0 {
		return "There was nothing to do."
	}
	return strings.Join(seen, "\n")
}
