package runner

import (
	"context"
	"slices"

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
	resp := new(runnerdv1.ListRunsResponse)
	next, err := s.page(ctx, req, prefix, req.GetPageToken(), pageLimit(req.GetPageSize()), func(_ auditstore.Row, run *runnerdv1.Run) (bool, error) {
		if !matches(req, run) {
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
			row, err := decodeRow(&stored)
			if err != nil {
				return "", err
			}
			ok, err := take(stored, row.Run)
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
