package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

func TestListHistory(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "read:{}\nfail:{}\nread:{}\nanswer:done")
		f.settle("r1")
		list := func(req *runnerdv1.ListHistoryRequest) (entries []*runnerdv1.HistoryEntry, pages int) {
			t.Helper()
			req.RunId = "r1"
			for {
				resp, err := f.runs.ListHistory(f.owner(), req)
				if err != nil {
					t.Fatal(err)
				}
				entries = append(entries, resp.GetEntries()...)
				pages++
				if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
					return entries, pages
				}
			}
		}
		all, _ := list(&runnerdv1.ListHistoryRequest{})
		if len(all) != 7 || all[0].GetDecision() == nil || !strings.Contains(all[1].GetObservation().GetText(), toolSecret) {
			t.Fatalf("history: %v", all)
		}
		paged, pages := list(&runnerdv1.ListHistoryRequest{PageSize: 2})
		if pages != 4 || len(paged) != len(all) {
			t.Errorf("%d entries in %d pages", len(paged), pages)
		}
		for i := range paged {
			if !proto.Equal(paged[i], all[i]) {
				t.Errorf("entry %d is %v, want %v", i, paged[i], all[i])
			}
		}
		early, _ := list(&runnerdv1.ListHistoryRequest{AtSequence: all[2].GetSequence()})
		if len(early) != 3 {
			t.Errorf("at %d: %d entries", all[2].GetSequence(), len(early))
		}
		_, err := f.runs.ListHistory(f.owner(), &runnerdv1.ListHistoryRequest{RunId: "r1", AtSequence: 999})
		wantReason(t, err, codes.OutOfRange, "PAST_HEAD")
		_, err = f.runs.ListHistory(f.owner(), &runnerdv1.ListHistoryRequest{RunId: "r1", PageToken: "x"})
		wantReason(t, err, codes.InvalidArgument, "BAD_PAGE_TOKEN")
		_, err = f.runs.ListHistory(f.anonymous(), &runnerdv1.ListHistoryRequest{RunId: "r1"})
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
	})
}

// TestHistoryPagesAreBounded: a page stays below what clients take, however big the entries are.
func TestHistoryPagesAreBounded(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "block")
		const inputs, size = 100, 60_000
		for range inputs {
			if _, err := f.runs.SubmitInput(f.owner(), &runnerdv1.SubmitInputRequest{RunId: "r1", Text: strings.Repeat("z", size)}); err != nil {
				t.Fatal(err)
			}
		}
		req := &runnerdv1.ListHistoryRequest{RunId: "r1", PageSize: 1000}
		entries, pages := 0, 0
		for {
			resp, err := f.runs.ListHistory(f.owner(), req)
			if err != nil {
				t.Fatal(err)
			}
			if proto.Size(resp) > 3<<20+1024 {
				t.Errorf("a page of %d bytes", proto.Size(resp))
			}
			entries += len(resp.GetEntries())
			pages++
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if entries != inputs || pages != 2 {
			t.Errorf("%d entries in %d pages", entries, pages)
		}
	})
}

func TestPageEnd(t *testing.T) {
	t.Parallel()
	entry := func(size int) *runnerdv1.HistoryEntry {
		return &runnerdv1.HistoryEntry{Entry: &runnerdv1.HistoryEntry_Observation{
			Observation: &runnerdv1.Observation{Text: strings.Repeat("x", size)},
		}}
	}
	history := []*runnerdv1.HistoryEntry{entry(1), entry(4 << 20), entry(1), entry(2 << 20), entry(2 << 20)}
	for _, tt := range []struct{ from, size, want int }{
		{0, 10, 1}, {1, 10, 2}, {2, 10, 4}, {4, 10, 5}, {5, 10, 5}, {2, 1, 3},
	} {
		if got := pageEnd(history, tt.from, tt.size); got != tt.want {
			t.Errorf("from %d at most %d: ends at %d, want %d", tt.from, tt.size, got, tt.want)
		}
	}
}

func TestCheckpoints(t *testing.T) {
	t.Parallel()
	rowFace(t, "E-51 T-165 every iteration is a checkpoint by its label", func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "read:{}\nread:{}\nread:{}\nanswer:sk-abcdefgh12345678")
		f.settle("r1")
		var labels []string
		req := &runnerdv1.ListCheckpointsRequest{RunId: "r1", PageSize: 2}
		for {
			resp, err := f.runs.ListCheckpoints(f.anonymous(), req)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range resp.GetCheckpoints() {
				labels = append(labels, c.GetLabel())
				if strings.Contains(fmt.Sprint(c), "sk-abc") {
					t.Errorf("a viewer sees %v", c)
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if got := strings.Join(labels, " "); !strings.HasPrefix(got, "step-1 step-2 step-3") {
			t.Errorf("checkpoints %s", got)
		}
		for label, iteration := range map[string]uint32{"step-2": 2, "step-1": 1} {
			got, err := f.runs.GetCheckpoint(f.owner(), &runnerdv1.GetCheckpointRequest{RunId: "r1", Label: label})
			if err != nil || got.GetCheckpoint().GetIteration() != iteration || got.GetCheckpoint().GetToolCalls() != iteration {
				t.Errorf("%s: %v, %v", label, got, err)
			}
		}
		latest, err := f.runs.GetCheckpoint(f.owner(), &runnerdv1.GetCheckpointRequest{RunId: "r1"})
		if err != nil || latest.GetCheckpoint().GetLabel() != labels[len(labels)-1] {
			t.Errorf("latest: %v, %v", latest, err)
		}
		_, err = f.runs.GetCheckpoint(f.owner(), &runnerdv1.GetCheckpointRequest{RunId: "r1", Label: "step-77"})
		wantReason(t, err, codes.NotFound, "CHECKPOINT_NOT_FOUND")
		_, err = f.runs.GetCheckpoint(f.owner(), &runnerdv1.GetCheckpointRequest{RunId: "r1", Label: "step-0"})
		wantReason(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		_, err = f.runs.GetCheckpoint(f.anonymous(), &runnerdv1.GetCheckpointRequest{RunId: "r1"})
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
	})
}

func TestReadArtifact(t *testing.T) {
	t.Parallel()
	inFace(t, func(f *face) {
		t := f.t
		f.start(f.owner(), "r1", "blob:{}\nread:{}\nfail:{}\nanswer:done")
		f.settle("r1")
		var picture string
		results := make(map[string]string)
		for _, resp := range f.events(f.owner(), "r1", rawly) {
			id := fmt.Sprintf("event.%d.text", resp.GetEvent().GetSequence())
			if done := resp.GetEvent().GetToolCallCompleted(); done != nil {
				results[id] = done.GetText()
				if len(done.GetArtifacts()) > 0 {
					picture = done.GetArtifacts()[0].GetArtifactId()
				}
			}
			if failed := resp.GetEvent().GetToolCallFailed(); failed != nil {
				results[id] = failed.GetMessage()
			}
		}
		want := megabyte()
		for _, offset := range []uint64{0, 1, 512<<10 - 1, 512 << 10, 1<<20 - 1, 1 << 20} {
			if got := f.artifact(f.owner(), "r1", picture, offset); !bytes.Equal(got, want[offset:]) {
				t.Errorf("from %d: %d bytes", offset, len(got))
			}
		}
		if len(results) != 3 {
			t.Fatalf("results %v", results)
		}
		for id, text := range results {
			if got := f.artifact(f.owner(), "r1", id, 3); string(got) != text[3:] {
				t.Errorf("%s: %q, want %q", id, got, text[3:])
			}
			if got := f.artifact(f.owner(), "r1", id, uint64(len(text))); len(got) != 0 {
				t.Errorf("%s: %q after its end", id, got)
			}
			_, err := f.readArtifact(f.owner(), "r1", id, uint64(len(text))+1)
			wantReason(t, err, codes.OutOfRange, "PAST_HEAD")
		}
		for _, offset := range []uint64{1<<20 + 1, 1 << 62, 1<<64 - 1} {
			_, err := f.readArtifact(f.owner(), "r1", picture, offset)
			wantReason(t, err, codes.OutOfRange, "PAST_HEAD")
		}
		for _, id := range []string{"nothing", "event.1", "event.1.text", "event.1.0.text", "event.999.text", "event.", "event.07.text", "event.x.text", "event.4.-1.text", "../../etc/passwd"} {
			for _, offset := range []uint64{0, 7, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
				_, err := f.readArtifact(f.owner(), "r1", id, offset)
				wantReason(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
			}
		}
		_, err := f.readArtifact(f.owner(), "none", picture, 0)
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")
		_, err = f.readArtifact(f.anonymous(), "r1", picture, 0)
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")

		// A token is good for its run while its Decide is in progress.
		f.start(f.owner(), "r2", "read:{}\nblock")
		for f.brain.lastToken() == "" || !strings.Contains(f.brain.lastToken(), "decide/2") {
			time.Sleep(time.Millisecond)
		}
		token := f.brain.lastToken()
		ctx := metadata.AppendToOutgoingContext(t.Context(), "runnerd-run-token", token)
		id := ""
		for _, resp := range f.events(f.owner(), "r2") {
			if resp.GetEvent().GetToolCallCompleted() != nil {
				id = fmt.Sprintf("event.%d.text", resp.GetEvent().GetSequence())
			}
		}
		if got := f.artifact(ctx, "r2", id, 0); !strings.Contains(string(got), toolSecret) {
			t.Errorf("with a token: %q", got)
		}
		_, err = f.readArtifact(ctx, "r1", picture, 0)
		wantReason(t, err, codes.NotFound, "RUN_NOT_FOUND")
		_, err = f.runs.GetRun(ctx, &runnerdv1.GetRunRequest{RunId: "r2"})
		wantReason(t, err, codes.PermissionDenied, "PERMISSION_DENIED")
		f.brain.release()
		f.settle("r2")
		_, err = f.readArtifact(ctx, "r2", id, 0)
		wantReason(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
	})
}

func (f *face) readArtifact(ctx context.Context, run, id string, offset uint64) ([]byte, error) {
	stream, err := f.runs.ReadArtifact(ctx, &runnerdv1.ReadArtifactRequest{RunId: run, ArtifactId: id, Offset: offset})
	if err != nil {
		return nil, err
	}
	data := []byte{}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return nil, err
		}
		if resp.GetOffset() != offset+uint64(len(data)) || len(resp.GetData()) > 512<<10 {
			return nil, fmt.Errorf("%d bytes at %d, want offset %d", len(resp.GetData()), resp.GetOffset(), offset+uint64(len(data)))
		}
		data = append(data, resp.GetData()...)
	}
}
