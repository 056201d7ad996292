package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/auditstore"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

const (
	// maxPart is the biggest part in bytes that stands in an event; a bigger one is an artifact.
	maxPart = 64 << 10
	// maxInlineFact bounds the parts in bytes that the events of one fact hold together.
	maxInlineFact = 128 << 10
	// maxInlineMany is that bound for facts of many parts, each of which takes more than its text: a start, with its
	// observations, and a decision, whose calls have events of their own and whose answer stands in two.
	maxInlineMany = 64 << 10
	// maxShown is how much of a result the model is shown, in bytes.
	maxShown = 50_000
	// maxResultBlobs is how many binary parts a result may have.
	maxResultBlobs = 64

	mimeText  = "text/plain; charset=utf-8"
	mimeJSON  = "application/json"
	mimeBytes = "application/octet-stream"
)

// parts puts what is too big for the events of one fact into artifacts of the run. Putting the same again changes
// nothing.
type parts struct {
	blobs auditstore.Blobs
	run   string
	room  int  // bytes that may still stand in events
	named bool // see namedByContents
}

func (r *Runner) parts(run string) *parts {
	return &parts{blobs: r.cfg.Blobs, run: run, room: maxInlineFact}
}

// namedByContents makes the names of artifacts end with digits of their digest: for what may be stored again under the
// same name with other contents, one of which is then referred to.
func (p *parts) namedByContents() *parts {
	p.named = true
	return p
}

// text returns a part as it stands in an event, or a reference to where it was stored.
func (p *parts) text(ctx context.Context, id, mime, text string) (string, *runnerdv1.ArtifactRef, error) {
	if len(text) <= min(maxPart, p.room) {
		p.room -= len(text)
		return text, nil, nil
	}
	ref, err := p.store(ctx, id, mime, "", []byte(text))
	return "", ref, err
}

// store stores an artifact, whatever its size. It waits for a store that is full or not available until ctx ends.
func (p *parts) store(ctx context.Context, id, mime, name string, data []byte) (*runnerdv1.ArtifactRef, error) {
	sum := sha256.Sum256(data)
	if p.named {
		id = fmt.Sprintf("%s.%x", id, sum[:8])
	}
	ref := &runnerdv1.ArtifactRef{
		ArtifactId: id, MimeType: mime, Name: name, Size: uint64(len(data)), Sha256: hex.EncodeToString(sum[:]),
	}
	for n := 0; n == 0 || len(data) > 0; n++ {
		chunk := data[:min(len(data), auditstore.MaxChunk)]
		data = data[len(chunk):]
		if err := p.put(ctx, id, n, chunk); err != nil {
			return nil, fmt.Errorf("store artifact %s of run %s: %w", id, p.run, err)
		}
	}
	return ref, nil
}

func (p *parts) put(ctx context.Context, id string, n int, chunk []byte) error {
	for retry := (backoff{}); ; {
		err := p.blobs.Put(ctx, p.run, id, n, chunk)
		if !errors.Is(err, auditstore.ErrUnavailable) && !errors.Is(err, auditstore.ErrUnknown) {
			return err
		}
		if err := pause(ctx, retry.next()); err != nil {
			return err
		}
	}
}

// decision stores the parts of a decision that are too big for events.
func (p *parts) decision(ctx context.Context, iteration, attempt uint32, d *runnerdv1.Decision) (refs runstate.DecisionRefs, err error) {
	p.room = maxInlineMany
	id := func(n int) string { return fmt.Sprintf("%d.%d.d%d", iteration, attempt, n) }
	text := d.GetText()
	if content := d.GetAnswer().GetContent(); content != "" {
		text = content
	}
	if question := d.GetQuestion().GetText(); question != "" {
		text = question
	}
	if _, refs.Text, err = p.text(ctx, id(0), mimeText, text); err != nil {
		return refs, err
	}
	if _, refs.Reasoning, err = p.text(ctx, id(1), mimeText, d.GetReasoning()); err != nil {
		return refs, err
	}
	if _, refs.ProviderState, err = p.text(ctx, id(2), mimeBytes, string(d.GetProviderState())); err != nil {
		return refs, err
	}
	calls := d.GetToolCalls().GetCalls()
	for _, call := range calls {
		p.room -= len(call.GetId())
	}
	refs.Arguments = make([]*runnerdv1.ArtifactRef, len(calls))
	for i, call := range calls {
		if _, refs.Arguments[i], err = p.text(ctx, id(3+i), mimeJSON, call.GetArgumentsJson()); err != nil {
			return refs, err
		}
	}
	return refs, nil
}

// result brings a tool result into the form that events hold. Its artifacts are named "<prefix>.<n>".
func (p *parts) result(ctx context.Context, prefix string, res *runnerdv1.ToolResult, most int) (runstate.Result, error) {
	if problem := oversized(res, most); problem != "" {
		return runstate.Result{Reason: runnerdv1.CallReason_CALL_REASON_RESULT_TOO_LARGE, Text: problem}, nil
	}
	var out runstate.Result
	if res.GetIsError() {
		out.Reason = runnerdv1.CallReason_CALL_REASON_TOOL_ERROR
	}
	n := 0
	store := func(mime, name string, data []byte) (*runnerdv1.ArtifactRef, error) {
		ref, err := p.store(ctx, fmt.Sprintf("%s.%d", prefix, n), mime, name, data)
		n++
		return ref, err
	}
	text, repaired := valid(res.GetText())
	out.Text, out.TextTruncated = preview(text)
	out.TextRepaired = repaired
	if out.TextTruncated {
		whole, err := store(mimeText, "", []byte(res.GetText()))
		if err != nil {
			return out, err
		}
		out.Artifacts = append(out.Artifacts, whole)
	}
	p.room -= len(out.Text)
	for _, blob := range res.GetBlobs() {
		mime, _ := valid(blob.GetMimeType())
		if mime == "" {
			mime = mimeBytes
		}
		name, _ := valid(blob.GetName())
		ref, err := store(cutBytes(mime, 256), cutBytes(name, 1<<10), blob.GetData())
		if err != nil {
			return out, err
		}
		shown := out.Text == "" && strings.HasPrefix(mime, "text/")
		if shown {
			text, out.TextRepaired = valid(string(blob.GetData()))
			out.Text, out.TextTruncated = preview(text)
			p.room -= len(out.Text)
		}
		if shown && out.TextTruncated {
			out.Artifacts = append([]*runnerdv1.ArtifactRef{ref}, out.Artifacts...) // the whole text comes first
		} else {
			out.Artifacts = append(out.Artifacts, ref)
		}
	}
	structured := res.GetStructuredJson()
	switch {
	case structured == "":
	case !utf8.ValidString(structured) || !json.Valid([]byte(structured)):
		ref, err := store(mimeBytes, "", []byte(structured)) // kept, but nobody may take it for JSON
		if err != nil {
			return out, err
		}
		out.Artifacts = append(out.Artifacts, ref)
	default:
		var err error
		out.StructuredJSON, out.StructuredRef, err = p.text(ctx, fmt.Sprintf("%s.%d", prefix, n), mimeJSON, structured)
		return out, err
	}
	return out, nil
}

// oversized says what is too much about a result; empty: nothing.
func oversized(res *runnerdv1.ToolResult, most int) string {
	size := len(res.GetText()) + len(res.GetStructuredJson())
	for _, blob := range res.GetBlobs() {
		size += len(blob.GetData())
	}
	switch {
	case most > 0 && size > most:
		return fmt.Sprintf("the result has %d bytes, at most %d are taken", size, most)
	case len(res.GetBlobs()) > maxResultBlobs:
		return fmt.Sprintf("the result has %d binary parts, at most %d are taken", len(res.GetBlobs()), maxResultBlobs)
	}
	return ""
}

// preview returns what of a text the model is shown.
func preview(text string) (shown string, truncated bool) {
	return cutBytes(text, maxShown), len(text) > maxShown
}

// valid replaces what is no UTF-8 by U+FFFD.
func valid(text string) (repaired string, changed bool) {
	if utf8.ValidString(text) {
		return text, false
	}
	return strings.ToValidUTF8(text, "\uFFFD"), true
}

// cutBytes cuts a text to at most n bytes, on a character.
func cutBytes(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// Settled brings what an approver found to be true into the form that events hold. Another verdict on the
// same approval does not change what is stored for this one.
func (r *Runner) Settled(ctx context.Context, runID string, approvalID uint64, result *runnerdv1.SettledResult) (*runstate.Result, error) {
	prefix := fmt.Sprintf("settled.%d", approvalID)
	out, err := r.parts(runID).namedByContents().result(ctx, prefix, &runnerdv1.ToolResult{
		Text: result.GetText(), StructuredJson: result.GetStructuredJson(), IsError: result.GetIsError(),
	}, 0)
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// Edited brings arguments that an approver edited into the form that events hold. As with [Runner.Settled], another
// verdict does not change what is stored for this one.
func (r *Runner) Edited(ctx context.Context, runID string, approvalID uint64, arguments string) (*runstate.Edit, error) {
	p := r.parts(runID).namedByContents()
	_, ref, err := p.text(ctx, fmt.Sprintf("edited.%d", approvalID), mimeJSON, arguments)
	if err != nil {
		return nil, err
	}
	return &runstate.Edit{Text: arguments, Ref: ref}, nil
}

// ReadBlob returns the rest of the stored piece that holds the byte at offset of an artifact, and io.EOF at its end.
// Errors have the reason ARTIFACT_NOT_FOUND.
func (r *Runner) ReadBlob(ctx context.Context, runID, artifactID string, offset int64) ([]byte, error) {
	data, err := r.cfg.Blobs.Get(ctx, runID, artifactID, offset)
	if errors.Is(err, auditstore.ErrNotFound) {
		return nil, errorf(runnerdv1.ErrorReason_ERROR_REASON_ARTIFACT_NOT_FOUND, "run %q has no artifact %q", runID, artifactID)
	}
	return data, err
}

// ReadPart returns the whole of an artifact and checks its digest.
func (r *Runner) ReadPart(ctx context.Context, runID string, ref *runnerdv1.ArtifactRef) ([]byte, error) {
	size := int64(ref.GetSize())
	var data []byte
	for int64(len(data)) < size {
		piece, err := r.ReadBlob(ctx, runID, ref.GetArtifactId(), int64(len(data)))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		data = append(data, piece...)
	}
	data = data[:min(int64(len(data)), size)] // a longer one may have been stored before under this name
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != ref.GetSha256() {
		return nil, fmt.Errorf("artifact %s of run %s: %w", ref.GetArtifactId(), runID, auditstore.ErrCorrupt)
	}
	return data, nil
}
