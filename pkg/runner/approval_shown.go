package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	storagev1 "github.com/runnerd/runnerd/gen/runnerd/storage/v1"
	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
	"github.com/runnerd/runnerd/pkg/runner/internal/runstate"
)

// What an approver is shown of long arguments, and of what model and host say.
const (
	maxShownArguments = 4 << 10   // in a list
	shownEnd          = 2 << 10   // of each end, when they are longer
	maxWholeArguments = 3 << 20   // what GetApproval shows whole
	artifactChunk     = 512 << 10 // of an artifact in one message
	maxShownWords     = 500       // characters of what model or host say
)

// show fills in all that an approver is shown of a call beside what the log says: arguments and words.
func (s *runService) show(ctx context.Context, row *storagev1.Row, a *loggedApproval, limit uint64) error {
	if a.requested == nil {
		return nil
	}
	if err := s.showArguments(ctx, a, limit); err != nil {
		return err
	}
	return s.showWords(ctx, row, a)
}

// showArguments fills in what was asked and what was approved instead: the exact arguments, over a limit in bytes their
// head and tail with a mark between. An approval that is about no call has none.
func (s *runService) showArguments(ctx context.Context, a *loggedApproval, limit uint64) (err error) {
	if a.requested == nil {
		return nil
	}
	if a.ArgumentsJson, a.ArgumentsSize, err = s.shown(ctx, a.GetRunId(), a.asked(), limit); err != nil {
		return err
	}
	a.ArgumentsCut = a.GetArgumentsSize() > limit
	if edit, ok := editOf(a.approved); ok {
		a.EditedArgumentsJson, _, err = s.shown(ctx, a.GetRunId(), edit, limit)
	}
	return err
}

// shown returns a part whole, or its head and tail with a mark between, and how big it is.
func (s *runService) shown(ctx context.Context, run string, part runstate.Part, limit uint64) (text string, size uint64, err error) {
	ref := part.Ref
	switch {
	case ref == nil && uint64(len(part.Text)) <= limit:
		return part.Text, uint64(len(part.Text)), nil
	case ref == nil:
		n := len(part.Text)
		return headAndTail(part.Text[:shownEnd], part.Text[n-shownEnd:], n), uint64(n), nil
	case ref.GetSize() <= limit:
		whole, err := s.runner.ReadPart(ctx, run, ref)
		return string(whole), ref.GetSize(), err
	}
	head, err := s.readRange(ctx, run, ref.GetArtifactId(), 0, shownEnd)
	if err != nil {
		return "", 0, err
	}
	tail, err := s.readRange(ctx, run, ref.GetArtifactId(), int64(ref.GetSize())-shownEnd, shownEnd)
	if err != nil {
		return "", 0, err
	}
	return headAndTail(string(head), string(tail), int(ref.GetSize())), ref.GetSize(), nil
}

// readRange reads size bytes of an artifact, less at its end.
func (s *runService) readRange(ctx context.Context, run, artifact string, from int64, size int) ([]byte, error) {
	out := make([]byte, 0, size)
	for len(out) < size {
		chunk, err := s.runner.ReadBlob(ctx, run, artifact, from+int64(len(out)))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		out = append(out, chunk[:min(len(chunk), size-len(out))]...)
	}
	return out, nil
}

// headAndTail puts the two ends of a text of some size together, cut on characters, with a mark between that says how
// much is not shown.
func headAndTail(head, tail string, size int) string {
	head = wholeRunes(head)
	tail = strings.TrimLeftFunc(tail, func(r rune) bool { return r == utf8.RuneError })
	return fmt.Sprintf("%s\n... %d bytes are not shown ...\n%s", head, size-len(head)-len(tail), tail)
}

// wholeRunes drops the beginning of a character at the end of a text.
func wholeRunes(text string) string {
	for len(text) > 0 {
		if r, n := utf8.DecodeLastRuneInString(text); r != utf8.RuneError || n != 1 {
			break
		}
		text = text[:len(text)-1]
	}
	return text
}

// showWords fills in what the model wrote beside the call and what the host says about the tool, both redacted as they
// are in events: they explain nothing that a person could rely on.
func (s *runService) showWords(ctx context.Context, row *storagev1.Row, a *loggedApproval) error {
	made, err := s.decisionOf(ctx, a)
	if err != nil {
		return err
	}
	text := made.GetText()
	if ref := made.GetTextRef(); ref != nil {
		head, err := s.readRange(ctx, a.GetRunId(), ref.GetArtifactId(), 0, maxShownWords*utf8.UTFMax)
		if err != nil {
			return err
		}
		text = wholeRunes(string(head))
	}
	a.ModelText = words(text)
	if row.GetCatalogueDigest() == "" {
		return nil
	}
	catalogue, err := s.runner.store.catalogue(ctx, a.GetRunId(), row.GetCatalogueDigest())
	if err != nil {
		return err
	}
	a.HostText = words(catalogue.Description(a.GetHost(), a.GetTool()))
	return nil
}

// words redacts what somebody says and cuts it to what approvers are shown of it.
func words(text string) string {
	text = runstate.RedactText(text)
	n := 0
	for at := range text {
		if n++; n > maxShownWords {
			return text[:at]
		}
	}
	return text
}

// maxBetween is how many events about the budget and the context may stand between a decision and the requests of its
// calls.
const maxBetween = 16

// decisionOf returns the decision that made a call. Its requests follow it in their order.
func (s *runService) decisionOf(ctx context.Context, a *loggedApproval) (made *runnerdv1.DecisionMade, err error) {
	asked := a.requested.GetSequence()
	from := asked - min(asked, maxBetween+runstate.MaxCalls)
	for ev, err := range s.runner.Events(ctx, a.GetRunId(), from) {
		if err != nil {
			return nil, err
		}
		if ev.GetSequence() >= asked {
			break
		}
		if d := ev.GetDecisionMade(); d != nil && slices.Contains(d.GetCallIds(), a.GetCallId()) {
			made = d
		}
	}
	return made, nil
}
