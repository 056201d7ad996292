package runstate

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const testWorkspace = "/work/ws"

// aPath is a call with one path, in an argument that says so by its name or does not.
func aPath(t testing.TB, argument, path string) *subject {
	t.Helper()
	text, err := json.Marshal(map[string]string{argument: path})
	if err != nil {
		t.Fatal(err)
	}
	return subjectOf(t, &runnerdv1.Tool{Host: "h", Name: "read", OfferedName: "read"}, string(text))
}

func confine(t testing.TB, workspace, argument, path string) *objection {
	t.Helper()
	return pathGate(&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: workspace}}, aPath(t, argument, path))
}

// escapes are ways to write a path that leads out of its workspace, for a reader who is careless in one way or
// another. All are below 4096 bytes.
func escapes() []string {
	ups := []string{
		"..", "%2e%2e", ".%2e", "%2E.", "\uFF0E\uFF0E", ".\uFF0E", "\u2025", "\u2024\u2024", "%c0%ae%c0%ae", "%e0%80%ae.",
		"\uFF052e\uFF052e", "%EF%BC%8E%EF%BC%8E", "\uFE52\uFE52",
	}
	slashes := []string{
		"/", "//", "/./", `\`, `\\`, "%2f", "%2F", "%5c", "\uFF0F", "\uFF3C", "\u2044", "\u2215", "\u29F8", "\u2216", "\uFE68",
		"%c0%af", "%EF%BC%8F", `/\`,
	}
	forms := [][]string{
		{"UP", "x"},
		{"UP", "UP", "etc", "passwd"},
		{"a", "UP", "UP", "x"},
		{".", "UP", "x"},
		{"a", "b", "UP", "UP", "UP"},
		{"a", "UP", "b", "UP", "UP", "work", "other"},
	}
	var all []string
	for _, up := range ups {
		for _, slash := range slashes {
			for _, form := range forms {
				path := strings.ReplaceAll(strings.Join(form, slash), "UP", up)
				all = append(all, path, "./"+path, path+slash)
			}
		}
	}
	return all
}

// elsewhere are paths that begin in another place than the workspace.
var elsewhere = []string{
	"/", "/etc/passwd", "//etc/passwd", "///etc/passwd", "/work", "/work/", "/work/wsx", "/work/ws2/a", "/work/ws/../x",
	"/work/ws/../../etc/passwd", "/WORK/ws/a", "/work/WS/a", "//work/ws/a", "/work\u2215ws", "/proc/self/root/etc/passwd",
	"~", "~/x", "~root/x", `~\x`, "%7e/x", "\uFF5E/x", `\etc\passwd`, `\work\ws2`, "%2fetc%2fpasswd", "\uFF0Fetc",
	`C:\x`, "C:/x", "c:x", "C:", `\\host\share`, "//host/share", `\\?\C:\x`, `\\.\pipe\x`, "file:///etc/passwd",
	"file:/etc/passwd", "FILE:///etc/passwd", "file:x", "file://host/share", "view-source:file:///etc/passwd",
	"jar:file:/x.jar!/y", "http://example.org/x", "ftp://example.org/x", "smb://host/share", "vscode-remote://x/y",
	"%66ile:///etc/passwd", "http:/x",
}

// fine are paths beneath the workspace that must not be refused.
var fine = []string{
	"", ".", "./", "a", "a/b", "./a", "a//b", "a/./b", "a/../b", "a/b/../../c", "a b/c d.txt", "größe/日本語.txt", "e\u0301/x",
	"a..b/c", "..a", "a../b", "...", "./...", "a/.../b", "file..txt", ".hidden/x", "a%20b/c", "100%", "100%/x", "%zz/x", "a~b", "a/~",
	"notes:today", "v1.2/x", "a+b=c&d", "/work/ws", "/work/ws/", "/work/ws/a", "/work/ws/a/../b", "/work/./ws/a", "/work/ws/größe",
	"///work/ws/a", "CON", "node_modules/@scope/pkg/index.js", strings.Repeat("d/", 2000), strings.Repeat("n", 255),
}

func TestPathsLeadingOut(t *testing.T) {
	t.Parallel()
	all := escapes()
	if len(all) < 2000 {
		t.Fatalf("only %d spellings", len(all))
	}
	for _, path := range all {
		for _, workspace := range []string{testWorkspace, ""} {
			for _, argument := range []string{"path", "to"} { // by its name, and by its looks
				o := confine(t, workspace, argument, path)
				if o == nil || o.verdict != block || o.reason != runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE {
					t.Fatalf("%q in %q with workspace %q: got %+v, want it blocked", path, argument, workspace, o)
				}
			}
		}
	}
	for _, path := range elsewhere {
		if o := confine(t, testWorkspace, "path", path); o == nil || o.rule != "path:outside" {
			t.Errorf("%q: got %+v, want it outside", path, o)
		}
		if o := confine(t, "", "path", path); o != nil {
			t.Errorf("%q without a workspace: got %+v, want it not looked at", path, o)
		}
	}
	// What blanks at the ends of names mean depends on the file system. They make no text a path.
	for _, path := range []string{".. /x", " ../x", "a/. ./../x", "a/.. /.. /x", "\u00A0../x"} {
		if o := confine(t, testWorkspace, "path", path); o == nil {
			t.Errorf("%q is not blocked", path)
		}
	}
}

func TestPathsThatStayInside(t *testing.T) {
	t.Parallel()
	for _, path := range fine {
		if o := confine(t, testWorkspace, "path", path); o != nil {
			t.Errorf("%q: got %+v", path, o)
		}
		if !strings.HasPrefix(path, "/") {
			if o := confine(t, "", "path", path); o != nil {
				t.Errorf("%q without a workspace: got %+v", path, o)
			}
		}
	}
	// A workspace whose own name reads in several ways holds its paths all the same.
	for _, workspace := range []string{"/work/100%25", "/wörk/\uFF21", `/work/a\b`, "/work/a b", "/"} {
		for _, path := range []string{workspace + "/x", "x", "a/../x"} {
			if o := confine(t, workspace, "path", strings.Replace(path, "//", "/", 1)); o != nil {
				t.Errorf("%q beneath %q: got %+v", path, workspace, o)
			}
		}
	}
}

func TestUnclearPaths(t *testing.T) {
	t.Parallel()
	for _, r := range []rune{
		0x01, '\t', '\n', '\r', 0x1b, 0x7f, 0x85, 0xAD, 0x34F, 0x61C, 0x115F, 0x180E, 0x200B, 0x200C, 0x200D, 0x200E, 0x202A, 0x202E,
		0x2028, 0x2029, 0x2060, 0x2066, 0x2069, 0x3164, 0xFE0F, 0xFEFF, 0xFFA0, 0xFFFD, 0xE0020, 0xE0100,
	} {
		for _, path := range []string{"%ca/b", "a%c/b", "a/b%c"} {
			path = fmt.Sprintf(path, r)
			for _, workspace := range []string{testWorkspace, ""} {
				if o := confine(t, workspace, "path", path); o == nil || o.rule != "path:unclear" || !strings.Contains(o.message, fmt.Sprintf("%U", r)) {
					t.Errorf("%q: got %+v, want it unclear", path, o)
				}
			}
		}
	}
	for name, path := range map[string]string{
		"long":             strings.Repeat("a/", 2049),
		"long name":        "a/" + strings.Repeat("n", 256),
		"encoded NUL":      "a%00.png",
		"encoded newline":  "a%0a",
		"encoded bidi":     "a%E2%80%AEb",
		"encoded no UTF-8": "a%ff",
	} {
		if o := confine(t, "", "path", path); o == nil || o.rule != "path:unclear" {
			t.Errorf("%s: got %+v, want it unclear", name, o)
		}
		if o := confine(t, testWorkspace, "data", path); o != nil {
			t.Errorf("%s: a text that is no path by its name is blocked: %+v", name, o)
		}
	}
}

// Whatever a careful reader on Linux would do with an accepted path leads beneath the workspace.
func TestAcceptedPathsLieBeneath(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{
		"..", ".", "a", "", " ", "%2e", "%2f", "%5c", `\`, "~", ":", "C:", "...", "work", "ws", "\uFF0E", "\uFF0F", "%", "x", "file:",
	})
	rapid.Check(t, func(r *rapid.T) {
		path := strings.Join(rapid.SliceOfN(part, 0, 8).Draw(r, "parts"), rapid.SampledFrom([]string{"/", "", `\`, "//"}).Draw(r, "slash"))
		if rapid.Bool().Draw(r, "beneath") {
			path = testWorkspace + "/" + path
		}
		if confine(t, testWorkspace, "path", path) != nil {
			return
		}
		at := filepath.Join(testWorkspace, path)
		if filepath.IsAbs(path) {
			at = filepath.Clean(path)
		}
		if at != testWorkspace && !strings.HasPrefix(at, testWorkspace+"/") {
			r.Fatalf("%q leads to %q", path, at)
		}
	})
}

func TestWhichArgumentsArePaths(t *testing.T) {
	t.Parallel()
	const out = "../x"
	plain := &runnerdv1.Tool{Name: "t"}
	for name, tc := range map[string]struct {
		tool      *runnerdv1.Tool
		arguments string
		blocked   bool
	}{
		"path":                             {plain, `{"path":".."}`, true},
		"file_path":                        {plain, `{"file_path":".."}`, true},
		"target_path":                      {plain, `{"target_path":".."}`, true},
		"file":                             {plain, `{"file":".."}`, true},
		"otherwise written":                {plain, `{"filePath":".. "}`, true},
		"plural":                           {plain, `{"paths":[".. "]}`, true},
		"list in a list":                   {plain, `{"path":[["a"],[".. "]]}`, true},
		"at any depth":                     {plain, `{"edits":[{"new":"x","file":".. "}]}`, true},
		"a name beneath a path":            {plain, `{"file":{"text":".. "}}`, false},
		"by its slash":                     {plain, `{"to":"../x"}`, true},
		"by its slash at any depth":        {plain, `{"a":{"b":[{"c":"../x"}]}}`, true},
		"a sentence":                       {plain, `{"text":"see ../x or so"}`, false},
		"a dots-only text":                 {plain, `{"text":"..."}`, false},
		"two dots":                         {plain, `{"text":".."}`, true},
		"an ellipsis":                      {plain, `{"text":"…"}`, false},
		"an escape":                        {plain, `{"pattern":"\\d+\\.\\w"}`, false},
		"a Windows path":                   {plain, `{"to":"..\\x"}`, true},
		"a drive":                          {plain, `{"to":"C:\\x"}`, true},
		"a percentage":                     {plain, `{"size":"50%"}`, false},
		"a date, a type, a package":        {plain, `{"a":"2024/01/02","b":"text/html","c":"@scope/pkg","d":"./..."}`, false},
		"a URL":                            {plain, `{"url":"https://example.org/a/b?c=d#e"}`, false},
		"a URL that climbs":                {plain, `{"url":"https://example.org/../../../../etc/passwd"}`, true},
		"a URL of a file":                  {plain, `{"url":"file:///etc/passwd"}`, true},
		"a number":                         {plain, `{"path":7}`, false},
		"the name of an argument":          {plain, `{"../x":1}`, false},
		"a key":                            {plain, `{"files":{"../x":"text"}}`, true},
		"a key in a list":                  {plain, `{"a":[{"b":{"/etc/passwd":1}}]}`, true},
		"keys beneath":                     {plain, `{"files":{"a/b":"text","c":"text"}}`, false},
		"a key in what the operator named": {&runnerdv1.Tool{PathArguments: []string{"dir"}}, `{"dir":{"/etc/x":1}}`, true},
		"a key in what is no path":         {&runnerdv1.Tool{PathArguments: []string{"dir"}}, `{"to":{"/etc/x":1}}`, false},
		"the operator names them":          {&runnerdv1.Tool{PathArguments: []string{"dir"}}, `{"dir":".. "}`, true},
		"the operator names them, a list":  {&runnerdv1.Tool{PathArguments: []string{"dir"}}, `{"dir":["a",".. "]}`, true},
		"and no others":                    {&runnerdv1.Tool{PathArguments: []string{"dir"}}, `{"path":"../x","to":"../x"}`, false},
		"the operator knows of none":       {&runnerdv1.Tool{NoPaths: true}, `{"path":"../x","to":"../x"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := pathGate(&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: testWorkspace}}, subjectOf(t, tc.tool, tc.arguments))
			if (o != nil) != tc.blocked {
				t.Errorf("got %+v", o)
			}
		})
	}
	o := confine(t, testWorkspace, "path", out)
	if o == nil || o.message != `not run: path "../x" in argument "path" leads out of the workspace` {
		t.Errorf("got %+v", o)
	}
	if o := pathGate(&runnerdv1.PolicyLayer{}, aPath(t, "path", out)); o != nil {
		t.Errorf("a layer without path rules says %+v", o)
	}
}

func TestPathFindings(t *testing.T) {
	t.Parallel()
	s := aPath(t, "path", "a/b")
	s.found.Paths = []PathFinding{{
		Layer: "agent", Path: "a/b", Reason: runnerdv1.CallReason_CALL_REASON_PATH_SYMLINK, Message: `leads through the symbolic link "a"`,
	}}
	layer := &runnerdv1.PolicyLayer{Name: "agent", Paths: &runnerdv1.PathRules{Workspace: testWorkspace, Shared: true}}
	o := pathGate(layer, s)
	if o == nil || o.rule != "path:symlink" || o.reason != runnerdv1.CallReason_CALL_REASON_PATH_SYMLINK ||
		o.message != `not run: path "a/b" leads through the symbolic link "a"` {
		t.Errorf("got %+v", o)
	}
	layer.Name = "other"
	if o := pathGate(layer, s); o != nil {
		t.Errorf("what is found in the workspace of one layer is held against another: %+v", o)
	}
}

func TestSensitivePaths(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		globs          []string
		argument, path string
		rule           string // empty: it is not
	}{
		"name":                      {DefaultSensitive, "path", ".env", "sensitive:.env"},
		"component":                 {DefaultSensitive, "path", "a/.ssh/config", "sensitive:.ssh"},
		"any case":                  {DefaultSensitive, "path", "a/.ENV", "sensitive:.env"},
		"pattern":                   {DefaultSensitive, "path", "a/.Env.Local", "sensitive:.env.*"},
		"suffix":                    {DefaultSensitive, "path", "tls/Server.PEM", "sensitive:*.pem"},
		"prefix":                    {DefaultSensitive, "path", "credentials-2.json", "sensitive:credentials*"},
		"beneath a folder":          {DefaultSensitive, "path", "secrets/a/b", "sensitive:secrets"},
		"by its looks":              {DefaultSensitive, "to", "a/.env", "sensitive:.env"},
		"absolute":                  {DefaultSensitive, "path", "/work/ws/.netrc", "sensitive:.netrc"},
		"full-width":                {DefaultSensitive, "path", "a/．ｅｎｖ", "sensitive:.env"},
		"decomposed glob":           {[]string{"gro\u0308sse"}, "path", "Gr\u00F6sse", "sensitive:gro\u0308sse"},
		"long s":                    {[]string{"secrets"}, "path", "\u017Fecrets", "sensitive:secrets"},
		"encoded":                   {DefaultSensitive, "path", "a/%2eenv", "sensitive:.env"},
		"backslashes":               {DefaultSensitive, "path", `a\.env`, "sensitive:.env"},
		"dots at the end":           {DefaultSensitive, "path", "a/.env.", "sensitive:.env"},
		"blanks at the end":         {DefaultSensitive, "path", "a/.env ", "sensitive:.env"},
		"stream":                    {DefaultSensitive, "path", "a/.env::$DATA", "sensitive:.env"},
		"passed on the way":         {DefaultSensitive, "path", ".ssh/../a", "sensitive:.ssh"},
		"a glob in upper case":      {[]string{"TOP*"}, "path", "topmost", "sensitive:TOP*"},
		"a glob with a slash":       {[]string{"deploy/keys/**"}, "path", "deploy/keys/a/b", "sensitive:deploy/keys/**"},
		"from the workspace":        {[]string{"deploy/*"}, "path", "/work/ws/x/../Deploy/a", "sensitive:deploy/*"},
		"a slash at its beginning":  {[]string{"/deploy/*"}, "path", "deploy/a", "sensitive:/deploy/*"},
		"not the whole path":        {[]string{"deploy/*"}, "path", "a/deploy/b", ""},
		"anywhere":                  {[]string{"**/deploy/*"}, "path", "a/deploy/b", "sensitive:**/deploy/*"},
		"alternatives":              {[]string{"{a,b}.key"}, "path", "x/B.key", "sensitive:{a,b}.key"},
		"a part of a name":          {DefaultSensitive, "path", "environment/secrets.go/mykey", ""},
		"a URL is no file":          {DefaultSensitive, "url", "https://example.org/.env", ""},
		"a URL that is called file": {DefaultSensitive, "path", "https://example.org/.env", "sensitive:.env"},
		"a URL of a file":           {DefaultSensitive, "url", "file:///work/ws/.env", "sensitive:.env"},
		"a file in any case":        {DefaultSensitive, "url", "FILE://h/root/.SSH/config", "sensitive:.ssh"},
		"in a drive":                {DefaultSensitive, "path", "c:.env", "sensitive:.env"},
		"at a host":                 {DefaultSensitive, "path", "host:.env", "sensitive:.env"},
		"a URL without slashes":     {DefaultSensitive, "path", "view-source:file:id_rsa", "sensitive:id_rsa"},
		"none":                      {nil, "path", ".env", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layer := &runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: testWorkspace, Sensitive: tc.globs}}
			o := sensitiveGate(layer, aPath(t, tc.argument, tc.path))
			if tc.rule == "" && o != nil || tc.rule != "" && (o == nil || o.rule != tc.rule || o.verdict != ask) {
				t.Errorf("got %+v, want %q", o, tc.rule)
			}
		})
	}
}

func TestGlobs(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		glob, name string
		want       bool
	}{
		{"a", "a", true},
		{"a", "ab", false},
		{"a*", "ab", true},
		{"*a", "ba", true},
		{"a*a", "a", false},
		{"a*b", "ab", true},
		{"?", "é", true},
		{"[ab]c", "bc", true},
		{"[!ab]c", "bc", false},
		{"{x,y}*z", "yz", true},
		{`a\*`, "a*", true},
		{`a\*`, "ab", false},
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{`\a`, "a", true},
	} {
		if got := matchesGlob(tc.glob, tc.name); got != tc.want {
			t.Errorf("%q matches %q: %v, want %v", tc.glob, tc.name, got, tc.want)
		}
	}
}
