package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/config"
)

func TestAgentsHaveTheirHosts(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{File: fullFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	coder := config.Agents(cfg)["coder"]
	if coder == nil || coder.Name != "coder" || coder.Spec.GetAgent() != "coder" || coder.ToolTimeout != 20*time.Second {
		t.Fatalf("got %+v", coder)
	}
	if len(coder.ApprovalModes) != 2 || coder.ApprovalModes[0] != coder.Spec.GetApproval().GetMode() {
		t.Errorf("approval modes: got %v", coder.ApprovalModes)
	}
	if len(coder.Hosts) != 1 {
		t.Fatalf("hosts: got %v", coder.Hosts)
	}
	git := coder.Hosts[0]
	push := git.Tools["push"]
	if git.Name != "git" || git.Prefix != "git_" || git.Timeout != 10*time.Second {
		t.Errorf("host: got %+v", git)
	}
	if push.Tier == nil || *push.Tier != 4 || push.Timeout != 90*time.Second || push.Idempotent == nil || !*push.Idempotent {
		t.Errorf("tool: got %+v", push)
	}
	if limit := push.RateLimit; limit.GetMaxCalls() != 3 || limit.GetPer().AsDuration() != time.Hour {
		t.Errorf("rate limit: got %v", limit)
	}
	if got := git.Tools["bash"].CommandArgument; got != "script" {
		t.Errorf("command argument: got %q", got)
	}
	if git.Recheck == nil || *git.Recheck != 30*time.Second || !slices.Equal(coder.Spec.GetRequiredHosts(), []string{"git"}) {
		t.Errorf("host: got %+v, required %v", git, coder.Spec.GetRequiredHosts())
	}
}

func TestRateLimitsAndRecheckHaveDefaults(t *testing.T) {
	t.Parallel()
	cfg := &configv1.Config{
		ToolHosts: map[string]*configv1.ToolHost{
			"h": {Tools: map[string]*configv1.Tool{"t": {RateLimit: &configv1.RateLimit{Calls: 2}}}},
			"g": {Recheck: durationpb.New(0)},
		},
		Agents: map[string]*configv1.Agent{"a": {ToolHosts: []string{"h", "g"}}},
	}
	agent := config.Agents(cfg)["a"]
	if limit := agent.Hosts[0].Tools["t"].RateLimit; limit.GetMaxCalls() != 2 || limit.GetPer().AsDuration() != time.Minute {
		t.Errorf("got %v", limit)
	}
	if h, g := agent.Hosts[0].Recheck, agent.Hosts[1].Recheck; h != nil || g == nil || *g != 0 {
		t.Errorf("recheck: got %v, %v", h, g)
	}
	if got := agent.Spec.GetRequiredHosts(); len(got) > 0 {
		t.Errorf("required: got %v", got)
	}
}

func TestWhatIsNotSaidOfAToolIsLeftToItsHost(t *testing.T) {
	t.Parallel()
	cfg := &configv1.Config{
		ToolHosts: map[string]*configv1.ToolHost{"h": {Tools: map[string]*configv1.Tool{"t": {}}}},
		Agents:    map[string]*configv1.Agent{"a": {ToolHosts: []string{"h"}}},
	}
	host := config.Agents(cfg)["a"].Hosts[0]
	if o := host.Tools["t"]; host.Timeout != 0 || o.Tier != nil || o.Timeout != 0 || o.Idempotent != nil || o.RateLimit != nil {
		t.Errorf("got %+v", host)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	if c, err := config.TLS(nil, slog.Default()); c != nil || err != nil {
		t.Errorf("without settings: got %v, %v", c, err)
	}
	c, err := config.TLS(&configv1.Tls{}, slog.Default())
	if err != nil || c.RootCAs != nil || c.MinVersion != tls.VersionTLS13 {
		t.Errorf("with the certificates of the system: got %v, %v", c, err)
	}
	file := certificate(t)
	c, err = config.TLS(&configv1.Tls{CaFile: file, ServerName: "decide.internal"}, slog.Default())
	if err != nil || c.RootCAs == nil || c.ServerName != "decide.internal" {
		t.Errorf("with a file: got %v, %v", c, err)
	}
	if _, err := config.TLS(&configv1.Tls{CaFile: full}, slog.Default()); err == nil {
		t.Error("a file without certificates was taken")
	}
	yaml := "decide_services: {d: {address: 'x:1', tls: {ca_file: " + file + "}}}"
	if _, err := config.Load(config.Source{File: write(t, yaml), LookupEnv: env("HOME", "/h")}); err != nil {
		t.Errorf("a good file is refused: %v", err)
	}
}

// certificate writes a certificate and returns the name of its file.
func certificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
