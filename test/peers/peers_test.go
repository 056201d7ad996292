// Package peers drives the daemon with clients and a tool host in other languages, over the gRPC stacks that their
// users have. Each client plays the same scenario through the API and prints what it saw; both must have seen the same.
package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// Integers that a double cannot hold.
const (
	arguments = `{"amount":9007199254740993,"ids":[18446744073709551615,-9223372036854775807]}`
	tokens    = 9007199254740993
)

// peer is a client and a tool host in one language: their commands, without the addresses that come last.
type peer struct {
	env          []string
	client, host []string
}

// play lets a peer play the scenario with the daemon, and checks what its client saw.
func play(t *testing.T, p peer) {
	t.Helper()
	if _, err := os.ReadDir("."); err != nil { // so that go test caches no result over a change of these programs
		t.Fatal(err)
	}
	brain, err := harness.NewBrain()
	if err != nil {
		t.Fatal(err)
	}
	d := harness.Start(t, &configv1.Config{
		DecideServices: map[string]*configv1.DecideService{"brain": {Address: brain.Addr}},
		ToolHosts:      map[string]*configv1.ToolHost{"till": {Address: p.serve(t)}},
		Agents: map[string]*configv1.Agent{"cashier": {
			DecideService: "brain", ToolHosts: []string{"till"}, Policy: &configv1.Policy{Mode: "allow", ApprovalFor: []string{"charge"}},
			ContextWarningPercent: new(uint32(0)), // the tokens are a big number here, and not a full context
		}},
	})
	run := d.RunID(t)
	brain.Script(run, harness.Steps(harness.Costing(harness.Calls("charge", arguments), 1, tokens, 1), answer))
	brain.Script(run+"-endless", harness.Hang)

	var stderr bytes.Buffer
	cmd := p.command(harness.Context(t), p.client, d.Addr(), filepath.Join(d.Dir, "data", "approver.token"), run)
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	got := lines(t, stdout)
	if err != nil {
		t.Fatalf("%v: %v\nit saw %q\n%s", cmd.Args, err, got, &stderr)
	}
	if diff := cmp.Diff(want(t, run, d.Public(t, run)), got); diff != "" {
		t.Errorf("the client did not see what it must (-want +got):\n%s", diff)
	}
	d.Check(t, run)
	d.Check(t, run+"-endless")
}

// serve starts the tool host, ends it with the test, and tells its address.
func (p peer) serve(t *testing.T) (addr string) {
	t.Helper()
	addr = "unix:" + filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithCancel(harness.Context(t))
	cmd := p.command(ctx, p.host, addr)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it says that the process was killed
	})
	if said, err := bufio.NewReader(stdout).ReadString('\n'); said != "listening\n" {
		t.Fatalf("the tool host said %q: %v", said, err)
	}
	return addr
}

func (p peer) command(ctx context.Context, command []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, command[0], slices.Concat(command[1:], args)...) // #nosec G204 -- a program of this folder
	cmd.Env = append(os.Environ(), p.env...)
	return cmd
}

// answer ends the run with what the tool said.
func answer(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
	history := req.GetHistory()
	return harness.Send(s, harness.Answer(history[len(history)-1].GetObservation().GetText()))
}

// line is one line that a client prints, in one spelling.
type line = map[string]any

// want is the scenario as a client must see it, given the events that a watcher in Go saw.
func want(t *testing.T, run string, events []*runnerdv1.Event) []string {
	t.Helper()
	asked := slices.IndexFunc(events, func(ev *runnerdv1.Event) bool { return ev.GetType() == "tool_call_pending_approval" })
	if asked < 3 {
		t.Fatalf("no approval was asked for in time to cut a stream before; events:\n%s", harness.Lines(events))
	}
	var all []line
	stream := func(events []*runnerdv1.Event) {
		for _, ev := range events {
			all = append(all, line{
				"step": "event", "sequence": strconv.FormatUint(ev.GetSequence(), 10), "type": ev.GetType(), "hash": hex.EncodeToString(ev.GetHash()),
			})
		}
	}
	all = append(all,
		line{"step": "start", "run": run, "already_started": false},
		line{"step": "start again", "run": run, "already_started": true})
	stream(events[:3])
	all = append(all, line{"step": "cut"})
	stream(events[3 : asked+1])
	all = append(all,
		line{"step": "list", "id": strconv.FormatUint(events[asked].GetSequence(), 10), "tool": "charge", "arguments": arguments},
		line{"step": "approve without token", "code": "UNAUTHENTICATED", "domain": "runnerd", "reason": "CREDENTIAL_REQUIRED"},
		line{"step": "approve something else", "code": "FAILED_PRECONDITION", "domain": "runnerd", "reason": "DIGEST_MISMATCH"},
		line{"step": "approve", "verdict": "APPROVAL_VERDICT_APPROVE", "via": "VIA_HUMAN"})
	stream(events[asked+1:])
	all = append(all,
		line{"step": "end of stream"},
		line{"step": "wait", "timed_out": false, "state": "RUN_STATE_DONE", "stop_reason": "STOP_REASON_COMPLETED"},
		line{"step": "get", "answer": "charged " + arguments, "input_tokens": strconv.Itoa(tokens)},
		line{"step": "start endless", "run": run + "-endless", "already_started": false},
		line{"step": "cancel", "timed_out": false, "state": "RUN_STATE_DONE", "stop_reason": "STOP_REASON_CANCELLED"},
		line{"step": "audit", "ok": true, "events": strconv.Itoa(len(events)), "findings": "0"})

	var text []byte
	for _, l := range all {
		one, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, one...), '\n')
	}
	return lines(t, text)
}

// lines brings JSON lines to one spelling.
func lines(t *testing.T, text []byte) []string {
	t.Helper()
	var all []string
	for l := range bytes.Lines(text) {
		var value line
		if err := json.Unmarshal(l, &value); err != nil {
			t.Fatalf("a client printed %q: %v", l, err)
		}
		one, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(one))
	}
	return all
}

// describe writes a descriptor set of the API, of all it imports and of what its errors carry, and tells the names of
// its files.
func describe(t *testing.T) (path string, files []string) {
	t.Helper()
	set := &descriptorpb.FileDescriptorSet{}
	var add func(protoreflect.FileDescriptor)
	add = func(file protoreflect.FileDescriptor) {
		if slices.Contains(files, file.Path()) {
			return
		}
		imports := file.Imports()
		for i := range imports.Len() {
			add(imports.Get(i).FileDescriptor)
		}
		files = append(files, file.Path())
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	for _, file := range []protoreflect.FileDescriptor{
		runnerdv1.File_runnerd_v1_run_service_proto, runnerdv1.File_runnerd_v1_audit_service_proto,
		runnerdv1.File_runnerd_v1_tool_host_service_proto,
		statuspb.File_google_rpc_status_proto, errdetails.File_google_rpc_error_details_proto,
	} {
		add(file)
	}
	wire, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "api.binpb")
	if err := os.WriteFile(path, wire, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, files
}
