// Package toolhost is both sides of a tool host: [Client], with which runnerd calls the tools that others serve, and
// [Server], with which they serve them.
//
// A tool host with one tool is:
//
//	h := toolhost.NewServer()
//	h.Tool(toolhost.Typed(toolhost.Definition{Name: "add", Description: "Adds two numbers.", ReadOnly: toolhost.Yes},
//		func(ctx context.Context, in struct{ A, B int }) (string, error) {
//			return strconv.Itoa(in.A + in.B), nil
//		}))
//	log.Fatal(toolhost.ListenAndServe(ctx, "127.0.0.1:7790", h))
//
// What a tool declares decides what runnerd does when the outcome of a call is lost (a crash, a timeout, a broken
// stream). A tool that is neither read-only nor idempotent is never silently called twice.
package toolhost
