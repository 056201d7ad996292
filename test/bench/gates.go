package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Agents with a full policy, as that of BenchmarkVerdict in pkg/runner/internal/runstate. No call is blocked: under the first every call passes by itself, under the
// second a person would have to be asked of every call, and auto mode approves it.
const (
	gatedAgent = "gated"
	autoAgent  = "auto"
)

// planOfFiles is the plan that runs of agents with gates are bound to.
var planOfFiles = &runnerdv1.PlanContract{ContentHash: "sha256:plan", FileTargets: []string{"docs", "cmd/main.go", "/srv/repo/internal"}}

func gatedRows() (rows []string) {
	for _, agent := range []string{gatedAgent, autoAgent} {
		rows = append(rows, "agent-run-"+agent+"/64/iterations_per_second", "agent-run-"+agent+"/64/cpu_per_1000_iterations")
	}
	return rows
}

// gatedRuns compares agent-run under a full policy, and in auto mode, with the same calls where no gate has anything to
// look at. One daemon serves all in short turns, so that all of them see the same machine.
func (b *bench) gatedRuns(ctx context.Context) (err error) {
	runs := 192
	if b.quick {
		runs = 16
	}
	dir, err := b.folder()
	if err != nil {
		return err
	}
	d, err := b.daemon(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	agents := []string{agentName, gatedAgent, autoAgent}
	samples := map[string][]sample{}
	for round := range b.few(16) {
		for i := range agents {
			agent := agents[(i+round)%len(agents)] // none is always first
			s, err := measure(ctx, d, load{
				Prefix: fmt.Sprintf("%s-%d", agent, round), Runs: runs, InFlight: 64,
				Work: work{Iterations: iterations, Files: true}, Agent: agent,
			})
			if err != nil {
				return fmt.Errorf("agent %s: %w", agent, err)
			}
			b.note("agent %-5s round %d: %7.0f iterations/s, %.3f CPU s/1000", agent, round+1, s.rate(), s.cpuPer1000())
			if round > 0 || b.quick { // the first warms up
				samples[agent] = append(samples[agent], s)
			}
		}
	}
	middle := func(agent string, of func(sample) float64) float64 { return median(pick(samples[agent], of)) }
	for _, agent := range agents[1:] {
		name := "agent-run-" + agent + "/64/"
		b.add(row{name + "iterations_per_second", middle(agent, sample.rate), "1/s", middle(agentName, sample.rate), atLeast(0.9)})
		b.add(row{name + "cpu_per_1000_iterations", middle(agent, sample.cpuPer1000), "s", middle(agentName, sample.cpuPer1000), target{}})
	}
	return nil
}

// gatedAgents is the configuration of the agents with gates: the end of agents, and the policies they name.
func gatedAgents(budget string) string {
	var text strings.Builder
	for _, agent := range []struct{ name, mode, auto string }{
		{gatedAgent, "workspace-write", "{}"},
		{autoAgent, "prompt", "{enabled: true}"},
	} {
		fmt.Fprintf(&text, `  %s:
    decide_service: stub
    tool_hosts: [files]
    policy: %s
    policies: [first, second]
    auto_mode: %s
    budget: %s
`, agent.name, policyLayer(0, agent.mode), agent.auto, budget)
	}
	fmt.Fprintf(&text, "policies:\n  first: %s\n  second: %s\n", policyLayer(1, ""), policyLayer(2, ""))
	return text.String()
}

// policyLayer is one of three layers of a policy with everything that gates look at, in YAML: twenty deny rules and
// twenty approval globs in all. None of it matches what runs of work with files do.
func policyLayer(layer int, mode string) string {
	type object map[string]any
	var deny []object
	var approval []string
	for i := layer; i < 20; i += 3 {
		arguments := object{"content": fmt.Sprintf("*secret-%d?=*", i)} // has to read all of it
		if i%2 == 1 {
			arguments = object{"path": fmt.Sprintf("*.git/hooks-%d/*", i), "/pace_ns": "06*"}
		}
		deny = append(deny, object{"id": fmt.Sprintf("rule-%d", i), "tools": "w*", "arguments": arguments})
		approval = append(approval, fmt.Sprintf("*_deploy_%d", i))
	}
	policy := object{"deny": deny, "approval_for": approval, "paths": object{"workspace": "/srv/repo"}, "plan": "required"}
	if mode != "" {
		policy["mode"] = mode
	}
	text, err := json.Marshal(policy)
	if err != nil {
		panic(err) // only texts, which have no way to fail
	}
	return string(text)
}
