package runner

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// sharedTree is a workspace with links of every kind: to a folder and a file in it, out of it, up, to nowhere, to
// itself.
func sharedTree(t testing.TB) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(root, "ws")
	for _, dir := range []string{"a/b", "d d", ".../x"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"f", "a/f", "a/b/f", "..f"} {
		if err := os.WriteFile(filepath.Join(root, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{
		"in": "a", "file": "a/f", "out": "/etc", "up": "..", "none": "nowhere", "self": "self", "a/up": "../..", "a/b/back": "../../a",
		`b\l`: "/etc", "%2e": "/etc",
	} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// explainPath says what becomes of a call with a path in a workspace that is shared.
func explainPath(t testing.TB, root, path string) *runnerdv1.ExplainPolicyResponse {
	t.Helper()
	text, err := json.Marshal(map[string]string{"path": path})
	if err != nil {
		t.Fatal(err)
	}
	spec := &runnerdv1.RunSpec{Policy: []*runnerdv1.PolicyLayer{{
		Name: "agent", Paths: &runnerdv1.PathRules{Workspace: root, Shared: true},
	}}}
	catalogue := runstate.NewCatalogue(&runnerdv1.Catalogue{Tools: []*runnerdv1.Tool{{Host: "h", Name: "t", OfferedName: "t"}}})
	call := &runnerdv1.ToolCall{Name: "t", ArgumentsJson: string(text)}
	st := runstate.New(runstate.Env{Spec: spec, Catalogue: catalogue}, "")
	var found runstate.Found
	if all := resolvePaths(spec, catalogue, []*runnerdv1.ToolCall{call}); all != nil {
		found = all[0]
	}
	return st.Explain(call, found)
}

func TestSharedWorkspace(t *testing.T) {
	t.Parallel()
	root := sharedTree(t)
	const symlink, outside = runnerdv1.CallReason_CALL_REASON_PATH_SYMLINK, runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE
	for path, want := range map[string]runnerdv1.CallReason{
		"f": 0, "a/b/f": 0, "new": 0, "new/er/f": 0, "a/../f": 0, "new/../f": 0, root: 0, root + "/a/f": 0, "..f": 0, ".../x": 0, "": 0,
		"in": symlink, "in/f": symlink, "file": symlink, "out/passwd": symlink, "up/x": symlink, "none": symlink, "none/x": symlink,
		"self": symlink, "a/up/x": symlink, "a/b/back/f": symlink, "new/../out/passwd": symlink, "in/../f": symlink,
		root + "/out/passwd": symlink, `b\l`: symlink, "%2e": symlink, "a/%62/back": symlink, `a\b\back`: symlink,
		"f/x": outside, "../ws/f": outside, root + "/../ws2": outside, "a/../../ws/f": outside,
		// What is above the workspace may be links, and nobody looks at those.
		root + "/../ws/f": outside, filepath.Dir(root) + "/elsewhere/../ws/f": outside, "/..//" + root + "/a/f": outside,
	} {
		got := explainPath(t, root, path)
		if got.GetReason() != want || (got.GetVerdict() == runnerdv1.Verdict_VERDICT_ALLOW) != (want == 0) {
			t.Errorf("%q: got %s %s, want %s", path, got.GetVerdict(), got.GetReason(), want)
		}
	}
	gone := filepath.Join(t.TempDir(), "gone")
	got := explainPath(t, gone, "f")
	last := got.GetSteps()[len(got.GetSteps())-1]
	if got.GetReason() != outside || !strings.Contains(last.GetMessage(), "the workspace cannot be opened: no such file or directory") {
		t.Errorf("a workspace that is gone: got %v", got)
	}
}

// kernel opens paths beneath a workspace in which there are no links to follow.
type kernel struct {
	root string
	dir  int
}

func newKernel(t testing.TB) kernel {
	t.Helper()
	k := kernel{root: sharedTree(t)}
	var err error
	if k.dir, err = unix.Open(k.root, unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(k.dir) })
	if err := k.open("f"); errors.Is(err, unix.ENOSYS) {
		t.Skip("this kernel has no openat2 to compare with")
	}
	return k
}

func (k kernel) open(path string) error {
	fd, err := unix.Openat2(k.dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// agrees checks that a path which passes is one that openat2 opens beneath the workspace without a link, or does not
// find there.
func (k kernel) agrees(t *testing.T, path string) {
	t.Helper()
	if explainPath(t, k.root, path).GetVerdict() != runnerdv1.Verdict_VERDICT_ALLOW {
		return
	}
	beneath := path
	if strings.HasPrefix(path, "/") { // the kernel reads it from its root, and what lies above the workspace has no links here
		rest, err := filepath.Rel(k.root, filepath.Clean(path))
		if err != nil || rest == ".." || strings.HasPrefix(rest, "../") {
			t.Fatalf("%q leads to %q", path, filepath.Clean(path))
		}
		beneath = rest
	}
	switch err := k.open(beneath); {
	case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG): // nothing else is opened
	default:
		t.Fatalf("%q passes, and openat2 says of %q: %v", path, beneath, err)
	}
}

var pieces = []string{
	"a", "b", "f", "in", "out", "up", "none", "self", "back", "..", ".", "", "...", "..f", "d d", "new", `b\l`, "%2e", "%2f..", "~", "/", "\uFF0F",
}

func TestPathsAgainstTheKernel(t *testing.T) {
	t.Parallel()
	k := newKernel(t)
	for _, one := range pieces {
		for _, two := range pieces {
			for _, three := range pieces {
				k.agrees(t, one+"/"+two+"/"+three)
			}
			k.agrees(t, k.root+"/"+one+"/"+two)
			k.agrees(t, one+`\`+two)
		}
	}
}

func FuzzPathPolicy(f *testing.F) {
	k := newKernel(f)
	for i, piece := range pieces {
		f.Add(piece + "/" + pieces[(i+7)%len(pieces)])
		f.Add("/" + piece)
	}
	f.Fuzz(func(t *testing.T, path string) {
		if strings.HasPrefix(path, "/") {
			path = k.root + path
		}
		k.agrees(t, strings.ToValidUTF8(path, "?"))
	})
}
