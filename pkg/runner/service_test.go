package runner

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

func TestStartRun(t *testing.T) {
	t.Parallel()
	rowFace(t, "T-01 ids are the caller's or made, and are taken once", func(f *face) {
		t := f.t
		req := &runnerdv1.StartRunRequest{RunId: "r1", Agent: "demo", Task: "answer:hello", Labels: map[string]string{"team": "a"}}
		first, err := f.runs.StartRun(f.owner(), req)
		if err != nil {
			t.Fatal(err)
		}
		if first.GetAlreadyStarted() || first.GetRun().GetOwner() != "local:owner" {
			t.Errorf("first start: %v", first)
		}
		again, err := f.runs.StartRun(f.owner(), req)
		if err != nil || !again.GetAlreadyStarted() || again.GetRun().GetRunId() != "r1" {
			t.Errorf("the same start again: %v, %v", again, err)
		}
		_, err = f.runs.StartRun(f.anonymous(), req)
		wantReason(t, err, codes.AlreadyExists, "RUN_EXISTS")
		req.Task = "answer:bye"
		_, err = f.runs.StartRun(f.owner(), req)
		wantReason(t, err, codes.AlreadyExists, "RUN_EXISTS")

		made, err := f.runs.StartRun(f.anonymous(), &runnerdv1.StartRunRequest{Agent: "demo", Task: "answer:x"})
		if err != nil || len(made.GetRun().GetRunId()) != 32 || made.GetRun().GetOwner() != "local:anonymous" {
			t.Errorf("a run without an id: %v, %v", made, err)
		}
	})
}

func TestStartRunRefused(t *testing.T) {
	t.Parallel()
	rowFace(t, "T-31 what is refused names the field and is not recorded", func(f *face) {
		t := f.t
		for _, tt := range []struct {
			name   string
			change func(*runnerdv1.StartRunRequest)
			code   codes.Code
			reason string
			fields string
		}{
			{"an unknown agent", func(r *runnerdv1.StartRunRequest) { r.Agent = "nobody" }, codes.NotFound, "AGENT_NOT_FOUND", ""},
			{
				"a context that is no object", func(r *runnerdv1.StartRunRequest) { r.ContextJson = "[1]" },
				codes.InvalidArgument, "INVALID_REQUEST", "context_json",
			},
			{
				"metadata that is no JSON", func(r *runnerdv1.StartRunRequest) { r.MetadataJson = `{"a":` },
				codes.InvalidArgument, "INVALID_REQUEST", "metadata_json",
			},
			{"a budget that is too wide", func(r *runnerdv1.StartRunRequest) {
				r.Budget = &runnerdv1.Budget{MaxToolCalls: proto.Uint32(21)}
			}, codes.InvalidArgument, "BUDGET_TOO_WIDE", "budget.max_tool_calls"},
			{"an approval mode", func(r *runnerdv1.StartRunRequest) {
				r.Approval = &runnerdv1.ApprovalSettings{Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_DENY}
			}, codes.InvalidArgument, "APPROVAL_NOT_ALLOWED", "approval.mode"},
			{"a longer approval timeout", func(r *runnerdv1.StartRunRequest) {
				r.Approval = &runnerdv1.ApprovalSettings{Timeout: durationpb.New(2 * time.Hour)}
			}, codes.InvalidArgument, "APPROVAL_NOT_ALLOWED", "approval.timeout"},
			{
				"a long id", func(r *runnerdv1.StartRunRequest) { r.RunId = strings.Repeat("r", 129) },
				codes.InvalidArgument, "INVALID_REQUEST", "run_id run_id",
			},
			{
				"a deny rule without an id", func(r *runnerdv1.StartRunRequest) {
					r.Policy = &runnerdv1.PolicyLayer{Deny: []*runnerdv1.DenyRule{{Tools: "x"}}}
				}, codes.InvalidArgument, "INVALID_REQUEST", "policy.deny[0].id",
			},
			{"a megabyte and more", func(r *runnerdv1.StartRunRequest) {
				for range 6 {
					r.InitialObservations = append(r.InitialObservations, &runnerdv1.InitialObservation{
						Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: strings.Repeat("x", 200<<10),
					})
				}
			}, codes.ResourceExhausted, "REQUEST_TOO_LARGE", ""},
		} {
			t.Log(tt.name)
			req := &runnerdv1.StartRunRequest{Agent: "demo", Task: "answer:x"}
			tt.change(req)
			_, err := f.runs.StartRun(f.owner(), req)
			wantReason(t, err, tt.code, tt.reason)
			if got := fields(err); got != tt.fields {
				t.Errorf("fields %q, want %q", got, tt.fields)
			}
			if strings.Contains(err.Error(), "regex") {
				t.Errorf("it speaks of patterns: %v", err)
			}
			if tt.reason == "AGENT_NOT_FOUND" && strings.Contains(err.Error(), "demo") {
				t.Errorf("it names other agents: %v", err)
			}
		}
		list, err := f.runs.ListRuns(f.owner(), &runnerdv1.ListRunsRequest{})
		if err != nil || len(list.GetRuns()) != 0 {
			t.Errorf("recorded all the same: %v, %v", list, err)
		}
	})
}

func TestGetRunRedacts(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		secret := "the key is sk-abcdefgh12345678"
		f.start(f.owner(), "r1", "answer:"+secret)
		f.settle("r1")
		for who, ctx := range map[string]context.Context{"owner": f.owner(), "viewer": f.anonymous()} {
			got, err := f.runs.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: "r1"})
			if err != nil {
				t.Fatal(err)
			}
			run := got.GetRun()
			raw := run.GetFinalAnswer().GetContent() == secret && run.GetTask() == "answer:"+secret
			if raw != (who == "owner") {
				t.Errorf("%s sees task %q, answer %q", who, run.GetTask(), run.GetFinalAnswer().GetContent())
			}
			if who == "viewer" && strings.Contains(fmt.Sprint(run), "sk-abc") {
				t.Errorf("a viewer sees the secret: %v", run)
			}
			if run.GetState() != runnerdv1.RunState_RUN_STATE_DONE || run.GetStatus() != "completed" {
				t.Errorf("run is %v", run)
			}
		}
		_, err := f.runs.GetRun(f.owner(), &runnerdv1.GetRunRequest{RunId: "none"})
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")

		task := "answer:ok\n" + strings.Repeat("long ", 30_000)
		f.start(f.owner(), "big", task)
		f.settle("big")
		got, err := f.runs.GetRun(f.owner(), &runnerdv1.GetRunRequest{RunId: "big"})
		if err != nil || got.GetRun().GetTask() != task {
			t.Errorf("a task that is too big for the log came with %d bytes: %v", len(got.GetRun().GetTask()), err)
		}
	})
}

func TestListRuns(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		for i := range 7 {
			agent := "demo"
			if i%2 == 1 {
				agent = "other"
			}
			if _, err := f.runs.StartRun(f.owner(), &runnerdv1.StartRunRequest{
				RunId: fmt.Sprint("r", i), Agent: agent, Task: "answer:x", Labels: map[string]string{"third": fmt.Sprint(i % 3)},
			}); err != nil {
				t.Fatal(err)
			}
			f.settle(fmt.Sprint("r", i))
			time.Sleep(time.Second)
		}
		f.start(f.owner(), "r7", "ask:what?")
		f.settle("r7")
		list := func(req *runnerdv1.ListRunsRequest) string {
			t.Helper()
			var ids []string
			for {
				resp, err := f.runs.ListRuns(f.anonymous(), req)
				if err != nil {
					t.Fatal(err)
				}
				if n := len(resp.GetRuns()); n > int(req.GetPageSize()) && req.GetPageSize() > 0 {
					t.Errorf("a page of %d", n)
				}
				for _, run := range resp.GetRuns() {
					ids = append(ids, run.GetRunId())
				}
				if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
					return strings.Join(ids, " ")
				}
			}
		}
		for _, tt := range []struct {
			req  *runnerdv1.ListRunsRequest
			want string
		}{
			{&runnerdv1.ListRunsRequest{}, "r7 r6 r5 r4 r3 r2 r1 r0"},
			{&runnerdv1.ListRunsRequest{PageSize: 3}, "r7 r6 r5 r4 r3 r2 r1 r0"},
			{&runnerdv1.ListRunsRequest{PageSize: 4}, "r7 r6 r5 r4 r3 r2 r1 r0"},
			{&runnerdv1.ListRunsRequest{Agent: "other", PageSize: 2}, "r5 r3 r1"},
			{&runnerdv1.ListRunsRequest{Agent: "oth"}, ""},
			{&runnerdv1.ListRunsRequest{Labels: map[string]string{"third": "0"}, PageSize: 1}, "r6 r3 r0"},
			{&runnerdv1.ListRunsRequest{Labels: map[string]string{"third": ""}}, ""},
			{&runnerdv1.ListRunsRequest{States: []runnerdv1.RunState{runnerdv1.RunState_RUN_STATE_WAITING_INPUT}}, "r7"},
		} {
			if got := list(proto.CloneOf(tt.req)); got != tt.want {
				t.Errorf("%v: %q, want %q", tt.req, got, tt.want)
			}
		}
		page, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{PageSize: 2})
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{PageToken: page.GetNextPageToken(), Agent: "demo"})
		wantReason(t, err, codes.InvalidArgument, "BAD_PAGE_TOKEN")
	})
}

func TestSteering(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.anonymous(), "r1", "ask:which one?\nanswer:that one")
		if run := f.settle("r1"); run.GetQuestion().GetText() != "which one?" {
			t.Errorf("run waits for %v", run)
		}
		input := &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "the second", RequestId: "q1"}
		first, err := f.runs.SubmitInput(f.anonymous(), input)
		if err != nil || first.GetSequence() == 0 {
			t.Fatalf("input: %v, %v", first, err)
		}
		again, err := f.runs.SubmitInput(f.anonymous(), input)
		if err != nil || again.GetSequence() != first.GetSequence() {
			t.Errorf("the same input again: %v, %v", again, err)
		}
		if run := f.settle("r1"); run.GetFinalAnswer().GetContent() != "that one" {
			t.Errorf("run ended as %v", run)
		}
		_, err = f.runs.SubmitInput(f.anonymous(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: "more"})
		wantReason(t, err, codes.FailedPrecondition, "RUN_ENDED")
		_, err = f.runs.ResumeRun(f.anonymous(), &runnerdv1.ResumeRunRequest{RunId: "r1"})
		wantReason(t, err, codes.FailedPrecondition, "RUN_ENDED")

		f.start(f.owner(), "r2", "block")
		for range 2 {
			resp, err := f.runs.CancelRun(f.anonymous(), &runnerdv1.CancelRunRequest{
				RunId: "r2", Mode: runnerdv1.CancelMode_CANCEL_MODE_ABORT, Reason: "enough",
			})
			if err != nil || resp.GetRun().GetRunId() != "r2" {
				t.Fatalf("cancel: %v, %v", resp, err)
			}
		}
		if run := f.settle("r2"); run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_CANCELLED {
			t.Errorf("run ended as %v", run.GetStopReason())
		}
		for _, call := range []func() error{
			func() error {
				_, err := f.runs.CancelRun(f.owner(), &runnerdv1.CancelRunRequest{RunId: "no", Mode: runnerdv1.CancelMode_CANCEL_MODE_STOP})
				return err
			},
			func() error {
				_, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "no"})
				return err
			},
			func() error {
				_, err := f.runs.ResumeRun(f.owner(), &runnerdv1.ResumeRunRequest{RunId: "no"})
				return err
			},
			func() error {
				_, err := f.runs.WaitRun(f.owner(), &runnerdv1.WaitRunRequest{RunId: "no"})
				return err
			},
		} {
			wantReason(t, call(), codes.NotFound, "RUN_NOT_FOUND")
		}
	})
}

func TestResumeRun(t *testing.T) {
	t.Parallel()
	rowFace(t, "E-23 E-52 a run that reached a limit goes on with more", func(f *face) {
		t := f.t
		if _, err := f.runs.StartRun(f.owner(), &runnerdv1.StartRunRequest{
			RunId: "r1", Agent: "demo", Task: "read:{}\nanswer:done", Budget: &runnerdv1.Budget{MaxIterations: proto.Uint32(1)},
		}); err != nil {
			t.Fatal(err)
		}
		if run := f.settle("r1"); run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_MAX_ITERATIONS ||
			run.GetOutcome() != runnerdv1.Outcome_OUTCOME_INCOMPLETE || !run.GetResumable() {
			t.Fatalf("run ended as %v", run)
		}
		resume := func(budget *runnerdv1.Budget) error {
			_, err := f.runs.ResumeRun(f.owner(), &runnerdv1.ResumeRunRequest{RunId: "r1", Budget: budget})
			return err
		}
		wantReason(t, resume(nil), codes.FailedPrecondition, "LIMIT_STILL_REACHED")
		wantReason(t, resume(&runnerdv1.Budget{}), codes.FailedPrecondition, "LIMIT_STILL_REACHED")
		err := resume(&runnerdv1.Budget{MaxIterations: proto.Uint32(11)})
		wantReason(t, err, codes.InvalidArgument, "BUDGET_TOO_WIDE")
		if got := fields(err); got != "budget.max_iterations" {
			t.Errorf("fields %q", got)
		}
		if err := resume(&runnerdv1.Budget{MaxIterations: proto.Uint32(3)}); err != nil {
			t.Fatal(err)
		}
		if run := f.settle("r1"); run.GetFinalAnswer().GetContent() != "done" || run.GetLeg() != 2 || run.GetToolCalls() != 1 || run.GetIteration() != 2 {
			t.Errorf("run ended as %v", run)
		}
	})
}

func TestWaitRun(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "block")
		wait := func(ctx context.Context, timeout *durationpb.Duration) (*runnerdv1.WaitRunResponse, time.Duration) {
			t.Helper()
			began := time.Now()
			resp, err := f.runs.WaitRun(ctx, &runnerdv1.WaitRunRequest{RunId: "r1", Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			return resp, time.Since(began)
		}
		for _, tt := range []struct {
			name    string
			ctx     context.Context //nolint:containedctx // a case of the table
			timeout *durationpb.Duration
			want    time.Duration
		}{
			{"without a timeout", f.owner(), nil, 30 * time.Second},
			{"with no time at all", f.owner(), durationpb.New(0), 0},
			{"with a long one", f.owner(), durationpb.New(10 * time.Minute), 10 * time.Minute},
		} {
			resp, took := wait(tt.ctx, tt.timeout)
			if !resp.GetTimedOut() || took != tt.want || resp.GetRun().GetState() != runnerdv1.RunState_RUN_STATE_RUNNING {
				t.Errorf("%s, after %v: %v", tt.name, took, resp)
			}
		}
		ctx, cancel := context.WithTimeout(f.owner(), 10*time.Second)
		defer cancel()
		if resp, took := wait(ctx, durationpb.New(time.Minute)); !resp.GetTimedOut() || took > 10*time.Second || took < 9*time.Second {
			t.Errorf("with a deadline of 10 s, after %v: %v", took, resp)
		}
		time.AfterFunc(5*time.Second, f.brain.release)
		if resp, took := wait(f.owner(), nil); resp.GetTimedOut() || took < 5*time.Second || took > 6*time.Second {
			t.Errorf("after %v: %v", took, resp)
		}
	})
}

func TestListTools(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		resp, err := f.runs.ListTools(f.anonymous(), &runnerdv1.ListToolsRequest{Agent: "demo"})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetTools()) != 5 || resp.GetTools()[0].GetName() != "read" || len(resp.GetCatalogueDigest()) != 64 {
			t.Errorf("tools: %v", resp)
		}
		_, err = f.runs.ListTools(f.anonymous(), &runnerdv1.ListToolsRequest{Agent: "nobody"})
		wantReason(t, err, codes.NotFound, "AGENT_NOT_FOUND")
	})
}

// TestDurationLimits: a duration that is named replaces the one that was there, also by none.
func TestDurationLimits(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		for i, limit := range []time.Duration{20 * time.Second, 0, 70 * time.Minute} {
			run := fmt.Sprint("r", i)
			resp, err := f.runs.StartRun(f.owner(), &runnerdv1.StartRunRequest{
				RunId: run, Agent: "demo", Task: "block", Budget: &runnerdv1.Budget{MaxDuration: durationpb.New(limit)},
			})
			if err != nil || resp.GetRun().GetSpec().GetBudget().GetMaxDuration().AsDuration() != limit {
				t.Errorf("limit %v: %v, %v", limit, resp.GetRun().GetSpec().GetBudget(), err)
			}
		}
		f.start(f.owner(), "r9", "block\nanswer:done")
		time.Sleep(time.Minute + time.Second)
		if run := f.settle("r9"); run.GetStopReason() != runnerdv1.StopReason_STOP_REASON_MAX_DURATION {
			t.Fatalf("run ended as %v", run.GetStopReason())
		}
		f.brain.release()
		for _, limit := range []time.Duration{30 * time.Second, 0} {
			resp, err := f.runs.ResumeRun(f.owner(), &runnerdv1.ResumeRunRequest{
				RunId: "r9", Budget: &runnerdv1.Budget{MaxDuration: durationpb.New(limit)},
			})
			if limit > 0 {
				wantReason(t, err, codes.FailedPrecondition, "LIMIT_STILL_REACHED")
			} else if err != nil || resp.GetRun().GetSpec().GetBudget().GetMaxDuration().AsDuration() != 0 {
				t.Errorf("resumed without a limit: %v, %v", resp, err)
			}
		}
	}, func(c *Config, _ *ServerConfig) {
		c.Agents["demo"].Spec.Budget.MaxDuration = durationpb.New(time.Minute + 500*time.Millisecond)
	})
}

// rotten is a log in which the row of one run is damaged.
type rotten struct {
	auditstore.Log
	run string
}

func (r *rotten) Rows(ctx context.Context, prefix, after []byte, limit int) ([]auditstore.Row, error) {
	rows, err := r.Log.Rows(ctx, prefix, after, limit)
	for i := range rows {
		if rows[i].Run == r.run {
			rows[i].Row = []byte{0xff}
		}
	}
	return rows, err
}

func TestListDamagedRuns(t *testing.T) {
	t.Parallel()
	rowFace(t, "T-188 a damaged run is shown as such", func(f *face) {
		t := f.t
		for _, run := range []string{"good", "bad"} {
			f.start(f.owner(), run, "answer:x")
		}
		for _, agent := range []string{"", "demo"} {
			list, err := f.runs.ListRuns(f.anonymous(), &runnerdv1.ListRunsRequest{Agent: agent})
			if err != nil || len(list.GetRuns()) != 2 {
				t.Fatalf("listed %v, %v", list, err)
			}
			for _, run := range list.GetRuns() {
				if damaged := strings.Contains(run.GetErrorMessage(), "damaged"); damaged != (run.GetRunId() == "bad") {
					t.Errorf("listed %v", run)
				}
			}
		}
	}, func(c *Config, _ *ServerConfig) { c.Log = &rotten{Log: c.Log, run: "bad"} })
}
