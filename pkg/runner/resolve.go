package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// findOut finds out about calls what only I/O can tell, call by call; nil: there is nothing against any.
func (r *Runner) findOut(ctx context.Context, spec *runnerdv1.RunSpec, catalogue *runstate.Catalogue, calls []*runnerdv1.ToolCall) []runstate.Found {
	return r.findChanged(ctx, spec.GetAgent(), catalogue, calls, resolvePaths(spec, catalogue, calls))
}

// findOutVote looks at the paths of the call that an approver wants to run, as it was asked or edited: what they lead to
// may be another file than when it was asked.
func (r *Runner) findOutVote(ctx context.Context, run string, vote *runstate.Vote) error {
	var spec *runnerdv1.RunSpec
	var catalogue *runstate.Catalogue
	var name string
	var arguments runstate.Part
	asked := false
	err := r.Inspect(ctx, run, func(st *runstate.State) {
		spec, catalogue = st.Spec(), st.Catalogue()
		name, arguments, asked = st.Asked(vote.ApprovalID)
	})
	if err != nil || !asked || !runstate.SharesWorkspace(spec) {
		return err
	}
	call := &runnerdv1.ToolCall{Name: name, ArgumentsJson: arguments.Text}
	switch {
	case vote.Edited != nil:
		call.ArgumentsJson = vote.Edited.Text
	case arguments.Ref != nil:
		text, err := r.ReadPart(ctx, run, arguments.Ref)
		if err != nil {
			return err
		}
		call.ArgumentsJson = string(text)
	}
	if found := resolvePaths(spec, catalogue, []*runnerdv1.ToolCall{call}); found != nil {
		vote.Found.Paths = found[0].Paths
	}
	return nil
}

// resolvePaths looks for what is wrong with the paths of calls beneath the workspaces that runnerd shares with the
// tools of a run, call by call; nil: nothing is, or no workspace is shared.
//
// It is what can be said before a call runs. A tool that must not be led out of its workspace by a link that is made
// in between has to open files beneath it by itself.
func resolvePaths(spec *runnerdv1.RunSpec, catalogue *runstate.Catalogue, calls []*runnerdv1.ToolCall) []runstate.Found {
	var found []runstate.Found
	grounds := make(map[string]*workspace)
	defer func() {
		for _, w := range grounds {
			w.close()
		}
	}()
	for i, call := range calls {
		for _, path := range runstate.SharedPaths(spec, catalogue, call) {
			w := grounds[path.Workspace]
			if w == nil {
				w = openWorkspace(path.Workspace)
				grounds[path.Workspace] = w
			}
			wrong := w.look(path)
			if wrong == nil {
				continue
			}
			if found == nil {
				found = make([]runstate.Found, len(calls))
			}
			found[i].Paths = append(found[i].Paths, *wrong)
			break // one is enough to block it
		}
	}
	return found
}

// workspace is a folder of this machine beneath which paths are resolved.
type workspace struct {
	root *os.Root
	err  error // why it could not be opened
}

func openWorkspace(path string) *workspace {
	root, err := os.OpenRoot(path)
	return &workspace{root: root, err: err}
}

func (w *workspace) close() {
	if w.root != nil {
		_ = w.root.Close() // nothing was written
	}
}

// look returns what is wrong with a path; nil: nothing is.
func (w *workspace) look(path runstate.SharedPath) *runstate.PathFinding {
	wrong := func(reason runnerdv1.CallReason, format string, args ...any) *runstate.PathFinding {
		return &runstate.PathFinding{Layer: path.Layer, Path: path.Path, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	const outside = runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE
	if w.err != nil {
		return wrong(outside, "cannot be resolved: the workspace cannot be opened: %v", cause(w.err))
	}
	for _, way := range path.Ways {
		link, err := w.walk(way)
		switch {
		case err != nil:
			return wrong(outside, "cannot be resolved: %v", cause(err))
		case link != "":
			return wrong(runnerdv1.CallReason_CALL_REASON_PATH_SYMLINK, "leads through the symbolic link %q", link)
		}
	}
	return nil
}

// errLeadsUp says that a path leads out of the workspace.
var errLeadsUp = errors.New("it leads out of the workspace")

// walk goes along the components of a path and returns the first that is a symbolic link, also one that leads nowhere.
// What does not exist is no link: the call may be about to make it.
func (w *workspace) walk(parts []string) (link string, err error) {
	var at []string
	missing := 0 // how long at is where it ceased to exist; 0: it does
	for _, part := range parts {
		if part == ".." {
			if len(at) == 0 {
				return "", errLeadsUp
			}
			if at = at[:len(at)-1]; len(at) < missing {
				missing = 0
			}
			continue
		}
		at = append(at, part)
		if missing > 0 {
			continue
		}
		name := filepath.Join(at...)
		info, err := w.root.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = len(at)
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink != 0:
			return name, nil
		}
	}
	return "", nil
}

// cause is an error without the path, which stands in front of it already.
func cause(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}
