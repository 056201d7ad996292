// Package auditstore keeps the log of the runs: events in a hash chain per run,
// rows and index keys to find runs by, checkpoint bodies, and blobs. It knows
// bytes, not runs.
//
// [Log] and [Blobs] are the port; [Store] is the implementation on one bbolt file.
package auditstore
