package config

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"maps"
	"slices"

	"buf.build/go/protovalidate"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/auth"
	"github.com/runnerd/runnerd/pkg/runner"
)

var (
	roleNames = map[string]runner.Role{
		"viewer":   runner.RoleViewer,
		"operator": runner.RoleOperator,
		"approver": runner.RoleApprover,
		"admin":    runner.RoleAdmin,
	}
	viewNames = map[string]runner.View{
		"":         runner.ViewRedacted,
		"types":    runner.ViewTypes,
		"outline":  runner.ViewOutline,
		"redacted": runner.ViewRedacted,
	}
)

// Auth tells who calls, by the auth section of a configuration; without one as [runner.LocalAuth] does. The approver
// token is that of the data folder. The configuration must have been loaded by [Load].
func Auth(cfg *configv1.Config, approverToken string, log *slog.Logger) (runner.Authenticator, error) {
	if cfg.GetAuth() == nil {
		return runner.LocalAuth{ApproverToken: approverToken}, nil
	}
	settings, err := authConfig(cfg.GetAuth())
	if err != nil {
		return nil, err
	}
	settings.ApproverToken, settings.Logger = approverToken, log
	return auth.New(settings)
}

func authConfig(from *configv1.Auth) (auth.Config, error) {
	to := auth.Config{AllowLocal: from.GetAllowLocal()}
	for _, t := range from.GetTokens() {
		token := auth.Token{Principal: t.GetPrincipal()}
		copy(token.SHA256[:], unhex(t.GetSha256()))
		to.Tokens = append(to.Tokens, token)
	}
	for _, c := range from.GetCertificates() {
		to.Certificates = append(to.Certificates, auth.Certificate{
			URI: c.GetUri(), Principal: orText(c.GetPrincipal(), c.GetUri()),
		})
	}
	for i, o := range from.GetOidc() {
		issuer := auth.Issuer{URL: o.GetIssuer(), Audience: o.GetAudience(), Claim: o.GetClaim(), Prefix: o.GetPrefix()}
		if o.GetCaFile() != "" {
			var err error
			if issuer.RootCAs, err = readPool(o.GetCaFile()); err != nil {
				return to, &auth.EntryError{Kind: "issuer", Index: i, Err: err}
			}
		}
		to.Issuers = append(to.Issuers, issuer)
	}
	for _, b := range from.GetRoles() {
		binding := auth.Binding{Principals: b.GetPrincipals(), Agents: b.GetAgents()}
		binding.Rights.View = viewNames[b.GetView()]
		for _, role := range b.GetRoles() {
			binding.Rights.Roles |= roleNames[role]
		}
		to.Bindings = append(to.Bindings, binding)
	}
	return to, nil
}

// unhex is what hex digits say; that they are so many is a rule of their field.
func unhex(digits string) []byte {
	b, err := hex.DecodeString(digits)
	if err != nil {
		return nil
	}
	return b
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// entryFields are the fields of the entries that identities can be wrong in.
var entryFields = map[string]string{"token": "tokens", "certificate": "certificates", "issuer": "oidc"}

// checkAuth checks what the rules of single fields cannot say about identities.
func checkAuth(root fieldPath, cfg *configv1.Config) []*protovalidate.Violation {
	from, at := cfg.GetAuth(), root.field("auth")
	if from == nil {
		return nil
	}
	var all []*protovalidate.Violation
	if cfg.GetTls() == nil && cfg.GetListen() != "" && !isLocal(cfg.GetListen()) {
		all = append(all, root.field("listen").violation("plain",
			"credentials would come to %s without encryption: configure tls, or listen on a loopback address", cfg.GetListen()))
	}
	if len(from.GetCertificates()) > 0 && cfg.GetTls().GetClientCaFile() == "" {
		all = append(all, at.field("certificates").violation("tls", "clients are asked for certificates only with a client_ca_file in tls"))
	}
	settings, err := authConfig(from)
	if err == nil {
		_, err = auth.New(settings)
	}
	for _, err := range split(err) {
		if entry, ok := errors.AsType[*auth.EntryError](err); ok {
			all = append(all, at.index(entryFields[entry.Kind], entry.Index).violation("auth", "%v", entry.Err))
		}
	}
	for i, b := range from.GetRoles() {
		for n, name := range b.GetAgents() {
			if name != "*" && cfg.GetAgents()[name] == nil {
				all = append(all, at.index("roles", i).index("agents", n).violation("reference", "no agent %q is configured%s",
					name, instead(slices.Collect(maps.Keys(cfg.GetAgents())))))
			}
		}
	}
	return all
}

// split returns the errors that are joined in one.
func split(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}
