package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"
)

// The arguments of a call are shown to a person who answers for them, so the
// rendering keeps one promise: two arguments that differ look different. Values
// are shown decoded (an escape that spells "rm" reads rm), numbers as they were
// written, fields in their order, and what cannot be seen as an escape.

// argumentLines shows arguments field by field, in lines that are safe to
// print: a name, and its value as JSON. A text of several lines stands below its
// name, behind a mark that no text can imitate, with the escapes of JSON.
// Text that is no JSON object, or cannot be decoded without loss, is shown as a
// text itself.
func argumentLines(text string) []string { return fieldLines(text, maxNameWidth) }

// fieldLines is argumentLines with values aligned up to a width of the names.
func fieldLines(text string, most int) []string {
	object, err := parseArguments(text)
	if err != nil {
		return marked("text | ", strings.ReplaceAll(text, `\`, `\\`))
	}
	if len(object.items) == 0 {
		return []string{"no arguments: {}"}
	}
	names, width := make([]string, len(object.items)), 0
	for i, key := range object.keys {
		names[i] = fieldName(key)
		width = max(width, columns(names[i]))
	}
	var lines []string
	width = min(width, most)
	for i, item := range object.items {
		lines = append(lines, item.field(pad(names[i], width), width)...)
	}
	return lines
}

const (
	maxNameWidth = 20 // columns up to which the values of fields are aligned
	compactWidth = 72 // columns up to which an object or array stands on one line
)

// marked is the lines of a text, each behind a mark.
func marked(mark, text string) []string {
	var lines []string
	for line := range strings.SplitSeq(text, "\n") {
		lines = append(lines, mark+safeLine(line))
	}
	return lines
}

// value is a JSON value: a scalar as it is shown, or an object or array.
type value struct {
	shown string // of a scalar; of a string the JSON string, quotes included
	text  string // of a string the decoded text
	open  string // "{" or "[", empty for a scalar
	keys  []string
	items []*value
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// fieldName is the name of a field: as it is where nothing about it can be
// misread, else as a JSON string.
func fieldName(key string) string {
	if plainName.MatchString(key) {
		return key
	}
	return quote(key)
}

// quote is the JSON string of a text, safe to print. Different texts have
// different ones.
func quote(text string) string { return `"` + safeLine(quoteEscapes.Replace(text)) + `"` }

var quoteEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// field is the lines of one field of the arguments.
func (v *value) field(name string, width int) []string {
	switch {
	case v.open == "" && strings.Contains(v.text, "\n"):
		head := fmt.Sprintf("%s  %s, %s:", name, count(1+strings.Count(v.text, "\n"), "line", "lines"), count(len(v.text), "byte", "bytes"))
		return append([]string{head}, marked("  | ", strings.ReplaceAll(v.text, `\`, `\\`))...)
	case v.open == "" || columns(v.compact()) <= compactWidth:
		return []string{name + "  " + v.compact()}
	}
	return v.pretty(name+"  ", strings.Repeat(" ", width+2), nil)
}

// compact is a value on one line.
func (v *value) compact() string {
	if v.open == "" {
		return v.shown
	}
	parts := make([]string, len(v.items))
	for i, item := range v.items {
		parts[i] = item.compact()
		if v.open == "{" {
			parts[i] = quote(v.keys[i]) + ": " + parts[i]
		}
	}
	return v.open + strings.Join(parts, ", ") + v.end()
}

func (v *value) end() string {
	if v.open == "{" {
		return "}"
	}
	return "]"
}

// pretty adds a value on several lines, the first behind head, the others
// behind indent.
func (v *value) pretty(head, indent string, lines []string) []string {
	if v.open == "" || len(v.items) == 0 {
		return append(lines, head+v.compact())
	}
	lines = append(lines, head+v.open)
	for i, item := range v.items {
		name := indent + "  "
		if v.open == "{" {
			name += quote(v.keys[i]) + ": "
		}
		lines = item.pretty(name, indent+"  ", lines)
		if i < len(v.items)-1 {
			lines[len(lines)-1] += ","
		}
	}
	return append(lines, indent+v.end())
}

var (
	errNoObject = errors.New("the arguments are no JSON object")
	errLossy    = errors.New("the arguments have a text that cannot be decoded")
)

// parseArguments reads JSON text without losing anything that a value has.
func parseArguments(text string) (*value, error) {
	if !json.Valid([]byte(text)) {
		return nil, errNoObject
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	v, err := parseValue(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) || v.open != "{" {
		return nil, errNoObject
	}
	return v, nil
}

func parseValue(dec *json.Decoder) (*value, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Delim:
		return parseItems(dec, t.String())
	case string:
		// What could not be decoded is this character now, and it is not known what it was.
		if strings.ContainsRune(t, utf8.RuneError) {
			return nil, errLossy
		}
		return &value{shown: quote(t), text: t}, nil
	case json.Number:
		return &value{shown: t.String()}, nil
	case bool:
		return &value{shown: fmt.Sprint(t)}, nil
	}
	return &value{shown: "null"}, nil
}

func parseItems(dec *json.Decoder, open string) (*value, error) {
	v := &value{open: open}
	for dec.More() {
		if open == "{" {
			key, err := parseValue(dec)
			if err != nil {
				return nil, err
			}
			v.keys = append(v.keys, key.text)
		}
		item, err := parseValue(dec)
		if err != nil {
			return nil, err
		}
		v.items = append(v.items, item)
	}
	_, err := dec.Token()
	return v, err
}

// shorten keeps the head and the tail of lines, and of each line, for a first
// look; what is answered is always shown whole.
func shorten(lines []string) []string {
	const (
		headLines, tailLines = 30, 10
		headChars, tailChars = 800, 300
	)
	left := 0
	if len(lines) > headLines+tailLines+1 {
		left = len(lines) - headLines - tailLines
	}
	var all []string
	for i, line := range lines {
		if left > 0 && i == headLines {
			all = append(all, fmt.Sprintf("⋯ %d lines are not shown here ⋯", left))
		}
		if left > 0 && i >= headLines && i < headLines+left {
			continue
		}
		if runes := []rune(line); len(runes) > headChars+tailChars+50 {
			line = fmt.Sprintf("%s ⋯ %d characters are not shown here ⋯ %s", string(runes[:headChars]),
				len(runes)-headChars-tailChars, string(runes[len(runes)-tailChars:]))
		}
		all = append(all, line)
	}
	return all
}

// prettyArguments is JSON text laid out for an editor; values, their order and
// their spelling stay.
func prettyArguments(text string) string {
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(text), "", "  "); err != nil {
		return text
	}
	return out.String()
}

// compactArguments is JSON text without blanks between its tokens.
func compactArguments(text string) string {
	var out bytes.Buffer
	if err := json.Compact(&out, []byte(text)); err != nil {
		return text
	}
	return out.String()
}

// checkArguments says where text is not one JSON object. What the daemon wants
// besides, it says itself.
func checkArguments(text string) error {
	var object map[string]json.RawMessage
	err := json.Unmarshal([]byte(text), &object)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		line, column := position(text, int(syntax.Offset))
		return fmt.Errorf("line %d, column %d: %w", line, column, err)
	}
	if err != nil || object == nil {
		return errNoObject
	}
	return nil
}

// position is the line and column, from 1, of the byte before an offset.
func position(text string, offset int) (line, column int) {
	before := text[:min(max(offset-1, 0), len(text))]
	return 1 + strings.Count(before, "\n"), 1 + utf8.RuneCountInString(before[strings.LastIndexByte(before, '\n')+1:])
}
