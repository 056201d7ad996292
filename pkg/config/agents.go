package config

import (
	"time"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
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
			if cfg.GetToolHosts()[host].GetRequired() {
				a.Spec.RequiredHosts = append(a.Spec.RequiredHosts, host)
			}
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
	if host.GetRecheck() != nil {
		h.Recheck = new(host.GetRecheck().AsDuration())
	}
	for tool, o := range host.GetTools() {
		h.Tools[tool] = runner.ToolOverride{
			Tier: o.Tier, Timeout: o.GetTimeout().AsDuration(), Idempotent: o.Idempotent, RateLimit: rateLimit(o.GetRateLimit()),
			PathArguments: o.GetPathArguments(), NoPaths: o.GetNoPaths(), CommandArgument: o.GetCommandArgument(),
		}
	}
	return h
}

// DefaultRatePer is the length of the stretch of a rate limit that names none.
const DefaultRatePer = time.Minute

func rateLimit(limit *configv1.RateLimit) *runnerdv1.RateLimit {
	if limit == nil {
		return nil
	}
	return &runnerdv1.RateLimit{MaxCalls: limit.GetCalls(), Per: orDuration(limit.GetPer(), DefaultRatePer)}
}
