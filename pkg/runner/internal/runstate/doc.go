// Package runstate is the pure core of runnerd: what a run is, what follows from what happens to it, and nothing else.
//
// A run is the fold of its events. Apply folds one event into a State and evaluates no rule. Advance takes facts, what
// the world tells (a decision, an outcome, a verdict, an input, a cancel, a restart, the clock), and gives a Turn: the
// events that follow, the answers to those who brought the facts, and the whole set of effects that should be in
// progress from now on. The shell records the events of a turn in one append before it answers anyone or touches the
// world. Recovery is the same path: fold the log, bring a Restart.
//
// Nothing here reads a clock, draws a random number, or does I/O: the same state, facts and time always give the same
// turn. A State belongs to one goroutine and is changed in place; when recording a turn fails, the State is dropped
// and folded again from the log.
package runstate
