package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// asker asks the person at the terminal what a watched run asks, one question at
// a time, while its events go on. An answer by somebody else, a timeout or the
// end of the run ends the question. The run never waits for the asker: skipping,
// leaving, or not being there leaves the approval open.
type asker struct {
	p     *program
	c     *client
	out   io.Writer // the terminal
	style style
	keys  keyboard

	screen sync.Mutex // what is written to the terminal does not mix
	prompt string     // the last line of the terminal while a line is waited for
	tidy   func()     // takes away what else stands on the last line

	mu    sync.Mutex
	open  map[uint64]*question
	queue []*question
	more  chan struct{} // holds something when the queue does
}

// question is one approval that was opened and, as far as was seen, not closed.
type question struct {
	run    string
	id     uint64
	ctx    context.Context // ends when the question is closed; its cause says how
	cancel context.CancelCauseFunc
	file   *argumentsFile // once the arguments were edited
}

// closedError is how a question was closed while somebody was asked.
type closedError string

func (e closedError) Error() string { return string(e) }

// asker returns nil where nobody can be asked.
func (p *program) asker(c *client, o *output) (*asker, error) {
	if !p.attended() {
		return nil, nil
	}
	style, err := p.style(o, p.err)
	if err != nil {
		return nil, err
	}
	return &asker{
		p: p, c: c, out: p.err, style: style, keys: p.keys(), tidy: func() {},
		open: map[uint64]*question{}, more: make(chan struct{}, 1),
	}, nil
}

// above writes to the terminal above the prompt.
func (a *asker) above(write func() error) error {
	a.screen.Lock()
	defer a.screen.Unlock()
	if a.prompt != "" {
		fmt.Fprint(a.out, "\r\x1b[K")
	}
	err := write()
	if a.prompt != "" {
		fmt.Fprint(a.out, a.prompt)
	}
	return err
}

// quietly runs write unless a question is on the screen: what is in progress can
// wait.
func (a *asker) quietly(write func()) {
	a.screen.Lock()
	defer a.screen.Unlock()
	if a.prompt == "" {
		write()
	}
}

func (a *asker) say(lines ...string) {
	a.screen.Lock()
	defer a.screen.Unlock()
	a.tidy()
	for _, line := range lines {
		fmt.Fprintln(a.out, line)
	}
}

// event takes note of questions that an event opens and closes.
func (a *asker) event(ctx context.Context, ev *runnerdv1.Event) {
	switch p := ev.GetPayload().(type) {
	case *runnerdv1.Event_ToolCallPendingApproval, *runnerdv1.Event_BudgetConfirmationRequested:
		a.opened(ctx, ev)
	case *runnerdv1.Event_ToolCallInDoubt:
		if p.ToolCallInDoubt.GetNext() == runnerdv1.InDoubtNext_IN_DOUBT_NEXT_ASK {
			a.opened(ctx, ev)
		}
	case *runnerdv1.Event_RunCompleted, *runnerdv1.Event_RunFailed:
		a.endAll("the run ended")
	default:
		if res := resolutionOf(ev); res.GetApprovalId() != 0 {
			a.closed(res.GetApprovalId(), "answered: "+strings.ToLower(short(res.GetVerdict()))+", "+resolutionText(ev, res))
		}
	}
}

// resolutionOf is how an event closes an approval; nil: it closes none.
func resolutionOf(ev *runnerdv1.Event) *runnerdv1.Resolution {
	for _, res := range []*runnerdv1.Resolution{
		ev.GetToolCallApproved().GetResolution(), ev.GetToolCallDenied().GetResolution(), ev.GetToolCallRetried().GetResolution(),
		ev.GetToolCallCompleted().GetResolution(), ev.GetToolCallFailed().GetResolution(), ev.GetBudgetPrompt().GetResolution(),
	} {
		if res != nil {
			return res
		}
	}
	return nil
}

func (a *asker) opened(ctx context.Context, ev *runnerdv1.Event) {
	q := &question{run: ev.GetRunId(), id: ev.GetSequence()}
	q.ctx, q.cancel = context.WithCancelCause(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[q.id] = q
	a.queue = append(a.queue, q)
	select {
	case a.more <- struct{}{}:
	default:
	}
}

func (a *asker) closed(id uint64, how string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q := a.open[id]; q != nil {
		q.cancel(closedError(how))
		delete(a.open, id)
		a.queue = slices.DeleteFunc(a.queue, func(other *question) bool { return other == q })
	}
}

func (a *asker) endAll(how string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range a.open {
		q.cancel(closedError(how))
	}
	clear(a.open)
	a.queue = nil
}

// next waits for a question; nil: there will be none.
func (a *asker) next(ctx context.Context) *question {
	for {
		a.mu.Lock()
		if len(a.queue) > 0 {
			q := a.queue[0]
			a.queue = a.queue[1:]
			a.mu.Unlock()
			return q
		}
		a.mu.Unlock()
		select {
		case <-a.more:
		case <-ctx.Done():
			return nil
		}
	}
}

// serve asks until ctx ends.
func (a *asker) serve(ctx context.Context) {
	defer a.endAll("")
	for q := a.next(ctx); q != nil; q = a.next(ctx) {
		err := a.ask(ctx, q)
		how, closed := errors.AsType[closedError](err)
		switch {
		case ctx.Err() != nil:
			return
		case closed:
			a.say(a.style.dim(fmt.Sprintf("approval %d needs no answer any more: %s", q.id, how)))
		case err != nil:
			a.say(a.failure(err), a.later(q))
		}
	}
}

// ask asks one question to its end.
func (a *asker) ask(ctx context.Context, q *question) error {
	asked, err := a.c.getApproval(q.ctx, q.run, q.id)
	if q.ctx.Err() != nil {
		return nil // it was closed before anybody saw it
	}
	switch reasonOf(err) { //nolint:exhaustive // the rest is told as it is
	case runnerdv1.ErrorReason_ERROR_REASON_PERMISSION_DENIED, runnerdv1.ErrorReason_ERROR_REASON_CREDENTIAL_REQUIRED:
		a.say("an approver can answer: " + waysToAnswer(q.run, q.id, a.style))
		return nil
	}
	if err != nil {
		return err
	}
	if asked.GetVia() != runnerdv1.Via_VIA_UNSPECIFIED {
		return nil
	}
	a.screen.Lock()
	a.tidy()
	a.p.printQuestion(a.out, asked, whole, a.style)
	a.screen.Unlock()

	defer func() {
		if q.file != nil {
			q.file.remove()
		}
	}()
	for {
		done, err := a.turn(ctx, q, asked)
		if done || err != nil {
			return err
		}
	}
}

// turn asks once what to do. It is done when the question needs no further turn.
func (a *asker) turn(ctx context.Context, q *question, asked *runnerdv1.Approval) (done bool, err error) {
	word, err := a.line(q.ctx, a.choices(asked))
	if err != nil {
		return false, err
	}
	say := answer{verdict: runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_APPROVE}
	switch chosen := choice(word); {
	case chosen == "s":
		a.say(a.later(q))
		return true, nil
	case chosen == "d":
		say.verdict = runnerdv1.ApprovalVerdict_APPROVAL_VERDICT_DENY
		if say.reason, err = a.line(q.ctx, "why (may be empty): "); err != nil {
			return false, err
		}
	case asked.GetArgumentsCut():
		a.say(a.failure(errCut(asked)))
		return false, nil
	case chosen == "a":
	case chosen == "e" && canEdit(asked):
		if say.edited, err = a.edited(ctx, q, asked); err != nil {
			return false, a.unlessBadEdit(err)
		}
		if say.edited == nil {
			a.say("nothing was changed")
			return false, nil
		}
		if yes, err := a.sure(q.ctx, say, asked); !yes || err != nil {
			return false, err
		}
	case chosen == "g" && len(asked.GetPossibleGrants()) > 0:
		if say.grant, err = a.grant(q.ctx, asked); err != nil || say.grant == runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED {
			return false, err
		}
		if yes, err := a.sure(q.ctx, say, asked); !yes || err != nil {
			return false, err
		}
	default:
		return false, nil // asked again
	}
	return a.submit(ctx, q, asked, say)
}

// submit answers. What the daemon does not take is told, and can be answered
// otherwise while the question is open.
func (a *asker) submit(ctx context.Context, q *question, asked *runnerdv1.Approval, say answer) (done bool, err error) {
	answered, err := a.c.submit(ctx, asked, say)
	if err == nil {
		if g := answered.GetGrant(); g != nil {
			a.say(verdictText(answered))
		}
		return true, nil
	}
	a.say(a.failure(err))
	switch reasonOf(err) { //nolint:exhaustive // the others leave it open
	case runnerdv1.ErrorReason_ERROR_REASON_ALREADY_RESOLVED, runnerdv1.ErrorReason_ERROR_REASON_TIMED_OUT,
		runnerdv1.ErrorReason_ERROR_REASON_CANCELLED, runnerdv1.ErrorReason_ERROR_REASON_RUN_ENDED:
		return true, nil
	}
	return q.ctx.Err() != nil, nil
}

// canEdit reports whether an approval is about a call that can run with other
// arguments.
func canEdit(a *runnerdv1.Approval) bool {
	return a.GetKind() == runnerdv1.ApprovalKind_APPROVAL_KIND_TOOL_CALL && a.GetArgumentsJson() != ""
}

// choices is the prompt.
func (a *asker) choices(asked *runnerdv1.Approval) string {
	words := []string{"[a]pprove"}
	if canEdit(asked) {
		words = append(words, "[e]dit")
	}
	if len(asked.GetPossibleGrants()) > 0 {
		words = append(words, "[g]rant")
	}
	words = append(words, "[d]eny", "[s]kip")
	return a.style.bold(strings.Join(words, "  ")+":") + " "
}

// choice is the first letter of what was typed; nothing typed is skip.
func choice(word string) string {
	word = strings.ToLower(strings.TrimSpace(word))
	if word == "" {
		return "s"
	}
	for _, known := range []string{"approve", "edit", "grant", "deny", "skip"} {
		if strings.HasPrefix(known, word) {
			return known[:1]
		}
	}
	return ""
}

// line prompts for a line that is typed after the prompt is seen.
func (a *asker) line(ctx context.Context, prompt string) (string, error) {
	a.screen.Lock()
	a.tidy()
	a.keys.drop()
	fmt.Fprint(a.out, prompt)
	a.prompt = prompt
	a.screen.Unlock()
	line, err := a.keys.line(ctx)
	a.screen.Lock()
	defer a.screen.Unlock()
	a.prompt = ""
	if err != nil {
		fmt.Fprint(a.out, "\r\x1b[K")
	}
	return line, err
}

// grant asks which of several grants is meant.
func (a *asker) grant(ctx context.Context, asked *runnerdv1.Approval) (runnerdv1.GrantScope, error) {
	possible := asked.GetPossibleGrants()
	if len(possible) == 1 {
		return possible[0], nil
	}
	word, err := a.line(ctx, "do not ask again for this [t]ool, or for this [p]rogram of it: ")
	if err != nil {
		return 0, err
	}
	scope := map[string]runnerdv1.GrantScope{
		"t": runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL, "tool": runnerdv1.GrantScope_GRANT_SCOPE_RUN_TOOL,
		"p": runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX, "prefix": runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX,
		"program": runnerdv1.GrantScope_GRANT_SCOPE_RUN_PREFIX,
	}[strings.ToLower(strings.TrimSpace(word))]
	if !slices.Contains(possible, scope) {
		return runnerdv1.GrantScope_GRANT_SCOPE_UNSPECIFIED, nil
	}
	return scope, nil
}

// sure shows what an answer adds to the question and asks whether it is meant.
func (a *asker) sure(ctx context.Context, say answer, asked *runnerdv1.Approval) (bool, error) {
	var lines []string
	for _, line := range addedLines(say, asked, a.style) {
		lines = append(lines, "  "+line)
	}
	a.say(lines...)
	word, err := a.line(ctx, say.words()+"? [y/N] ")
	word = strings.ToLower(strings.TrimSpace(word))
	return word == "y" || word == "yes", err
}

// edited opens the editor, on what was edited before if the question was;
// nil: nothing was changed. Events wait until the terminal is free again.
func (a *asker) edited(ctx context.Context, q *question, asked *runnerdv1.Approval) (_ *string, err error) {
	if q.file == nil {
		if q.file, err = newArgumentsFile(asked.GetArgumentsJson()); err != nil {
			return nil, err
		}
	}
	a.screen.Lock()
	defer a.screen.Unlock()
	a.tidy()
	if err := a.p.edit(ctx, q.file); err != nil {
		return nil, &badEditError{err}
	}
	text, changed, err := q.file.edited()
	if err != nil || !changed {
		return nil, err
	}
	return &text, nil
}

// unlessBadEdit tells a mistake in an edit, after which the question is asked
// again, and returns any other error.
func (a *asker) unlessBadEdit(err error) error {
	if bad, ok := errors.AsType[*badEditError](err); ok {
		a.say(a.failure(bad.error))
		return nil
	}
	return err
}

func (a *asker) failure(err error) string {
	_, text, hint := explain(err)
	return join("\n", a.style.red("error: ")+safeBlock(text), hint)
}

// later says how a question can be answered elsewhere.
func (a *asker) later(q *question) string {
	return "it stays open: " + waysToAnswer(q.run, q.id, a.style)
}
