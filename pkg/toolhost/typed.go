package toolhost

import (
	"context"
	"encoding/json"

	"github.com/google/jsonschema-go/jsonschema"
)

// Typed makes a tool of a function that takes its arguments as a struct. The schema of the arguments is made of the
// struct, unless the definition has one: fields are named as for encoding/json, required unless omitempty or omitzero,
// and described by a `jsonschema:"..."` tag. It panics if no schema can be made of In.
func Typed[In any](def Definition, fn func(ctx context.Context, in In) (string, error)) (Definition, Handler) {
	if def.InputSchema == "" {
		def.InputSchema = schemaOf[In](def.Name)
	}
	return def, func(ctx context.Context, call *Call) (*Result, error) {
		var in In
		if err := call.Decode(&in); err != nil {
			return nil, err
		}
		text, err := fn(ctx, in)
		if err != nil {
			return nil, err
		}
		return Text(text), nil
	}
}

func schemaOf[In any](tool string) string {
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		panic("toolhost: tool " + tool + ": " + err.Error())
	}
	text, err := json.Marshal(schema)
	if err != nil {
		panic("toolhost: tool " + tool + ": " + err.Error())
	}
	return string(text)
}
