package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"buf.build/go/protoyaml"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
)

// Error says what is wrong with a configuration, all of it at once.
type Error struct {
	// Problems in the order of their lines; each begins with file:line:column
	// or with the variable or flag.
	Problems []string
}

// Error lists the problems, one a line.
func (e *Error) Error() string {
	return "the configuration is wrong:\n" + strings.Join(e.Problems, "\n")
}

// parse reads a file, lays the settings over it and checks the result. Lines
// are told only for what stands in the file.
func parse(data []byte, name string, settings []Setting) (*configv1.Config, []string) {
	data, problem := plainLines(data, name)
	if problem != "" {
		return nil, []string{problem}
	}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err != nil {
		return nil, []string{syntaxError(name, data, err)}
	}

	cfg := &configv1.Config{}
	check := &checker{settings: settings}
	options := protoyaml.UnmarshalOptions{Path: name, Validator: check}
	var problems []string
	if root.Kind == 0 { // an empty file; protoyaml checks nothing then
		if err := check.Validate(cfg); err != nil {
			problems = append(problems, violationsOf(name, err)...)
		}
	} else {
		problems = append(problems, repeatedKeys(name, &root)...)
		unread := lines(protoyaml.UnmarshalOptions{Path: name}.Unmarshal(data, &configv1.Config{}))
		problems = append(problems, unread...)
		// The same again, and then what breaks a rule; but what could not be
		// read breaks rules only because it is missing.
		broken := lines(options.Unmarshal(data, cfg))[len(unread):]
		problems = append(problems, slices.DeleteFunc(broken, func(problem string) bool {
			return slices.ContainsFunc(unread, func(u string) bool { return position(name, u) == position(name, problem) })
		})...)
	}
	slices.SortStableFunc(problems, func(a, b string) int { return cmp.Compare(lineOf(name, a), lineOf(name, b)) })
	return cfg, append(problems, check.outside...)
}

// checker is called by protoyaml between reading and placing errors: it lays
// the settings over the file, and checks rules and names. What is wrong with a
// setting is kept apart, because no line of the file is to blame.
type checker struct {
	settings []Setting
	outside  []string
}

// Validate implements protoyaml.Validator.
func (c *checker) Validate(message proto.Message) error {
	cfg, ok := message.(*configv1.Config)
	if !ok {
		return fmt.Errorf("%T is no configuration", message)
	}
	from := map[string]string{}
	for _, s := range c.settings {
		if err := s.apply(cfg); err != nil {
			c.outside = append(c.outside, fmt.Sprintf("%s: %v", s.From, err))
			continue
		}
		from[s.Field] = s.From
	}

	var violations []*protovalidate.Violation
	if err := protovalidate.Validate(cfg); err != nil {
		wrong, ok := errors.AsType[*protovalidate.ValidationError](err)
		if !ok {
			return err
		}
		violations = wrong.Violations
		inWords(violations)
	}
	violations = append(violations, withoutRepeats(crossCheck(cfg), violations)...)
	inside := slices.DeleteFunc(violations, func(v *protovalidate.Violation) bool {
		source, ok := from[protovalidate.FieldPathString(v.Proto.GetField())]
		if ok {
			c.outside = append(c.outside, source+": "+v.Proto.GetMessage())
		}
		return ok
	})
	if len(inside) == 0 {
		return nil
	}
	return &protovalidate.ValidationError{Violations: inside}
}

// fieldPath builds the path of a violation.
type fieldPath []*validate.FieldPathElement

func (p fieldPath) field(name string) fieldPath {
	return append(slices.Clone(p), validate.FieldPathElement_builder{FieldName: new(name)}.Build())
}

func (p fieldPath) key(name, key string) fieldPath {
	return append(slices.Clone(p), validate.FieldPathElement_builder{
		FieldName: new(name), StringKey: new(key),
	}.Build())
}

func (p fieldPath) index(name string, i int) fieldPath {
	return append(slices.Clone(p), validate.FieldPathElement_builder{
		FieldName: new(name), Index: new(uint64(i)),
	}.Build())
}

func (p fieldPath) violation(rule, format string, args ...any) *protovalidate.Violation {
	return &protovalidate.Violation{Proto: validate.Violation_builder{
		Field:   validate.FieldPath_builder{Elements: p}.Build(),
		RuleId:  new(rule),
		Message: new(fmt.Sprintf(format, args...)),
	}.Build()}
}

// violationsOf tells violations without a line.
func violationsOf(name string, err error) []string {
	wrong, ok := errors.AsType[*protovalidate.ValidationError](err)
	if !ok {
		return []string{fmt.Sprintf("%s: %v", name, err)}
	}
	var all []string
	for _, v := range wrong.Violations {
		all = append(all, fmt.Sprintf("%s: %s: %s", name, protovalidate.FieldPathString(v.Proto.GetField()), v.Proto.GetMessage()))
	}
	return all
}

// repeatedKeys finds keys that stand twice in one mapping, which the YAML
// reader would let pass with the last one winning.
func repeatedKeys(name string, node *yaml.Node) []string {
	var all []string
	if node.Kind == yaml.MappingNode {
		first := map[string]int{}
		for i := 0; i < len(node.Content); i += 2 {
			key := node.Content[i]
			if line, ok := first[key.Value]; ok {
				all = append(all, fmt.Sprintf("%s:%d:%d %q stands here twice, first in line %d",
					name, key.Line, key.Column, key.Value, line))
				continue
			}
			first[key.Value] = key.Line
		}
	}
	for _, child := range node.Content {
		all = append(all, repeatedKeys(name, child)...)
	}
	return all
}

// plainLines ends all lines with a line feed, as those who count them take for granted: the YAML reader knows further
// breaks. The problem is empty where that can be done.
func plainLines(data []byte, name string) (plain []byte, problem string) {
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	problemAt := func(at int, what string) string {
		return fmt.Sprintf("%s:%d: %s", name, 1+bytes.Count(data[:at], []byte("\n")), what)
	}
	if !utf8.Valid(data) {
		return nil, problemAt(textLength(data), "the file is not UTF-8 text")
	}
	if at := bytes.IndexAny(data, "\u0085\u2028\u2029"); at >= 0 {
		return nil, problemAt(at, `a line break that is no line feed; in a quoted text write \N, \L or \P`)
	}
	return data, ""
}

var yamlLine = regexp.MustCompile(`^yaml: line (\d+): `)

// syntaxError gives an error of the YAML reader the form of the others. The reader tells no line where it is the first,
// or where it met something that is no text.
func syntaxError(name string, data []byte, err error) string {
	if text, ok := aliasError(name, data, err); ok {
		return text
	}
	text := err.Error()
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ := strconv.Atoi(m[1]) // digits
		return fmt.Sprintf("%s:%s: %s%s", name, m[1], strings.TrimPrefix(text, m[0]), tabHint(data, line))
	}
	return fmt.Sprintf("%s:%d: %s", name, 1+bytes.Count(data[:textLength(data)], []byte("\n")), strings.TrimPrefix(text, "yaml: "))
}

// textLength is how much of data is text, before something that is none; 0 if all of it is.
func textLength(data []byte) int {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 || unicode.IsControl(r) && !strings.ContainsRune("\t\n", r) {
			return at
		}
		at += size
	}
	return 0
}

// lines is what protoyaml says, one string an error; each shows its line.
func lines(err error) []string {
	if err == nil {
		return nil
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	var texts []string
	for _, e := range all {
		texts = append(texts, withSuggestion(strings.TrimRight(e.Error(), "\n")))
	}
	return texts
}

// position is the line:column a problem of a file begins with.
func position(name, problem string) string {
	at, _, _ := strings.Cut(strings.TrimPrefix(problem, name+":"), " ")
	return at
}

// lineOf is the line a problem begins with; problems without one come first.
func lineOf(name, problem string) int {
	line, _, _ := strings.Cut(position(name, problem), ":")
	n, err := strconv.Atoi(line)
	if err != nil {
		return 0
	}
	return n
}
