package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	configv1 "github.com/runnerd/runnerd/gen/runnerd/config/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/config"
	"github.com/runnerd/runnerd/test/identitytest"
)

// full is a file with every field; docs/configuration.md shows it.
const full = "testdata/full.yaml"

// fullFile is that file where the credentials that it names exist.
func fullFile(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	return write(t, identitytest.Localize(t, string(text)))
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "my runnerd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

func TestLoadReadsEveryField(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{File: fullFile(t)})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.GetListen() != "127.0.0.1:9000" || cfg.GetLog().GetLevel() != "warn" || cfg.GetLimits().GetMaxActiveRuns() != 7 {
		t.Errorf("daemon fields were not read: %v", cfg)
	}
	push := cfg.GetToolHosts()["git"].GetTools()["push"]
	if push.GetTier() != 4 || push.GetTimeout().AsDuration() != 90*time.Second || !push.GetIdempotent() {
		t.Errorf("tool fields were not read: %v", push)
	}
	want := &runnerdv1.RunSpec{
		Agent:         "coder",
		DecideService: "model",
		ToolHosts:     []string{"git"},
		Budget: &runnerdv1.Budget{
			MaxIterations: proto.Uint32(10), MaxToolCalls: proto.Uint32(25), MaxCostCents: new(5.5),
			MaxDuration: durationpb.New(time.Hour), MaxConsecutiveFailures: proto.Uint32(5),
			MaxContextTokens: proto.Uint32(100_000), MaxConsecutiveRefusals: proto.Uint32(4),
		},
		BudgetMax: &runnerdv1.Budget{
			MaxIterations: proto.Uint32(100), MaxToolCalls: proto.Uint32(25), MaxCostCents: new(5.5),
			MaxConsecutiveFailures: proto.Uint32(5),
			MaxContextTokens:       proto.Uint32(1_000_000), MaxConsecutiveRefusals: proto.Uint32(4),
		},
		Approval: &runnerdv1.ApprovalSettings{
			Mode: runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE, Timeout: durationpb.New(10 * time.Minute),
		},
		Policy: []*runnerdv1.PolicyLayer{
			{
				Name: "agent", Mode: runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE,
				Deny: []*runnerdv1.DenyRule{
					{
						Id: "no-force", Tools: "git_*", Message: "history is not rewritten here",
						Arguments: map[string]string{"command": "*--force*", "/options/force": "true"},
					},
					{Id: "no-hooks", Arguments: map[string]string{"path": "*.git/hooks/*"}},
				},
				Paths: &runnerdv1.PathRules{
					Workspace: "/srv/repo", Shared: true, Sensitive: []string{".env*", "*.pem", "deploy/keys/**"},
				},
				Plan:        runnerdv1.PlanRule_PLAN_RULE_REQUIRED,
				ApprovalFor: []string{"git_push*", "tool:deploy_*"},
			},
			{
				Name: "careful", Mode: runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT, Paths: &runnerdv1.PathRules{},
				Plan: runnerdv1.PlanRule_PLAN_RULE_NOT_REQUIRED,
			},
		},
		OnDenial:         runnerdv1.OnRefusal_ON_REFUSAL_FAIL,
		OnBlock:          runnerdv1.OnRefusal_ON_REFUSAL_FAIL,
		OnQuestion:       runnerdv1.OnQuestion_ON_QUESTION_BLOCK,
		InDoubt:          runnerdv1.InDoubtPolicy_IN_DOUBT_POLICY_ASK,
		DecideTimeout:    durationpb.New(30 * time.Second),
		DecidePatience:   durationpb.New(0),
		MaxParallelTools: 2,
		ConfirmAt_90:     true, ContextWarningPercent: 50,
		MaxResultBytes: 1 << 20,
	}
	coder := cfg.GetAgents()["coder"]
	if diff := cmp.Diff(want, config.Spec(cfg, "coder"), protocmp.Transform()); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	modes := []runnerdv1.ApprovalMode{runnerdv1.ApprovalMode_APPROVAL_MODE_PAUSE, runnerdv1.ApprovalMode_APPROVAL_MODE_WAIT}
	if got := config.ApprovalModes(coder); !slices.Equal(got, modes) {
		t.Errorf("approval modes: got %v, want %v", got, modes)
	}
	if got := config.ToolTimeout(coder); got != 20*time.Second {
		t.Errorf("tool timeout: got %v", got)
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{LookupEnv: env("HOME", "/home/ann")})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := cfg.GetListen(), "127.0.0.1:7780"; got != want {
		t.Errorf("listen: got %q, want %q", got, want)
	}
	if got, want := cfg.GetDataDir(), "/home/ann/.local/share/runnerd"; got != want {
		t.Errorf("data_dir: got %q, want %q", got, want)
	}
	if cfg.GetMetricsListen() != "" || cfg.GetLog().GetLevel() != "info" || cfg.GetLog().GetFormat() != "text" {
		t.Errorf("defaults: got %v", cfg)
	}
	if cfg.GetLimits().GetMaxActiveRuns() != 1024 {
		t.Errorf("max_active_runs: got %d", cfg.GetLimits().GetMaxActiveRuns())
	}
	demo := cfg.GetAgents()["demo"]
	if demo == nil {
		t.Fatal("without a file there is no agent demo")
	}
	spec := config.Spec(cfg, "demo")
	budget := &runnerdv1.Budget{
		MaxIterations: proto.Uint32(25), MaxToolCalls: proto.Uint32(25), MaxCostCents: proto.Float64(100),
		MaxConsecutiveFailures: proto.Uint32(5), MaxConsecutiveRefusals: proto.Uint32(10), MaxContextTokens: proto.Uint32(200_000),
	}
	if diff := cmp.Diff(budget, spec.GetBudget(), protocmp.Transform()); diff != "" {
		t.Errorf("budget (-want +got):\n%s", diff)
	}
	if got := config.Spec(&configv1.Config{Agents: map[string]*configv1.Agent{"x": {}}}, "x").GetBudgetMax(); !proto.Equal(got, budget) {
		t.Errorf("budget_max: got %v, want that of the budget", got)
	}
	if spec.GetApproval().GetTimeout().AsDuration() != time.Hour || spec.GetDecideTimeout().AsDuration() != 240*time.Second ||
		spec.GetDecidePatience().AsDuration() != 5*time.Minute || config.ToolTimeout(demo) != 120*time.Second ||
		spec.GetMaxParallelTools() != 4 || spec.GetMaxResultBytes() != 16<<20 {
		t.Errorf("defaults of an agent: got %v", spec)
	}
}

func TestDataDirFollowsXDG(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		env  func(string) (string, bool)
		want string
	}{
		"absolute":            {env("XDG_DATA_HOME", "/data", "HOME", "/home/ann"), "/data/runnerd"},
		"relative is ignored": {env("XDG_DATA_HOME", "data", "HOME", "/home/ann"), "/home/ann/.local/share/runnerd"},
		"nothing is set":      {env(), ""},
	} {
		got, err := config.DefaultDataDir(tc.env)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, tc.want)
		}
	}
}

func TestLaterSourcesWin(t *testing.T) {
	t.Parallel()
	vars := env("RUNNERD_LISTEN", "127.0.0.1:1", "RUNNERD_LOG_LEVEL", "debug", "RUNNERD_LIMITS_MAX_ACTIVE_RUNS", "3")
	cfg, err := config.Load(config.Source{File: fullFile(t), LookupEnv: vars, Flags: []config.Setting{
		{Field: "log.level", Value: "error", From: "--log-level"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]any{
		"the environment over the file":  {cfg.GetListen(), "127.0.0.1:1"},
		"a number of the environment":    {cfg.GetLimits().GetMaxActiveRuns(), uint32(3)},
		"a flag over the environment":    {cfg.GetLog().GetLevel(), "error"},
		"the file where nobody else has": {cfg.GetLog().GetFormat(), "json"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %v, want %v", what, pair[0], pair[1])
		}
	}
}

// Every field that can be set from outside is set, and is named where it is wrong.
func TestEveryOutsideFieldIsSet(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		"listen": "127.0.0.1:1", "data_dir": "/x", "metrics_listen": "127.0.0.1:2",
		"log.level": "debug", "log.format": "json", "limits.max_active_runs": "9",
	}
	for _, field := range config.Fields() {
		value, ok := values[field]
		if !ok {
			t.Fatalf("%s has no value in this test", field)
		}
		cfg, err := config.Load(config.Source{LookupEnv: env("HOME", "/h", config.EnvName(field), value)})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(cfg.String(), value) {
			t.Errorf("%s does not set %s: %v", config.EnvName(field), field, cfg)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	const agents = `
decide_services: {model: {address: "x:1"}}
tool_hosts: {git: {address: "x:2"}}
`
	tests := map[string]struct {
		text string
		env  []string
		want []string // what each problem begins with, and a word of it after a blank
	}{
		"unknown field":          {"listne: x", nil, []string{`:1:1 unknown field "listne"`}},
		"unknown nested field":   {"log:\n  colour: info", nil, []string{`:2:3 unknown field "colour"`}},
		"field misspelt":         {"tool_hosts: {g: {address: 'x:1', require: true}}", nil, []string{`:1:34 unknown field "require", expected one of [address prefix tls tool_timeout tools scripted token_file ...]; did you mean "required"?`}},
		"field elsewhere":        {agents + "agents:\n  a: {decide_service: model, approval: {approval_for: [x]}}", nil, []string{`:5:41 unknown field "approval_for", expected one of [modes timeout exclude_owner]; "approval_for" stands in policy or policies`}},
		"token for its hash":     {"auth: {tokens: [{principal: a, sha256: yW2DHWyY10z}]}", nil, []string{`:1:40 auth.tokens[0].sha256: must be the SHA-256 of a token, 64 hex digits; not the token itself`}},
		"no audience":            {"auth: {oidc: [{issuer: 'https://i.example', prefix: 'o:'}]}", nil, []string{`:1:15 auth.oidc[0].audience: must not be missing`}},
		"glob without quotes":    {"listen: x:1\npolicies:\n  p: {approval_for: [*_push]}", nil, []string{`:3: *_push stands without quotes`}},
		"tab":                    {"policies:\n\tp: {mode: allow}", nil, []string{`:2: found character that cannot start any token; it is indented with a tab`}},
		"syntax":                 {"listen: x\n  bad: [", nil, []string{":2: "}},
		"carriage returns":       {"log:\r  colour: info\r\n\rx: 1", nil, []string{`:2:3 unknown field "colour"`, `:4:1 unknown field "x"`}},
		"other line breaks":      {"log:\n  level: \u2028info", nil, []string{":2: a line break that is no line feed"}},
		"no text":                {"log:\n  level: in\xffo", nil, []string{":2: the file is not UTF-8 text"}},
		"a list for a text":      {"listen: [1]", nil, []string{":1:9 expected scalar"}},
		"not host:port":          {"listen: localhost", nil, []string{`:1:9 listen: "localhost" is not host:port`}},
		"port out of range":      {"listen: 'localhost:70000'", nil, []string{":1:9 listen: port 70000"}},
		"log level":              {"log:\n  level: loud", nil, []string{":2:10 log.level: must be in list"}},
		"key twice":              {"listen: 'a:1'\nlisten: 'a:2'", nil, []string{`:2:1 "listen" stands here twice, first in line 1`}},
		"agent twice":            {agents + "agents:\n  a: {decide_service: model}\n  a: {decide_service: model}", nil, []string{`:6:3 "a" stands here twice`}},
		"no such service":        {agents + "agents:\n  a:\n    decide_service: brain", nil, []string{`:6:21 agents["a"].decide_service: no decide service "brain" is configured; configured: model`}},
		"no service":             {agents + "agents:\n  a:\n    tool_hosts: [git]", nil, []string{`:6:5 agents["a"].decide_service: must not be missing or empty`}},
		"no such host":           {agents + "agents:\n  a:\n    decide_service: model\n    tool_hosts:\n    - git\n    - gti", nil, []string{`:9:7 agents["a"].tool_hosts[1]: no tool host "gti"`}},
		"host twice":             {agents + "agents:\n  a:\n    decide_service: model\n    tool_hosts: [git, git]", nil, []string{`:7:17 agents["a"].tool_hosts`}},
		"glob":                   {agents + "agents:\n  a:\n    decide_service: model\n    policy: {approval_for: ['ok*', '[x']}", nil, []string{`:7:36 agents["a"].policy.approval_for[1]: "[x" is not a glob`}},
		"deny id twice":          {"policies:\n  p:\n    deny:\n      - {id: a}\n      - {id: b}\n      - {id: a}", nil, []string{`:6:14 policies["p"].deny[2].id: "a" is the id of deny[0], too`}},
		"deny without an id":     {"policies:\n  p:\n    deny:\n      - {tools: x}", nil, []string{`:4:9 policies["p"].deny[0].id: a rule needs an id`}},
		"deny glob":              {"policies: {p: {deny: [{id: a, tools: 'tool:[x'}]}}", nil, []string{`:1:38 policies["p"].deny[0].tools: "[x" is not a glob`}},
		"mode":                   {"policies: {p: {mode: foo}}", nil, []string{`:1:22 policies["p"].mode: must be in list [read-only, workspace-write, prompt, allow, danger-full-access]`}},
		"plan":                   {"policies: {p: {plan: perhaps}}", nil, []string{`:1:22 policies["p"].plan: must be in list`}},
		"name of a layer":        {"policies: {request: {mode: allow}}", nil, []string{`:1:21 policies["request"]: "request" is the name of a layer`}},
		"no such policy":         {agents + "policies: {strict: {}}\nagents: {a: {decide_service: model, policies: [stirct]}}", nil, []string{`:5:48 agents["a"].policies[0]: no policy "stirct" is configured; configured: strict`}},
		"relative workspace":     {"policies: {p: {paths: {workspace: src}}}", nil, []string{`:1:35 policies["p"].paths.workspace: "src" is not an absolute path`}},
		"long workspace":         {"policies: {p: {paths: {workspace: /a/../b/}}}", nil, []string{`:1:35 policies["p"].paths.workspace: "/a/../b/" is not written in its shortest form, which is "/b"`}},
		"shared nothing":         {"policies: {p: {paths: {shared: true}}}", nil, []string{`:1:32 policies["p"].paths.shared: a workspace must be named`}},
		"paths off and on":       {"policies: {p: {paths: {off: true, workspace: /w}}}", nil, []string{`:1:29 policies["p"].paths.off: paths are not looked at`}},
		"sensitive or not":       {"policies: {p: {paths: {no_sensitive: true, sensitive: [x]}}}", nil, []string{`:1:38 policies["p"].paths.no_sensitive: no path is sensitive`}},
		"sensitive glob":         {"policies: {p: {paths: {sensitive: ['a', '{']}}}", nil, []string{`:1:41 policies["p"].paths.sensitive[1]: "{" is not a glob`}},
		"glob that never ends":   {"policies: {p: {approval_for: ['" + strings.Repeat("{,}", 85) + "']}}", nil, []string{`:1:31 policies["p"].approval_for[0]: the braces of`}},
		"globs that take long":   {"policies: {p: {paths: {sensitive: ['" + strings.Repeat("{,}{,}{,}{,}{,}{,}', '", 8) + "x']}}}", nil, []string{`:1:35 policies["p"].paths.sensitive: the globs stand for over 512`}},
		"paths and no paths":     {"tool_hosts: {g: {address: 'x:1', tools: {t: {no_paths: true, path_arguments: [p]}}}}", nil, []string{`:1:56 tool_hosts["g"].tools["t"].no_paths: no argument is a path`}},
		"budget over its max":    {agents + "agents:\n  a:\n    decide_service: model\n    budget: {max_tool_calls: 50}\n    budget_max:\n      max_tool_calls: 40", nil, []string{`:7:30 agents["a"].budget.max_tool_calls: is over budget_max, which is 40`}},
		"max below the default":  {agents + "agents:\n  a:\n    decide_service: model\n    budget_max:\n      max_iterations: 10", nil, []string{`:8:23 agents["a"].budget_max.max_iterations: is below the default budget, which is 25`}},
		"no limit over a limit":  {agents + "agents:\n  a:\n    decide_service: model\n    budget_max: {max_duration: 1h}", nil, []string{`:7:32 agents["a"].budget_max.max_duration: is below the default budget, which is no limit`}},
		"0 failures is no limit": {agents + "agents:\n  a:\n    decide_service: model\n    budget: {max_consecutive_failures: 0}\n    budget_max: {max_consecutive_failures: 9}", nil, []string{`:7:40 agents["a"].budget.max_consecutive_failures: is over`}},
		"no iterations":          {agents + "agents:\n  a:\n    decide_service: model\n    budget: {max_iterations: 0}", nil, []string{`:7:30 agents["a"].budget.max_iterations: must be greater than or equal to 1`}},
		"negative cost":          {agents + "agents:\n  a:\n    decide_service: model\n    budget: {max_cost_cents: -1}", nil, []string{`:7:30 agents["a"].budget.max_cost_cents: must be greater`}},
		"negative duration":      {agents + "agents:\n  a:\n    decide_service: model\n    tool_timeout: -5s", nil, []string{`:7:19 agents["a"].tool_timeout`}},
		"no duration":            {agents + "agents:\n  a:\n    decide_service: model\n    tool_timeout: soon", nil, []string{`:7:19 invalid number`}},
		"approval mode":          {agents + "agents:\n  a:\n    decide_service: model\n    approval: {modes: [wait, never]}", nil, []string{`:7:30 agents["a"].approval.modes[1]`}},
		"rate without calls":     {"tool_hosts: {g: {address: 'x:1', tools: {t: {rate_limit: {per: 1s}}}}}", nil, []string{`:1:58 tool_hosts["g"].tools["t"].rate_limit.calls`}},
		"rate too long":          {"tool_hosts: {g: {address: 'x:1', tools: {t: {rate_limit: {calls: 1, per: 25h}}}}}", nil, []string{`:1:74 tool_hosts["g"].tools["t"].rate_limit.per`}},
		"recheck too long":       {"tool_hosts: {g: {address: 'x:1', recheck: 2h}}", nil, []string{`:1:43 tool_hosts["g"].recheck`}},
		"tier":                   {"tool_hosts: {g: {address: 'x:1', tools: {t: {tier: 5}}}}", nil, []string{`:1:52 tool_hosts["g"].tools["t"].tier`}},
		"two targets":            {"decide_services:\n  d:\n    address: x:1\n    scripted: builtin", nil, []string{`:3:5 decide_services["d"]: exactly one of address and scripted`}},
		"no target":              {"tool_hosts:\n  g:\n    prefix: g_", nil, []string{`:3:5 tool_hosts["g"]: exactly one of address and scripted`}},
		"tls of a scripted one":  {"tool_hosts: {g: {scripted: builtin, tls: {}}}", nil, []string{`:1:42 tool_hosts["g"].tls: a scripted service`}},
		"no such ca file":        {"tool_hosts: {g: {address: 'x:1', tls: {ca_file: /nowhere/ca.pem}}}", nil, []string{`:1:49 tool_hosts["g"].tls.ca_file: open /nowhere/ca.pem`}},
		"name":                   {"decide_services: {'a b': {scripted: builtin}}", nil, []string{`:1:19 decide_services["a b"]: a name has`}},
		"variable":               {"", []string{"RUNNERD_LISTEN", "nowhere"}, []string{`RUNNERD_LISTEN: "nowhere" is not host:port`}},
		"number of a variable":   {"", []string{"RUNNERD_LIMITS_MAX_ACTIVE_RUNS", "many"}, []string{`RUNNERD_LIMITS_MAX_ACTIVE_RUNS: "many" is not a number`}},
		"variable hides a line":  {"listen: nowhere", []string{"RUNNERD_LISTEN", "127.0.0.1:0"}, nil},
		"all at once, in order": {
			"log: {level: loud}\nlisten: x\nlimits: {max_active_runs: 0}\nfoo: 1\n",
			[]string{"RUNNERD_LOG_FORMAT", "xml"},
			[]string{":1:14 log.level", ":2:9 listen", ":3:27 limits.max_active_runs", ":4:1 unknown field", "RUNNERD_LOG_FORMAT: must be in list"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := write(t, tc.text)
			_, err := config.Load(config.Source{File: file, LookupEnv: env(append(tc.env, "HOME", "/h")...)})
			var problems []string
			if wrong, ok := errors.AsType[*config.Error](err); ok {
				problems = wrong.Problems
			} else if err != nil {
				t.Fatal(err)
			}
			if len(problems) != len(tc.want) {
				t.Fatalf("got %d problems, want %d:\n%s", len(problems), len(tc.want), strings.Join(problems, "\n"))
			}
			for i, want := range tc.want {
				if got := strings.TrimPrefix(problems[i], file); !strings.HasPrefix(got, want) {
					t.Errorf("problem %d:\n got %s\nwant %s…", i, got, want)
				}
			}
		})
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	if _, err := config.Load(config.Source{File: filepath.Join(t.TempDir(), "none.yaml")}); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("missing file: got %v", err)
	}
	if _, err := config.Load(config.Source{File: t.TempDir()}); err == nil {
		t.Error("a folder was read as a file")
	}
}

func TestEmptyFileHasNoAgents(t *testing.T) {
	t.Parallel()
	cfg, err := config.Load(config.Source{File: write(t, "# nothing\n"), LookupEnv: env("HOME", "/h")})
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.GetAgents()) != 0 {
		t.Errorf("got agents %v", cfg.GetAgents())
	}
	if diff := cmp.Diff(&configv1.Log{Level: "info", Format: "text"}, cfg.GetLog(), protocmp.Transform()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}
