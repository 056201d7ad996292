package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/test/identitytest"
)

// makeToken makes a token as a user does.
func makeToken(t *testing.T, principal string) (token, line string) {
	t.Helper()
	var out bytes.Buffer
	if code := testProgram(&out, &out, nil).run(t.Context(), []string{"token", principal}); code != exitOK {
		t.Fatalf("exit code %d: %s", code, out.String())
	}
	first, rest, _ := strings.Cut(out.String(), "\n")
	return first, strings.TrimSpace(rest[strings.LastIndex(rest, "- {"):])
}

func TestTokenCommand(t *testing.T) {
	t.Parallel()
	token, line := makeToken(t, "ci")
	again, _ := makeToken(t, "ci")
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`).MatchString(token) || again == token {
		t.Errorf("the tokens are %q and %q", token, again)
	}
	if strings.Contains(line, token) {
		t.Errorf("%q holds the token", line)
	}
	file := filepath.Join(t.TempDir(), "runnerd.yaml")
	if err := os.WriteFile(file, []byte("auth:\n  tokens:\n  "+line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file, LookupEnv: environment("HOME", "/h")})
	if err != nil || cfg.GetAuth().GetTokens()[0].GetPrincipal() != "ci" {
		t.Errorf("%q is no line of a configuration: %v", line, err)
	}
	for _, name := range []string{"a b", "ä", "", strings.Repeat("a", 257), "a\nb", "local:owner"} {
		var out bytes.Buffer
		if code := testProgram(&out, &out, nil).run(t.Context(), []string{"token", name}); code != exitUsage {
			t.Errorf("%q: exit code %d", name, code)
		}
	}
}

// TestCommandsShowCredentials reaches a daemon over TLS with each credential.
func TestCommandsShowCredentials(t *testing.T) {
	t.Parallel()
	const me = "spiffe://example.org/people/me"
	ca := identitytest.NewCA(t)
	issuer := identitytest.NewIssuer(t, ca)
	api, mine, nobodys := ca.Issue(t, nil), ca.Issue(t, []string{me}), ca.Issue(t, []string{"spiffe://example.org/people/you"})
	token, line := makeToken(t, "ci")
	dir := t.TempDir()
	file, tokenFile := filepath.Join(dir, "runnerd.yaml"), filepath.Join(dir, "ci.token")
	text := fmt.Sprintf(`%s
tls: {cert_file: %s, key_file: %s, client_ca_file: %s}
auth:
  tokens:
  %s
  certificates: [{uri: %s}]
  oidc: [{issuer: %s, audience: runnerd, prefix: "o:", ca_file: %s}]
  roles:
  - {principals: [ci, "o:*", %q], agents: [demo], roles: [viewer, operator]}
`, testConfig, api.CertFile, api.KeyFile, ca.File, line, me, issuer.URL, ca.File, me)
	for name, content := range map[string]string{file: text, tokenFile: token + "\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var log lockedBuffer
	ready, exited := make(chan string, 1), make(chan int, 1)
	p := testProgram(&bytes.Buffer{}, &log, nil)
	p.serving = func(addr string) { ready <- addr }
	data := filepath.Join(dir, "data")
	go func() {
		exited <- p.run(ctx, []string{"serve", "--config", file, "--data-dir", data, "--listen", "0.0.0.0:0"})
	}()
	defer func() {
		cancel()
		if code := <-exited; code != exitOK {
			t.Errorf("the daemon ended with %d:\n%s", code, log.String())
		}
	}()
	var addr string
	select {
	case addr = <-ready:
	case code := <-exited:
		exited <- code
		t.Fatalf("the daemon ended with %d:\n%s", code, log.String())
	}
	if strings.Contains(log.String(), "without encryption") {
		t.Errorf("it warns of what is not so:\n%s", log.String())
	}
	_, port, _ := strings.Cut(strings.TrimPrefix(addr, "[::]"), ":")
	runs := func(env map[string]string, args ...string) result {
		var out, errs lockedBuffer
		if env == nil {
			env = map[string]string{}
		}
		env["RUNNERD_ADDR"], env["RUNNERD_DATA_DIR"] = "127.0.0.1:"+port, "/nowhere"
		code := testProgram(&out, &errs, env).run(t.Context(), append([]string{"runs"}, args...))
		return result{code, out.String(), errs.String()}
	}
	jwt := issuer.Sign(t, issuer.Claims("runnerd", "me", nil))
	runs(nil, "--tls-ca", ca.File, "--token-file", tokenFile).must(t, exitOK)
	runs(nil, "--tls-ca", ca.File, "--tls-cert", mine.CertFile, "--tls-key", mine.KeyFile).must(t, exitOK)
	runs(map[string]string{"RUNNERD_TOKEN": jwt}, "--tls-ca", ca.File).must(t, exitOK)
	runs(map[string]string{"RUNNERD_TLS_CA": ca.File, "RUNNERD_TLS_CERT": mine.CertFile, "RUNNERD_TLS_KEY": mine.KeyFile}).must(t, exitOK)
	has(t, runs(nil, "--tls-ca", ca.File).must(t, exitFailure).err, "a credential is required", "--tls-cert")
	has(t, runs(nil, "--tls-ca", ca.File, "--tls-cert", nobodys.CertFile, "--tls-key", nobodys.KeyFile).must(t, exitFailure).err, "nobody's")
	has(t, runs(nil, "--tls-ca", ca.File, "--tls-cert", mine.CertFile).must(t, exitUsage).err, "--tls-key")
	runs(map[string]string{"RUNNERD_TOKEN": token}, "--tls").must(t, exitUnreachable) // nobody knows the signer

	// A certificate that is named is what is shown, and not the owner's token that lies there.
	inFolder := map[string]string{"RUNNERD_ADDR": "127.0.0.1:" + port, "RUNNERD_DATA_DIR": data}
	var out, errs lockedBuffer
	if code := testProgram(&out, &errs, inFolder).run(t.Context(), []string{"approvals", "--tls-ca", ca.File}); code != exitOK {
		t.Errorf("the owner sees no inbox: %s", errs.String())
	}
	code := testProgram(&out, &errs, inFolder).run(t.Context(), []string{
		"approvals", "--tls-ca", ca.File, "--tls-cert", mine.CertFile, "--tls-key", mine.KeyFile,
	})
	if code == exitOK {
		t.Error("who is no approver sees the inbox")
	}
	for _, secret := range []string{token, jwt} {
		if strings.Contains(log.String(), secret) {
			t.Error("the log holds a token")
		}
	}
}

func TestServeWarnsOfPlainText(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, "", "0.0.0.0:0")
	has(t, d.log.String(), "calls come in without encryption", "x-forwarded-for", "configure tls and auth")
	here := startDaemon(t, "", "127.0.0.1:0")
	if strings.Contains(here.log.String(), "encryption") {
		t.Errorf("a daemon on this machine warns:\n%s", here.log)
	}
}

func TestServeRefusesCredentialsInPlainText(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "runnerd.yaml")
	if err := os.WriteFile(file, []byte("auth: {allow_local: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := serveOnce(t, map[string]string{"HOME": t.TempDir()}, "--config", file, "--listen", "0.0.0.0:0").must(t, exitUsage)
	has(t, r.err, "--listen: credentials would come to 0.0.0.0:0 without encryption", "configure tls")
}
