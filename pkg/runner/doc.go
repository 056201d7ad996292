// Package runner executes runs of agents and serves them over gRPC.
//
// A run is one execution of a task by an agent: Decide, call tools, Decide again, until there is an answer or a limit.
// Its only truth is its log of events; what a run is at any moment is the fold of them, which the pure core in
// internal/runstate computes. This package is the shell around that core.
//
// # The loop
//
// A run that does something has one goroutine, its engine, which is the only writer of the run. Each turn takes all
// facts at hand (a decision, an outcome, a verdict, the clock), lets the core advance the state, records the events
// that follow in one append, and only then answers those who brought the facts and touches the world: it brings the
// effects in progress (Decide, CallTool, GetCall, ListTools) to exactly the set the core wants, starting what is
// missing and cancelling the rest. Each effect ends with one fact, which is where the next turn begins. A plain
// iteration is two turns: a decision with the start of its calls, their results with the next Decide.
//
// A run at rest, which waits for a person or is done, has no goroutine and nothing in memory; a fact wakes it.
// Deadlines of runs at rest stand in the store under keys that one loop reads.
//
// # What survives a crash
//
// What was acknowledged and what any watcher saw is durable. A call whose start is durable and whose outcome is not is
// never silently sent twice: at the next start it is sent again if its tool is read-only or idempotent, looked up if
// its host can tell, and otherwise in doubt. Recovery is no second loop: the run is folded from its log, told that the
// process changed, and driven.
//
// The store may be worse than a local file: an append whose outcome is unknown is looked for under a new claim, which
// keeps it from being written later, and repeated if it is not there. A full disk stops what would begin; cancels and
// ends are still written.
//
// # Watchers
//
// A watcher reads the log and is told when there is more: it has no queue, so it cannot slow a run, and misses nothing
// however slow it is. Signals, the live part, are dropped when a watcher has no room.
package runner
