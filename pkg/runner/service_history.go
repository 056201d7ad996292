package runner

import (
	"context"
	"encoding/binary"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// maxPageBytes is where a page of the history is cut, so that it stays below what clients take.
const maxPageBytes = 3 << 20

// ListHistory implements RunService.
func (s *runService) ListHistory(ctx context.Context, req *runnerdv1.ListHistoryRequest) (*runnerdv1.ListHistoryResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_ListHistory_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	place, err := s.pages.open(req, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	// All pages are of one point, that of the first.
	at, from := req.GetAtSequence(), 0
	if len(place) == historyPlace {
		at = binary.BigEndian.Uint64(place)
		from = int(binary.BigEndian.Uint64(place[8:]))
	}
	st, err := s.runner.At(ctx, req.GetRunId(), at)
	if err != nil {
		return nil, err
	}
	history := st.History()
	from = min(from, len(history))
	to := pageEnd(history, from, pageLimit(req.GetPageSize()))
	resp := &runnerdv1.ListHistoryResponse{Entries: history[from:to], AtSequence: st.Sequence()}
	if to < len(history) {
		next := binary.BigEndian.AppendUint64(nil, st.Sequence())
		resp.NextPageToken = s.pages.make(req, binary.BigEndian.AppendUint64(next, uint64(to)))
	}
	return resp, nil
}

// historyPlace is the size of a place in a history: a sequence and the index of an entry.
const historyPlace = 16

// pageEnd is where the page ends that begins at from: after size entries, or before one that is too much, but after
// one at least.
func pageEnd(history []*runnerdv1.HistoryEntry, from, size int) int {
	bytes, to := 0, from
	for to < len(history) && to-from < size {
		bytes += proto.Size(history[to])
		if bytes > maxPageBytes && to > from {
			break
		}
		to++
	}
	return to
}

// GetCheckpoint implements RunService.
func (s *runService) GetCheckpoint(ctx context.Context, req *runnerdv1.GetCheckpointRequest) (*runnerdv1.GetCheckpointResponse, error) {
	if _, err := s.row(ctx, runnerdv1.RunService_GetCheckpoint_FullMethodName, req.GetRunId()); err != nil {
		return nil, err
	}
	var iteration uint64
	if label, ok := strings.CutPrefix(req.GetLabel(), "step-"); ok {
		var err error
		if iteration, err = strconv.ParseUint(label, 10, 32); err != nil {
			return nil, invalidField("label", "is not step-<iteration>")
		}
	}
	checkpoint, err := s.runner.Checkpoint(ctx, req.GetRunId(), uint32(iteration))
	if err != nil {
		return nil, err
	}
	return &runnerdv1.GetCheckpointResponse{Checkpoint: checkpoint}, nil
}

// ListCheckpoints implements RunService.
func (s *runService) ListCheckpoints(ctx context.Context, req *runnerdv1.ListCheckpointsRequest) (*runnerdv1.ListCheckpointsResponse, error) {
	row, err := s.row(ctx, runnerdv1.RunService_ListCheckpoints_FullMethodName, req.GetRunId())
	if err != nil {
		return nil, err
	}
	place, err := s.pages.open(req, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	var after uint32
	if len(place) == 4 {
		after = binary.BigEndian.Uint32(place)
	}
	size := pageLimit(req.GetPageSize())
	found, err := s.runner.Checkpoints(ctx, req.GetRunId(), after, size+1)
	if err != nil {
		return nil, err
	}
	resp := new(runnerdv1.ListCheckpointsResponse)
	if len(found) > size {
		found = found[:size]
		resp.NextPageToken = s.pages.make(req, binary.BigEndian.AppendUint32(nil, found[size-1].GetIteration()))
	}
	view := PrincipalFrom(ctx).viewOf(row.GetRun())
	for _, checkpoint := range found {
		resp.Checkpoints = append(resp.Checkpoints, show(checkpoint, view))
	}
	return resp, nil
}
