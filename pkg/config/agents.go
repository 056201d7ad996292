package config

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// Agents is what the engine needs to know of the configured agents.
func Agents(cfg *configv1.Config) map[string]*runner.Agent {
	agents := make(map[string]*runner.Agent, len(cfg.GetAgents()))
	for name, agent := range cfg.GetAgents() {
		a := &runner.Agent{
			Name:          name,
			Spec:          Spec(name, agent),
			ApprovalModes: ApprovalModes(agent),
			ToolTimeout:   ToolTimeout(agent),
		}
		for _, host := range agent.GetToolHosts() {
			a.Hosts = append(a.Hosts, hostConfig(host, cfg.GetToolHosts()[host]))
		}
		agents[name] = a
	}
	return agents
}

func hostConfig(name string, host *configv1.ToolHost) runner.HostConfig {
	h := runner.HostConfig{
		Name:    name,
		Prefix:  host.GetPrefix(),
		Timeout: host.GetToolTimeout().AsDuration(),
		Tools:   make(map[string]runner.ToolOverride, len(host.GetTools())),
	}
	for tool, o := range host.GetTools() {
		h.Tools[tool] = runner.ToolOverride{Tier: o.Tier, Timeout: o.GetTimeout().AsDuration(), Idempotent: o.Idempotent}
	}
	return h
}

// TLS is how a service is reached over TLS; nil settings are a plain connection.
func TLS(settings *configv1.Tls) (*tls.Config, error) {
	if settings == nil {
		return nil, nil //nolint:nilnil // nil is a plain connection
	}
	c := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: settings.GetServerName()}
	if settings.GetCaFile() == "" {
		return c, nil
	}
	pem, err := os.ReadFile(settings.GetCaFile())
	if err != nil {
		return nil, fmt.Errorf("reading certificates: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", settings.GetCaFile())
	}
	return c, nil
}
