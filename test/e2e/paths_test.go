package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

func TestPaths(t *testing.T) {
	t.Parallel()
	g := startGated(t)

	t.Run("T-89 A-57 paths that lead out are blocked and not asked for", func(t *testing.T) {
		t.Parallel()
		for agent, paths := range map[string][]string{
			"confined": {
				"../x", "src/../../x", "/etc/passwd", "/work/ws2/x", `..\\x`, "%2e%2e/x", "~/x", "file:///etc/passwd", "C:/x", "\uFF0E\uFF0E\uFF0Fx",
			},
			"allow": {"../x", "src/../../x", "%2e%2e/x"}, // without a workspace only what climbs out
		} {
			for _, path := range paths {
				run, r := g.one(t, agent, "tier3", `{"path":"`+path+`"}`)
				verdict(t, r, "BLOCK paths path:outside agent")
				g.Done(t, run)
				for _, ev := range g.Events(t, run) {
					if ev.GetToolCallPendingApproval() != nil || ev.GetToolCallStarted() != nil {
						t.Errorf("%s: %s is asked for or started", path, ev.GetType())
					}
				}
			}
		}
		_, all := g.try(t, &runnerdv1.StartRunRequest{Agent: "confined"},
			"look", `{"path":"src/a"}`, "look", `{"path":"/work/ws/src/../a"}`, "look", `{"to":"../x"}`, "look", `{"text":"see ../x or so"}`,
			"folder", `{"dir":".. ","to":"../x"}`, "folder", `{"dir":"src","to":"../x"}`, "pathless", `{"path":"../x"}`)
		const allowed = "ALLOW mode mode:allow/tier:0 agent"
		for i, want := range []string{
			allowed, allowed, "BLOCK paths path:outside agent", allowed, "BLOCK paths path:outside agent", allowed, allowed,
		} {
			verdict(t, all[i], want)
		}
	})

	t.Run("T-89 a path through a symbolic link of a shared workspace is blocked", func(t *testing.T) {
		t.Parallel()
		_, all := g.try(t, &runnerdv1.StartRunRequest{Agent: "workspace"},
			"look", `{"path":"src/link"}`, "look", `{"path":"src/link/passwd"}`, "look", `{"path":"`+g.workspace+`/src/link"}`,
			"look", `{"path":"src/new/file"}`, "look", `{"path":"src"}`)
		for i, want := range []string{
			"BLOCK paths path:symlink agent", "BLOCK paths path:symlink agent", "BLOCK paths path:symlink agent",
			"ALLOW mode mode:allow/tier:0 agent", "ALLOW mode mode:allow/tier:0 agent",
		} {
			verdict(t, all[i], want)
		}
		run, r := g.one(t, "gone", "look", `{"path":"x"}`)
		verdict(t, r, "BLOCK paths path:outside agent")
		has(t, g.refusal(t, run).GetMessage(), "the workspace cannot be opened")
	})

	t.Run("T-89 edited arguments are resolved, too", func(t *testing.T) {
		t.Parallel()
		run, r := g.one(t, "workspace", "tier4", `{"path":"docs/a"}`)
		verdict(t, r, "ASK mode mode:allow/tier:4 agent")
		g.Idle(t, run)
		if err := os.Symlink("/etc", filepath.Join(g.workspace, "docs", "later")); err != nil {
			t.Fatal(err)
		}
		a := g.Run(t, run).GetApprovals()[0]
		edit := func(path string) error {
			_, err := g.Runs.SubmitApproval(t.Context(), &runnerdv1.SubmitApprovalRequest{
				RunId: run, ApprovalId: a.GetApprovalId(), ApprovalDigest: a.GetApprovalDigest(), Verdict: approve,
				EditedArgumentsJson: new(`{"path":"` + path + `"}`),
			})
			return err
		}
		if err := edit("docs/later/x"); err == nil {
			t.Error("an edit leads through a symbolic link")
		} else {
			has(t, err.Error(), "symbolic link")
		}
		if err := edit("docs/b"); err != nil {
			t.Error(err)
		}
		g.Done(t, run)
	})

	t.Run("T-89 a path that leads elsewhere by the time it is approved does not run", func(t *testing.T) {
		t.Parallel()
		run, r := g.one(t, "workspace", "tier4", `{"path":"docs/turned/x"}`)
		verdict(t, r, "ASK mode mode:allow/tier:4 agent")
		a := g.Idle(t, run).GetApprovals()[0]
		link := filepath.Join(g.workspace, "docs", "turned")
		if err := os.Symlink("/etc", link); err != nil {
			t.Fatal(err)
		}
		_, err := g.Vote(t.Context(), a, approve)
		has(t, harness.Code(t, err, codes.FailedPrecondition, "PATH_CHANGED").Message(), "docs/turned/x", "symbolic link")
		equal(t, "open approvals", len(g.Run(t, run).GetApprovals()), 1)
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Vote(t.Context(), a, approve); err != nil {
			t.Fatal(err)
		}
		g.Done(t, run)
		equal(t, "starts", harness.Count(g.Events(t, run), "tool_call_started"), 1)
	})

	t.Run("A-57 A-58 sensitive paths are asked for, in any case and in any component", func(t *testing.T) {
		t.Parallel()
		_, all := g.try(t, &runnerdv1.StartRunRequest{Agent: "danger-full-access", Approval: &runnerdv1.ApprovalSettings{Mode: denyMode}},
			"look", `{"path":"a/.ENV"}`, "look", `{"path":".env.local"}`, "look", `{"path":"home/.ssh/known_hosts"}`,
			"look", `{"path":"/root/.aws/config"}`, "look", `{"path":"tls/Server.pem"}`, "look", `{"paths":["a","secrets/b"]}`,
			"look", `{"url":"https://example.org/.env"}`, "look", `{"path":"environment"}`)
		for i, want := range []string{
			"ASK sensitive_paths sensitive:.env agent", "ASK sensitive_paths sensitive:.env.* agent", "ASK sensitive_paths sensitive:.ssh agent",
			"ASK sensitive_paths sensitive:.aws agent", "ASK sensitive_paths sensitive:*.pem agent", "ASK sensitive_paths sensitive:secrets agent",
			"ALLOW mode mode:danger-full-access/tier:0 agent", "ALLOW mode mode:danger-full-access/tier:0 agent",
		} {
			verdict(t, all[i], want)
		}
	})
}
