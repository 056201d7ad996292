package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// strange is an error of a client with what it knows about it.
type strange struct {
	notSent, undecodable, tooLarge bool
	stream                         string
}

func (strange) Error() string       { return "strange" }
func (s strange) NotSent() bool     { return s.notSent }
func (s strange) Undecodable() bool { return s.undecodable }
func (s strange) TooLarge() bool    { return s.tooLarge }
func (s strange) BadStream() string { return s.stream }

// TestWhatIsAnOutcome makes a call that nobody may repeat end in every way.
func TestWhatIsAnOutcome(t *testing.T) {
	refused := runnerdv1.CallReason_CALL_REASON_HOST_REFUSED
	lost := runnerdv1.CallReason_CALL_REASON_UNKNOWN_OUTCOME
	for _, tt := range []struct {
		err  error
		want runnerdv1.CallReason
		code string
		sent int
	}{
		{status.Error(codes.InvalidArgument, "no"), refused, "INVALID_ARGUMENT", 1},
		{status.Error(codes.NotFound, "no"), refused, "NOT_FOUND", 1},
		{status.Error(codes.AlreadyExists, "no"), refused, "ALREADY_EXISTS", 1},
		{status.Error(codes.FailedPrecondition, "no"), refused, "FAILED_PRECONDITION", 1},
		{status.Error(codes.OutOfRange, "no"), refused, "OUT_OF_RANGE", 1},
		{status.Error(codes.PermissionDenied, "no"), refused, "PERMISSION_DENIED", 1},
		{status.Error(codes.Unauthenticated, "no"), refused, "UNAUTHENTICATED", 1},
		{fmt.Errorf("wrapped: %w", status.Error(codes.Unimplemented, "no")), refused, "UNIMPLEMENTED", 1},
		{status.Error(codes.Unavailable, "no"), lost, "", 1},
		{status.Error(codes.Internal, "no"), lost, "", 1},
		{status.Error(codes.Unknown, "no"), lost, "", 1},
		{status.Error(codes.ResourceExhausted, "no"), lost, "", 1},
		{status.Error(codes.Aborted, "no"), lost, "", 1},
		{status.Error(codes.Canceled, "no"), lost, "", 1},
		{status.Error(codes.DataLoss, "no"), lost, "", 1},
		{errors.New("broken pipe"), lost, "", 1},
		{strange{stream: "no_result"}, lost, "", 1},
		{strange{undecodable: true}, runnerdv1.CallReason_CALL_REASON_RESULT_UNDECODABLE, "", 1},
		{strange{tooLarge: true}, runnerdv1.CallReason_CALL_REASON_RESULT_TOO_LARGE, "", 1},
		{strange{notSent: true}, runnerdv1.CallReason_CALL_REASON_HOST_UNAVAILABLE, "", 3},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
				if req.GetIteration() == 1 {
					return calls("charge"), nil
				}
				return answers("done"), nil
			}, call: func(context.Context, *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) { return nil, tt.err }}
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			d.rest(t, "run")
			failed := d.await(t, "run", "tool_call_failed").GetToolCallFailed()
			if failed.GetReason() != tt.want || failed.GetCode() != tt.code {
				t.Errorf("%v: %v", tt.err, failed)
			}
			if n := w.attempts()["run/1.1"]; n != tt.sent {
				t.Errorf("%v: sent %d times, want %d", tt.err, n, tt.sent)
			}
			d.verify(t)
		})
	}
}

func TestHowADecideEnds(t *testing.T) {
	many := calls(strings.Split(strings.Repeat("read ", 128)+"read", " ")...)
	big := answers(strings.Repeat("x", 1<<20+1))
	for _, tt := range []struct {
		name     string
		decision *runnerdv1.Decision
		err      error
		code     string // of decision_invalid; empty: the run ends
		stop     runnerdv1.StopReason
	}{
		{"undecodable", nil, strange{undecodable: true}, "undecodable", 0},
		{"too large", nil, strange{tooLarge: true}, "too_large", 0},
		{"too large and passed on", big, nil, "too_large", 0},
		{"no decision", nil, strange{stream: "no_decision"}, "no_decision", 0},
		{"too many calls", many, nil, "too_many_calls", 0},
		{"refused", nil, status.Error(codes.Unimplemented, "no"), "", runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR},
		{"down", nil, strange{notSent: true}, "", runnerdv1.StopReason_STOP_REASON_TRANSPORT_ERROR},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
				if req.GetIteration() == 1 {
					return tt.decision, tt.err
				}
				return answers("done"), nil
			}}
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			got := d.rest(t, "run")
			if tt.code == "" {
				if got.GetStopReason() != tt.stop {
					t.Errorf("%s: %v", tt.name, got.GetStopReason())
				}
				if once := len(w.decides) == 1; once != (tt.name == "refused") {
					t.Errorf("%s: asked %d times in %v", tt.name, len(w.decides), time.Since(began))
				}
			} else if invalid := d.await(t, "run", "decision_invalid").GetDecisionInvalid(); invalid.GetCode() != tt.code ||
				got.GetStopReason() != runnerdv1.StopReason_STOP_REASON_COMPLETED {
				t.Errorf("%s: %v, %v", tt.name, invalid, got.GetStopReason())
			}
			d.verify(t)
		})
	}
}

// TestPanics are errors of the one effect.
func TestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		w := &world{rounds: 1}
		w.call = func(context.Context, *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			if n++; n == 1 {
				panic("a bug of a client")
			}
			return &runnerdv1.ToolResult{}, nil
		}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		if got := d.rest(t, "run"); got.GetFinalAnswer().GetContent() != "done" {
			t.Errorf("got %v", got)
		}
	})
}

// TestGetCallAfterARestart looks a call up at a host that comes back later than the daemon.
func TestGetCallAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		looks := 0
		w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
			if req.GetIteration() == 1 {
				return calls("charge"), nil
			}
			return answers("done"), nil
		}, call: func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return nil, gate.wait(ctx, "")
		}, get: func(context.Context, *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
			if looks++; looks <= 2 {
				return nil, strange{notSent: true}
			}
			return &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Finished{
				Finished: &runnerdv1.ToolResult{Text: "charged"},
			}}, nil
		}}
		disk := memory(nil)
		d := boot(t, disk, w)
		d.begin(t, "run")
		<-gate.reached
		d.crash(t)
		d = boot(t, disk, w)
		d.rest(t, "run")
		if got := d.await(t, "run", "tool_call_completed").GetToolCallCompleted(); !got.GetReconciled() || got.GetText() != "charged" {
			t.Errorf("got %v", got)
		}
		d.verify(t)
	})
}

// TestGetCall looks up what became of a call whose stream broke.
func TestGetCall(t *testing.T) {
	running := &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Running{Running: new(runnerdv1.CallRunning)}}
	for _, tt := range []struct {
		name  string
		resp  *runnerdv1.GetCallResponse
		err   error
		event string
		sent  int
	}{
		{"finished", &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_Finished{
			Finished: &runnerdv1.ToolResult{Text: "charged"},
		}}, nil, "tool_call_completed", 1},
		{"not seen", &runnerdv1.GetCallResponse{State: &runnerdv1.GetCallResponse_NotSeen{
			NotSeen: new(runnerdv1.CallNotSeen),
		}}, nil, "tool_call_retried", 2},
		{"does not know", &runnerdv1.GetCallResponse{}, nil, "tool_call_failed", 1},
		{"fails", nil, status.Error(codes.Internal, "no"), "tool_call_failed", 1},
		{"is never there", nil, status.Error(codes.Unavailable, "no"), "tool_call_failed", 1},
		{"runs for ever", running, nil, "tool_call_failed", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			looks := 0
			w := &world{decide: func(_ context.Context, req *runnerdv1.DecideRequest) (*runnerdv1.Decision, error) {
				if req.GetIteration() == 1 {
					return calls("charge"), nil
				}
				return answers("done"), nil
			}, call: func(_ context.Context, req *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
				if req.GetAttempt() == 1 {
					return nil, status.Error(codes.Unavailable, "gone")
				}
				return &runnerdv1.ToolResult{}, nil
			}, get: func(context.Context, *runnerdv1.GetCallRequest) (*runnerdv1.GetCallResponse, error) {
				if looks++; looks <= 3 {
					return running, nil
				}
				return tt.resp, tt.err
			}}
			d := boot(t, memory(nil), w)
			d.begin(t, "run")
			d.rest(t, "run")
			got := d.await(t, "run", tt.event)
			if tt.name == "finished" && (!got.GetToolCallCompleted().GetReconciled() || got.GetToolCallCompleted().GetText() != "charged") {
				t.Errorf("got %v", got)
			}
			if n := w.attempts()["run/1.1"]; n != tt.sent {
				t.Errorf("%s: sent %d times, want %d", tt.name, n, tt.sent)
			}
			d.verify(t)
		})
	}
}

func TestRunTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := newHold()
		w := &world{rounds: 1, call: func(ctx context.Context, _ *runnerdv1.CallToolRequest) (*runnerdv1.ToolResult, error) {
			return &runnerdv1.ToolResult{}, gate.wait(ctx, "")
		}}
		d := boot(t, memory(nil), w)
		d.begin(t, "run")
		<-gate.reached
		token := w.calls[0].GetRunToken()
		if run, ok := d.CheckRunToken(token); !ok || run != "run" {
			t.Errorf("while the call is in progress: %q, %v", run, ok)
		}
		if _, ok := d.CheckRunToken(w.decides[0].GetRunToken()); ok {
			t.Error("the token of a Decide that has ended is valid")
		}
		for _, bad := range []string{"", "run", token + "x", strings.Replace(token, "run", "other", 1)} {
			if _, ok := d.CheckRunToken(bad); ok {
				t.Errorf("%q is valid", bad)
			}
		}
		close(gate.open)
		d.rest(t, "run")
		if _, ok := d.CheckRunToken(token); ok {
			t.Error("the token of a call that has ended is valid")
		}
	})
}

func TestHostsThatAreNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		w := &world{list: func(_ context.Context, host string) (*runnerdv1.ToolHostServiceListToolsResponse, error) {
			if down && host == "feet" {
				return nil, status.Error(codes.Unavailable, "no feet")
			}
			return &runnerdv1.ToolHostServiceListToolsResponse{Tools: []*runnerdv1.ToolDefinition{{Name: host + "_do", Description: "does"}}}, nil
		}}
		d := boot(t, memory(nil), w, func(c *Config) {
			c.Agents["agent"].Hosts = append(c.Agents["agent"].Hosts, HostConfig{Name: "feet"})
		})
		d.begin(t, "run")
		d.rest(t, "run")
		gone := d.await(t, "run", "tool_host_unavailable").GetToolHostUnavailable()
		if gone.GetHost() != "feet" || gone.GetMessage() != "no feet" || len(w.decides[0].GetTools()) != 1 {
			t.Errorf("got %v, tools %v", gone, w.decides[0].GetTools())
		}
		down = false
		d.begin(t, "again")
		d.rest(t, "again")
		if n := len(w.decides[1].GetTools()); n != 2 {
			t.Errorf("a host that is back gives its tools: %d are offered", n)
		}
		_, findings, err := d.ListTools(t.Context(), "agent")
		if err != nil || w.lists != 6 {
			t.Errorf("findings %v, %v; asked %d times", findings, err, w.lists)
		}
		d.verify(t)
	})
}
