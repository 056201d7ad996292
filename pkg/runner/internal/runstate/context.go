package runstate

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

const (
	// tokenBytes is how many bytes of a request are taken to be one token.
	tokenBytes = 4

	// From so many percent of the context the zone is yellow, and red.
	yellowPercent = 75
	redPercent    = 92
)

// warnContext tells the model once that its context fills up, by the tokens of the Decide that has just ended.
func (t *advance) warnContext(used *runnerdv1.Usage) {
	c := &t.st.ctl
	share, limit := int64(t.st.env.Spec.GetContextWarningPercent()), int64(c.Budget.GetMaxContextTokens())
	tokens := tokensOf(used)
	if c.ContextWarned || share == 0 || limit == 0 || tokens == 0 || percent(tokens, limit) < float64(share) {
		return
	}
	t.emit(&runnerdv1.Event{Payload: &runnerdv1.Event_ContextWarning{ContextWarning: &runnerdv1.ContextWarning{
		Tokens: tokens, MaxContextTokens: c.Budget.GetMaxContextTokens(), Percent: percent(tokens, limit),
		Message: fmt.Sprintf("Your context fills up: %d of %d tokens are used. Come to an end, keep what you still ask for short, "+
			"or say what should go on in a new session.", tokens, limit),
	}}})
}

// tokensOf is what one Decide read and wrote; 0 where it was not reported.
func tokensOf(used *runnerdv1.Usage) int64 {
	in, out := used.GetInputTokens(), used.GetOutputTokens()
	if in < 0 || out < 0 || in+out < 0 { // reported, and not valid
		return 0
	}
	return in + out
}

// overContext reports whether the request of the next Decide would be over a limit of tokens; 0 is no limit.
func (st *State) overContext(limit uint32) bool {
	return limit > 0 && st.nextRequest() > tokenBytes*int64(limit)
}

// nextRequest is the size of the request of the next Decide in bytes, as far as it is known before the Decide is asked
// for: without token, deadline and the small artifacts that ride along.
func (st *State) nextRequest() int64 {
	req, fetch := st.requestFrame()
	req.Tools = nil // they are measured once for all requests
	size := st.env.Catalogue.size + proto.Size(req)
	for _, f := range fetch {
		size += int(f.Ref.GetSize())
	}
	for _, entry := range st.mem.wholeSizes() {
		size += entry
	}
	for _, e := range st.mem.waiting {
		size += wholeSize(e)
	}
	return int64(min(size, maxRequest)) // a longer history is cut until it fits
}

// contextZone says how much of the context the last Decide took up.
func (st *State) contextZone() runnerdv1.ContextZone {
	limit := int64(st.ctl.Budget.GetMaxContextTokens())
	if limit == 0 || st.ctl.ContextTokens == 0 {
		return runnerdv1.ContextZone_CONTEXT_ZONE_UNSPECIFIED
	}
	switch used := percent(st.ctl.ContextTokens, limit); {
	case used >= redPercent:
		return runnerdv1.ContextZone_CONTEXT_ZONE_RED
	case used >= yellowPercent:
		return runnerdv1.ContextZone_CONTEXT_ZONE_YELLOW
	default:
		return runnerdv1.ContextZone_CONTEXT_ZONE_GREEN
	}
}
