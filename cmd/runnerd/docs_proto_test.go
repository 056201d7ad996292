package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
)

// protoMessage is a message of a proto file, with its comments: descriptors in
// Go have none. It reads what buf format writes.
type protoMessage struct {
	name, comment string
	fields        []protoField
}

type protoField struct {
	name, kind, comment, oneof string
}

var (
	protoOpen  = regexp.MustCompile(`^(message|oneof) (\w+) \{(\})?`)
	protoEntry = regexp.MustCompile(`^(?:optional |repeated )?([\w.]+|map<\w+, [\w.]+>) (\w+) = \d+`)
)

func readProto(t *testing.T, file string) map[string]protoMessage {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "proto", file))
	if err != nil {
		t.Fatal(err)
	}
	messages := map[string]protoMessage{}
	var current *protoMessage
	oneof, depth, oneofDepth := "", 0, 0
	var comments []string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch m, f := protoOpen.FindStringSubmatch(line), protoEntry.FindStringSubmatch(line); {
		case strings.HasPrefix(line, "//"):
			comments = append(comments, strings.TrimSpace(strings.TrimPrefix(line, "//")))
			continue
		case m != nil && m[1] == "message":
			current = &protoMessage{name: m[2], comment: strings.Join(comments, " ")}
		case m != nil:
			oneof, oneofDepth = m[2], depth+1
		case f != nil && current != nil && depth == fieldDepth(oneof):
			repeated := ""
			if strings.HasPrefix(line, "repeated") {
				repeated = "list of "
			}
			current.fields = append(current.fields, protoField{f[2], repeated + f[1], strings.Join(comments, " "), oneof})
		}
		comments = nil
		depth += strings.Count(line, "{") - strings.Count(line, "}")
		if oneof != "" && depth < oneofDepth {
			oneof = ""
		}
		if depth == 0 && current != nil {
			messages[current.name] = *current
			current = nil
		}
	}
	return messages
}

// documentedMessages is a reference of the messages of a proto file: the first
// argument is the file, the others name messages.
func documentedMessages(t *testing.T, argument string) string {
	t.Helper()
	words := strings.Fields(argument)
	messages := readProto(t, words[0])
	var out strings.Builder
	for _, name := range words[1:] {
		m, ok := messages[name]
		if !ok {
			t.Fatalf("%s has no message %s", words[0], name)
		}
		fmt.Fprintf(&out, "\n### %s\n\n%s\n\n| field | type | meaning |\n| --- | --- | --- |\n", m.name, escapeHTML(m.comment))
		for _, f := range m.fields {
			fmt.Fprintf(&out, "| `%s` | %s | %s |\n", f.name, shortKind(f.kind), cell(f.comment))
		}
	}
	return out.String() + "\n"
}

// cell is a text in a table.
func cell(text string) string { return strings.ReplaceAll(escapeHTML(text), "|", `\|`) }

func escapeHTML(text string) string { return strings.ReplaceAll(text, "<", "&lt;") }

// shortKind is a type as people say it.
func shortKind(kind string) string {
	kind = strings.NewReplacer("google.protobuf.Duration", "duration", "google.protobuf.Timestamp", "time",
		"runnerd.v1.", "").Replace(kind)
	return "`" + kind + "`"
}

// documentedEvents is a reference of all events, in the order of their numbers.
func documentedEvents(t *testing.T, _ string) string {
	t.Helper()
	messages := readProto(t, "runnerd/v1/event.proto")
	var out strings.Builder
	for _, kind := range messages["Event"].fields {
		if kind.oneof == "payload" {
			writePayload(&out, kind.name, messages[kind.kind])
		}
	}
	return out.String() + "\n"
}

// documentedSignals is the same for signals.
func documentedSignals(t *testing.T, _ string) string {
	t.Helper()
	messages := readProto(t, "runnerd/v1/run_service.proto")
	var out strings.Builder
	for _, kind := range messages["Signal"].fields {
		if kind.oneof == "payload" {
			writePayload(&out, kind.name, messages[kind.kind])
		}
	}
	return out.String() + "\n"
}

func writePayload(out *strings.Builder, name string, m protoMessage) {
	_, rest, _ := strings.Cut(m.comment, " ") // the name of the message
	if strings.HasPrefix(rest, "is ") {
		rest = "this " + rest
	}
	fmt.Fprintf(out, "\n### %s\n\n%s%s\n\n| field | type | meaning |\n| --- | --- | --- |\n",
		name, strings.ToUpper(rest[:1]), escapeHTML(rest[1:]))
	for _, f := range m.fields {
		fmt.Fprintf(out, "| `%s` | %s | %s |\n", f.name, shortKind(f.kind), cell(f.comment))
	}
}

// documentedSettings lists what the environment and flags can set.
func documentedSettings(*testing.T, string) string {
	var out strings.Builder
	out.WriteString("\n| field | variable | flag |\n| --- | --- | --- |\n")
	for _, field := range config.Fields() {
		fmt.Fprintf(&out, "| `%s` | `%s` | `--%s` |\n", field, config.EnvName(field), flagName(field))
	}
	return out.String() + "\n"
}

// documentedFileFormat is the documentation of the store, which its author
// keeps beside the code.
func documentedFileFormat(t *testing.T, _ string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(repository, "pkg/auditstore/doc.go"), nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	groups := slices.SortedFunc(slices.Values(file.Comments), func(a, b *ast.CommentGroup) int {
		return cmp.Compare(b.End()-b.Pos(), a.End()-a.Pos())
	})
	p := comment.Parser{LookupSym: func(_, name string) bool { return token.IsExported(name) }}
	printer := comment.Printer{
		HeadingLevel: 2,
		HeadingID:    func(*comment.Heading) string { return "" },
		DocLinkURL:   func(*comment.DocLink) string { return "../pkg/auditstore" },
	}
	return "\n" + string(printer.Markdown(p.Parse(groups[0].Text()))) + "\n"
}

func TestProtoReaderSeesAllFields(t *testing.T) {
	t.Parallel()
	fields := payloadOf(&runnerdv1.Event{}).Fields()
	var want, got []string
	for i := range fields.Len() {
		want = append(want, string(fields.Get(i).Name()))
	}
	for _, f := range readProto(t, "runnerd/v1/event.proto")["Event"].fields {
		if f.oneof == "payload" {
			got = append(got, f.name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// fieldDepth is how deep in braces a field stands; deeper are its options.
func fieldDepth(oneof string) int {
	if oneof != "" {
		return 2
	}
	return 1
}
