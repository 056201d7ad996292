// Package scriptfile reads the YAML of scripted services and has the words that their scripts share.
package scriptfile

import (
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// MaxSize bounds a padded text, in bytes.
const MaxSize = 256 << 20

// Decode decodes one YAML (or JSON) document into v. The name stands before errors, which have line numbers. An empty
// document leaves v as it is.
func Decode(name string, data []byte, v any) error {
	var doc yaml.Node
	err := yaml.Unmarshal(data, &doc)
	if err == nil {
		err = refuseAliases(&doc)
	}
	if err == nil && !doc.IsZero() {
		err = doc.Decode(v)
	}
	if err != nil {
		return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	return nil
}

// refuseAliases refuses a document with aliases: one that contains itself, or others many times over, has no end.
func refuseAliases(n *yaml.Node) error {
	if n.Kind == yaml.AliasNode {
		return Errorf(n, "aliases are not understood here")
	}
	for _, c := range n.Content {
		if err := refuseAliases(c); err != nil {
			return err
		}
	}
	return nil
}

// Fields decodes a mapping into the struct that v points to, and refuses names that are no fields of it. It is for
// UnmarshalYAML methods: yaml's own strict mode does not reach through them.
func Fields(n *yaml.Node, v any) error {
	if n.Kind != yaml.MappingNode {
		return Errorf(n, "want a mapping")
	}
	known := fieldNames(reflect.TypeOf(v).Elem())
	for i := 0; i < len(n.Content); i += 2 {
		if key := n.Content[i]; !slices.Contains(known, key.Value) {
			return Errorf(key, "unknown field %q, want one of %s", key.Value, strings.Join(known, ", "))
		}
	}
	return n.Decode(v)
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// Errorf is an error at a place in the file.
func Errorf(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %s", n.Line, fmt.Sprintf(format, args...))
}

// One is an error unless at most one of the named things is there.
func One(n *yaml.Node, present map[string]bool) error {
	var names []string
	for name, there := range present {
		if there {
			names = append(names, name)
		}
	}
	if len(names) > 1 {
		slices.Sort(names)
		return Errorf(n, "%s do not go together", strings.Join(names, " and "))
	}
	return nil
}

// Code is a gRPC code by its name: UNAVAILABLE.
type Code codes.Code

// UnmarshalYAML implements yaml.Unmarshaler.
func (c *Code) UnmarshalYAML(n *yaml.Node) error {
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(`"` + n.Value + `"`)); err != nil || code == codes.OK {
		return Errorf(n, "%q is not the name of a gRPC error code", n.Value)
	}
	*c = Code(code)
	return nil
}

// Bytes are bytes in hex.
type Bytes []byte

// UnmarshalYAML implements yaml.Unmarshaler.
func (b *Bytes) UnmarshalYAML(n *yaml.Node) error {
	raw, err := hex.DecodeString(strings.ReplaceAll(n.Value, " ", ""))
	if err != nil || len(raw) == 0 {
		return Errorf(n, "%q is not bytes in hex", n.Value)
	}
	*b = raw
	return nil
}

// Duration is a duration such as 1.5s, not negative.
type Duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || v < 0 {
		return Errorf(n, "%q is not a duration such as 1.5s", n.Value)
	}
	*d = Duration(v)
	return nil
}

// Err is the error that a script fails a call with.
func Err(c Code, message string) error {
	if message == "" {
		message = "the script says so"
	}
	return status.Error(codes.Code(c), message)
}

// Pad makes a text at least size bytes long.
func Pad(text string, size int) string {
	return text + strings.Repeat("x", max(0, size-len(text)))
}

// CheckSize refuses a size that is no use.
func CheckSize(n *yaml.Node, size int) error {
	if size < 0 || size > MaxSize {
		return Errorf(n, "size %d is not from 0 to %d", size, MaxSize)
	}
	return nil
}

// Raw is a message that is sent as it is, by servers with RawCodec.
type Raw []byte

// RawCodec is the protobuf codec, except that it sends Raw.
type RawCodec struct{}

// Name implements encoding.CodecV2.
func (RawCodec) Name() string { return protocodec.Name }

// Marshal implements encoding.CodecV2.
func (RawCodec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(Raw); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return encoding.GetCodecV2(protocodec.Name).Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (RawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2(protocodec.Name).Unmarshal(data, v)
}

// ErrEmpty is the error of a script that says nothing.
var ErrEmpty = errors.New("the script is empty")
