package runstate

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// checked builds a catalogue of one tool and checks arguments with it.
func checked(t *testing.T, schema, arguments string) error {
	t.Helper()
	d := definition("x")
	d.InputSchemaJson = schema
	c, found := BuildCatalogue([]HostTools{{Host: "h", Tools: []*runnerdv1.ToolDefinition{d}}})
	tool := c.Lookup("x")
	if tool == nil {
		t.Fatalf("the schema is refused: %v", found)
	}
	parsed, err := ParseArguments(arguments)
	if err != nil {
		t.Fatal(err)
	}
	exact, canonical := c.CheckArguments(tool, []byte(parsed.Text)), c.CheckArguments(tool, parsed.Canonical)
	if fmt.Sprint(exact) != fmt.Sprint(canonical) {
		t.Errorf("text: %v, canonical form: %v", exact, canonical)
	}
	return exact
}

const recursive = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","required":["q"],
	"properties":{"q":{"$ref":"#/$defs/Q"}},
	"$defs":{"Q":{"type":"object","properties":{"limit":{"type":"integer","default":20},"next":{"$ref":"#/$defs/Q"}}}}}`

func TestCheckArguments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		schema, arguments string
		want              string // part of the error; empty: accepted
	}{
		"CASE-22 local and recursive references":     {recursive, `{"q":{"limit":1,"next":{"next":{"limit":2}}}}`, ""},
		"CASE-22 recursive reference, wrong":         {recursive, `{"q":{"next":{"next":{"limit":"2"}}}}`, "at /q/next/next/limit: got string, want integer"},
		"CASE-22 missing":                            {recursive, `{}`, "at the arguments: missing property 'q'"},
		"CASE-22 draft-07":                           {`{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"const":1}}}`, `{"a":2}`, "at /a: value must be 1"},
		"CASE-22 draft-07, tuple":                    {`{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"items":[{"type":"string"}]}}}`, `{"a":[1]}`, "at /a/0"},
		"CASE-22 draft-07, siblings of a reference":  {`{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"$ref":"#/definitions/A","type":"string"}},"definitions":{"A":{"type":"integer"}}}`, `{"a":1}`, ""},
		"CASE-22 default draft is 2020-12":           {`{"properties":{"a":{"prefixItems":[{"type":"string"}]}}}`, `{"a":[1]}`, "at /a/0: got number, want string"},
		"CASE-22 anchors":                            {`{"properties":{"a":{"$ref":"#A"}},"$defs":{"x":{"$anchor":"A","type":"null"}}}`, `{"a":1}`, "at /a: got number, want null"},
		"CASE-22 an id of its own":                   {`{"$id":"https://example.com/s","properties":{"a":{"$ref":"#/$defs/A"}},"$defs":{"A":{"type":"null"}}}`, `{"a":1}`, "at /a"},
		"CASE-22 published meta-schema":              {`{"properties":{"s":{"$ref":"https://json-schema.org/draft/2020-12/schema"}}}`, `{"s":{"type":"objekt"}}`, "at /s"},
		"CASE-22 true":                               {`true`, `{"a":1}`, ""},
		"CASE-22 empty":                              {`{}`, `{"a":1}`, ""},
		"CASE-22 absent":                             {``, `{"a":1}`, ""},
		"CASE-06 integers over 2^53":                 {`{"properties":{"id":{"type":"integer","minimum":9007199254740993}}}`, `{"id":9007199254740993}`, ""},
		"CASE-06 integers over 2^53, one less":       {`{"properties":{"id":{"type":"integer","minimum":9007199254740993}}}`, `{"id":9007199254740992}`, "at /id: minimum"},
		"CASE-06 1e2 is an integer":                  {`{"properties":{"id":{"type":"integer"}}}`, `{"id":1e2}`, ""},
		"CASE-06 const over 2^53":                    {`{"properties":{"id":{"const":9007199254740993}}}`, `{"id":9007199254740992}`, "at /id"},
		"T-136 integer excludes booleans":            {`{"properties":{"a":{"type":"integer"}}}`, `{"a":true}`, "at /a: got boolean, want integer"},
		"T-136 unknown properties":                   {`{"type":"object","additionalProperties":false,"properties":{"a":{}}}`, `{"a":1,"b":2}`, "additional properties 'b' not allowed"},
		"T-136 arrays check items":                   {`{"properties":{"a":{"type":"array","items":{"type":"string"}}}}`, `{"a":["x",1]}`, "at /a/1"},
		"CASE-01 blank arguments, required property": {`{"required":["id"]}`, ``, "missing property 'id'"},
		"pointer escapes":                            {`{"properties":{"a/b~c":{"type":"null"}}}`, `{"a/b~c":1}`, "at /a~1b~0c"},
		"format of draft-07":                         {`{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"format":"ipv4"},"b":{"format":"regex"}}}`, `{"a":"1.2.3.4","b":"("}`, "at /b"},
		"unevaluated":                                {`{"allOf":[{"properties":{"a":{}}}],"unevaluatedProperties":false}`, `{"a":1}`, ""},
		"largest exponent":                           {`{"properties":{"a":{"type":"number","minimum":1,"multipleOf":3}}}`, `{"a":1e1000}`, "multipleOf"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checked(t, tc.schema, tc.arguments)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestSchemaRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ schema, want string }{
		"CASE-22 nothing is fetched":             {`{"$ref":"https://example.com/x.json"}`, "nothing is ever fetched"},
		"CASE-22 no file is read":                {`{"$ref":"file:///etc/hostname"}`, "nothing is ever fetched"},
		"CASE-22 relative references":            {`{"$ref":"other.json"}`, "nothing is ever fetched"},
		"CASE-22 relative to an id":              {`{"$id":"https://example.com/a/","$ref":"other.json"}`, "nothing is ever fetched"},
		"CASE-22 meta-schema of somebody's own":  {`{"$schema":"https://example.com/meta"}`, "nothing is ever fetched"},
		"CASE-22 a reference that leads nowhere": {`{"$ref":"#/$defs/none"}`, "does not compile"},
		"not JSON":                               {`{"type":`, "not valid JSON"},
		"no schema":                              {`42`, "does not compile"},
		"a pattern that is not RE2":              {`{"properties":{"a":{"pattern":"(?=x)"}}}`, "does not compile"},
		"a number without end":                   {`{"properties":{"a":{"minimum":1e999999}}}`, "too large"},
		"too deep":                               {strings.Repeat(`{"not":`, 3000) + "{}" + strings.Repeat("}", 3000), "nested too deeply"},
		"wide where it is deep": {
			strings.Repeat(`{"allOf":[`, 60) + strings.Repeat(`{"not":{}},`, 22_000) + "{}" + strings.Repeat("]}", 60),
			"nested too deeply",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := definition("x")
			d.InputSchemaJson = tc.schema
			c, found := BuildCatalogue([]HostTools{{Host: "h", Tools: []*runnerdv1.ToolDefinition{d, definition("y")}}})
			expect(t, c, found, []string{"y"}, []string{"h/x invalid_input_schema error"})
			if !strings.Contains(found[0].GetMessage(), tc.want) {
				t.Errorf("got %q, want %q", found[0].GetMessage(), tc.want)
			}
		})
	}
}

// A schema and arguments from outside must not take the core out of service.
func TestCheckArgumentsIsBounded(t *testing.T) {
	t.Parallel()
	t.Run("patterns that hang other engines", func(t *testing.T) {
		t.Parallel()
		err := checked(t, `{"properties":{"a":{"pattern":"^(a+)+$"}}}`, `{"a":"`+strings.Repeat("a", 100_000)+`!"}`)
		if err == nil {
			t.Error("accepted")
		}
	})
	t.Run("exponential in the depth of the arguments", func(t *testing.T) {
		t.Parallel()
		const defs = `"$defs":{"E":{"anyOf":[
			{"type":"object","properties":{"a":{"$ref":"#/$defs/E"}}},
			{"type":"object","properties":{"a":{"$ref":"#/$defs/E"}}}]}}`
		for _, schema := range []string{`{"$ref":"#/$defs/E",`, `{"not":{"$ref":"#/$defs/E"},`, `{"if":{"$ref":"#/$defs/E"},`} {
			err := checked(t, schema+defs+"}", strings.Repeat(`{"a":`, 100)+"1"+strings.Repeat("}", 100))
			if err == nil || !strings.Contains(err.Error(), "too many ways") {
				t.Errorf("%s: got %v", schema, err)
			}
		}
	})
	t.Run("draft-07 references that double at each step", func(t *testing.T) {
		t.Parallel()
		var defs strings.Builder
		for i := range 40 {
			fmt.Fprintf(&defs, `"d%d":{"allOf":[{"$ref":"#/definitions/d%d"},{"$ref":"#/definitions/d%d"}]},`, i, i+1, i+1)
		}
		err := checked(t, `{"$schema":"http://json-schema.org/draft-07/schema#","allOf":[{"$ref":"#/definitions/d0"}],"definitions":{`+
			defs.String()+`"d40":{"required":["a"]}}}`, `{}`)
		if err == nil || !strings.Contains(err.Error(), "too many ways") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a large honest value", func(t *testing.T) {
		t.Parallel()
		items := strings.TrimSuffix(strings.Repeat(`{"n":1},`, 100_000), ",")
		if err := checked(t, `{"properties":{"a":{"items":{"properties":{"n":{"type":"integer"}}}}}}`, `{"a":[`+items+`]}`); err != nil {
			t.Error(err)
		}
	})
	t.Run("a large honest schema", func(t *testing.T) {
		t.Parallel()
		var properties strings.Builder
		for i := range 4000 {
			fmt.Fprintf(&properties, `"p%d":{"type":"array","items":{"type":"string"}},`, i)
		}
		if err := checked(t, `{"properties":{`+properties.String()+`"n":{"type":"null"}}}`, `{"n":null}`); err != nil {
			t.Error(err)
		}
	})
	t.Run("the text of the error", func(t *testing.T) {
		t.Parallel()
		long := strings.Repeat("ü", 100_000)
		for _, err := range []error{
			checked(t, `{"properties":{"a":{"pattern":"^x$"}}}`, `{"a":"`+long+`"}`),
			checked(t, `{"properties":{"`+long+`":{"type":"null"}}}`, `{"`+long+`":1}`),
			checked(t, `{"properties":{"a":{"items":{"type":"null"}}}}`, `{"a":[`+strings.Repeat("1,", 50_000)+`1]}`),
			checked(t, `{"additionalProperties":false}`, `{"`+long+`":1}`),
		} {
			if err == nil || len(err.Error()) > maxSchemaError || !utf8.ValidString(err.Error()) {
				t.Errorf("error of %d bytes", len(fmt.Sprint(err)))
			}
		}
	})
}

func FuzzCompileSchema(f *testing.F) {
	for _, seed := range []string{recursive, `{"multipleOf":0}`, `{"$dynamicRef":"#a","$dynamicAnchor":"a"}`, `{"minLength":1e400}`, `{"$ref":"#"}`} {
		f.Add(seed, `{"a":[1,{"q":{}}]}`)
	}
	f.Fuzz(func(t *testing.T, schema, arguments string) {
		s, err := compileSchema(schema)
		if err != nil {
			return
		}
		if parsed, err := ParseArguments(arguments); err == nil {
			if err := s.check([]byte(parsed.Text)); err != nil && len(err.Error()) > maxSchemaError {
				t.Fatalf("error of %d bytes", len(err.Error()))
			}
		}
	})
}
