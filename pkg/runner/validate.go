package runner

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"buf.build/go/protovalidate"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// maxJSONDepth is how deep JSON text of a caller may nest.
const maxJSONDepth = 128

// sizeLimits are the bounds of requests in bytes, where the server's own of maxReceive is too wide. The others have
// only short fields.
var sizeLimits = map[string]int{
	runnerdv1.RunService_StartRun_FullMethodName:       1 << 20,
	runnerdv1.RunService_SubmitApproval_FullMethodName: 2 << 20,
	runnerdv1.RunService_SubmitInput_FullMethodName:    512 << 10,
	runnerdv1.RunService_ExplainPolicy_FullMethodName:  2<<20 + 8<<10, // a request to start, arguments and the name of a tool
}

// defaultSizeLimit is the bound of all other requests.
const defaultSizeLimit = 256 << 10

// validate checks a request of a method against its bound, the rules in its proto, and what no rule can say: names
// and ids hold no NUL.
func (s *Server) validate(method string, req any) error {
	msg, ok := req.(proto.Message)
	if !ok {
		return nil
	}
	limit, ok := sizeLimits[method]
	if !ok {
		limit = defaultSizeLimit
	}
	if size := proto.Size(msg); size > limit {
		return errorf(runnerdv1.ErrorReason_ERROR_REASON_REQUEST_TOO_LARGE,
			"the request has %d bytes, at most %d are taken", size, limit)
	}
	violations := findNUL(nil, "", msg.ProtoReflect())
	var invalid *protovalidate.ValidationError
	// Rules are compiled when a message of their type is first seen: those of all requests would double the time until
	// the daemon listens.
	switch err := protovalidate.Validate(msg); {
	case errors.As(err, &invalid):
		for _, v := range invalid.Violations {
			violations = append(violations, Violation{
				Field:       protovalidate.FieldPathString(v.Proto.GetField()),
				Description: inWords(v),
				Rule:        v.Proto.GetRuleId(),
			})
		}
	case err != nil:
		return internal(fmt.Errorf("validate %s: %w", msg.ProtoReflect().Descriptor().FullName(), err))
	}
	return invalidRequest(violations)
}

// patternWords say what the patterns of the rules are for.
var patternWords = map[string]string{
	`\S`:                                    "must not be blank",
	`^(/.*)?$`:                              "must be an absolute path",
	`^(step-[1-9][0-9]{0,8})?$`:             "must be the label of a checkpoint, such as step-3",
	`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`:     "must be 1 to 64 letters, digits, dots, underscores and hyphens, a letter or digit first",
	`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`:    "must be 1 to 128 letters, digits, dots, underscores and hyphens, a letter or digit first",
	`^([A-Za-z0-9][A-Za-z0-9._-]{0,127})?$`: "must be up to 128 letters, digits, dots, underscores and hyphens, a letter or digit first",
}

// inWords is what a broken rule asks for.
func inWords(v *protovalidate.Violation) string {
	if v.RuleValue.IsValid() {
		switch v.Proto.GetRuleId() {
		case "string.pattern":
			if words := patternWords[v.RuleValue.String()]; words != "" {
				return words
			}
		case "string.min_bytes":
			if v.RuleValue.Uint() == 1 {
				return "must not be empty"
			}
		}
	}
	return v.Proto.GetMessage()
}

// invalidRequest is INVALID_REQUEST with the violations, nil if there are none.
func invalidRequest(violations []Violation) error {
	if len(violations) == 0 {
		return nil
	}
	first := violations[0]
	e := errorf(runnerdv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%s: %s", first.Field, first.Description)
	if more := len(violations) - 1; more > 0 {
		e.Message += fmt.Sprintf(" (and %d more)", more)
	}
	e.Violations = violations
	return e
}

// findNUL appends a violation for every name or id with a NUL byte. Those are the strings that are shown as they are;
// text may hold what it likes.
func findNUL(found []Violation, path string, msg protoreflect.Message) []Violation {
	msg.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := path + string(fd.Name())
		switch {
		case fd.IsMap():
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				found = checkNUL(found, name, fd, fd.MapKey(), key.Value())
				found = checkNUL(found, name, fd, fd.MapValue(), value)
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				found = checkNUL(found, fmt.Sprintf("%s[%d]", name, i), fd, fd, v.List().Get(i))
			}
		default:
			found = checkNUL(found, name, fd, fd, v)
		}
		return true
	})
	return found
}

// checkNUL looks at one value of a field; item describes it, options stand at the field.
func checkNUL(found []Violation, path string, field, item protoreflect.FieldDescriptor, v protoreflect.Value) []Violation {
	switch item.Kind() {
	case protoreflect.MessageKind:
		return findNUL(found, path+".", v.Message())
	case protoreflect.StringKind:
		if strings.ContainsRune(v.String(), 0) && isPlain(field) {
			return append(found, Violation{Field: path, Description: "must hold no NUL character", Rule: "string.no_nul"})
		}
	default:
	}
	return found
}

func isPlain(field protoreflect.FieldDescriptor) bool {
	options, ok := field.Options().(*descriptorpb.FieldOptions)
	return ok && proto.GetExtension(options, runnerdv1.E_Redaction) == runnerdv1.Redaction_REDACTION_PLAIN
}

// widerThan names the fields of a budget that are wider than most, which is resolved: absent cost and duration, and a
// duration or a number in a row of 0, mean that there is no limit. Absent fields of want inherit and are never wider.
func widerThan(want, most *runnerdv1.Budget) []Violation {
	var wider []Violation
	check := func(field string, tooWide bool, limit any) {
		if tooWide {
			wider = append(wider, Violation{
				Field: "budget." + field, Description: fmt.Sprintf("the agent allows at most %v", limit), Rule: "budget_max",
			})
		}
	}
	if want == nil {
		return nil
	}
	check("max_iterations", want.GetMaxIterations() > most.GetMaxIterations(), most.GetMaxIterations())
	check("max_tool_calls", want.GetMaxToolCalls() > most.GetMaxToolCalls(), most.GetMaxToolCalls())
	check("max_cost_cents",
		most.MaxCostCents != nil && want.GetMaxCostCents() > most.GetMaxCostCents(), most.GetMaxCostCents())

	got, limit := want.GetMaxDuration().AsDuration(), most.GetMaxDuration().AsDuration()
	check("max_duration", want.MaxDuration != nil && limit > 0 && (got == 0 || got > limit), limit)

	check("max_context_tokens",
		most.MaxContextTokens != nil && want.GetMaxContextTokens() > most.GetMaxContextTokens(), most.GetMaxContextTokens())
	inRow := func(field string, named bool, n, limit uint32) {
		check(field, named && limit > 0 && (n == 0 || n > limit), limit)
	}
	inRow("max_consecutive_failures",
		want.MaxConsecutiveFailures != nil, want.GetMaxConsecutiveFailures(), most.GetMaxConsecutiveFailures())
	inRow("max_consecutive_refusals",
		want.MaxConsecutiveRefusals != nil, want.GetMaxConsecutiveRefusals(), most.GetMaxConsecutiveRefusals())
	return wider
}

// checkBudget is BUDGET_TOO_WIDE naming the fields, nil if want is within most.
func checkBudget(want, most *runnerdv1.Budget) error {
	wider := widerThan(want, most)
	if len(wider) == 0 {
		return nil
	}
	e := errorf(runnerdv1.ErrorReason_ERROR_REASON_BUDGET_TOO_WIDE, "%s: %s", wider[0].Field, wider[0].Description)
	e.Violations = wider
	return e
}

// validateStart checks what rules in the proto cannot say about a StartRunRequest.
func validateStart(req *runnerdv1.StartRunRequest) error {
	var violations []Violation
	violations = checkJSON(violations, "context_json", req.GetContextJson(), true)
	violations = checkJSON(violations, "metadata_json", req.GetMetadataJson(), true)
	for i, o := range req.GetInitialObservations() {
		violations = checkJSON(violations, fmt.Sprintf("initial_observations[%d].structured_json", i), o.GetStructuredJson(), false)
	}
	return invalidRequest(violations)
}

// checkJSON appends a violation with the position if a text, which is not empty, is not exactly one JSON value, or
// not an object where that is asked for.
func checkJSON(violations []Violation, field, text string, object bool) []Violation {
	if text == "" {
		return violations
	}
	if err := scanJSON(text, object); err != nil {
		return append(violations, Violation{Field: field, Description: err.Error(), Rule: "json"})
	}
	return violations
}

// scanJSON reads a text once, token by token. Errors give the byte, from 0, and never show the text.
func scanJSON(text string, object bool) error {
	d := jsontext.NewDecoder(strings.NewReader(text))
	for first := true; first || d.StackDepth() > 0; first = false {
		token, err := d.ReadToken()
		if err != nil {
			return jsonProblem(text, err)
		}
		if first && object && token.Kind() != jsontext.KindBeginObject {
			return errors.New("must be a JSON object")
		}
		if d.StackDepth() > maxJSONDepth {
			return fmt.Errorf("nests deeper than %d, at byte %d", maxJSONDepth, d.InputOffset()-1)
		}
	}
	end := d.InputOffset()
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("must be one JSON value, something follows it, at byte %d", end)
	}
	return nil
}

func jsonProblem(text string, err error) error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok, errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("is not valid JSON: it ends early, at byte %d", len(text))
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("has a key twice in one object, at byte %d", syntax.ByteOffset)
	default:
		return fmt.Errorf("is not valid JSON, at byte %d", syntax.ByteOffset)
	}
}
