# Needs make and Go. Pinned tools (tools/*/go.mod) are built at their first use.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

MILESTONE ?= 2
FUZZTIME  ?= 30s
FUZZ      ?= ^Fuzz
KILLS     ?= 50
BENCH     ?= .

BUF  := tools/run buf
LINT := tools/run golangci-lint
DEPS := .gen/proto-deps/.done
BASE := proto/baseline.binpb

# Modules whose protos are printed: the same versions here and in tools/protodeps.
SHARED := buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go google.golang.org/genproto/googleapis/rpc

.PHONY: help
help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

##### Build and test

.PHONY: build test test-race demo examples
build: ## build .bin/runnerd
	go build -trimpath -o .bin/runnerd ./cmd/runnerd

test: ## run all tests
	go test -timeout 10m ./...

test-race: ## run all tests with the race detector
	go test -race -timeout 20m ./...

demo: build ## run the demo: a whole agent run on this machine, no keys, no network
	.bin/runnerd demo

examples: build ## run every examples/*/run; each exits 0 when it works
	@test -d examples || echo "examples: there is no examples/ folder"
	@for run in examples/*/run; do \
		test -x "$$run" || continue; \
		echo "== $$run"; RUNNERD="$(CURDIR)/.bin/runnerd" "$$run" || exit 1; \
	done

##### Protos

.PHONY: generate checkgenerate breaking baseline
generate: $(DEPS) ## generate gen/ from proto/
	$(BUF) generate

checkgenerate: $(DEPS) ## check that gen/ is what proto/ gives
	@for m in $(SHARED); do \
		want=$$(go list -m $$m) && got=$$(go -C tools/protodeps list -m $$m) && test "$$want" = "$$got" || \
		{ echo "tools/protodeps has $$got, go.mod $$want: bring them to one version"; exit 1; }; \
	done
	rm -rf .gen/check
	$(BUF) generate -o .gen/check
	diff -r gen .gen/check/gen

breaking: $(DEPS) ## check that no proto change breaks stored events or clients
	@if test -f $(BASE); then $(BUF) breaking proto --against $(BASE); \
	else echo "breaking: nothing is checked, $(BASE) does not exist yet (make baseline, at a release)"; fi

baseline: $(DEPS) ## record proto/ as what later versions stay compatible with
	$(BUF) build proto -o $(BASE)

$(DEPS): tools/protodeps/main.go tools/protodeps/go.mod
	rm -rf $(@D)
	go -C tools/protodeps run . "$(CURDIR)/$(@D)"
	@touch $@

##### Checks

.PHONY: lint fmt vuln conformance
lint: $(DEPS) ## go vet, golangci-lint, buf lint, formats
	go vet ./...
	$(LINT) run ./...
	cd tools/protodeps && ../run golangci-lint run ./...
	cd tools/govulncheck && ../run golangci-lint run ./...
	$(BUF) lint
	$(BUF) format -d --exit-code proto

fmt: ## format Go and proto files
	$(LINT) fmt ./...
	$(BUF) format -w proto

vuln: ## look for known vulnerabilities in what runnerd calls
	go -C tools/govulncheck run . "$(CURDIR)"

conformance: ## run the tests and say which features of docs/conformance.md they cover
	@mkdir -p .gen
	@go test -json -timeout 20m ./... >.gen/test.json; true
	go run ./tools/conformance -milestone $(MILESTONE) docs/conformance.md .gen/test.json

##### Longer runs

.PHONY: bench fuzz kills races
bench: ## measure runnerd against its floors and targets (BENCH=regexp over the names)
	@go build -trimpath -o .bin/runnerd ./cmd/runnerd
	@go test -c -trimpath -o .bin/rules.test ./pkg/runner/internal/runstate
	@go run ./test/bench -runnerd .bin/runnerd -rules .bin/rules.test -run '$(BENCH)'

fuzz: ## run every fuzz test for FUZZTIME: a time (30s) or a number of inputs (1000000x); FUZZ=regexp over the names
	@all=$$(go test -list '$(FUZZ)' ./...) || { echo "$$all"; exit 1; }; \
	echo "$$all" | awk '/^Fuzz/ { names[++n] = $$1 } \
		/^ok/ { for (i = 1; i <= n; i++) print $$2, names[i]; n = 0 }' | { \
	failed=; \
	while read -r pkg name; do \
		echo "== $$name of $$pkg"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "$$pkg" || failed="$$failed $$pkg:$$name"; \
	done; \
	test -z "$$failed" || { echo "fuzz: these failed:$$failed"; exit 1; }; }

kills: ## kill -9 the daemon and the store KILLS times (50) under load
	RUNNERD_KILLS=$(KILLS) go test -count=1 -v -run 'Kill' -timeout 120m ./...

races: ## race 100 000 approvals against verdicts, cancels, deadlines and revocations (a few minutes)
	RUNNERD_RACES=$${RUNNERD_RACES:-100000} go test -count=1 -v -timeout 60m -run TestRaces ./test/races

.PHONY: ci clean
ci: ## everything that gates a change
	.ci/run

clean: ## delete what was built and generated outside gen/
	rm -rf .bin .gen
