package runstate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// PathFinding is what is wrong with a path of a call beneath a workspace that runnerd shares with the tools.
type PathFinding struct {
	Layer   string               // whose workspace it is
	Path    string               // as it stands in the arguments
	Reason  runnerdv1.CallReason // PATH_SYMLINK or PATH_OUTSIDE_WORKSPACE
	Message string               // what is wrong, after the path: "leads through …"
}

// pathArgument is one path in the arguments of a call.
type pathArgument struct {
	name     string // top-level argument in which it stands
	path     string // as it stands there
	byName   bool   // it is a path by the name of its argument or by the operator's word, not only by its looks
	unclear  string // why not every party reads it in the same way; empty: they do
	readings []reading
	folded   [][]string // names in each reading as sensitive globs are matched with; nil until they are
}

// String is the path as people and models are told of it.
func (p *pathArgument) String() string {
	return fmt.Sprintf("path %q in argument %q", cutText(p.path, maxPreview), cutText(p.name, maxPreview))
}

// root is the arguments of the call, read once.
func (s *subject) root() *node {
	if s.values == nil {
		s.values = parseValues(s.arguments.Canonical)
	}
	return s.values
}

// pathArguments are the paths in the arguments of the call.
func (s *subject) pathArguments() []*pathArgument {
	if s.looked {
		return s.paths
	}
	s.looked = true
	switch {
	case s.tool.GetNoPaths():
	case len(s.tool.GetPathArguments()) > 0:
		for _, name := range s.tool.GetPathArguments() {
			if v := s.root().member(name); v != nil {
				s.collect(v, name, func(string) bool { return true }, true)
			}
		}
	default:
		for _, m := range s.root().members {
			s.collect(m.value, m.name, isPathName, isPathName(m.name))
		}
	}
	return s.paths
}

// collect takes the paths out of a value. Named tells by which names of members strings are paths, byName whether the
// value has such a name; it holds for lists too. Keys of objects are paths where they look like it.
func (s *subject) collect(v *node, argument string, named func(string) bool, byName bool) {
	switch v.kind {
	case jsontext.KindBeginObject:
		for _, m := range v.members {
			if looksLikePath(m.name) { // what shall be written, by where
				s.add(m.name, argument, false)
			}
			s.collect(m.value, argument, named, named(m.name))
		}
	case jsontext.KindBeginArray:
		for _, item := range v.items {
			s.collect(item, argument, named, byName)
		}
	case jsontext.KindString:
		if byName || looksLikePath(v.text) {
			s.add(v.text, argument, byName)
		}
	default: // no text
	}
}

func (s *subject) add(path, argument string, byName bool) {
	s.paths = append(s.paths, &pathArgument{
		name: argument, path: path, byName: byName, unclear: unclear(path, byName), readings: readings(path, byName),
	})
}

// isPathName reports whether arguments of that name are paths: path, file_path, target_path and file, also in the
// plural and in other ways to write several words.
func isPathName(name string) bool {
	const longest = len("target_path_") // with room for one more separator
	if len(name) > longest+1 || len(name) < len("path") {
		return false
	}
	var letters []byte
	for i := range len(name) {
		switch c := name[i]; c {
		case '_', '-', ' ':
		default:
			letters = append(letters, c|0x20)
		}
	}
	switch strings.TrimSuffix(string(letters), "s") {
	case "path", "filepath", "targetpath", "file":
		return true
	}
	return false
}

// pathGate blocks paths that lead out of the workspace of the layer, or through a symbolic link in one that is shared.
func pathGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	rules := layer.GetPaths()
	if rules == nil {
		return nil
	}
	ground := newGround(rules.GetWorkspace())
	for _, p := range s.pathArguments() {
		if p.unclear != "" {
			return blockPath("path:unclear", runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE, "%s %s", p, p.unclear)
		}
		for _, r := range p.readings {
			if !ground.holds(r) {
				return blockPath("path:outside", runnerdv1.CallReason_CALL_REASON_PATH_OUTSIDE_WORKSPACE,
					"%s leads out of the workspace", p)
			}
		}
	}
	for _, f := range s.found.Paths {
		if f.Layer != layer.GetName() {
			continue
		}
		rule := "path:outside"
		if f.Reason == runnerdv1.CallReason_CALL_REASON_PATH_SYMLINK {
			rule = "path:symlink"
		}
		return blockPath(rule, f.Reason, "path %q %s", cutText(f.Path, maxPreview), f.Message)
	}
	return nil
}

func blockPath(rule string, reason runnerdv1.CallReason, format string, args ...any) *objection {
	return &objection{verdict: block, rule: rule, reason: reason, message: "not run: " + fmt.Sprintf(format, args...)}
}

// ground is a workspace as paths are compared with it.
type ground struct {
	is    bool       // there is one
	exact []string   // its components, as they are
	alike [][]string // ways in which they look
}

func newGround(workspace string) ground {
	if workspace == "" {
		return ground{}
	}
	g := ground{is: true, exact: components(workspace)}
	if plainPath(workspace) {
		g.alike = [][]string{g.exact}
	} else {
		alike := lookAlikes(workspace)
		g.alike = [][]string{components(alike), components(decodePercent(alike))}
	}
	return g
}

// beneath returns the components of a path beneath the workspace, or as they are where there is none; false: it leads
// out.
func (g ground) beneath(r reading) ([]string, bool) {
	if !r.rooted && !r.foreign {
		return clean(r.parts)
	}
	parts, _ := clean(r.parts) // above the root is the root
	if !g.is {
		return parts, true // nobody knows where it should lie
	}
	if r.foreign {
		return nil, false
	}
	if r.exact {
		return below(parts, g.exact)
	}
	for _, alike := range g.alike {
		if rest, ok := below(parts, alike); ok {
			return rest, true
		}
	}
	return nil, false
}

// below returns what of a path comes after a folder; false: it does not lie there.
func below(parts, folder []string) ([]string, bool) {
	if len(parts) < len(folder) || !slices.Equal(parts[:len(folder)], folder) {
		return nil, false
	}
	return parts[len(folder):], true
}

// holds reports whether a path stays in the workspace.
func (g ground) holds(r reading) bool {
	_, ok := g.beneath(r)
	return ok
}

// clean takes out what leads up; false: it leads above where it begins, which is then where it goes on.
func clean(parts []string) ([]string, bool) {
	if !slices.Contains(parts, "..") {
		return parts, true
	}
	inside := true
	cleaned := make([]string, 0, len(parts))
	for _, part := range parts {
		switch {
		case part != "..":
			cleaned = append(cleaned, part)
		case len(cleaned) > 0:
			cleaned = cleaned[:len(cleaned)-1]
		default:
			inside = false
		}
	}
	return cleaned, inside
}

// SharedPath is a path of a call that has to be resolved beneath the workspace of a layer, because runnerd shares that
// folder with the tools.
type SharedPath struct {
	Layer     string
	Workspace string
	Path      string     // as it stands in the arguments
	Ways      [][]string // components beneath the workspace in each way to read it; ".." may be among them
}

// SharesWorkspace reports whether a layer of a policy has a workspace that runnerd shares with the tools.
func SharesWorkspace(spec *runnerdv1.RunSpec) bool {
	return slices.ContainsFunc(spec.GetPolicy(), sharesWorkspace)
}

// SharedPaths are the paths of a call that the shell has to resolve, so that the gates can judge it.
func SharedPaths(spec *runnerdv1.RunSpec, catalogue *Catalogue, call *runnerdv1.ToolCall) []SharedPath {
	if !SharesWorkspace(spec) {
		return nil
	}
	tool := catalogue.Lookup(call.GetName())
	if tool == nil {
		return nil
	}
	arguments, err := ParseArguments(call.GetArgumentsJson())
	if err != nil {
		return nil // a check will say so
	}
	s := &subject{tool: tool, arguments: arguments}
	var all []SharedPath
	for _, layer := range spec.GetPolicy() {
		if !sharesWorkspace(layer) {
			continue
		}
		workspace := layer.GetPaths().GetWorkspace()
		ground := newGround(workspace)
		for _, p := range s.pathArguments() {
			shared := SharedPath{Layer: layer.GetName(), Workspace: workspace, Path: p.path}
			for _, r := range p.readings {
				if ground.holds(r) { // else the gate blocks it without looking
					shared.Ways = append(shared.Ways, ground.way(r))
				}
			}
			if len(shared.Ways) > 0 {
				all = append(all, shared)
			}
		}
	}
	return all
}

func sharesWorkspace(layer *runnerdv1.PolicyLayer) bool {
	return layer.GetPaths().GetShared() && layer.GetPaths().GetWorkspace() != ""
}

// way returns the components of a path that stays in the workspace, in the order in which a file system goes along
// them. A path that goes up from a folder that is not in the workspace, or from the workspace itself, ends where a link
// there says, which nobody looks at: its way leads out.
func (g ground) way(r reading) []string {
	if !r.rooted {
		return r.parts
	}
	for _, folder := range append([][]string{g.exact}, g.alike...) {
		if rest, ok := below(r.parts, folder); ok {
			if _, inside := clean(rest); inside {
				return rest
			}
		}
	}
	return []string{".."}
}
