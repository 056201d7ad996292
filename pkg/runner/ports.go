package runner

import (
	"context"
	"errors"

	runnerdv1 "github.com/runnerd/runnerd/gen/runnerd/v1"
)

// Decider asks a decide service by its configured name. Implementations are safe for concurrent use.
//
// Decide returns the one decision of the stream; the caller owns it. onText is called with each piece of text before
// Decide returns, from one goroutine at a time, and must not block. The request must not be changed or kept.
//
// Who answered, as far as the transport has verified it, is told to pkg/internal/answerer and recorded.
//
// An error is a gRPC status error, possibly wrapped, or has one of these methods, by which the engine tells what it
// means: NotSent() bool (the request never left the process), Undecodable() bool (a message came that cannot be
// decoded), TooLarge() bool (a message was over the bound), BadStream() string (the stream ended OK without exactly one
// decision: no_decision, several_decisions). When ctx ends, Decide returns soon, with an error.
type Decider interface {
	Decide(ctx context.Context, service string, req *runnerdv1.DecideRequest, onText func(string)) (*runnerdv1.Decision, error)
}

// Tools calls tool hosts by their configured name. Implementations are safe for concurrent use. What holds for errors,
// requests, results, callbacks and contexts of a [Decider] holds here too; BadStream is no_result or several_results.
//
// maxResult is the largest result in bytes, all its parts together; a larger one is an error with TooLarge.
type Tools interface {
	ListTools(ctx context.Context, host string) (*runnerdv1.ToolHostServiceListToolsResponse, error)
	CallTool(ctx context.Context, host string, req *runnerdv1.CallToolRequest, maxResult int, onProgress func(*runnerdv1.Progress)) (*runnerdv1.ToolResult, error)
	GetCall(ctx context.Context, host string, req *runnerdv1.GetCallRequest, maxResult int) (*runnerdv1.GetCallResponse, error)
}

// notSent reports whether a request surely never left the process, so that nothing can have happened.
func notSent(err error) bool {
	var e interface{ NotSent() bool }
	return errors.As(err, &e) && e.NotSent()
}

// undecodable reports whether an answer came that cannot be decoded.
func undecodable(err error) bool {
	var e interface{ Undecodable() bool }
	return errors.As(err, &e) && e.Undecodable()
}

// tooLarge reports whether an answer came that is over its bound.
func tooLarge(err error) bool {
	var e interface{ TooLarge() bool }
	return errors.As(err, &e) && e.TooLarge()
}

// badStream returns how a stream that ended OK broke the contract; empty if it did not.
func badStream(err error) string {
	var e interface{ BadStream() string }
	if errors.As(err, &e) {
		return e.BadStream()
	}
	return ""
}
