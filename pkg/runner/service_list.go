package runner

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
)

// maxScan is how many rows one page of a filtered list looks at; the next page goes on from there.
const maxScan = 10_000

// ListRuns implements RunService.
func (s *runService) ListRuns(ctx context.Context, req *runnerdv1.ListRunsRequest) (*runnerdv1.ListRunsResponse, error) {
	prefix := prefixList
	if req.GetAgent() != "" {
		prefix = prefixAgent + req.GetAgent() + "/"
	}
	p, resp := PrincipalFrom(ctx), new(runnerdv1.ListRunsResponse)
	if req.GetAgent() != "" && !p.Has(req.GetAgent(), RoleViewer) {
		return resp, nil // as of an agent that is not there: no token, however many runs there are
	}
	next, err := s.page(ctx, req, prefix, req.GetPageToken(), pageLimit(req.GetPageSize()), func(_ auditstore.Row, run *runnerdv1.Run) (bool, error) {
		if !p.Has(run.GetAgent(), RoleViewer) {
			return false, nil
		}
		// What is listed is redacted already. Filters see what the caller sees, or they would tell the rest.
		if run = show(run, min(p.viewOf(run), ViewRedacted)); !matches(req, run) {
			return false, nil
		}
		resp.Runs = append(resp.Runs, run)
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	resp.NextPageToken = next
	return resp, nil
}

// matches reports whether a run passes the filters of a list.
func matches(req *runnerdv1.ListRunsRequest, run *runnerdv1.Run) bool {
	if req.GetAgent() != "" && run.GetAgent() != req.GetAgent() {
		return false
	}
	if len(req.GetStates()) > 0 && !slices.Contains(req.GetStates(), run.GetState()) {
		return false
	}
	for key, want := range req.GetLabels() {
		if got, ok := run.GetLabels()[key]; !ok || got != want {
			return false
		}
	}
	return true
}

// listed returns the run of a row. A row that is damaged is shown as such: leaving it out would hide that.
func (s *runService) listed(ctx context.Context, stored *auditstore.Row, prefix string) *runnerdv1.Run {
	row, err := decodeRow(stored)
	if err == nil {
		return row.GetRun()
	}
	s.server.log.ErrorContext(ctx, "a run cannot be listed", "run", stored.Run, "error", err)
	run := &runnerdv1.Run{RunId: stored.Run, ErrorMessage: "what is stored of the run is damaged; VerifyAudit says where"}
	if agent, ok := strings.CutPrefix(prefix, prefixAgent); ok {
		run.Agent = strings.TrimSuffix(agent, "/")
	}
	return run
}

// page hands the rows below a prefix to take, in order from where the token says, until take has taken size of them.
// It returns the token of the next page, empty if there is nothing more.
func (s *runService) page(ctx context.Context, req proto.Message, prefix, token string, size int,
	take func(auditstore.Row, *runnerdv1.Run) (bool, error),
) (next string, err error) {
	after, err := s.pages.open(req, token)
	if err != nil {
		return "", err
	}
	for taken, seen := 0, 0; ; {
		rows, err := s.runner.cfg.Log.Rows(ctx, []byte(prefix), after, min(size-taken+1, auditstore.MaxPage))
		if err != nil {
			return "", err
		}
		if len(rows) == 0 {
			return "", nil
		}
		for _, stored := range rows {
			if taken == size || seen == maxScan {
				return s.pages.make(req, after), nil
			}
			ok, err := take(stored, s.listed(ctx, &stored, prefix))
			if err != nil {
				return "", err
			}
			if ok {
				taken++
			}
			seen++
			after = stored.Key
		}
	}
}
