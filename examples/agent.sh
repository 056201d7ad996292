# For the run scripts of the examples: starts runnerd with an agent whose two parts are in processes of their own,
# gives it a task and checks the answer. Sourced with bash, in the folder of the example.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
runnerd=${RUNNERD:-$root/.bin/runnerd}
tmp=$(mktemp -d)

cleanup() {
	local pids
	pids=$(jobs -p)
	# shellcheck disable=SC2086 # one word for each process
	[ -z "$pids" ] || kill $pids 2>/dev/null || true
	wait
	rm -rf "$tmp"
}
trap cleanup EXIT

if [ ! -x "$runnerd" ]; then
	echo "there is no $runnerd: run make build, or set RUNNERD" >&2
	exit 1
fi

# wait_for CONDITION...: waits up to 30 s until the command succeeds.
wait_for() {
	local tries
	for tries in $(seq 300); do
		if "$@"; then return; fi
		sleep 0.1
	done
	echo "gave up waiting for: $*" >&2
	cat "$tmp"/*.log >&2
	exit 1
}

# run_agent DECIDE -- TOOLS: starts the two commands, each with the address to listen on, and runs one task.
run_agent() {
	local decide=() answer
	while [ "$1" != -- ]; do
		decide+=("$1")
		shift
	done
	shift
	"${decide[@]}" "unix://$tmp/decide.sock" >"$tmp/decide.log" 2>&1 &
	"$@" "unix://$tmp/tools.sock" >"$tmp/tools.log" 2>&1 &
	wait_for test -S "$tmp/decide.sock"
	wait_for test -S "$tmp/tools.sock"

	cat >"$tmp/runnerd.yaml" <<-YAML
		decide_services: {brain: {address: "unix://$tmp/decide.sock"}}
		tool_hosts: {hands: {address: "unix://$tmp/tools.sock"}}
		agents: {counter: {decide_service: brain, tool_hosts: [hands]}}
	YAML
	"$runnerd" serve --config "$tmp/runnerd.yaml" --data-dir "$tmp/data" --listen 127.0.0.1:0 \
		>"$tmp/address" 2>"$tmp/runnerd.log" &
	wait_for grep -q '^listening on ' "$tmp/address"

	answer=$(RUNNERD_DATA_DIR="$tmp/data" "$runnerd" run --follow --addr "$(sed -n 's/^listening on //p' "$tmp/address")" \
		--agent counter "How many words has this task?")
	echo "$answer"
	[ "$answer" = "Words: 6" ] || { echo "that is not the answer" >&2; exit 1; }
}
