// Package rpcclient is the transport of runnerd towards the services that others serve: decide services and tool
// hosts. What became of a call that ended badly decides whether it may be sent again, so this package keeps apart
// what gRPC's client mixes:
//
//   - a request that never left the process, which may always be sent again;
//   - a status that the other side sent, which is its word;
//   - a status that the local transport made up, which says nothing of what the other side did;
//   - an answer that came whole and cannot be decoded or is over its bound, which no repetition will mend;
//   - a stream that ended well without exactly one answer.
package rpcclient
