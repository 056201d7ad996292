// Package script is a decide service that gives the decisions of a file, for tests and demonstrations.
//
// A script is YAML (or JSON, which is YAML):
//
//	decisions:                          # of every run that has none of its own
//	  - calls:
//	      - {tool: add, arguments: '{"a": 1, "b": 2}'}
//	  - answer: "The sum is 3."
//	runs:                               # by run id; * and ? match any text and any character
//	  "broken-*":
//	    - faults: [{attempts: 2, code: UNAVAILABLE}]
//	      answer: "third time lucky"
//
// The decision is chosen by the iteration of the request alone, so a Decide that is asked again after a crash gets
// the same one. A step of the list is one decision, or:
//
//	repeat: 3                           # or forever: the step this many times
//	steps: [...]                        # a group of steps, for repeat
//	cases: [...]                        # the first step whose when holds; each may have when
//
// Asking beyond the last step fails with FAILED_PRECONDITION.
//
// The fields of a decision:
//
//	text: ""                            # beside the calls
//	reasoning: ""
//	answer: ""                          # one of answer, question and calls; or none of them
//	metadata: '{}'                      # of the answer, JSON text
//	question: ""
//	calls: [{id: "", tool: "", arguments: ""}]
//	truncated: true
//	usage: {cost_cents: 0.5, input_tokens: 10, output_tokens: 5, cached_input_tokens: 0}   # .nan and -.inf too
//	provider_state: ""
//	transport: ""
//	size: 2000000                       # the text is padded to this many bytes
//	deltas: ["piece", "of text"]        # sent before the decision
//	delay: 1s                           # before all else
//	template: true                      # strings are text/template over {{.Request}}, {{.Last}}, {{.Iteration}}
//	when: {contains: "", kind: tool_error, attempt: 2}   # of the last observation and the request
//	faults: [...]
//
// Arguments are sent as they stand, valid or not. In templates {{json .Last}} is a text as a JSON string. Kinds are
// those of observations: tool_result, tool_error, denial, note, and so on.
//
// A fault is what happens instead of the decision, after delay and deltas. The first that applies is taken:
//
//	attempts: 2                         # in attempts 1 and 2; absent: in all
//	code: UNAVAILABLE                   # fails, with message
//	message: ""
//	hang: true                          # never ends, until it is cancelled
//	no_decision: true                   # ends well without a decision
//	two_decisions: true                 # gives it twice
//	raw: "ff ff"                        # gives these bytes, in hex, as a message
package script
