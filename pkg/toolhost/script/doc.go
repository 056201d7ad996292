// Package script is a tool host that does what a file says, for tests and demonstrations. With a ledger it is also a
// witness of what was really executed, which survives kill -9.
//
// A script is YAML (or JSON, which is YAML):
//
//	tools:
//	  - name: add
//	    description: "Adds two numbers."
//	    input_schema: '{"type": "object"}'   # JSON text, or YAML that is turned into it
//	    output_schema: ...
//	    read_only: true                      # absent: not declared; so are these two
//	    destructive: false
//	    idempotent: true
//	    results:                             # of the first call in a run, the second, ...; the last of all further ones
//	      - text: "3"
//	get_call: [running, ledger]              # answers to the first question for a key, the second, ...; absent: no GetCall
//
// An entry of results is one result, or cases: a list of which the first is taken whose when holds. The fields of a
// result:
//
//	text: ""
//	echo: true                               # the text is the arguments
//	structured: '{}'                         # JSON text, valid or not
//	is_error: true
//	size: 5000000                            # the text is padded to this many bytes
//	blobs: [{mime: image/png, name: "", text: "", size: 1000}]
//	progress: [{message: "", fraction: 0.5, delay: 1s}]
//	delay: 1s                                # after the progress
//	ignore_cancel: true                      # the call goes on when it is given up
//	when: {contains: "", attempt: 2, run: "r-*"}   # of the arguments and the request
//	faults: [...]
//
// A fault is something that goes wrong on the way. The first that applies to the attempt is taken:
//
//	attempts: 1                              # in attempt 1; absent: in all
//	at: before_effect                        # or after_effect, or after_end, when the outcome is in the ledger
//	code: UNAVAILABLE                        # fails, with message
//	message: ""
//	hang: true                               # never ends, until it is cancelled
//	crash: true                              # the process dies at once
//	no_result: true                          # at the end: the stream ends well without a result
//	two_results: true                        # at the end: gives it twice
//	raw: "ff ff"                             # at the end: gives these bytes, in hex, as a message
//
// A call is progress, delay, effect, end, answer, in this order. An idempotent tool has its effect once for a key and
// answers the key with the first outcome; any other tool has the effect each time that it is called, as the ledger
// shows. Answers to GetCall are: ledger (the truth), running, not_seen, unknown, or the name of a gRPC code; the last
// one repeats.
package script
