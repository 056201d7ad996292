package config

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// FuzzParse reads configuration files that say anything: they give a configuration whose agents can be made, or
// problems each of which names its line.
func FuzzParse(f *testing.F) {
	full, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(full))
	for _, seed := range []string{
		"", "{}", "agents:\n  a: {decide_service: m}\n", "decide_services: {m: {scripted: builtin}}\nagents: {a: {decide_service: m}}",
		"decide_services: {m: {scripted: builtin}}\nagents:\n  a:\n    decide_service: m\n    auto_mode: {limits: {max_duration: 9s}}\n",
		"agents: &a {x: *a}", "log: {level: loud}\nlog: {level: info}", "limits: {max_active_runs: -1}", "listen: [", "a: 1\n---\nb: 2",
		"policies: {p: {mode: prompt, deny: [{tools: ['[']}]}}",
		`"`, "a: b\nc: \x01", "\n\xff", "\r0", "a: 1\rb: [\u2028]", "\xff\xfea\x00", "log:\r\n  level: loud\r\n",
	} {
		f.Add(seed)
	}
	placed := regexp.MustCompile(`^file\.yaml:[1-9]\d*(:|$)`)
	f.Fuzz(func(t *testing.T, text string) {
		cfg, problems := parse([]byte(text), "file.yaml", nil)
		for _, problem := range problems {
			if !placed.MatchString(problem) || strings.ContainsAny(problem, "\x00\x1b") {
				t.Errorf("%q gives the problem %q", text, problem)
			}
		}
		if len(problems) > 0 {
			return
		}
		for name := range cfg.GetAgents() {
			if Spec(cfg, name) == nil {
				t.Errorf("agent %q has no spec", name)
			}
		}
	})
}
