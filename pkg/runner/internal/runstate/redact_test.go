package runstate

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const jwtSample = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"

func TestRedactText(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":                     {"all tokens: 12, password policy, a secret garden", "all tokens: 12, password policy, a secret garden"},
		"bearer":                      {"Authorization: Bearer abcdef.12345 and on", "Authorization: Bearer [redacted] and on"},
		"bearer, lower case":          {"bearer  abcdefgh", "bearer  [redacted]"},
		"bearer, short":               {"Bearer abcdefg", "Bearer abcdefg"},
		"bearer, a JWT":               {"Bearer " + jwtSample, "Bearer [redacted]"},
		"sk":                          {"key sk-proj_abc-123DEF, next", "key [redacted], next"},
		"sk inside a word":            {"task-manager-service disk-usage", "task-manager-service disk-usage"},
		"api_key":                     {"?api_key=abc&x=1", "?api_key=[redacted]&x=1"},
		"api-key, upper case":         {"API-KEY = abc;", "API-KEY = [redacted];"},
		"token":                       {"access_token=ab/c+d== tail", "access_token=[redacted] tail"},
		"secret":                      {"client_secret='a b' tail", "client_secret='[redacted]' tail"},
		"password":                    {`password="a\"b" tail`, `password="[redacted]" tail`},
		"password at the end":         {"password=", "password="},
		"password, other characters":  {"password=pässwörd\nnext", "password=[redacted]\nnext"},
		"JSON member":                 {`{"password": "hunter2", "n": 1}`, `{"password": "[redacted]", "n": 1}`},
		"JSON in JSON":                {`"{\"api_key\":\"abc\",\"n\":1}"`, `"{\"api_key\":\"[redacted]\",\"n\":1}"`},
		"JSON number of tokens":       {`{"input_tokens": 12}`, `{"input_tokens": 12}`},
		"a parser's message":          {"unexpected token: }", "unexpected token: }"},
		"JWT":                         {"got " + jwtSample + ".", "got [redacted-JWT]."},
		"host name, no JWT":           {"a.b.c and aaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbb", "a.b.c and aaaaaaaaaaaaaaaaaaaa.bbbbbbbbbbbbbbbbbbbb"},
		"AKIA":                        {"AKIAIOSFODNN7EXAMPLE!", "[redacted]!"},
		"AKIA, short":                 {"AKIAIOSFODNN7", "AKIAIOSFODNN7"},
		"ghp":                         {"ghp_0123456789abcdefghij", "[redacted]"},
		"ghp, short":                  {"ghp_0123456789abcdefghi", "ghp_0123456789abcdefghi"},
		"github_pat":                  {"x github_pat_11AAAAAAA0123456789_ab y", "x [redacted] y"},
		"several":                     {"token=a token=b sk-aaaaaaaa", "token=[redacted] token=[redacted] [redacted]"},
		"quote that is never closed":  {`token="abc`, `token="[redacted]`},
		"pair of a bearer":            {"token=Bearer abcdef.12345 on", "token=[redacted] on"},
		"secret right after a secret": {"AKIAIOSFODNN7EXAMPLEghp_0123456789abcdefghij", "[redacted][redacted]"},
		"value in JSON in JSON":       {`{\"url\":\"/?token=abc\"}`, `{\"url\":\"/?token=[redacted]\"}`},
		"backslash at the very end":   {`token="abc\`, `token="[redacted]`},
	} {
		t.Run("T-185 "+name, func(t *testing.T) {
			t.Parallel()
			got := RedactText(tc.text)
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
			if again := RedactText(got); again != got {
				t.Errorf("done again: %q", again)
			}
		})
	}
	for name, text := range map[string]string{
		"ASCII": strings.Repeat("x", 30_000),
		"other": strings.Repeat("😀", 30_000),
	} {
		t.Run("T-186 cut, "+name, func(t *testing.T) {
			t.Parallel()
			got := RedactText(text)
			if head, cut := strings.CutSuffix(got, "[truncated]"); !cut || utf8.RuneCountInString(head) != 20_000 || !utf8.ValidString(got) {
				t.Errorf("%d characters, end %q", utf8.RuneCountInString(got), got[len(got)-20:])
			}
			if RedactText(got) != got {
				t.Error("done again it changes")
			}
			whole := text[:len(text)/3*2]
			if RedactText(whole) != whole {
				t.Error("20000 characters are cut")
			}
		})
	}
	t.Run("T-186 a secret at the cut", func(t *testing.T) {
		t.Parallel()
		got := RedactText(strings.Repeat("x", 19_989) + " ghp_0123456789abcdefghij")
		if strings.Contains(got, "ghp_") {
			t.Errorf("end %q", got[len(got)-40:])
		}
	})
}

func FuzzRedactText(f *testing.F) {
	for _, seed := range []string{"", "token=", `password="\`, "Bearer " + jwtSample, `\"token\":\"`, "api-key='x", "sk-ghp_AKIA"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := RedactText(text)
		if utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Fatalf("%q becomes %q", text, got)
		}
		if again := RedactText(got); again != got {
			t.Fatalf("%q becomes %q, and %q when done again", text, got, again)
		}
	})
}

// messages gives every message of the contract: those that events hold, and those that travel.
func messages(t *testing.T) []protoreflect.MessageDescriptor {
	t.Helper()
	seen := make(map[protoreflect.FullName]bool)
	var list []protoreflect.MessageDescriptor
	var add func(protoreflect.MessageDescriptor)
	add = func(m protoreflect.MessageDescriptor) {
		if seen[m.FullName()] || !strings.HasPrefix(string(m.FullName()), "runnerd.") {
			return
		}
		seen[m.FullName()] = true
		list = append(list, m)
		for i := range m.Fields().Len() {
			if field := m.Fields().Get(i); field.Message() != nil && !field.IsMap() {
				add(field.Message())
			} else if field.IsMap() && field.MapValue().Message() != nil {
				add(field.MapValue().Message())
			}
		}
	}
	add((*runnerdv1.Event)(nil).ProtoReflect().Descriptor())
	for _, file := range []protoreflect.FileDescriptor{
		runnerdv1.File_runnerd_v1_run_service_proto, runnerdv1.File_runnerd_v1_audit_service_proto,
		runnerdv1.File_runnerd_v1_decide_service_proto, runnerdv1.File_runnerd_v1_tool_host_service_proto,
	} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				add(methods.Get(j).Input())
				add(methods.Get(j).Output())
			}
		}
	}
	if len(list) < 50 {
		t.Fatalf("only %d messages", len(list))
	}
	return list
}

func TestEveryFieldHasARedaction(t *testing.T) {
	t.Parallel()
	for _, m := range messages(t) {
		for i := range m.Fields().Len() {
			field := m.Fields().Get(i)
			kinds := []protoreflect.FieldDescriptor{field}
			if field.IsMap() {
				kinds = []protoreflect.FieldDescriptor{field.MapKey(), field.MapValue()}
			}
			for _, kind := range kinds {
				if kind.Kind() != protoreflect.StringKind && kind.Kind() != protoreflect.BytesKind {
					continue
				}
				if proto.GetExtension(field.Options(), runnerdv1.E_Redaction) == runnerdv1.Redaction_REDACTION_UNSPECIFIED {
					t.Errorf("%s says nothing about redaction", field.FullName())
				}
			}
		}
	}
}

// canary fills every string and bytes field below a message with its own name and a mark, and gives what each says about
// redaction; bytes are as good as hidden unless they are shown as they are. Lists get two entries.
func canary(m protoreflect.Message, path string, depth int, marks map[string]runnerdv1.Redaction) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if field.ContainingOneof() != nil && !field.ContainingOneof().IsSynthetic() && m.WhichOneof(field.ContainingOneof()) != nil {
			continue // the oneof is taken
		}
		fill(m, field, path+"."+string(field.Name()), depth, marks)
	}
}

func fill(m protoreflect.Message, field protoreflect.FieldDescriptor, path string, depth int, marks map[string]runnerdv1.Redaction) {
	mark := fmt.Sprintf("<%s>", path)
	redaction := redactionOf(field)
	var leaf protoreflect.Value
	kind := field
	if field.IsMap() {
		kind = field.MapValue()
	}
	switch kind.Kind() {
	case protoreflect.StringKind:
		leaf, marks[mark] = protoreflect.ValueOfString(mark), redaction
	case protoreflect.BytesKind:
		leaf, marks[mark] = protoreflect.ValueOfBytes([]byte(mark)), runnerdv1.Redaction_REDACTION_HIDDEN
		if redaction == runnerdv1.Redaction_REDACTION_PLAIN {
			marks[mark] = redaction
		}
	case protoreflect.MessageKind:
		if depth == 0 {
			return
		}
	default:
		return
	}
	switch {
	case field.IsMap():
		m.Mutable(field).Map().Set(protoreflect.ValueOfString("<key "+path+">").MapKey(), leaf)
		marks["<key "+path+">"] = redaction
	case field.IsList() && leaf.IsValid():
		m.Mutable(field).List().Append(protoreflect.ValueOfString("-"))
		m.Mutable(field).List().Append(leaf)
	case field.IsList():
		canary(m.Mutable(field).List().AppendMutable().Message(), path, depth-1, marks)
	case leaf.IsValid():
		m.Set(field, leaf)
	default:
		canary(m.Mutable(field).Message(), path, depth-1, marks)
	}
}

func TestRedactShowsOnlyWhatItMay(t *testing.T) {
	t.Parallel()
	redacted := func(r runnerdv1.Redaction) bool { // the marks are no JSON
		return r != runnerdv1.Redaction_REDACTION_HIDDEN && r != runnerdv1.Redaction_REDACTION_ARGUMENTS
	}
	plain := func(r runnerdv1.Redaction) bool { return r == runnerdv1.Redaction_REDACTION_PLAIN }
	checkOne := func(t *testing.T, m proto.Message, marks map[string]runnerdv1.Redaction, redact func(proto.Message) proto.Message, may func(runnerdv1.Redaction) bool) {
		t.Helper()
		before := proto.Clone(m)
		public := redact(m)
		if !proto.Equal(m, before) {
			t.Error("the input is changed")
		}
		wire, err := proto.Marshal(public)
		if err != nil {
			t.Fatal(err)
		}
		for mark, redaction := range marks {
			if seen := strings.Contains(string(wire), mark); seen != may(redaction) {
				t.Errorf("%s: seen %t, may be seen %t", mark, seen, may(redaction))
			}
		}
		if again := redact(public); again != public {
			t.Error("done again it changes")
		}
	}
	check := func(t *testing.T, m proto.Message, marks map[string]runnerdv1.Redaction) {
		t.Helper()
		checkOne(t, m, marks, RedactMessage, redacted)
		checkOne(t, m, marks, OutlineMessage, plain)
	}
	payloads := (*runnerdv1.Event)(nil).ProtoReflect().Descriptor().Oneofs().ByName("payload").Fields()
	for i := range payloads.Len() {
		payload := payloads.Get(i)
		t.Run(string(payload.Name()), func(t *testing.T) {
			t.Parallel()
			ev, marks := &runnerdv1.Event{}, make(map[string]runnerdv1.Redaction)
			fill(ev.ProtoReflect(), payload, "event", 6, marks)
			canary(ev.ProtoReflect(), "event", 6, marks)
			check(t, ev, marks)
		})
	}
	for _, m := range []proto.Message{
		&runnerdv1.Run{}, &runnerdv1.Checkpoint{}, &runnerdv1.ListToolsResponse{}, &runnerdv1.VerifyAuditResponse{},
	} {
		t.Run(string(m.ProtoReflect().Descriptor().Name()), func(t *testing.T) {
			t.Parallel()
			marks := make(map[string]runnerdv1.Redaction)
			canary(m.ProtoReflect(), "m", 6, marks)
			check(t, m, marks)
		})
	}
	t.Run("labels stay", func(t *testing.T) {
		t.Parallel()
		run := &runnerdv1.Run{RunId: "r", Labels: map[string]string{"a": "b"}}
		if RedactRun(run) != run || OutlineMessage(run) != run {
			t.Error("too much is hidden")
		}
	})
}

func TestRedact(t *testing.T) {
	t.Parallel()
	t.Run("nothing to hide: the event itself", func(t *testing.T) {
		t.Parallel()
		ev := event(3, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallStarted{ToolCallStarted: &runnerdv1.ToolCallStarted{CallId: "1.1", ToolName: "read"}}})
		if Redact(ev) != ev {
			t.Error("a copy")
		}
		var none *runnerdv1.Event
		if Redact(none) != none {
			t.Error("something of nothing")
		}
	})
	t.Run("what is the same is shared", func(t *testing.T) {
		t.Parallel()
		refs := []*runnerdv1.ArtifactRef{{ArtifactId: "a"}, {ArtifactId: "b"}}
		ev := event(3, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallCompleted{ToolCallCompleted: &runnerdv1.ToolCallCompleted{
			CallId: "1.1", Text: "the result, token=abc", StructuredJson: `{"a":1}`, Artifacts: refs,
		}}})
		public := Redact(ev).GetToolCallCompleted()
		if public.GetText() != "the result, token=[redacted]" || public.GetStructuredJson() != `{"a":1}` || public.GetCallId() != "1.1" {
			t.Errorf("got %v", public)
		}
		if public.GetArtifacts()[0] != refs[0] {
			t.Error("unchanged messages are copied")
		}
		if ev.GetToolCallCompleted().GetText() != "the result, token=abc" {
			t.Error("the input is changed")
		}
	})
	t.Run("one of a list changes", func(t *testing.T) {
		t.Parallel()
		findings := []*runnerdv1.Finding{{Message: "plain"}, {Message: "token=abc"}, {Message: "plain too"}}
		ev := event(2, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolsPinned{ToolsPinned: &runnerdv1.ToolsPinned{Findings: findings}}})
		got := Redact(ev).GetToolsPinned().GetFindings()
		if len(got) != 3 || got[0] != findings[0] || got[1].GetMessage() != "token=[redacted]" || got[2] != findings[2] {
			t.Errorf("got %v", got)
		}
		if findings[1].GetMessage() != "token=abc" {
			t.Error("the input is changed")
		}
	})
	t.Run("an empty argument text stays empty", func(t *testing.T) {
		t.Parallel()
		ev := event(5, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallRequested{ToolCallRequested: &runnerdv1.ToolCallRequested{
			CallId: "1.1", ArgumentsRaw: "", ArgumentsJson: new("[no JSON}"),
		}}})
		public := Redact(ev).GetToolCallRequested()
		if public.GetArgumentsRaw() != "" || public.GetArgumentsJson() != "[redacted]" {
			t.Errorf("got %v", public)
		}
	})
	t.Run("fields of a later version are left out", func(t *testing.T) {
		t.Parallel()
		ev := event(3, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallStarted{ToolCallStarted: &runnerdv1.ToolCallStarted{CallId: "1.1"}}})
		later := protowire.AppendTag(nil, 900, protowire.BytesType)
		later = protowire.AppendString(later, "<later>")
		ev.GetToolCallStarted().ProtoReflect().SetUnknown(later)
		wire, err := proto.Marshal(Redact(ev))
		if err != nil || strings.Contains(string(wire), "<later>") {
			t.Errorf("got %q, %v", wire, err)
		}
		if len(ev.GetToolCallStarted().ProtoReflect().GetUnknown()) == 0 {
			t.Error("the input is changed")
		}
	})
}

func BenchmarkRedact(b *testing.B) {
	for name, ev := range map[string]*runnerdv1.Event{
		"started":         event(6, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallStarted{ToolCallStarted: &runnerdv1.ToolCallStarted{CallId: "1.1", Host: "h", Tool: "t"}}}),
		"completed":       event(7, &runnerdv1.Event{Payload: &runnerdv1.Event_ToolCallCompleted{ToolCallCompleted: &runnerdv1.ToolCallCompleted{CallId: "1.1", Text: "hello"}}}),
		"decision, 1 KiB": event(4, &runnerdv1.Event{Payload: &runnerdv1.Event_DecisionMade{DecisionMade: &runnerdv1.DecisionMade{Text: strings.Repeat("a token of thanks, ", 54)}}}),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Redact(ev)
			}
		})
	}
	text := strings.Repeat("a token of thanks. ", 20_000/19)
	b.Run("text, 20 KB", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			RedactText(text)
		}
	})
}

// What a model, a host or a caller writes at will is text, also where it is meant to be a name.
func TestRedactNamesThatOthersWrite(t *testing.T) {
	t.Parallel()
	const secret = "sk-0123456789"
	ref := &runnerdv1.ArtifactRef{ArtifactId: "a", MimeType: secret}
	for _, m := range []proto.Message{
		&runnerdv1.ToolCallRequested{ProviderCallId: secret, ToolName: secret, ArgumentsRef: ref},
		&runnerdv1.HistoryEntry{Entry: &runnerdv1.HistoryEntry_Observation{Observation: &runnerdv1.Observation{
			ProviderCallId: secret, ToolName: secret, TextRef: ref,
		}}},
		&runnerdv1.DecisionEntry{Calls: []*runnerdv1.CallEntry{{ProviderCallId: secret, ToolName: secret, ArgumentsRef: ref}}},
		&runnerdv1.RunSpec{
			Policy: []*runnerdv1.PolicyLayer{{
				Deny: []*runnerdv1.DenyRule{{Arguments: map[string]string{"command": secret}}}, Paths: &runnerdv1.PathRules{Workspace: "/" + secret},
			}},
			Plan: &runnerdv1.PlanContract{ContentHash: secret, FileTargets: []string{secret}},
		},
	} {
		for view, shown := range map[string]proto.Message{"redacted": RedactMessage(m), "outline": OutlineMessage(m)} {
			if text := prototext.Format(shown); strings.Contains(text, secret) || view == "outline" && strings.Contains(text, hidden) {
				t.Errorf("%s: %s", view, text)
			}
		}
	}
}
