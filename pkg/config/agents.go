package config

import (
	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	"github.com/runnerd/runnerd/pkg/runner"
)

// Agents is what the engine needs to know of the configured agents.
func Agents(cfg *configv1.Config) map[string]*runner.Agent {
	policies := namedLayers(cfg)
	agents := make(map[string]*runner.Agent, len(cfg.GetAgents()))
	for name, agent := range cfg.GetAgents() {
		a := &runner.Agent{
			Name:          name,
			Spec:          Spec(cfg, name),
			Policies:      policies,
			ApprovalModes: ApprovalModes(agent),
			AutoMode:      autoMode(agent.GetAutoMode()),
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
		h.Tools[tool] = runner.ToolOverride{
			Tier: o.Tier, Timeout: o.GetTimeout().AsDuration(), Idempotent: o.Idempotent,
			PathArguments: o.GetPathArguments(), NoPaths: o.GetNoPaths(),
		}
	}
	return h
}
