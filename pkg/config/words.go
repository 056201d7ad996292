package config

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"buf.build/go/protovalidate"
	"github.com/agnivade/levenshtein"
	"google.golang.org/protobuf/reflect/protoreflect"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
)

// patternWords say what the patterns of texts are for, by the name of their field; keys of maps are names.
var patternWords = map[protoreflect.Name]string{
	"id":     "a rule needs an id: 1 to 64 letters, digits, dots, underscores and hyphens, a letter or digit first",
	"sha256": "must be the SHA-256 of a token, 64 hex digits; not the token itself (runnerd token prints both)",
}

// nameWords say what the name of an agent, a policy or a service can be.
const nameWords = "a name has 1 to 128 letters, digits, dots, underscores and hyphens, a letter or digit first"

// inWords says in words what a rule says in the words of its machinery.
func inWords(violations []*protovalidate.Violation) {
	for _, v := range violations {
		message := ""
		switch rule := v.Proto.GetRuleId(); {
		case rule == "string.min_bytes" && v.RuleValue.IsValid() && v.RuleValue.Uint() == 1:
			message = "must not be missing or empty"
		case rule == "string.pattern" && v.Proto.GetForKey():
			message = nameWords
		case rule == "string.pattern" && v.FieldDescriptor != nil:
			message = patternWords[v.FieldDescriptor.Name()]
		}
		if message != "" {
			v.Proto.SetMessage(message)
		}
	}
}

// withoutRepeats leaves out of cross what is said of an entry of which a field is known to be wrong.
func withoutRepeats(cross, fields []*protovalidate.Violation) []*protovalidate.Violation {
	return slices.DeleteFunc(cross, func(c *protovalidate.Violation) bool {
		entry := protovalidate.FieldPathString(c.Proto.GetField()) + "."
		return slices.ContainsFunc(fields, func(f *protovalidate.Violation) bool {
			return strings.HasPrefix(protovalidate.FieldPathString(f.Proto.GetField()), entry)
		})
	})
}

var unknownField = regexp.MustCompile(`unknown field "([^"]*)", expected one of \[[^\]]*\]`)

// withSuggestion says in a problem with an unknown field which was meant, or where it belongs.
func withSuggestion(problem string) string {
	m := unknownField.FindStringSubmatchIndex(problem)
	if m == nil {
		return problem
	}
	name, hint := problem[m[2]:m[3]], ""
	places := fieldPlaces()
	if of := places[name]; of != nil {
		hint = fmt.Sprintf("; %q stands in %s", name, strings.Join(of, " or "))
	} else if near := nearestField(name, places); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	return problem[:m[1]] + hint + problem[m[1]:]
}

// nearestField is the field whose name differs least, in two characters at most; empty: there is none.
func nearestField(name string, places map[string][]string) string {
	nearest, least := "", 3
	for _, field := range slices.Sorted(maps.Keys(places)) {
		if distance := levenshtein.ComputeDistance(name, field); distance < least {
			nearest, least = field, distance
		}
	}
	return nearest
}

// fieldPlaces tells for each field of a configuration below which keys it can stand.
func fieldPlaces() map[string][]string {
	places := map[string][]string{}
	var visit func(protoreflect.MessageDescriptor, string)
	visit = func(message protoreflect.MessageDescriptor, key string) {
		for i := range message.Fields().Len() {
			field := message.Fields().Get(i)
			name := field.TextName()
			if !slices.Contains(places[name], key) {
				places[name] = append(places[name], key)
			}
			inner := field.Message()
			if field.IsMap() {
				inner = field.MapValue().Message()
			}
			// No message of a configuration holds itself. Messages of other packages, such as durations, are written as one value.
			if inner == nil || inner.ParentFile().Package() == "google.protobuf" {
				continue
			}
			visit(inner, name)
		}
	}
	visit((&configv1.Config{}).ProtoReflect().Descriptor(), "the file itself")
	return places
}

var unknownAnchor = regexp.MustCompile(`^yaml: unknown anchor '(.*)' referenced$`)

// aliasError says of a glob that was not quoted, and so is read as a reference, what it is. False: it is another error.
func aliasError(name string, data []byte, err error) (string, bool) {
	m := unknownAnchor.FindStringSubmatch(err.Error())
	if m == nil {
		return "", false
	}
	alias := "*" + m[1]
	before, _, _ := bytes.Cut(data, []byte(alias))
	return fmt.Sprintf("%s:%d: %s stands without quotes: a text that begins with * needs them, as in \"%s\"",
		name, 1+bytes.Count(before, []byte("\n")), alias, alias), true
}

// tabHint says of a line that cannot be read that there is a tab in it where YAML takes blanks only; empty: there is none.
func tabHint(data []byte, line int) string {
	all := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(all) {
		return ""
	}
	text := all[line-1]
	if indent := text[:len(text)-len(bytes.TrimLeft(text, " \t"))]; bytes.ContainsRune(indent, '\t') {
		return "; it is indented with a tab: use blanks"
	}
	return ""
}
