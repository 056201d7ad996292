package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/test/e2e/harness"
)

const (
	mostShown   = 50_000
	mostMessage = 4 << 20 // what gRPC takes unless told otherwise
	mostDecide  = 3 << 20
	mostPiece   = 512 << 10
)

// give answers every call with one result.
func give(result *runnerdv1.ToolResult) with {
	return calls(func(*runnerdv1.CallToolRequest, harness.CallStream) (*runnerdv1.ToolResult, error) {
		return result, nil
	})
}

// once is a run with one call, and what the model is shown of its result.
func (w *world) once(t *testing.T, agent string, changes ...with) (run string, seen *runnerdv1.Observation) {
	t.Helper()
	run = w.play(t, agent, harness.Steps(harness.Calls("look", "{}"), harness.Answer("done")), changes...)
	ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
	return run, shown(t, w, run, 2)
}

// stored checks that an artifact is what its reference says, and returns it.
func (w *world) stored(t *testing.T, run string, ref *runnerdv1.ArtifactRef) []byte {
	t.Helper()
	data := w.Artifact(t, run, ref.GetArtifactId())
	sum := sha256.Sum256(data)
	equal(t, "size of the artifact", ref.GetSize(), uint64(len(data)))
	equal(t, "hash of the artifact", ref.GetSha256(), hex.EncodeToString(sum[:]))
	return data
}

// readable checks that nothing that is read of a run needs more than the message limit that everybody has.
func (w *world) readable(t *testing.T, run string) {
	t.Helper()
	for _, req := range w.brain.Requests(run) {
		if size := proto.Size(req); size > mostDecide {
			t.Errorf("Decide %d has %d bytes", req.GetIteration(), size)
		}
	}
	for _, ev := range w.Events(t, run) {
		if size := proto.Size(ev); size > mostMessage/2 {
			t.Errorf("event %d has %d bytes", ev.GetSequence(), size)
		}
	}
	req := &runnerdv1.ListHistoryRequest{RunId: run, PageSize: 1000}
	for more := true; more; more = req.GetPageToken() != "" {
		page, err := w.Runs.ListHistory(harness.Context(t), req)
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(page); size > mostMessage {
			t.Errorf("a page of the history has %d bytes", size)
		}
		req.PageToken = page.GetNextPageToken()
	}
	export, err := w.Audit.ExportAudit(harness.Context(t), &runnerdv1.ExportAuditRequest{RunId: run, IncludePrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	for m, err := export.Recv(); err == nil; m, err = export.Recv() {
		if size := proto.Size(m); size > mostMessage {
			t.Errorf("a message of the export has %d bytes", size)
		}
	}
	if size := proto.Size(w.checkpoint(t, run, "")); size > mostPiece {
		t.Errorf("a checkpoint has %d bytes", size)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	w := shared(t)

	t.Run("CASE-14 of 5 MB the model sees a preview, the whole is an artifact", func(t *testing.T) {
		t.Parallel()
		text := strings.Repeat("x", 5_000_000)
		run, seen := w.once(t, "std", give(&runnerdv1.ToolResult{Text: text}))
		equal(t, "truncated", seen.GetTextTruncated(), true)
		equal(t, "bytes shown", len(seen.GetText()), mostShown)
		if data := w.stored(t, run, seen.GetArtifacts()[0]); string(data) != text {
			t.Errorf("the artifact has %d bytes and is not the result", len(data))
		}
		stream, err := w.Runs.ReadArtifact(harness.Context(t), &runnerdv1.ReadArtifactRequest{
			RunId: run, ArtifactId: seen.GetArtifacts()[0].GetArtifactId(), Offset: 4_000_000,
		})
		if err != nil {
			t.Fatal(err)
		}
		rest := 0
		for m, err := stream.Recv(); err == nil; m, err = stream.Recv() {
			if rest += len(m.GetData()); len(m.GetData()) > mostPiece {
				t.Errorf("a piece has %d bytes", len(m.GetData()))
			}
		}
		equal(t, "bytes from an offset on", rest, 1_000_000)
		w.readable(t, run)
	})

	t.Run("CASE-14 just as many bytes as are shown are no artifact", func(t *testing.T) {
		t.Parallel()
		_, seen := w.once(t, "std", give(&runnerdv1.ToolResult{Text: strings.Repeat("x", mostShown)}))
		equal(t, "truncated", seen.GetTextTruncated(), false)
		equal(t, "artifacts", len(seen.GetArtifacts()), 0)
		_, seen = w.once(t, "std", give(&runnerdv1.ToolResult{Text: strings.Repeat("x", mostShown-1) + "😀"}))
		equal(t, "truncated", seen.GetTextTruncated(), true)
		equal(t, "bytes shown", len(seen.GetText()), mostShown-1) // cut on a character
		equal(t, "shown is text", utf8.ValidString(seen.GetText()), true)
	})

	t.Run("CASE-14 a result over max_result_bytes is one error, never sent for again", func(t *testing.T) {
		t.Parallel()
		for agent, size := range map[string]int{"std": 17 << 20, "small": 1<<20 + 1} {
			run, seen := w.once(t, agent, give(&runnerdv1.ToolResult{StructuredJson: `"` + strings.Repeat("x", size-2) + `"`}))
			equal(t, "kind", seen.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_ERROR)
			equal(t, "reason", seen.GetReason(), runnerdv1.CallReason_CALL_REASON_RESULT_TOO_LARGE)
			equal(t, "calls", len(w.hands.Calls(run)), 1)
			w.readable(t, run)
		}
		_, seen := w.once(t, "small", give(&runnerdv1.ToolResult{Text: strings.Repeat("x", 1<<20)}))
		equal(t, "reason of a result of just max_result_bytes", seen.GetReason(), runnerdv1.CallReason_CALL_REASON_UNSPECIFIED)
	})

	t.Run("CASE-14 of 200 results the oldest give way", func(t *testing.T) {
		t.Parallel()
		var round []string
		for i := range 20 {
			round = append(round, "look", fmt.Sprintf(`{"n":%d}`, i))
		}
		run := w.play(t, "wide", func(req *runnerdv1.DecideRequest, s harness.DecideStream) error {
			if req.GetIteration() > 10 {
				return harness.Send(s, harness.Answer("done"))
			}
			return harness.Send(s, harness.Calls(round...))
		}, give(&runnerdv1.ToolResult{Text: strings.Repeat("x", mostShown-1)}), budget(&runnerdv1.Budget{
			MaxToolCalls: proto.Uint32(1000), MaxContextTokens: proto.Uint32(1_000_000),
		}))
		ended(t, w.Done(t, run), runnerdv1.StopReason_STOP_REASON_COMPLETED, "completed")
		equal(t, "calls", len(w.hands.Calls(run)), 200)
		w.readable(t, run)
		requests := w.brain.Requests(run)
		history := requests[len(requests)-1].GetHistory()
		equal(t, "entries shown", len(history), 10+200)
		oldest, newest := history[1].GetObservation(), history[len(history)-1].GetObservation()
		equal(t, "newest result", len(newest.GetText()), mostShown-1)
		if len(oldest.GetText()) > 2<<10 || !oldest.GetTextTruncated() || len(oldest.GetArtifacts()) == 0 {
			t.Fatalf("of the oldest result %d bytes are shown, truncated=%t, artifacts %v",
				len(oldest.GetText()), oldest.GetTextTruncated(), oldest.GetArtifacts())
		}
		equal(t, "the whole of the oldest", len(w.stored(t, run, oldest.GetArtifacts()[0])), mostShown-1)
		first := w.History(t, run)[1].GetObservation()
		equal(t, "the oldest in the log", len(first.GetText()), mostShown-1)
	})

	t.Run("CASE-15 a picture is an artifact, and no text", func(t *testing.T) {
		t.Parallel()
		picture := bytes.Repeat([]byte{0x89, 'P', 'N', 'G', 0xff, 0}, 1_100_000/6)
		structured := fmt.Sprintf(`{"data":%q}`, base64.StdEncoding.EncodeToString(picture))
		run, seen := w.once(t, "std", give(&runnerdv1.ToolResult{
			StructuredJson: structured, Blobs: []*runnerdv1.Blob{{MimeType: "image/png", Name: "shot.png", Data: picture}},
		}))
		equal(t, "text", seen.GetText(), "")
		equal(t, "artifacts", len(seen.GetArtifacts()), 1)
		ref := seen.GetArtifacts()[0]
		equal(t, "type", ref.GetMimeType(), "image/png")
		equal(t, "name", ref.GetName(), "shot.png")
		equal(t, "the picture", bytes.Equal(w.stored(t, run, ref), picture), true)
		equal(t, "structured text beside it", seen.GetStructuredJson(), "")
		equal(t, "structured result", string(w.stored(t, run, seen.GetStructuredRef())) == structured, true)
		equal(t, "blobs that ride along", len(w.brain.Requests(run)[1].GetBlobs()), 0) // it is over 1 MiB
		w.readable(t, run)
	})

	t.Run("CASE-15 a small picture rides along", func(t *testing.T) {
		t.Parallel()
		picture := bytes.Repeat([]byte{0x89, 0xff}, 5000)
		run, seen := w.once(t, "std", give(&runnerdv1.ToolResult{Text: "see", Blobs: []*runnerdv1.Blob{{MimeType: "image/png", Data: picture}}}))
		blobs := w.brain.Requests(run)[1].GetBlobs()
		if len(blobs) != 1 || blobs[0].GetArtifactId() != seen.GetArtifacts()[0].GetArtifactId() || !bytes.Equal(blobs[0].GetData(), picture) {
			t.Errorf("with the next Decide ride %d blobs, want the picture", len(blobs))
		}
	})

	t.Run("CASE-15 an empty result is a completed call", func(t *testing.T) {
		t.Parallel()
		run, seen := w.once(t, "std", give(&runnerdv1.ToolResult{}))
		equal(t, "kind", seen.GetKind(), runnerdv1.ObservationKind_OBSERVATION_KIND_TOOL_RESULT)
		equal(t, "text", seen.GetText(), "")
		equal(t, "completed", harness.Count(w.Events(t, run), "tool_call_completed"), 1)
	})

	t.Run("CASE-15 an artifact is its owner's", func(t *testing.T) {
		t.Parallel()
		run, seen := w.once(t, "std", give(&runnerdv1.ToolResult{Blobs: []*runnerdv1.Blob{{Data: []byte{1, 2, 3}}}}))
		id := seen.GetArtifacts()[0].GetArtifactId()
		equal(t, "type that nobody named", seen.GetArtifacts()[0].GetMimeType(), "application/octet-stream")
		_, err := w.ReadArtifact(harness.Context(t), run, id, 4)
		harness.Code(t, err, codes.OutOfRange, "")
		_, err = w.ReadArtifact(harness.Context(t), run, "1.1.1.9", 0)
		harness.Code(t, err, codes.NotFound, "ARTIFACT_NOT_FOUND")
		stream, err := w.Guest.ReadArtifact(harness.Context(t), &runnerdv1.ReadArtifactRequest{RunId: run, ArtifactId: id})
		if err == nil {
			_, err = stream.Recv()
		}
		harness.Code(t, err, codes.Unauthenticated, "CREDENTIAL_REQUIRED")
	})
}
