package config_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnerd/runnerd/pkg/config"
)

func TestWarnings(t *testing.T) {
	t.Parallel()
	here, gone := t.TempDir(), filepath.Join(t.TempDir(), "gone")
	const hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25"
	tests := map[string]struct {
		text string
		want []string
	}{
		"nothing to say": {`
policies: {p: {paths: {workspace: ` + here + `, shared: true}}, q: {paths: {workspace: /nowhere}}}
auth:
  tokens: [{principal: ci, sha256: ` + hash + `0}, {principal: bot-1, sha256: ` + hash + `1}]
  oidc: [{issuer: 'https://i.example', audience: a, prefix: 'o:'}]
  roles: [{principals: [ci, 'bot-*', 'o:alice', 'x*'], roles: [viewer]}]`, nil},
		"a workspace that is not there": {
			"policies: {p: {paths: {workspace: " + gone + ", shared: true}}}",
			[]string{`policies["p"].paths.workspace: every path is blocked while it cannot be opened: open ` + gone + `: no such file or directory`},
		},
		"a misspelt principal": {`
auth:
  tokens: [{principal: alice, sha256: ` + hash + `0}]
  roles: [{principals: [alcie], roles: [viewer]}]`, []string{
			`auth.roles[0].principals[0]: no token, certificate or issuer makes a caller "alcie"`,
			`auth.tokens[0]: "alice" has no role and may do nothing`,
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := config.Load(config.Source{File: write(t, tc.text), LookupEnv: env("HOME", "/h")})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, config.Warnings(cfg)); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}
