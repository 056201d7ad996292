// Command bench measures what an agent run costs, against floors measured in the same run.
//
// The workload agent-run is 10 iterations, then an answer: 11 Decide and 10 tool calls over loopback gRPC to two
// stub processes that answer at once. A Decide carries all observations so far and a tool result is 1 KiB, so what is
// measured is the engine. The engines are
//
//	runnerd      the daemon, its own process, driven through StartRun and WaitRun
//	floor-bbolt  a plain loop that makes every decision and result durable in a bbolt file of its own, keys run/seq,
//	             one writer that commits whatever waits: the least a durable engine on this store can cost
//	floor-go     the same loop with nothing durable
//
// and each is measured in processes of its own, with an empty store, in interleaved rounds; a figure is the median of
// its rounds. For streams the floor is a gRPC server that sends the very messages the daemon sent, encoded once.
//
// What a policy costs is measured twice: judging one call in the rules themselves, against one unary call over the
// network, and agent-run under a policy that lets all pass, or in auto mode, against agent-run without one.
//
// Standard output has one line a measure, name<TAB>value<TAB>unit<TAB>reference<TAB>ratio, where the reference is the
// floor's figure of the same run, or an absolute target. Standard error has the figures behind them, the time a sync
// of the disk took in each round, and which targets are missed. Rates of different machines, or of a busy machine,
// do not compare; the ratios do.
package main
