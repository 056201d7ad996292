package config

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/auth"
)

// Warnings says what a good configuration does that nobody can have meant, as far as it can be seen when the daemon
// starts: shared workspaces that are not there, bindings of principals that nobody can be, and credentials that are good
// for nothing. Each begins with the field that it is about.
func Warnings(cfg *configv1.Config) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(cfg.GetPolicies())) {
		all = append(all, warnOfWorkspace(fmt.Sprintf("policies[%q]", name), cfg.GetPolicies()[name])...)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.GetAgents())) {
		all = append(all, warnOfWorkspace(fmt.Sprintf("agents[%q].policy", name), cfg.GetAgents()[name].GetPolicy())...)
	}
	return append(all, warnOfPrincipals(cfg.GetAuth())...)
}

func warnOfWorkspace(at string, policy *configv1.Policy) []string {
	if !policy.GetPaths().GetShared() {
		return nil
	}
	root, err := os.OpenRoot(policy.GetPaths().GetWorkspace())
	if err != nil {
		return []string{fmt.Sprintf("%s.paths.workspace: every path is blocked while it cannot be opened: %v", at, err)}
	}
	_ = root.Close() // nothing was written
	return nil
}

func warnOfPrincipals(from *configv1.Auth) []string {
	known := map[string]string{} // principals, and which entry makes them
	for i, t := range from.GetTokens() {
		known[t.GetPrincipal()] = fmt.Sprintf("tokens[%d]", i)
	}
	for i, c := range from.GetCertificates() {
		known[orText(c.GetPrincipal(), c.GetUri())] = fmt.Sprintf("certificates[%d]", i)
	}
	issued := func(name string) bool {
		return slices.ContainsFunc(from.GetOidc(), func(o *configv1.Oidc) bool { return strings.HasPrefix(name, o.GetPrefix()) })
	}
	var all []string
	for i, b := range from.GetRoles() {
		for n, name := range b.GetPrincipals() {
			if known[name] == "" && !issued(name) && !strings.Contains(name, "*") {
				all = append(all, fmt.Sprintf("auth.roles[%d].principals[%d]: no token, certificate or issuer makes a caller %q", i, n, name))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if !slices.ContainsFunc(from.GetRoles(), func(b *configv1.RoleBinding) bool {
			return auth.Binding{Principals: b.GetPrincipals()}.Names(name)
		}) {
			all = append(all, fmt.Sprintf("auth.%s: %q has no role and may do nothing", known[name], name))
		}
	}
	return all
}
