package runner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// TestSecretsStayInside plants secrets wherever a run can hold one, and looks for them in all that a viewer can read,
// in every error and in the log of the daemon.
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		const canary = "sk-CANARYcanary0123456789"
		secret := func(where string) string { return canary + where }
		req := &runnerdv1.StartRunRequest{
			RunId: "r1", Agent: "demo",
			Task:         "read:{\"password\":\"" + secret("arguments") + "\"}\ndeploy:{\"api_key\":\"" + secret("asked") + "\"}\nanswer:" + secret("answer"),
			ContextJson:  `{"note":"` + secret("context") + `"}`,
			MetadataJson: `{"note":"` + secret("metadata") + `"}`,
			InitialObservations: []*runnerdv1.InitialObservation{{
				Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, ToolName: "read", Text: secret("observation"),
			}},
		}
		var seen strings.Builder
		see := func(what string, v any, err error) {
			fmt.Fprintf(&seen, "%s: %v %v\n", what, v, err)
		}
		resp, err := f.runs.StartRun(f.anonymous(), req)
		see("start", resp, err)
		req.ContextJson = `{"note":"` + secret("refused") + `"`
		again, err := f.runs.StartRun(f.anonymous(), req)
		see("refused start", again, err)
		run := f.settle("r1")
		if len(run.GetApprovals()) != 1 {
			t.Fatalf("run is %v", run)
		}
		if _, err := f.vote(run.GetApprovals()[0], voteYes, func(r *runnerdv1.SubmitApprovalRequest) { r.Reason = secret("reason") }); err != nil {
			t.Fatal(err)
		}
		if run := f.settle("r1"); run.GetFinalAnswer().GetContent() != secret("answer") {
			t.Fatalf("the owner does not see the answer: %v", run)
		}
		input, err := f.runs.SubmitInput(f.anonymous(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: secret("input")})
		see("input", input, err)

		viewer := f.anonymous()
		got, err := f.runs.GetRun(viewer, &runnerdv1.GetRunRequest{RunId: "r1"})
		see("get", got, err)
		waited, err := f.runs.WaitRun(viewer, &runnerdv1.WaitRunRequest{RunId: "r1"})
		see("wait", waited, err)
		list, err := f.runs.ListRuns(viewer, &runnerdv1.ListRunsRequest{})
		see("list", list, err)
		points, err := f.runs.ListCheckpoints(viewer, &runnerdv1.ListCheckpointsRequest{RunId: "r1"})
		see("checkpoints", points, err)
		cancelled, err := f.runs.CancelRun(viewer, &runnerdv1.CancelRunRequest{
			RunId: "r1", Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP, Reason: secret("cancel"),
		})
		see("cancel", cancelled, err)
		all := f.events(viewer, "r1")
		see("events", all, nil)
		found, summary, err := f.verify(viewer, "")
		see("verify", found, err)
		if !summary.GetOk() {
			t.Errorf("the log does not verify: %v", found)
		}
		see("log", f.logged.String(), nil)

		if at := strings.Index(seen.String(), "CANARY"); at >= 0 {
			line := seen.String()[strings.LastIndexByte(seen.String()[:at], '\n')+1:]
			t.Errorf("a secret came out: %.60s ... %.60s", line, seen.String()[max(0, at-20):])
		}
		if len(all) < 10 || seen.Len() < 2000 {
			t.Errorf("little was looked at: %d events, %d bytes", len(all), seen.Len())
		}
	})
}

// TestStreamsPerConnection: one connection holds only so many calls; the next one waits its turn.
func TestStreamsPerConnection(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "block")
		ctx, cancel := context.WithCancel(f.anonymous())
		defer cancel()
		for range maxConnStreams {
			if _, err := mustStream(f.runs.StreamEvents(ctx, ofRun("r1", following))).Recv(); err != nil {
				t.Fatal(err)
			}
		}
		short, stop := context.WithTimeout(f.anonymous(), time.Second)
		defer stop()
		if _, err := f.runs.GetRun(short, &runnerdv1.GetRunRequest{RunId: "r1"}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("call %d on one connection: %v", maxConnStreams+1, err)
		}
		other := runnerdv1.NewRunServiceClient(f.dial())
		if _, err := other.GetRun(f.anonymous(), &runnerdv1.GetRunRequest{RunId: "r1"}); err != nil {
			t.Errorf("on another connection: %v", err)
		}
		cancel()
		if _, err := f.runs.GetRun(f.anonymous(), &runnerdv1.GetRunRequest{RunId: "r1"}); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}
