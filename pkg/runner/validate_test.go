package runner

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// eachRequest calls do with the request of every method of the services that runnerd serves.
func eachRequest(do func(method string, request protoreflect.MessageDescriptor)) {
	for _, file := range []protoreflect.FileDescriptor{
		runnerdv1.File_runnerd_v1_run_service_proto, runnerdv1.File_runnerd_v1_audit_service_proto,
	} {
		for i := range file.Services().Len() {
			service := file.Services().Get(i)
			for j := range service.Methods().Len() {
				method := service.Methods().Get(j)
				do("/"+string(service.FullName())+"/"+string(method.Name()), method.Input())
			}
		}
	}
}

// TestRequestRulesCompile tries the rules of every request, which the daemon compiles at the first call only.
func TestRequestRulesCompile(t *testing.T) {
	t.Parallel()
	eachRequest(func(method string, request protoreflect.MessageDescriptor) {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			kind, err := protoregistry.GlobalTypes.FindMessageByName(request.FullName())
			if err != nil {
				t.Fatal(err)
			}
			var told *Error
			if err := new(Server).validate(method, kind.New().Interface()); errors.As(err, &told) && told.Kind() == KindInternal {
				t.Error(err)
			}
		})
	})
}

// TestRequestsAreBounded walks every field that a request can have: what has no size of its own has a bound.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	eachRequest(func(method string, request protoreflect.MessageDescriptor) {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			walkBounds(t, request, map[protoreflect.FullName]bool{})
		})
	})
}

func walkBounds(t *testing.T, message protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) {
	t.Helper()
	if seen[message.FullName()] || strings.HasPrefix(string(message.FullName()), "google.protobuf.") {
		return
	}
	seen[message.FullName()] = true
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		rules, ok := proto.GetExtension(field.Options(), validate.E_Field).(*validate.FieldRules)
		if !ok {
			t.Fatalf("%s: no rules", field.FullName())
		}
		switch {
		case field.IsMap():
			if !rules.GetMap().HasMaxPairs() {
				t.Errorf("%s: no bound of pairs", field.FullName())
			}
			boundString(t, field, field.MapKey(), rules.GetMap().GetKeys())
			boundString(t, field, field.MapValue(), rules.GetMap().GetValues())
		case field.IsList():
			if !rules.GetRepeated().HasMaxItems() {
				t.Errorf("%s: no bound of items", field.FullName())
			}
			boundString(t, field, field, rules.GetRepeated().GetItems())
		default:
			boundString(t, field, field, rules)
		}
		if field.Message() != nil && !field.IsMap() {
			walkBounds(t, field.Message(), seen)
		}
	}
}

func boundString(t *testing.T, field, item protoreflect.FieldDescriptor, rules *validate.FieldRules) {
	t.Helper()
	switch item.Kind() {
	case protoreflect.StringKind:
		if !rules.GetString().HasMaxBytes() {
			t.Errorf("%s: no bound of bytes", field.FullName())
		}
	case protoreflect.BytesKind:
		if !rules.GetBytes().HasMaxLen() {
			t.Errorf("%s: no bound of bytes", field.FullName())
		}
	default:
	}
}

// wrongFields are the fields that an error names; nil for no error.
func wrongFields(t *testing.T, err error, reason runnerdv1.ErrorReason) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var told *Error
	if !errors.As(err, &told) || told.Reason != reason {
		t.Fatalf("error %v, want reason %v", err, reason)
	}
	fields := []string{}
	for _, v := range told.Violations {
		fields = append(fields, v.Field)
	}
	return fields
}

func TestValidateRequests(t *testing.T) {
	t.Parallel()
	s := &Server{}
	start := func(change func(*runnerdv1.StartRunRequest)) proto.Message {
		req := &runnerdv1.StartRunRequest{Agent: "demo", Task: "do it"}
		change(req)
		return req
	}
	const startRun = runnerdv1.RunService_StartRun_FullMethodName
	for _, tt := range []struct {
		name, method string
		req          proto.Message
		want         string // the one field that is wrong; empty: none
	}{
		{"a plain start", startRun, start(func(*runnerdv1.StartRunRequest) {}), ""},
		{"a blank task", startRun, start(func(r *runnerdv1.StartRunRequest) { r.Task = "" }), ""},
		{"NUL in a task", startRun, start(func(r *runnerdv1.StartRunRequest) { r.Task = "a\x00b" }), ""},
		{"no agent", startRun, start(func(r *runnerdv1.StartRunRequest) { r.Agent = "" }), "agent"},
		{"NUL in an agent", startRun, start(func(r *runnerdv1.StartRunRequest) { r.Agent = "de\x00mo" }), "agent"},
		{"a long task", startRun, start(func(r *runnerdv1.StartRunRequest) { r.Task = strings.Repeat("x", 256<<10+1) }), "task"},
		{"a run id with a slash", startRun, start(func(r *runnerdv1.StartRunRequest) { r.RunId = "a/b" }), "run_id"},
		{"a run id that begins with a dot", startRun, start(func(r *runnerdv1.StartRunRequest) { r.RunId = ".." }), "run_id"},
		{"NUL in a label", startRun, start(func(r *runnerdv1.StartRunRequest) {
			r.Labels = map[string]string{"a": "b\x00"}
		}), "labels"},
		{"NUL in the name of a label", startRun, start(func(r *runnerdv1.StartRunRequest) {
			r.Labels = map[string]string{"a\x00": "b"}
		}), "labels"},
		{"NUL in an identity", startRun, start(func(r *runnerdv1.StartRunRequest) {
			r.Identity = &runnerdv1.Identity{SessionId: "\x00"}
		}), "identity.session_id"},
		{"NUL in a tool name", startRun, start(func(r *runnerdv1.StartRunRequest) {
			r.InitialObservations = []*runnerdv1.InitialObservation{
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: "\x00 may stand here"},
				{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT, ToolName: "a\x00"},
			}
		}), "initial_observations[1].tool_name"},
		{"an observation that cannot be given", startRun, start(func(r *runnerdv1.StartRunRequest) {
			r.InitialObservations = []*runnerdv1.InitialObservation{{Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_DENIAL}}
		}), "initial_observations[0].kind"},
		{"no iterations", startRun, start(func(r *runnerdv1.StartRunRequest) {
			r.Budget = &runnerdv1.Budget{MaxIterations: proto.Uint32(0)}
		}), "budget.max_iterations"},
		{"a page that is too big", runnerdv1.RunService_ListRuns_FullMethodName, &runnerdv1.ListRunsRequest{PageSize: 1001}, "page_size"},
		{"NUL in a type", runnerdv1.RunService_StreamEvents_FullMethodName, &runnerdv1.StreamEventsRequest{
			Scope: &runnerdv1.StreamEventsRequest_RunId{RunId: "r"}, Types: []string{"run_started", "a\x00"},
		}, "types[1]"},
		{"no scope", runnerdv1.RunService_StreamEvents_FullMethodName, &runnerdv1.StreamEventsRequest{}, "scope"},
		{"no verdict", runnerdv1.RunService_SubmitApproval_FullMethodName, &runnerdv1.SubmitApprovalRequest{
			RunId: "r", ApprovalId: 1, ApprovalDigest: "k:1",
		}, "verdict"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fields := wrongFields(t, s.validate(tt.method, tt.req), runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
			if got := strings.Join(fields, " "); got != tt.want {
				t.Errorf("wrong: %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRequestSizes(t *testing.T) {
	t.Parallel()
	s := &Server{}
	observations := func(n int) []*runnerdv1.InitialObservation {
		list := make([]*runnerdv1.InitialObservation, n)
		for i := range list {
			list[i] = &runnerdv1.InitialObservation{
				Kind: runnerdv1.ObservationKind_OBSERVATION_KIND_NOTE, Text: strings.Repeat("x", 200<<10),
			}
		}
		return list
	}
	for _, tt := range []struct {
		method string
		req    proto.Message
		ok     bool
	}{
		{runnerdv1.RunService_StartRun_FullMethodName, &runnerdv1.StartRunRequest{Agent: "a", InitialObservations: observations(5)}, true},
		{runnerdv1.RunService_StartRun_FullMethodName, &runnerdv1.StartRunRequest{Agent: "a", InitialObservations: observations(6)}, false},
		{runnerdv1.RunService_SubmitInput_FullMethodName, &runnerdv1.SubmitInputRequest{RunId: "r", Text: strings.Repeat("x", 256<<10)}, true},
		{runnerdv1.RunService_GetRun_FullMethodName, &runnerdv1.GetRunRequest{RunId: strings.Repeat("r", 300<<10)}, false},
	} {
		fields := wrongFields(t, s.validate(tt.method, tt.req), runnerdv1.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE)
		if (fields == nil) != tt.ok {
			t.Errorf("%s with %d bytes: ok is %v", tt.method, proto.Size(tt.req), fields == nil)
		}
	}
}

func TestScanJSON(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text   string
		object bool
		want   string
	}{
		{`{}`, true, ""},
		{` {"a": [1, {"b": 9007199254740993}], "c": null} `, true, ""},
		{`[1]`, false, ""},
		{`"text"`, false, ""},
		{`1e2`, false, ""},
		{`[1]`, true, "must be a JSON object"},
		{`null`, true, "must be a JSON object"},
		{`"{}"`, true, "must be a JSON object"},
		{`{"a": }`, true, "is not valid JSON, at byte 6"},
		{`{'a': 1}`, true, "is not valid JSON, at byte 1"},
		{`{"a" 1}`, true, "is not valid JSON, at byte 5"},
		{`[1 2]`, false, "is not valid JSON, at byte 3"},
		{`[nulx]`, false, "is not valid JSON, at byte 4"},
		{"[\"\xff\"]", false, "is not valid JSON, at byte 2"},
		{`{"a": 1`, true, "is not valid JSON: it ends early, at byte 7"},
		{`{"a": "b`, true, "is not valid JSON: it ends early, at byte 8"},
		{` `, false, "is not valid JSON: it ends early, at byte 1"},
		{`{} {}`, true, "must be one JSON value, something follows it, at byte 2"},
		{`{"a": 1} trailing`, true, "must be one JSON value, something follows it, at byte 8"},
		{`{"a": 1, "a": 2}`, true, "has a key twice in one object, at byte 9"},
		{strings.Repeat("[", 128) + strings.Repeat("]", 128), false, ""},
		{`{"a":` + strings.Repeat("[", 128) + strings.Repeat("]", 128) + "}", true, "nests deeper than 128, at byte 132"},
		{strings.Repeat("[", 1<<20), false, "nests deeper than 128, at byte 128"},
	} {
		t.Run(fmt.Sprintf("%.20q", tt.text), func(t *testing.T) {
			t.Parallel()
			got := ""
			if err := scanJSON(tt.text, tt.object); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestValidateStart(t *testing.T) {
	t.Parallel()
	fields := wrongFields(t, validateStart(&runnerdv1.StartRunRequest{
		ContextJson:  "[]",
		MetadataJson: "{",
		InitialObservations: []*runnerdv1.InitialObservation{
			{StructuredJson: "[1]"}, {StructuredJson: "nope"},
		},
	}), runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
	if got := strings.Join(fields, " "); got != "context_json metadata_json initial_observations[1].structured_json" {
		t.Errorf("wrong: %s", got)
	}
	if err := validateStart(&runnerdv1.StartRunRequest{ContextJson: `{"a":1}`}); err != nil {
		t.Error(err)
	}
}

func TestCheckBudget(t *testing.T) {
	t.Parallel()
	seconds := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Second) }
	most := &runnerdv1.Budget{
		MaxIterations: proto.Uint32(10), MaxToolCalls: proto.Uint32(20), MaxCostCents: proto.Float64(50),
		MaxDuration: seconds(60), MaxConsecutiveFailures: proto.Uint32(5), MaxContextTokens: proto.Uint32(1000),
		MaxConsecutiveRefusals: proto.Uint32(5),
	}
	unlimited := &runnerdv1.Budget{MaxIterations: proto.Uint32(10), MaxToolCalls: proto.Uint32(0), MaxConsecutiveFailures: proto.Uint32(0)}
	for _, tt := range []struct {
		name       string
		want, most *runnerdv1.Budget
		wide       string
	}{
		{"nothing", nil, most, ""},
		{"no field", &runnerdv1.Budget{}, most, ""},
		{"all that is allowed", most, most, ""},
		{"less", &runnerdv1.Budget{MaxIterations: proto.Uint32(1), MaxToolCalls: proto.Uint32(0), MaxCostCents: proto.Float64(0)}, most, ""},
		{"iterations", &runnerdv1.Budget{MaxIterations: proto.Uint32(11)}, most, "budget.max_iterations"},
		{"tool calls", &runnerdv1.Budget{MaxToolCalls: proto.Uint32(21)}, most, "budget.max_tool_calls"},
		{"no tool calls at all", &runnerdv1.Budget{MaxToolCalls: proto.Uint32(1)}, unlimited, "budget.max_tool_calls"},
		{"cost", &runnerdv1.Budget{MaxCostCents: new(50.5)}, most, "budget.max_cost_cents"},
		{"any cost, without a cap", &runnerdv1.Budget{MaxCostCents: new(1e9)}, unlimited, ""},
		{"time", &runnerdv1.Budget{MaxDuration: seconds(61)}, most, "budget.max_duration"},
		{"no limit of time", &runnerdv1.Budget{MaxDuration: seconds(0)}, most, "budget.max_duration"},
		{"no limit of time where there is none", &runnerdv1.Budget{MaxDuration: seconds(0)}, unlimited, ""},
		{"failures", &runnerdv1.Budget{MaxConsecutiveFailures: proto.Uint32(6)}, most, "budget.max_consecutive_failures"},
		{"refusals", &runnerdv1.Budget{MaxConsecutiveRefusals: proto.Uint32(6)}, most, "budget.max_consecutive_refusals"},
		{"refusals off", &runnerdv1.Budget{MaxConsecutiveRefusals: proto.Uint32(0)}, most, "budget.max_consecutive_refusals"},
		{"context", &runnerdv1.Budget{MaxContextTokens: proto.Uint32(1001)}, most, "budget.max_context_tokens"},
		{"failures off", &runnerdv1.Budget{MaxConsecutiveFailures: proto.Uint32(0)}, most, "budget.max_consecutive_failures"},
		{"failures where they are off", &runnerdv1.Budget{MaxConsecutiveFailures: proto.Uint32(99)}, unlimited, ""},
		{"two", &runnerdv1.Budget{MaxIterations: proto.Uint32(11), MaxToolCalls: proto.Uint32(21)}, most, "budget.max_iterations budget.max_tool_calls"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fields := wrongFields(t, checkBudget(tt.want, tt.most), runnerdv1.ErrorReason_ERROR_REASON_BUDGET_TOO_WIDE)
			if got := strings.Join(fields, " "); got != tt.wide {
				t.Errorf("too wide: %q, want %q", got, tt.wide)
			}
		})
	}
}
