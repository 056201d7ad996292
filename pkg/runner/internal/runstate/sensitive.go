package runstate

import (
	"slices"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// DefaultSensitive are the globs of paths that are asked for where the operator says nothing: credentials by the names
// under which they usually lie.
var DefaultSensitive = []string{
	".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519",
	"id_ed25519_sk", ".ssh", ".aws", ".gnupg", ".netrc", ".npmrc", ".pypirc", "credentials*", "secrets",
}

// sensitiveGate asks for paths that the layer calls sensitive.
func sensitiveGate(layer *runnerdv1.PolicyLayer, s *subject) *objection {
	globs := layer.GetPaths().GetSensitive()
	if len(globs) == 0 {
		return nil
	}
	ground := newGround(layer.GetPaths().GetWorkspace())
	for _, p := range s.pathArguments() {
		if !p.byName && isURL(p.path) && !isForeign(p.path, false) {
			continue // its components are no files
		}
		for i, r := range p.readings {
			if glob := sensitiveGlob(globs, ground, r, p.foldedParts(i)); glob != "" {
				return &objection{verdict: ask, rule: "sensitive:" + glob, message: p.String() + " is called sensitive"}
			}
		}
	}
	return nil
}

// foldedParts are the components of a reading as globs are matched with, and what comes after colons in them.
func (p *pathArgument) foldedParts(reading int) []string {
	if p.folded == nil {
		p.folded = make([][]string, len(p.readings))
	}
	if p.folded[reading] == nil {
		folded := make([]string, 0, len(p.readings[reading].parts))
		for _, part := range p.readings[reading].parts {
			folded = append(folded, foldName(part))
			if _, after, ok := strings.Cut(part, ":"); ok { // a drive, a host or a scheme may stand before it
				for name := range strings.SplitSeq(after, ":") {
					folded = append(folded, foldName(name))
				}
			}
		}
		p.folded[reading] = folded
	}
	return p.folded[reading]
}

// sensitiveGlob returns the first glob that matches a path; empty: none does.
func sensitiveGlob(globs []string, g ground, r reading, folded []string) string {
	whole := ""
	for _, glob := range globs {
		pattern := foldCase(glob)
		if !strings.Contains(pattern, "/") {
			if slices.ContainsFunc(folded, func(part string) bool { return matchesGlob(pattern, part) }) {
				return glob
			}
			continue
		}
		if whole == "" {
			parts, _ := g.beneath(r)
			names := make([]string, len(parts))
			for i, part := range parts {
				names[i] = foldName(part)
			}
			whole = strings.Join(names, "/")
		}
		if matchesGlob(strings.Trim(pattern, "/"), whole) {
			return glob
		}
	}
	return ""
}
