package runstate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

const (
	maxSchemaError = 2 << 10 // bytes of the text that says what is wrong with arguments
	maxOneError    = 300     // bytes of one remark in it

	// The library follows a schema's scopes outwards from each of its parts, so that compiling takes time in the
	// product of size and depth: minutes for 64 KiB. At these bounds it is less than a second.
	maxSchemaDepth = 128     // arrays and objects in each other
	maxSchemaWork  = 1 << 17 // depths of all arrays and objects, added up

	// schemaURL is where a schema is taken to stand, so that relative references lead to where nothing is.
	schemaURL = "schema:///input"
)

var (
	errNotFetched  = errors.New("refers to another document, and nothing is ever fetched")
	errTooManyWays = errors.New("arguments cannot be checked: the schema can be applied to them in too many ways")
)

// argumentSchema is a compiled input schema.
type argumentSchema struct {
	schema *jsonschema.Schema // nil: every object is accepted

	// A schema that refers to itself in several branches can take time exponential in the depth of the arguments,
	// and both come from outside. So steps are counted; checks of one schema take turns for that.
	mu    sync.Mutex
	steps int // left in this check
}

// refuseLoader refuses whatever a schema refers to outside itself.
type refuseLoader struct{}

// Load implements jsonschema.URLLoader.
func (refuseLoader) Load(string) (any, error) { return nil, errNotFetched }

// compileSchema compiles the input schema of a tool: JSON text of a JSON Schema, by its "$schema", else draft 2020-12.
// References stay within the document. Patterns are RE2 expressions. Blank text is a schema that accepts all.
func compileSchema(text string) (*argumentSchema, error) {
	if strings.TrimSpace(text) == "" {
		return &argumentSchema{}, nil
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("the schema is not valid JSON: %w", err)
	}
	if !sensibleNumbers(document) {
		return nil, errors.New("the schema holds a number that is too long or too large")
	}
	if work := maxSchemaWork; !compilesInTime(document, 1, &work) {
		return nil, fmt.Errorf("the schema is nested too deeply: at most %d levels, and %d added up over all its parts",
			maxSchemaDepth, maxSchemaWork)
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.UseLoader(refuseLoader{})
	if err := compiler.AddResource(schemaURL, document); err != nil {
		return nil, fmt.Errorf("the schema cannot be used: %w", err)
	}
	schema, err := compiler.Compile(schemaURL)
	if err != nil {
		return nil, fmt.Errorf("the schema does not compile: %s", cutText(err.Error(), maxSchemaError))
	}
	s := &argumentSchema{schema: schema}
	s.count(reflect.ValueOf(schema), make(map[*jsonschema.Schema]bool))
	return s, nil
}

// acceptsNoObject says whether a schema is plainly not one of arguments.
func (s *argumentSchema) acceptsNoObject() bool {
	switch {
	case s.schema == nil:
		return false
	case s.schema.Bool != nil:
		return !*s.schema.Bool
	case s.schema.Types == nil || s.schema.Types.IsEmpty():
		return false
	default:
		return !slices.Contains(s.schema.Types.ToStrings(), "object")
	}
}

// check checks arguments that ParseArguments accepted.
func (s *argumentSchema) check(arguments []byte) (err error) {
	if s.schema == nil {
		return nil
	}
	value, err := schemaValue(jsontext.NewDecoder(bytes.NewReader(arguments)))
	if err != nil {
		return fmt.Errorf("arguments are not valid JSON: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if r := recover(); r == errTooManyWays { //nolint:errorlint // the very value that step panics with
			err = errTooManyWays
		} else if r != nil {
			panic(r)
		}
	}()
	s.steps = 1<<16 + 4*len(arguments)
	if err := s.schema.Validate(value); err != nil {
		return errors.New(describe(err))
	}
	return nil
}

// schemaValue reads a value in the types that the library takes. Its own reader, which is that of encoding/json, takes
// longer than all the rest of a check.
func schemaValue(dec *jsontext.Decoder) (any, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case jsontext.KindBeginObject:
		members := make(map[string]any)
		for dec.PeekKind() != jsontext.KindEndObject {
			name, err := dec.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String() // now: reading on invalidates the token
			if members[key], err = schemaValue(dec); err != nil {
				return nil, err
			}
		}
		_, err = dec.ReadToken()
		return members, err
	case jsontext.KindBeginArray:
		items := []any{}
		for dec.PeekKind() != jsontext.KindEndArray {
			item, err := schemaValue(dec)
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
		_, err = dec.ReadToken()
		return items, err
	case jsontext.KindString:
		return token.String(), nil
	case jsontext.KindNumber:
		return json.Number(token.String()), nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return token.Bool(), nil
	default:
		return nil, nil
	}
}

// step counts one application of a schema to a value. The library offers no other way to leave a validation early.
func (s *argumentSchema) step() {
	if s.steps--; s.steps < 0 {
		panic(errTooManyWays)
	}
}

// count makes every schema reachable from v count its applications. The format is what the library looks at before it
// goes on to other schemas, and it calls a function for it.
func (s *argumentSchema) count(v reflect.Value, seen map[*jsonschema.Schema]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return
		}
		if schema, ok := reflect.TypeAssert[*jsonschema.Schema](v); ok {
			// Published meta-schemas are shared by all.
			if seen[schema] || strings.Contains(schema.Location, "://json-schema.org/") {
				return
			}
			seen[schema] = true
			s.countOne(schema)
			for i := range v.Elem().NumField() {
				if v.Elem().Type().Field(i).IsExported() {
					s.count(v.Elem().Field(i), seen)
				}
			}
		} else if ref, ok := reflect.TypeAssert[*jsonschema.DynamicRef](v); ok {
			s.count(reflect.ValueOf(ref.Ref), seen)
		}
	case reflect.Interface:
		s.count(v.Elem(), seen)
	case reflect.Slice:
		for i := range v.Len() {
			s.count(v.Index(i), seen)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			s.count(v.MapIndex(key), seen)
		}
	default: // holds no schema
	}
}

func (s *argumentSchema) countOne(schema *jsonschema.Schema) {
	format := jsonschema.Format{Name: "any", Validate: func(any) error { return nil }}
	if schema.Format != nil {
		format = *schema.Format
		if format.Name == "regex" {
			format.Name = "RE2 expression" // under its own name the library would not call the function
		}
	}
	validate := format.Validate
	format.Validate = func(v any) error {
		s.step()
		return validate(v)
	}
	schema.Format = &format
}

// sensibleNumbers says whether all numbers of a document can be read exactly without harm.
func sensibleNumbers(document any) bool {
	switch v := document.(type) {
	case json.Number:
		return sensibleNumber(v.String())
	case []any:
		return !slices.ContainsFunc(v, func(item any) bool { return !sensibleNumbers(item) })
	case map[string]any:
		for _, item := range v {
			if !sensibleNumbers(item) {
				return false
			}
		}
	}
	return true
}

// compilesInTime says whether a part of a schema that stands at a depth can be compiled with the work that is left, and
// takes it off.
func compilesInTime(part any, depth int, work *int) bool {
	ok := true
	switch v := part.(type) {
	case []any:
		*work -= depth
		ok = !slices.ContainsFunc(v, func(item any) bool { return !compilesInTime(item, depth+1, work) })
	case map[string]any:
		*work -= depth
		for _, item := range v {
			ok = ok && compilesInTime(item, depth+1, work)
		}
	default:
		return true
	}
	return ok && depth <= maxSchemaDepth && *work >= 0
}

var english = message.NewPrinter(language.English)

// describe says what is wrong with arguments: the remarks at the leaves, each with its path, as many as fit.
func describe(err error) string {
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &invalid) {
		return cutText(err.Error(), maxSchemaError)
	}
	var text strings.Builder
	left := 0
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		for _, cause := range e.Causes {
			walk(cause)
		}
		if len(e.Causes) > 0 {
			return
		}
		if text.Len() > maxSchemaError-2*maxOneError {
			left++
			return
		}
		if text.Len() > 0 {
			text.WriteString("; ")
		}
		text.WriteString(cutText("at "+pointer(e.InstanceLocation), maxOneError/2))
		text.WriteString(": ")
		text.WriteString(cutText(problem(e.ErrorKind), maxOneError))
	}
	walk(invalid)
	if left > 0 {
		fmt.Fprintf(&text, "; and %d more", left)
	}
	return text.String()
}

// problem says what is wrong with a value and never shows it: others than the model may read that.
func problem(of jsonschema.ErrorKind) string {
	switch k := of.(type) {
	case *kind.Pattern:
		return "does not match the pattern " + strconv.Quote(k.Want)
	case *kind.Format:
		return "is not valid: " + k.Want
	default:
		return of.LocalizedString(english)
	}
}

// pointer writes a path as a JSON pointer; the arguments as a whole are "the arguments".
func pointer(path []string) string {
	if len(path) == 0 {
		return "the arguments"
	}
	var text strings.Builder
	for _, token := range path {
		text.WriteByte('/')
		text.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(token))
	}
	return text.String()
}
