package config

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"buf.build/go/protovalidate"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
)

// crossCheck is what the rules of single fields cannot say: names that are
// referred to exist, no budget is wider than its maximum, globs and files are
// good. It goes through the names in order, so that errors come in one order.
func crossCheck(cfg *configv1.Config) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	root := fieldPath{}
	all = append(all, checkAddress(root.field("listen"), cfg.Listen)...)
	all = append(all, checkAddress(root.field("metrics_listen"), cfg.MetricsListen)...)
	all = append(all, checkServerTLS(root.field("tls"), cfg.GetTls())...)
	all = append(all, checkAuth(root, cfg)...)
	for _, name := range slices.Sorted(maps.Keys(cfg.DecideServices)) {
		service := cfg.DecideServices[name]
		all = append(all, checkService(root.key("decide_services", name), service)...)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.ToolHosts)) {
		host := cfg.ToolHosts[name]
		all = append(all, checkService(root.key("tool_hosts", name), host)...)
		all = append(all, checkTools(root.key("tool_hosts", name), host)...)
	}
	all = append(all, checkPolicies(root, cfg)...)
	for _, name := range slices.Sorted(maps.Keys(cfg.Agents)) {
		all = append(all, checkAgent(root.key("agents", name), cfg, cfg.Agents[name])...)
	}
	return all
}

func checkAddress(at fieldPath, address string) []*protovalidate.Violation {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return []*protovalidate.Violation{at.violation("address", "%q is not host:port", address)}
	}
	if n, err := strconv.Atoi(port); err != nil || n > 65535 {
		return []*protovalidate.Violation{at.violation("address", "port %s is not between 0 and 65535", port)}
	}
	return nil
}

func checkAgent(at fieldPath, cfg *configv1.Config, agent *configv1.Agent) []*protovalidate.Violation {
	var all []*protovalidate.Violation
	if name := agent.GetDecideService(); name != "" && cfg.DecideServices[name] == nil {
		all = append(all, at.field("decide_service").violation("reference", "no decide service %q is configured%s",
			name, instead(slices.Collect(maps.Keys(cfg.DecideServices)))))
	}
	for i, name := range agent.GetToolHosts() {
		if cfg.ToolHosts[name] == nil {
			all = append(all, at.index("tool_hosts", i).violation("reference", "no tool host %q is configured%s",
				name, instead(slices.Collect(maps.Keys(cfg.ToolHosts)))))
		}
	}
	all = append(all, checkPolicyOf(at, cfg, agent)...)
	all = append(all, checkAutoMode(at.field("auto_mode"), agent.GetAutoMode())...)
	return append(all, checkBudgets(at, agent)...)
}

// checkBudgets compares the effective budget with the maximum. The field to
// blame is the one that was written.
func checkBudgets(at fieldPath, agent *configv1.Agent) []*protovalidate.Violation {
	if agent.GetBudgetMax() == nil {
		return nil
	}
	var all []*protovalidate.Violation
	budget, widest := budgetsOf(agent)
	for _, w := range wider(budget, widest) {
		where, text := at.field("budget_max").field(w.field), "is below the default budget, which is "+w.have
		if w.isSet(agent.GetBudget()) {
			where, text = at.field("budget").field(w.field), "is over budget_max, which is "+w.most
		}
		all = append(all, where.violation("budget", "%s", text))
	}
	return all
}

// instead lists what could have been meant.
func instead(names []string) string {
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	if len(names) > 8 {
		names = append(names[:8:8], "…")
	}
	return "; configured: " + strings.Join(names, ", ")
}
