package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
)

// The exit codes. Those from 10 on tell how a run ended that was watched to
// its end.
const (
	exitOK            = 0
	exitFailure       = 1
	exitUsage         = 2
	exitStoreLocked   = 3
	exitStoreBroken   = 4
	exitUnreachable   = 5
	exitRunFailed     = 10
	exitRunIncomplete = 11
	exitRunBlocked    = 12
	exitRunCancelled  = 13
	exitInterrupted   = 130
)

const exitCodes = `  0    done; a run that was watched ended with success
  1    the command failed
  2    the command line or the configuration is wrong
  3    another daemon uses the data folder
  4    the store is damaged or could not be written; start again to read the truth
  5    no daemon answers at the address
  10   the run failed
  11   the run is incomplete: a limit ended it, and it can be resumed
  12   the run is blocked: it needs an input
  13   the run was cancelled
  130  interrupted; the run goes on
`

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitError ends the program with a code; err nil says that all was said.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// report prints an error and returns the exit code.
func (p *program) report(err error) int {
	if err == nil {
		return exitOK
	}
	code, text, hint := explain(err)
	if text != "" {
		fmt.Fprintf(p.err, "error: %s\n", safeBlock(text))
	}
	if hint != "" {
		fmt.Fprintf(p.err, "hint: %s\n", hint)
	}
	return code
}

// explain turns an error into an exit code, a text, and what may help.
func explain(err error) (code int, text, hint string) {
	if exit, ok := errors.AsType[*exitError](err); ok {
		if exit.err == nil {
			return exit.code, "", exit.hint
		}
		return exit.code, err.Error(), exit.hint
	}
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage, err.Error(), ""
	}
	if _, ok := errors.AsType[*config.Error](err); ok {
		return exitUsage, err.Error(), ""
	}
	if errors.Is(err, context.Canceled) {
		return exitInterrupted, "interrupted", ""
	}
	if told, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return explainStatus(err, told.GRPCStatus())
	}
	return exitFailure, err.Error(), ""
}

// explainStatus reads what a daemon says, or that there is none.
func explainStatus(err error, st *status.Status) (code int, text, hint string) {
	// Words put before the status by the command, without gRPC's own.
	prefix, _, _ := strings.Cut(err.Error(), "rpc error: ")
	message := safeLine(st.Message()) // one line, so that it cannot pass for a hint
	if message == "" {
		message = st.Code().String()
	}
	text = prefix + message
	info, fields := details(st)
	for _, f := range fields {
		if strings.Contains(message, safeLine(f.GetDescription())) {
			continue // said already
		}
		text += "\n  " + safeLine(f.GetField()+": "+f.GetDescription())
	}
	if info == nil {
		switch st.Code() { //nolint:exhaustive // what a daemon says has an ErrorInfo; these come from the transport
		case codes.Unavailable:
			return exitUnreachable, prefix + "no daemon answers: " + dialing.ReplaceAllString(message, "$1"), transportHint(message)
		case codes.Canceled:
			return exitInterrupted, "interrupted", ""
		case codes.DeadlineExceeded:
			return exitFailure, prefix + "no answer in time", ""
		}
		return exitFailure, text, ""
	}
	return exitFailure, text, hints[runnerdv1.ErrorReason(runnerdv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()])]
}

// transportHint says what may help against what the system says of a connection.
func transportHint(message string) string {
	for _, known := range []struct{ said, hint string }{
		{"reading server preface", "if it takes TLS only, give the certificates that sign its own with --tls-ca or RUNNERD_TLS_CA"},
		{"does not look like a TLS handshake", "it takes no TLS: leave out the --tls flags and RUNNERD_TLS_CA"},
		{"failed to verify certificate", "give the certificates that sign its own with --tls-ca or RUNNERD_TLS_CA, and the name in it with --addr"},
		{"certificate required", "it wants a certificate: show one with --tls-cert and --tls-key"},
	} {
		if strings.Contains(message, known.said) {
			return known.hint
		}
	}
	return "start one with runnerd serve, or name another with --addr or RUNNERD_ADDR"
}

// dialing finds what the system said in what gRPC says of a connection.
var dialing = regexp.MustCompile(`^connection error: desc = "(?:transport: Error while dialing: )?(.*)"$`)

func details(st *status.Status) (*errdetails.ErrorInfo, []*errdetails.BadRequest_FieldViolation) {
	var info *errdetails.ErrorInfo
	var fields []*errdetails.BadRequest_FieldViolation
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == "runnerd" {
				info = d
			}
		case *errdetails.BadRequest:
			fields = append(fields, d.GetFieldViolations()...)
		}
	}
	return info, fields
}

// reasonOf is the stable reason of an error of a daemon.
func reasonOf(err error) runnerdv1.ErrorReason {
	info, _ := details(status.Convert(err))
	return runnerdv1.ErrorReason(runnerdv1.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
}

// hints say what to do about an error of the daemon, where there is something
// to say that its message does not.
var hints = map[runnerdv1.ErrorReason]string{
	runnerdv1.ErrorReason_ERROR_REASON_BUDGET_TOO_WIDE:      "the agent's budget_max is what a run may be given at most",
	runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_ALLOWED: "the agent's approval.modes and approval.timeout are what may be chosen",
	runnerdv1.ErrorReason_ERROR_REASON_POLICY_NOT_ALLOWED:   "what an agent allows is configured where the daemon runs; a request can only narrow it",
	runnerdv1.ErrorReason_ERROR_REASON_EDIT_REFUSED:         "the approval stays open; runnerd policy explain --run tells what the rules say to other arguments",
	runnerdv1.ErrorReason_ERROR_REASON_GRANT_NOT_POSSIBLE:   "the approval stays open; runnerd approvals shows which grants it can be given with",
	runnerdv1.ErrorReason_ERROR_REASON_GRANT_NOT_FOUND:      "runnerd grants lists those that hold",
	runnerdv1.ErrorReason_ERROR_REASON_TOOL_CHANGED:         "answer it with runnerd deny; a new run is offered the tool as it is now",
	runnerdv1.ErrorReason_ERROR_REASON_OTHER_VERSION:        "finish it with the version of runnerd that started it; it can be read with this one",
	runnerdv1.ErrorReason_ERROR_REASON_PATH_CHANGED:         "look at where the path leads now; runnerd deny refuses the call, runnerd approve --edit runs another",
	runnerdv1.ErrorReason_ERROR_REASON_BAD_CURSOR:           "cursors belong to one data folder; start without one",
	runnerdv1.ErrorReason_ERROR_REASON_UNKNOWN_EVENT_TYPE:   "docs/events.md lists the types",
	runnerdv1.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE:    "a task and a context may have 256 KiB each",
	runnerdv1.ErrorReason_ERROR_REASON_RUN_NOT_FOUND:        "runnerd runs lists the runs",
	runnerdv1.ErrorReason_ERROR_REASON_AGENT_NOT_FOUND:      "agents are configured where the daemon runs; name one with --agent",
	runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_NOT_FOUND:   "runnerd approvals lists what is open",
	runnerdv1.ErrorReason_ERROR_REASON_RUN_EXISTS:           "leave out --id to get a new one",
	runnerdv1.ErrorReason_ERROR_REASON_ALREADY_RESOLVED:     "somebody answered first; runnerd watch shows what",
	runnerdv1.ErrorReason_ERROR_REASON_DIGEST_MISMATCH:      "what waits is not what you saw; look again with runnerd approvals",
	runnerdv1.ErrorReason_ERROR_REASON_USE_RESUME:           "runnerd resume lets the run go on",
	runnerdv1.ErrorReason_ERROR_REASON_RUN_ACTIVE:           "limits can be raised once the run rests",
	runnerdv1.ErrorReason_ERROR_REASON_APPROVAL_OPEN:        "answer it with runnerd approve or runnerd deny",
	runnerdv1.ErrorReason_ERROR_REASON_LIMIT_STILL_REACHED:  "runnerd resume has a flag for each limit; those of auto mode begin with --auto-",
	runnerdv1.ErrorReason_ERROR_REASON_INPUT_REQUIRED:       "answer the question with runnerd input",
	runnerdv1.ErrorReason_ERROR_REASON_PAST_HEAD:            "leave out --after to read from the first event",
	runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL:            "make room where the daemon keeps its data; runs go on by themselves",
	runnerdv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED:    "show another credential: --token-file, RUNNERD_TOKEN or --tls-cert; docs/security.md says who may do what",
	runnerdv1.ErrorReason_ERROR_REASON_CREDENTIAL_REQUIRED: "approver.token of the data folder is taken if it can be read (--data-dir); " +
		"else show a token with --token-file or RUNNERD_TOKEN, or a certificate with --tls-cert",
	runnerdv1.ErrorReason_ERROR_REASON_ISSUER_UNAVAILABLE: "whoever issued your token does not answer the daemon; try again, or show another credential",
	runnerdv1.ErrorReason_ERROR_REASON_CORRUPT:            "runnerd audit verify names what does not verify",
	runnerdv1.ErrorReason_ERROR_REASON_DRAINING:           "the daemon is stopping; try again when it is back",
}

// outcomeExit is the exit code of how a run ended.
func outcomeExit(run *runnerdv1.Run) int {
	switch run.GetOutcome() {
	case runnerdv1.Outcome_OUTCOME_SUCCESS, runnerdv1.Outcome_OUTCOME_UNSPECIFIED:
		return exitOK
	case runnerdv1.Outcome_OUTCOME_INCOMPLETE:
		return exitRunIncomplete
	case runnerdv1.Outcome_OUTCOME_BLOCKED:
		return exitRunBlocked
	case runnerdv1.Outcome_OUTCOME_CANCELLED:
		return exitRunCancelled
	default:
		return exitRunFailed
	}
}

// oneOf looks a word up, and says which there are if it is none of them.
func oneOf[T any](flag, word string, words map[string]T) (T, error) {
	value, ok := words[strings.ToLower(word)]
	if !ok {
		return value, usageError{fmt.Errorf("--%s %q is none of %s", flag, word,
			strings.Join(slices.Sorted(maps.Keys(words)), ", "))}
	}
	return value, nil
}
