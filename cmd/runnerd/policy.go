package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// modeWords are the permission modes as people write them.
var modeWords = map[string]runnerdv1.PermissionMode{
	"read-only":          runnerdv1.PermissionMode_PERMISSION_MODE_READ_ONLY,
	"workspace-write":    runnerdv1.PermissionMode_PERMISSION_MODE_WORKSPACE_WRITE,
	"prompt":             runnerdv1.PermissionMode_PERMISSION_MODE_PROMPT,
	"allow":              runnerdv1.PermissionMode_PERMISSION_MODE_ALLOW,
	"danger-full-access": runnerdv1.PermissionMode_PERMISSION_MODE_DANGER_FULL_ACCESS,
}

// policyFlags are further layers of policy for a run; they only narrow.
type policyFlags struct {
	mode        string
	policies    []string
	planHash    string
	planTargets []string
	autoMode    bool
	autoIsSet   bool
}

func addPolicyFlags(cmd *cobra.Command) *policyFlags {
	f := &policyFlags{}
	flags := cmd.Flags()
	flags.StringVar(&f.mode, "mode", "", "what is allowed by tier, if that is less than the agent allows: "+
		"read-only, workspace-write, prompt, allow or danger-full-access")
	flags.StringArrayVar(&f.policies, "policy", nil, "configured policy that holds, too; can be repeated")
	flags.StringVar(&f.planHash, "plan-hash", "", "hash of the plan that the run is bound to")
	flags.StringArrayVar(&f.planTargets, "plan-target", nil, "file or folder that the plan may write to; can be repeated (default: all)")
	flags.BoolVar(&f.autoMode, "auto-mode", false, "approve by itself what auto mode covers, where the agent allows that; "+
		"--auto-mode=false switches it off")
	return f
}

// given are the flags that were given.
func (f *policyFlags) given(cmd *cobra.Command) []string {
	var given []string
	for _, name := range []string{"mode", "policy", "plan-hash", "plan-target", "auto-mode"} {
		if cmd.Flags().Changed(name) {
			given = append(given, "--"+name)
		}
	}
	f.autoIsSet = slices.Contains(given, "--auto-mode")
	return given
}

// put puts what was given into a request.
func (f *policyFlags) put(req *runnerdv1.StartRunRequest) error {
	if f.mode != "" {
		mode, err := oneOf("mode", strings.ReplaceAll(f.mode, "_", "-"), modeWords)
		if err != nil {
			return err
		}
		req.Policy = &runnerdv1.PolicyLayer{Mode: mode}
	}
	req.Policies = f.policies
	if f.planHash == "" && len(f.planTargets) > 0 {
		return usageError{errors.New("--plan-target needs the plan it belongs to: give --plan-hash")}
	}
	if f.planHash != "" {
		req.Plan = &runnerdv1.PlanContract{ContentHash: f.planHash, FileTargets: f.planTargets}
	}
	if f.autoIsSet {
		req.AutoMode = &f.autoMode
	}
	return nil
}

func newPolicyCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "See what policy would say to a call",
		Long: `Policy decides whether a call runs, is asked, or is blocked. It comes in layers: that of
the agent, the configured policies a run names, and that of its request. Each can only
make it stricter. docs/policy.md tells all of it.`,
		Example: `  runnerd policy explain announce '{"text":"lunch"}'`,
	}
	cmd.AddCommand(newExplainCommand(p))
	return cmd
}

func newExplainCommand(p *program) *cobra.Command {
	var (
		run, agent string
		policy     *policyFlags
		connect    *connection
		out        *output
	)
	cmd := &cobra.Command{
		Use:   "explain [flags] TOOL [ARGUMENTS]",
		Short: "Tell which layer and rule would decide a call, and why",
		Long: `Tell what would become of a call, of a run that would be started now or of one that is
there, and what each check, gate and layer says to it. Nothing is recorded, nothing
runs.

TOOL is the name as the model knows it, ARGUMENTS the JSON object as the model would
write it; - reads it from standard input. Whatever the decision is, the exit code is
0: read it with --output json.`,
		Example: `  runnerd policy explain announce '{"text":"lunch"}'
  runnerd policy explain --agent coder --mode read-only write_file '{"path":"a.go"}'
  runnerd policy explain --agent coder --policy nightly shell - < arguments.json
  runnerd policy explain --run 3f2a announce '{"text":"tea"}' --output json | jq .verdict`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			style, err := p.style(out, p.out)
			if err != nil {
				return err
			}
			req := &runnerdv1.ExplainPolicyRequest{Tool: args[0]}
			if len(args) == 2 {
				req.ArgumentsJson = args[1]
			}
			if req.GetArgumentsJson() == "-" {
				if req.ArgumentsJson, err = p.readText("", "-"); err != nil {
					return err
				}
			}
			given := policy.given(cmd)
			if cmd.Flags().Changed("agent") {
				given = append(given, "--agent")
			}
			if run != "" {
				if len(given) > 0 {
					return usageError{fmt.Errorf("--run explains a run as it is: leave out %s", strings.Join(given, " and "))}
				}
				req.Subject = &runnerdv1.ExplainPolicyRequest_RunId{RunId: run}
			} else {
				start := &runnerdv1.StartRunRequest{Agent: agent}
				if err := policy.put(start); err != nil {
					return err
				}
				req.Subject = &runnerdv1.ExplainPolicyRequest_Start{Start: start}
			}
			c, err := p.dial(connect)
			if err != nil {
				return err
			}
			defer c.close()
			ctx, cancel := call(cmd.Context())
			defer cancel()
			got, err := c.ExplainPolicy(ctx, req)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, got)
			}
			return p.printExplanation(args[0], got, style)
		},
	}
	connect, out = p.addConnectionFlags(cmd), addOutputFlags(cmd)
	cmd.Flags().StringVarP(&agent, "agent", "a", "demo", "agent whose policy is explained")
	cmd.Flags().StringVar(&run, "run", "", "run whose policy is explained, as it is now, with its pinned tools and grants")
	policy = addPolicyFlags(cmd)
	return cmd
}

// printExplanation prints the decision in one sentence, and below what was
// looked at; the step that decides is marked.
func (p *program) printExplanation(tool string, got *runnerdv1.ExplainPolicyResponse, style style) error {
	fmt.Fprintln(p.out, decisionText(tool, got, style))
	if len(got.GetSteps()) == 0 {
		return nil
	}
	fmt.Fprintln(p.out)
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tGATE\tLAYER\tRULE\tVERDICT\tWHY")
	for _, s := range got.GetSteps() {
		mark := " "
		if s.GetDecides() {
			mark = "→"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", mark, safeLine(s.GetGate()), safeLine(s.GetLayer()), safeLine(s.GetRule()),
			strings.ToLower(short(s.GetVerdict())), safeLine(s.GetMessage()))
	}
	return table.Flush()
}

// decisionText is what would become of a call, and who says so.
func decisionText(tool string, got *runnerdv1.ExplainPolicyResponse, style style) string {
	name := safeLine(tool)
	if d := got.GetDefinition(); d != nil {
		name = fmt.Sprintf("%s (%s, tier %d)", name, safeLine(d.GetHost()+"/"+d.GetName()), d.GetTier())
	}
	var what string
	switch got.GetVerdict() {
	case runnerdv1.Verdict_VERDICT_ALLOW:
		what = style.green("would run")
	case runnerdv1.Verdict_VERDICT_ASK:
		what = style.yellow("would be asked first")
	case runnerdv1.Verdict_VERDICT_BLOCK:
		what = style.red("would be blocked")
	case runnerdv1.Verdict_VERDICT_FAILED:
		what = style.red("would fail its checks")
	default:
		what = short(got.GetVerdict())
	}
	text := name + " " + what
	if got.GetReason() != runnerdv1.CallReason_CALL_REASON_UNSPECIFIED {
		text += " (" + short(got.GetReason()) + ")"
	}
	i := slices.IndexFunc(got.GetSteps(), (*runnerdv1.PolicyStep).GetDecides)
	if i < 0 {
		return text + "."
	}
	s := got.GetSteps()[i]
	if by := askedBy(s.GetGate(), s.GetLayer(), s.GetRule()); by != "" {
		text += ": " + by
	}
	return text + "."
}
