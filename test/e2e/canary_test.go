package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/toolhost"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

// sinks are what others than the owner got to see, by where.
type sinks struct {
	mu   sync.Mutex
	seen map[string]*strings.Builder
}

func (s *sinks) add(where string, what ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[where] == nil {
		s.seen[where] = new(strings.Builder)
	}
	for _, v := range what {
		switch v := v.(type) {
		case nil:
		case proto.Message:
			s.seen[where].WriteString(prototext.Format(v) + "\n")
		case error:
			s.seen[where].WriteString(v.Error() + "\n" + prototext.Format(status.Convert(v).Proto()) + "\n")
		default:
			fmt.Fprintln(s.seen[where], v)
		}
	}
}

// panicky serves a tool that panics with a secret, with the kit that hosts are made of.
func panicky(t *testing.T, secret string) (addr string) {
	t.Helper()
	host := toolhost.NewServer(toolhost.WithLogger(slog.New(slog.DiscardHandler)))
	host.Tool(toolhost.Definition{Name: "panics", Description: "panics"}, func(context.Context, *toolhost.Call) (*toolhost.Result, error) {
		panic(secret)
	})
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- host.Serve(t.Context(), lis) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Errorf("the host that panics: %v", err)
		}
	})
	return lis.Addr().String()
}

// TestCanaries puts secrets wherever something comes in, and looks for them wherever something comes out to others than
// the owner: events and signals, runs, lists, checkpoints, tools, audits, health, errors, the log, metrics and commands.
func TestCanaries(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		t.Run("T-182 T-185 a log of "+format, func(t *testing.T) {
			t.Parallel()
			canaries(t, format)
		})
	}
}

func canaries(t *testing.T, format string) {
	owned, others := new(nest), new(nest) // secrets that the owner reads raw, and those that nobody does
	for range 5000 {
		others.birds = append(others.birds, "") // numbers of their own
	}
	out := &sinks{seen: make(map[string]*strings.Builder)}
	w, err := newWorld()
	if err != nil {
		t.Fatal(err)
	}
	listed := proto.CloneOf(tools[0])
	listed.Description = others.text()
	w.hands.Offer(append([]*runnerdv1.ToolDefinition{listed}, tools[1:]...)...)
	w.cfg.Log = &configv1.Log{Level: "debug", Format: format}
	w.cfg.MetricsListen = "127.0.0.1:0"
	token := filepath.Join(t.TempDir(), "host.token")
	if err := os.WriteFile(token, []byte(others.hatch()), 0o600); err != nil {
		t.Fatal(err)
	}
	w.cfg.ToolHosts["hands"].TokenFile = token
	w.cfg.ToolHosts["panicky"] = &configv1.ToolHost{Address: panicky(t, others.text())}
	w.cfg.Agents["panicky"] = proto.CloneOf(w.cfg.Agents["std"])
	w.cfg.Agents["panicky"].ToolHosts = []string{"panicky"}
	w.Daemon = harness.Start(t, w.cfg)

	runs := w.canaryRuns(t, owned, others, out)
	w.refusals(t, others, out)
	for _, run := range runs {
		for _, req := range w.brain.Requests(run) {
			others.birds = append(others.birds, strings.ToLower(req.GetRunToken()))
		}
		for _, call := range w.hands.Calls(run) {
			others.birds = append(others.birds, strings.ToLower(call.Request.GetRunToken()))
		}
	}
	approver, err := os.ReadFile(filepath.Join(w.Dir, "data", "approver.token"))
	if err != nil {
		t.Fatal(err)
	}
	others.birds = append(others.birds, strings.ToLower(strings.TrimSpace(string(approver))))
	others.birds = slices.DeleteFunc(others.birds, func(s string) bool { return s == "" })
	w.look(t, runs, out)

	for where, seen := range out.seen {
		text := seen.String()
		if text == "" {
			t.Errorf("%s: nothing was seen", where)
		}
		for _, bird := range append(owned.found(text), others.found(text)...) {
			at := strings.Index(strings.ToLower(text), bird)
			t.Errorf("%s shows %s: …%s…", where, bird, text[max(0, at-200):min(len(text), at+60)])
		}
	}
	for _, where := range []string{"events", "all events", "signals", "runs", "list", "checkpoints", "tools", "audit", "health", "errors", "log", "metrics", "commands"} {
		if out.seen[where] == nil {
			t.Errorf("%s: not looked at", where)
		}
	}
	var raw strings.Builder
	for _, run := range runs {
		for _, ev := range w.Events(t, run) {
			raw.WriteString(prototext.Format(ev))
		}
	}
	if got := owned.found(raw.String()); len(got) != len(owned.birds) {
		missing := slices.DeleteFunc(slices.Clone(owned.birds), func(s string) bool { return slices.Contains(got, s) })
		t.Errorf("the owner reads %d of %d, not %v", len(got), len(owned.birds), missing)
	}
	if n := len(textFormats) + len(jsonFormats); n < 40 || len(owned.birds) < 200 {
		t.Errorf("%d formats, %d secrets", n, len(owned.birds))
	}
}

// canaryRuns plays runs in which everything that can be said holds secrets.
func (w *world) canaryRuns(t *testing.T, owned, others *nest, out *sinks) []string {
	refuse := map[string]error{
		"3.1": status.Error(codes.InvalidArgument, owned.short(0)), "3.2": status.Error(codes.InvalidArgument, owned.short(1)),
	}
	first := harness.Calls("look", owned.json("command", "content", "new", "old"), "put", `{}`, "deploy_site", owned.json("command"))
	first.Text, first.Reasoning, first.ProviderState = owned.text(), owned.text(), []byte(owned.hatch())
	answer := harness.Answer(owned.text())
	answer.GetAnswer().MetadataJson = owned.json()
	truncated := harness.Text(others.text())
	truncated.Truncated = true
	ask, text, structured, failure, long := harness.Ask(owned.text()), owned.text(), owned.json("content", "stdout", "stderr", "text"), owned.text(), owned.json("stdout")
	delta, progress := others.text(), others.text()
	decide := harness.Steps(
		func(_ *runnerdv1.DecideRequest, s harness.DecideStream) error {
			if err := harness.Say(s, delta); err != nil {
				return err
			}
			return harness.Send(s, first)
		},
		ask,
		harness.Calls("look", "{}", "look", "{}"),
		truncated,
		harness.Calls("look", `{"content":"`+owned.hatch()+`",}`, "book", `{"q":"`+others.hatch()+`"`),
		answer)
	handle := func(req *runnerdv1.CallToolRequest, s harness.CallStream) (*runnerdv1.ToolResult, error) {
		_, id, _ := strings.Cut(req.GetIdempotencyKey(), "/")
		if err := refuse[id]; err != nil {
			return nil, err
		}
		switch id {
		case "1.1":
			err := s.Send(&runnerdv1.CallToolResponse{Event: &runnerdv1.CallToolResponse_Progress{Progress: &runnerdv1.Progress{Message: progress}}})
			return &runnerdv1.ToolResult{Text: text, StructuredJson: structured}, err
		case "1.2":
			return &runnerdv1.ToolResult{Text: failure, IsError: true}, nil
		default:
			return &runnerdv1.ToolResult{Text: long}, nil
		}
	}
	ready := newGate()
	full := w.play(t, "wide", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
		ready.pass(s.Context())
		return decide(req, s)
	}, calls(handle), budget(&runnerdv1.Budget{MaxConsecutiveFailures: proto.Uint32(0)}), func(_ *world, req *runnerdv1.StartRunRequest) {
		req.Task, req.MetadataJson, req.ContextJson = owned.text(), owned.json(), owned.json("anything")
	})
	watched := make(chan error, 1)
	listening := make(chan struct{})
	go func() {
		stream, err := w.Guest.StreamEvents(t.Context(), &runnerdv1.StreamEventsRequest{
			Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: full}, Follow: true, IncludeSignals: true,
		})
		once := sync.OnceFunc(func() { close(listening) })
		for err == nil {
			var m *runnerdv1.StreamEventsResponse
			if m, err = stream.Recv(); err == nil {
				out.add("signals", m)
				once()
			}
		}
		watched <- err
	}()
	<-listening
	ready.open()

	open := w.Idle(t, full).GetApprovals()[0]
	edited := owned.json("content")
	if _, err := w.Runs.SubmitApproval(harness.Context(t), &runnerdv1.SubmitApprovalRequest{
		RunId: full, ApprovalId: open.GetApprovalId(), ApprovalDigest: open.GetApprovalDigest(), Verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE,
		EditedArgumentsJson: &edited, Reason: owned.short(0),
	}); err != nil {
		t.Fatal(err)
	}
	w.Idle(t, full)
	w.Input(t, full, owned.text())
	w.Done(t, full)
	if err := <-watched; !errors.Is(err, io.EOF) {
		t.Errorf("signals: %v", err)
	}

	runs := []string{full}
	cancelled := w.play(t, "std", harness.Hang)
	w.UntilType(t, cancelled, "iteration_started")
	if _, err := w.Runs.CancelRun(harness.Context(t), &runnerdv1.CancelRunRequest{RunId: cancelled, Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT, Reason: owned.short(1)}); err != nil {
		t.Fatal(err)
	}
	w.Done(t, cancelled)
	for half := range 2 {
		message := owned.short(half)
		run := w.play(t, "std", func(*runnerdv1.DecideRequest, harness.DecideStream) error {
			return status.Error(codes.PermissionDenied, message)
		})
		w.Done(t, run)
		runs = append(runs, run)
	}
	late := w.play(t, "brief", harness.Steps(harness.Calls("charge", owned.json("command")), harness.Answer("done")), calls(harness.HangCall))
	panicked := w.play(t, "panicky", harness.Steps(harness.Calls("panics", owned.json("command")), harness.Answer("done")))
	w.Done(t, late)
	w.Done(t, panicked)
	denied := w.play(t, "std", harness.Steps(harness.Calls("deploy_site", owned.json("new")), harness.Answer("done")))
	w.Approve(t, denied, runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY)
	w.Done(t, denied)
	return append(runs, cancelled, late, panicked, denied)
}

// refusals are requests that are refused, with secrets in all that is wrong.
func (w *world) refusals(t *testing.T, n *nest, out *sinks) {
	ctx := harness.Context(t)
	refused := func(err error) {
		if err == nil {
			t.Error("it is not refused")
			return
		}
		out.add("errors", err)
	}
	start := func(change func(*runnerdv1.StartRunRequest)) {
		req := &runnerdv1.StartRunRequest{RunId: w.RunID(t), Agent: "std", Task: n.text()}
		change(req)
		_, err := w.Guest.StartRun(ctx, req)
		refused(err)
	}
	start(func(r *runnerdv1.StartRunRequest) { r.ContextJson = n.text() })
	start(func(r *runnerdv1.StartRunRequest) { r.ContextJson = n.json("a") + n.hatch() })
	start(func(r *runnerdv1.StartRunRequest) { r.MetadataJson = `["` + n.hatch() + `"]` })
	start(func(r *runnerdv1.StartRunRequest) { r.MetadataJson = `{"` + strings.Repeat(n.hatch(), 1000) + `":1}` })
	start(func(r *runnerdv1.StartRunRequest) { r.Task = strings.Repeat(n.text(), 1000) })
	start(func(r *runnerdv1.StartRunRequest) { r.Agent = "nosuch" })
	start(func(r *runnerdv1.StartRunRequest) {
		r.Budget = &runnerdv1.Budget{MaxDuration: durationpb.New(-time.Second)}
	})
	_, err := w.Guest.SubmitInput(ctx, &runnerdv1.SubmitInputRequest{RunId: "nosuch", Text: n.text()})
	refused(err)
	_, err = w.Guest.CancelRun(ctx, &runnerdv1.CancelRunRequest{RunId: "nosuch", Mode: 99, Reason: n.text()})
	refused(err)
	wrong := n.text()
	_, err = w.Runs.SubmitApproval(ctx, &runnerdv1.SubmitApprovalRequest{
		RunId: "nosuch", ApprovalId: 1, ApprovalDigest: "x", Verdict: 1, EditedArgumentsJson: &wrong, Reason: n.text(),
		Result: &runnerdv1.SettledResult{Text: n.text(), StructuredJson: n.text()},
	})
	refused(err)
	_, err = w.Guest.ListRuns(withBearer(ctx, n.hatch()), &runnerdv1.ListRunsRequest{})
	refused(err)
}

// look looks at everything as somebody who is a viewer.
func (w *world) look(t *testing.T, runs []string, out *sinks) {
	ctx := harness.Context(t)
	for _, run := range runs {
		for _, ev := range w.seenBy(t, "", run) {
			out.add("events", ev)
		}
		one, err := w.Guest.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: run})
		out.add("runs", one, err)
		waited, err := w.Guest.WaitRun(ctx, &runnerdv1.WaitRunRequest{RunId: run})
		out.add("runs", waited, err)
		points, err := w.Guest.ListCheckpoints(ctx, &runnerdv1.ListCheckpointsRequest{RunId: run})
		out.add("checkpoints", points, err)
		_, err = w.Guest.ListHistory(ctx, &runnerdv1.ListHistoryRequest{RunId: run})
		out.add("errors", err)
		_, err = w.Guest.GetApproval(ctx, &runnerdv1.GetApprovalRequest{RunId: run, ApprovalId: 1})
		out.add("errors", err)
	}
	list, err := w.Guest.ListRuns(ctx, &runnerdv1.ListRunsRequest{})
	out.add("list", list, err)
	for _, agent := range []string{"std", "panicky", "partial"} {
		catalogue, err := w.Guest.ListTools(ctx, &runnerdv1.ListToolsRequest{Agent: agent})
		out.add("tools", catalogue, err)
		for _, tool := range catalogue.GetTools() {
			explained, err := w.Guest.ExplainPolicy(ctx, &runnerdv1.ExplainPolicyRequest{
				Subject: &runnerdv1.ExplainPolicyRequest_Start{Start: &runnerdv1.StartRunRequest{Agent: agent, Task: "x"}},
				Tool:    tool.GetOfferedName(), ArgumentsJson: "{}",
			})
			out.add("explained", explained, err)
		}
	}
	conn := w.dialGuest(t)
	stream, err := runnerdv1.NewRunServiceClient(conn).StreamEvents(ctx, &runnerdv1.StreamEventsRequest{Scope: &runnerdv1.StreamEventsRequest_All{All: true}})
	for err == nil {
		var m *runnerdv1.StreamEventsResponse
		if m, err = stream.Recv(); err == nil {
			out.add("all events", m)
		}
	}
	audit, err := runnerdv1.NewAuditServiceClient(conn).VerifyAudit(ctx, &runnerdv1.VerifyAuditRequest{})
	for err == nil {
		var m *runnerdv1.VerifyAuditResponse
		if m, err = audit.Recv(); err == nil {
			out.add("audit", m)
		}
	}
	health, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	out.add("health", health, err)

	for _, args := range [][]string{
		{"runs"},
		{"runs", runs[0]},
		{"runs", "-o", "json"},
		{"watch", runs[0], "--follow=false"},
		{"watch", "--all", "--follow=false", "-o", "json"},
		{"tools", "std"},
		{"audit", "verify"},
		{"watch", runs[0], "--raw"},
		{"approvals"},
	} {
		// #nosec G204 -- the binary that was built for the tests
		cmd := exec.CommandContext(ctx, harness.Binary(), args...)
		cmd.Env = append(os.Environ(), "RUNNERD_ADDR="+w.Addr(), "RUNNERD_DATA_DIR=/nowhere")
		text, _ := cmd.CombinedOutput() // a refusal is an answer, too
		out.add("commands", string(text))
	}
	log, err := os.ReadFile(filepath.Join(w.Dir, "daemon.log"))
	if err != nil {
		t.Fatal(err)
	}
	out.add("log", string(log))
	address := metricsAddress.FindSubmatch(log)
	if address == nil {
		t.Fatal("the log names no address of metrics")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+string(address[1])+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	out.add("metrics", string(page))
}

// metricsAddress finds where metrics are served in a log of either format.
var metricsAddress = regexp.MustCompile(`serving metrics".*?(127\.0\.0\.1:[0-9]+)`)

// dialGuest is a connection of somebody without a credential.
func (w *world) dialGuest(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(w.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
