package runner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// allReasons are the reasons of errors, without the one that is never used.
func allReasons() []runnerdv1.ErrorReason {
	var reasons []runnerdv1.ErrorReason
	for _, n := range slices.Sorted(maps.Keys(runnerdv1.ErrorReason_name)) {
		if n != 0 {
			reasons = append(reasons, runnerdv1.ErrorReason(n))
		}
	}
	return reasons
}

// detail returns the detail of a type in a status, nil if there is none.
func detail[T proto.Message](st *status.Status) (found T) {
	for _, d := range st.Details() {
		if m, ok := d.(T); ok {
			found = m
		}
	}
	return found
}

// TestErrorReasons holds the table against what the proto promises clients and what the documentation tells people.
func TestErrorReasons(t *testing.T) {
	t.Parallel()
	promised := codesInProto(t)
	documented := codesInDocs(t)
	for _, reason := range allReasons() {
		name := ReasonName(reason)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := errorf(reason, "told").with("head", "7").GRPCStatus()
			code := spelledCode(st.Code())
			if code != promised[name] {
				t.Errorf("code is %s, the proto promises %s", code, promised[name])
			}
			if code != documented[name] {
				t.Errorf("code is %s, docs/errors.md says %q", code, documented[name])
			}
			if st.Message() != "told" {
				t.Errorf("message is %q", st.Message())
			}
			info := detail[*errdetails.ErrorInfo](st)
			if info.GetDomain() != "runnerd" || info.GetReason() != name || info.GetMetadata()["head"] != "7" {
				t.Errorf("ErrorInfo is %v", info)
			}
			if failure := detail[*errdetails.PreconditionFailure](st); (failure != nil) != (st.Code() == codes.FailedPrecondition) {
				t.Errorf("PreconditionFailure is %v", failure)
			}
			if proto.Size(st.Proto()) > 4<<10 {
				t.Errorf("the status has %d bytes", proto.Size(st.Proto()))
			}
		})
	}
	if len(documented) != len(allReasons()) {
		t.Errorf("docs/errors.md has %d reasons, there are %d", len(documented), len(allReasons()))
	}
}

// codesInProto reads the code that the comment of each reason begins with.
func codesInProto(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	code := ""
	comment := regexp.MustCompile(`^\s*// ([A-Z_]+): `)
	value := regexp.MustCompile(`^\s*ERROR_REASON_(\w+) = `)
	eachLine(t, "../../proto/runnerd/v1/errors.proto", func(line string) {
		if m := comment.FindStringSubmatch(line); m != nil {
			code = m[1]
		}
		if m := value.FindStringSubmatch(line); m != nil {
			found[m[1]] = code
		}
	})
	return found
}

func codesInDocs(t *testing.T) map[string]string {
	t.Helper()
	found := make(map[string]string)
	row := regexp.MustCompile("^\\| `([A-Z_]+)` \\| ([A-Z_]+) \\|")
	eachLine(t, "../../docs/errors.md", func(line string) {
		if m := row.FindStringSubmatch(line); m != nil {
			found[m[1]] = m[2]
		}
	})
	return found
}

func eachLine(t *testing.T, path string, line func(string)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line(lines.Text())
	}
}

// spelledCode is the name of a code as protos and documents spell it.
func spelledCode(code codes.Code) string {
	spelled := regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(code.String(), "${1}_${2}")
	return strings.ToUpper(spelled)
}

func TestErrorDetails(t *testing.T) {
	t.Parallel()
	t.Run("overload says when to try again", func(t *testing.T) {
		t.Parallel()
		for _, reason := range []runnerdv1.ErrorReason{
			runnerdv1.ErrorReason_ERROR_REASON_OVERLOADED, runnerdv1.ErrorReason_ERROR_REASON_DISK_FULL,
			runnerdv1.ErrorReason_ERROR_REASON_DRAINING, runnerdv1.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE,
		} {
			retry := detail[*errdetails.RetryInfo](errorf(reason, "no").GRPCStatus())
			if retry.GetRetryDelay().AsDuration() <= 0 {
				t.Errorf("%s has no RetryInfo", reason)
			}
		}
	})
	t.Run("violations are named, bounded and valid UTF-8", func(t *testing.T) {
		t.Parallel()
		e := errorf(runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%s", strings.Repeat("é", 4000)+"\xff")
		for i := range 100 {
			e.Violations = append(e.Violations, Violation{
				Field: fmt.Sprintf("labels[%d]", i), Description: strings.Repeat("x", 4000), Rule: "string.max_bytes",
			})
		}
		st := e.GRPCStatus()
		bad := detail[*errdetails.BadRequest](st)
		if len(bad.GetFieldViolations()) != maxViolations {
			t.Fatalf("%d violations", len(bad.GetFieldViolations()))
		}
		first := bad.GetFieldViolations()[0]
		if first.GetField() != "labels[0]" || first.GetReason() != "string.max_bytes" || len(first.GetDescription()) > maxErrorText {
			t.Errorf("first violation is %v", first)
		}
		if strings.Contains(st.Message(), "\ufffd") || len(st.Message()) > maxErrorText {
			t.Errorf("message has %d bytes", len(st.Message()))
		}
	})
	t.Run("causes stay inside", func(t *testing.T) {
		t.Parallel()
		e := internal(errors.New("open /var/lib/secret"))
		if !strings.Contains(e.Error(), "open /var/lib/secret") {
			t.Errorf("the log is told %v", e)
		}
		st := e.GRPCStatus()
		if strings.Contains(st.String(), "secret") || st.Code() != codes.Internal {
			t.Errorf("told %v", st)
		}
	})
}

func TestStatusError(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	hosts := status.Error(codes.NotFound, "no such file on the host")
	for _, tt := range []struct {
		name   string
		ctx    context.Context //nolint:containedctx // a case of the table
		err    error
		code   codes.Code
		reason string
	}{
		{"an error of the runner", t.Context(), fmt.Errorf("start: %w", runNotFound("r")), codes.NotFound, "RUN_NOT_FOUND"},
		{"a refusal of the core", t.Context(), fmt.Errorf("x: %w", &runstate.Refusal{
			Reason: runnerdv1.ErrorReason_ERROR_REASON_USE_RESUME, Message: "resume it",
		}), codes.FailedPrecondition, "USE_RESUME"},
		{"full", t.Context(), fmt.Errorf("append: %w", auditstore.ErrFull), codes.ResourceExhausted, "DISK_FULL"},
		{"too large", t.Context(), auditstore.ErrTooLarge, codes.ResourceExhausted, "REQUEST_TOO_LARGE"},
		{"fenced", t.Context(), auditstore.ErrFenced, codes.Unavailable, "NOT_OWNER"},
		{"conflict", t.Context(), auditstore.ErrConflict, codes.Unavailable, "NOT_OWNER"},
		{"unavailable", t.Context(), auditstore.ErrUnavailable, codes.Unavailable, "STORE_UNAVAILABLE"},
		{"unknown", t.Context(), auditstore.ErrUnknown, codes.Unavailable, "STORE_UNAVAILABLE"},
		{"closed", t.Context(), auditstore.ErrClosed, codes.Unavailable, "DRAINING"},
		{"corrupt", t.Context(), &auditstore.CorruptError{Run: "r", Problem: "hash"}, codes.DataLoss, "CORRUPT"},
		{"anything else", t.Context(), errors.New("map index"), codes.Internal, "INTERNAL"},
		{"a status of some host", t.Context(), fmt.Errorf("list tools: %w", hosts), codes.Internal, "INTERNAL"},
		{"a status of grpc", t.Context(), hosts, codes.NotFound, ""},
		{"the caller left", gone, fmt.Errorf("read: %w", context.Canceled), codes.Canceled, ""},
		{"the deadline passed", t.Context(), fmt.Errorf("read: %w", context.DeadlineExceeded), codes.DeadlineExceeded, ""},
		{"success", t.Context(), nil, codes.OK, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			st := status.Convert(statusError(tt.ctx, tt.err))
			if st.Code() != tt.code || detail[*errdetails.ErrorInfo](st).GetReason() != tt.reason {
				t.Errorf("told %v", st)
			}
		})
	}
}
