// Package harness runs the built daemon for end-to-end tests: as a process of its own, over gRPC alone, killed and
// started again at will, with decide services and tool hosts that are scripted in Go and served by the test over real
// gRPC. They outlive the daemon, so what they were shown and what they executed is known whatever happens to it.
//
// Every run that is started through the package is checked when its test ends: its hash chain and replay by the
// daemon's VerifyAudit, the invariants over the events that were streamed.
package harness
