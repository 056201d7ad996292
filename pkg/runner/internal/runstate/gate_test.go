package runstate

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// strictness orders verdicts of gates.
var strictness = map[runnerdv1.Verdict]int{allow: 0, ask: 1, block: 2}

// drawLayer draws a layer of a policy.
func drawLayer(t *rapid.T, name string) *runnerdv1.PolicyLayer {
	globs := rapid.SliceOfN(rapid.SampledFrom([]string{"read", "write*", "tool:*", "charge", "nothing"}), 0, 2)
	layer := &runnerdv1.PolicyLayer{
		Name:        name,
		Mode:        runnerdv1.PermissionMode(rapid.IntRange(0, 5).Draw(t, name+" mode")),
		Plan:        runnerdv1.PlanRule(rapid.IntRange(0, 2).Draw(t, name+" plan")),
		ApprovalFor: globs.Draw(t, name+" approval_for"),
	}
	if rapid.Bool().Draw(t, name+" paths") {
		layer.Paths = &runnerdv1.PathRules{
			Workspace: rapid.SampledFrom([]string{"", "/work", "/work/deep"}).Draw(t, name+" workspace"),
			Sensitive: rapid.SampledFrom([][]string{nil, {".env"}, {"*.pem", "secrets"}}).Draw(t, name+" sensitive"),
		}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, name+" rules") {
		layer.Deny = append(layer.Deny, &runnerdv1.DenyRule{
			Id: fmt.Sprint("rule", i), Tools: rapid.SampledFrom([]string{"", "write*", "charge"}).Draw(t, name+" tools"),
			Arguments: map[string]string{"path": rapid.SampledFrom([]string{"*", "src/*", "*.env"}).Draw(t, name+" pattern")},
		})
	}
	return layer
}

// A further layer never lets a call run that would have been asked or blocked, wherever it stands.
func TestALayerOnlyNarrows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pb := &runnerdv1.Tool{
			Host: "h", Name: rapid.SampledFrom([]string{"read", "write_file", "charge"}).Draw(t, "tool"),
			Tier: uint32(rapid.IntRange(0, 4).Draw(t, "tier")),
		}
		pb.OfferedName = pb.GetName()
		path := rapid.SampledFrom([]string{"a", "src/b", "../c", ".env", "/work/x", "/etc/passwd", "src/../../d"}).Draw(t, "path")
		arguments, err := ParseArguments(fmt.Sprintf(`{"path":%q}`, path))
		if err != nil {
			t.Fatal(err)
		}
		judge := func(layers []*runnerdv1.PolicyLayer) objection {
			spec := &runnerdv1.RunSpec{Policy: layers}
			return gates(spec, &subject{tool: &Tool{Tool: pb}, arguments: arguments}, nil)
		}
		var layers []*runnerdv1.PolicyLayer
		for i := range rapid.IntRange(0, 3).Draw(t, "layers") {
			layers = append(layers, drawLayer(t, fmt.Sprint("layer", i)))
		}
		before := judge(layers)
		at := rapid.IntRange(0, len(layers)).Draw(t, "at")
		more := append(append(append([]*runnerdv1.PolicyLayer{}, layers[:at]...), drawLayer(t, "further")), layers[at:]...)
		after := judge(more)
		if strictness[after.verdict] < strictness[before.verdict] {
			t.Fatalf("%v becomes %v with %v", before, after, more[at])
		}
		for _, o := range []objection{before, after} {
			if o.gate == "" || o.rule == "" || (o.verdict == block) != (o.reason != 0 && o.message != "") {
				t.Fatalf("the verdict does not say why: %+v", o)
			}
		}
	})
}
