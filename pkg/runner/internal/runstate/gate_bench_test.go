package runstate

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// BenchmarkVerdict judges a call that passes every check and gate, so that all of them look at all there is.
// test/bench runs it from the test binary of this package: the judgement is nothing that others should be able to
// import, and measured through the daemon it would be lost in what a request costs.
func BenchmarkVerdict(b *testing.B) {
	st, call := fullPolicy(b)
	for b.Loop() {
		if v := st.judge(call, Found{}); v.verdict != allow {
			b.Fatalf("not allowed: %s %s: %s", v.gate, v.rule, v.message)
		}
	}
}

// fullPolicy is a run whose policy has everything that gates look at, in three layers with twenty deny rules and twenty
// approval globs in all, and a call of it: a file to be written, with arguments of 1 KiB.
func fullPolicy(tb testing.TB) (*State, *runnerdv1.ToolCall) {
	tb.Helper()
	spec := &runnerdv1.RunSpec{
		Plan: &runnerdv1.PlanContract{ContentHash: "sha256:plan", FileTargets: []string{"docs", "cmd/main.go", "/srv/repo/internal"}},
	}
	for _, name := range []string{"agent", "policy/careful", "request"} {
		spec.Policy = append(spec.Policy, &runnerdv1.PolicyLayer{
			Name: name, Mode: runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE,
			Paths: &runnerdv1.PathRules{Workspace: "/srv/repo", Sensitive: DefaultSensitive},
			Plan:  runnerdv1.PlanRule_PLAN_RULE_REQUIRED,
		})
	}
	for i := range 20 {
		layer := spec.GetPolicy()[i%3]
		arguments := map[string]string{"content": fmt.Sprintf("*secret-%d?=*", i)} // has to read all of it
		if i%2 == 1 {
			arguments = map[string]string{"path": fmt.Sprintf("*.git/hooks-%d/*", i), "/options/mode": "06*"}
		}
		layer.Deny = append(layer.Deny, &runnerdv1.DenyRule{Id: fmt.Sprint("rule-", i), Tools: "fs_*", Arguments: arguments})
		layer.ApprovalFor = append(layer.ApprovalFor, fmt.Sprintf("*_deploy_%d", i))
	}
	arguments := func(content string) string {
		text, err := json.Marshal(map[string]any{
			"path": "internal/store/read_me.go", "content": content, "create": true,
			"options": map[string]any{"mode": "0644", "tags": []string{"generated", "reviewed"}},
		})
		if err != nil {
			tb.Fatal(err)
		}
		return string(text)
	}
	const size = 1 << 10
	content := strings.Repeat("the quick brown fox jumps over the lazy dog, ", size/45+1)
	text := arguments(content[:size-len(arguments(""))])
	if len(text) != size {
		tb.Fatalf("the arguments have %d bytes, not %d", len(text), size)
	}
	catalogue := NewCatalogue(&runnerdv1.Catalogue{Tools: []*runnerdv1.Tool{{
		Host: "files", Name: "write_file", OfferedName: "fs_write_file", Tier: writeTier, PathArguments: []string{"path"},
		InputSchemaJson: `{"type":"object","required":["path","content"],"additionalProperties":false,"properties":{` +
			`"path":{"type":"string","minLength":1,"maxLength":4096},"content":{"type":"string"},"create":{"type":"boolean"},` +
			`"options":{"type":"object","properties":{"mode":{"type":"string","pattern":"^0[0-7]{3}$"},` +
			`"tags":{"type":"array","items":{"type":"string"},"maxItems":16}}}}}`,
	}}})
	st := &State{env: Env{Spec: spec, Catalogue: catalogue}}
	return st, &runnerdv1.ToolCall{Id: "call_1", Name: "fs_write_file", ArgumentsJson: text}
}
