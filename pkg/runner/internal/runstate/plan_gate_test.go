package runstate

import (
	"fmt"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestPlanGate(t *testing.T) {
	t.Parallel()
	const (
		write, prompt = runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE, runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT
		readOnly      = runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY
		required      = runnerdv1.PlanRule_PLAN_RULE_REQUIRED
		notRequired   = runnerdv1.PlanRule_PLAN_RULE_NOT_REQUIRED
	)
	bound := func(targets ...string) *runnerdv1.PlanContract {
		return &runnerdv1.PlanContract{ContentHash: "h", FileTargets: targets}
	}
	for name, tc := range map[string]struct {
		layer     *runnerdv1.PolicyLayer
		tier      uint32
		plan      *runnerdv1.PlanContract
		arguments string
		rule      string // empty: nothing is said
	}{
		"another tier":               {&runnerdv1.PolicyLayer{Plan: required}, 3, nil, `{}`, ""},
		"required":                   {&runnerdv1.PolicyLayer{Plan: required}, 1, nil, `{}`, "plan:required"},
		"bound":                      {&runnerdv1.PolicyLayer{Plan: required}, 1, bound(), `{"path":"x"}`, ""},
		"a blank hash":               {&runnerdv1.PolicyLayer{Plan: required}, 1, &runnerdv1.PlanContract{ContentHash: " "}, `{}`, "plan:required"},
		"by the mode":                {&runnerdv1.PolicyLayer{Mode: write}, 1, nil, `{}`, "plan:required"},
		"bound, by the mode":         {&runnerdv1.PolicyLayer{Mode: write}, 1, bound(), `{}`, ""},
		"skipped":                    {&runnerdv1.PolicyLayer{Mode: write, Plan: notRequired}, 1, nil, `{}`, ""},
		"skipped, but bound":         {&runnerdv1.PolicyLayer{Mode: write, Plan: notRequired}, 1, bound("src"), `{"path":"docs/x"}`, "plan:targets"},
		"another mode":               {&runnerdv1.PolicyLayer{Mode: prompt}, 1, nil, `{}`, ""},
		"the mode that only reads":   {&runnerdv1.PolicyLayer{Mode: readOnly, Plan: required}, 1, nil, `{}`, ""},
		"the target":                 {&runnerdv1.PolicyLayer{}, 1, bound("src/a"), `{"path":"src/a"}`, ""},
		"below it":                   {&runnerdv1.PolicyLayer{}, 1, bound("src/"), `{"path":"./src//a/b"}`, ""},
		"another of several":         {&runnerdv1.PolicyLayer{}, 1, bound("x", "src"), `{"path":"src/a"}`, ""},
		"beside it":                  {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"path":"src2/a"}`, "plan:targets"},
		"above it":                   {&runnerdv1.PolicyLayer{}, 1, bound("src/a"), `{"path":"src"}`, "plan:targets"},
		"in another case":            {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"path":"SRC/a"}`, "plan:targets"},
		"two dots":                   {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"path":"src/../src/a"}`, "plan:targets"},
		"two encoded dots":           {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"path":"src/%2e%2e/a"}`, "plan:targets"},
		"one of two paths":           {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"path":"src/a","to":"docs/b"}`, "plan:targets"},
		"no path":                    {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"n":1}`, ""},
		"everything":                 {&runnerdv1.PolicyLayer{}, 1, bound("."), `{"path":"a/b"}`, ""},
		"a percent sign in a target": {&runnerdv1.PolicyLayer{}, 1, bound("a%20b"), `{"path":"a%20b/c"}`, ""},
		"absolute":                   {&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: "/w"}}, 1, bound("src"), `{"path":"/w/src/a"}`, ""},
		"absolute, beside":           {&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: "/w"}}, 1, bound("src"), `{"path":"/w/a"}`, "plan:targets"},
		"an absolute target":         {&runnerdv1.PolicyLayer{Paths: &runnerdv1.PathRules{Workspace: "/w"}}, 1, bound("/w/src"), `{"path":"src/a"}`, ""},
		"absolute, no workspace":     {&runnerdv1.PolicyLayer{}, 1, bound("src"), `{"path":"/etc/src/a"}`, "plan:targets"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := subjectOf(t, &runnerdv1.Tool{Name: "write", OfferedName: "write", Tier: tc.tier}, tc.arguments)
			s.plan = tc.plan
			tc.layer.Name = "agent"
			var said *objection
			gates(&runnerdv1.RunSpec{Policy: []*runnerdv1.PolicyLayer{tc.layer}}, s, func(gate, _ string, o *objection) {
				if gate == "plan" {
					said = o
				}
			})
			if tc.rule == "" && said != nil || tc.rule != "" && (said == nil || said.rule != tc.rule || said.verdict != block) {
				t.Errorf("got %+v, want %q", said, tc.rule)
			}
		})
	}
}

// The targets of a plan hold whatever further layers say.
func TestPlanHoldsInEveryLayer(t *testing.T) {
	t.Parallel()
	skip := &runnerdv1.PolicyLayer{Name: "p", Plan: runnerdv1.PlanRule_PLAN_RULE_NOT_REQUIRED}
	only := &runnerdv1.PolicyLayer{Name: "r", Mode: runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY}
	for i, layers := range [][]*runnerdv1.PolicyLayer{{skip}, {skip, skip}, {only, skip}} {
		s := subjectOf(t, &runnerdv1.Tool{Name: "write", Tier: 1}, `{"path":"docs/x"}`)
		s.plan = &runnerdv1.PlanContract{ContentHash: "h", FileTargets: []string{"src"}}
		if o := gates(&runnerdv1.RunSpec{Policy: layers}, s, nil); o.rule != "plan:targets" {
			t.Errorf("%d: got %+v", i, o)
		}
	}
}

// BenchmarkGates is a call of 1 KiB with ten paths and a policy of three layers, each with 20 deny rules, 20 globs of
// calls to approve and the usual sensitive paths, of which none says anything.
func BenchmarkGates(b *testing.B) {
	spec := &runnerdv1.RunSpec{}
	for _, name := range []string{"agent", "team", "request"} {
		layer := &runnerdv1.PolicyLayer{
			Name: name, Mode: runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW,
			Paths: &runnerdv1.PathRules{Workspace: testWorkspace, Sensitive: DefaultSensitive},
		}
		for i := range 20 {
			layer.Deny = append(layer.Deny, &runnerdv1.DenyRule{
				Id: fmt.Sprint("rule-", i), Tools: "edit*", Arguments: map[string]string{"command": fmt.Sprintf("*rm -rf /%d*", i)},
			})
			layer.ApprovalFor = append(layer.ApprovalFor, fmt.Sprintf("deploy_%d_*", i))
		}
		spec.Policy = append(spec.Policy, layer)
	}
	text := `{"command":"go test ./internal/... -run TestThis -count 1","paths":[`
	for i := range 10 {
		text += fmt.Sprintf(`"src/internal/package%d/file_of_some_length.go",`, i)
	}
	text += `"docs"],"text":"`
	for len(text) < 1022 {
		text += "lorem ipsum "
	}
	parsed, err := ParseArguments(text[:1022] + `"}`)
	if err != nil {
		b.Fatal(err)
	}
	tool := &Tool{Tool: &runnerdv1.Tool{Host: "h", Name: "edit_files", OfferedName: "edit_files", Tier: 3}}
	b.ReportAllocs()
	for b.Loop() {
		if o := gates(spec, &subject{tool: tool, arguments: parsed}, nil); o.verdict != allow {
			b.Fatalf("got %+v", o)
		}
	}
}
