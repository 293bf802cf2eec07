# CWASI: `make` lists what there is. Everything a run makes lies in target/ and .cwasi/.

PREFIX ?= /usr/local
PROFILE ?= debug
VIDEO ?=
CASE ?=
EXHIBIT ?=
BASE ?=
RUNS ?=
REPEATS ?=
ENGINE ?=
QUICK ?=
TEST ?=
TARGET ?=
MINUTES ?=
TIER ?=
FROM ?=
SEED ?=
BUILT = $(or $(CARGO_TARGET_DIR),target)
PROGRAMS = containerd-shim-cwasi-v1 cwasi-shim cwasi-sandbox cwasi-compiler cwasi kubectl-cwasi
# WASMEDGE=yes builds and installs the program of the optional engine; `make install` also does when it was built before.
WASMEDGE ?=
# ARM64=yes: images are for 64-bit ARM as well.
ARM64 ?=
INSTALL_WASMEDGE = $(or $(WASMEDGE),$(wildcard $(BUILT)/release/cwasi-sandbox-wasmedge))
RELEASE = $(if $(filter release,$(PROFILE)),--release)

.PHONY: help setup build guests demo demo-two-nodes test attacks test-arm64 test-collector test-static test-vm test-kubernetes test-chart manifests node-image operator-image soak fuzz bench bench-quick bench-scale bench-ab bench-engines bench-kubernetes papers papers-full screenshots book lint gate nightly deny advisories miri install clean setup-arm64 setup-fuzz setup-lint setup-miri setup-static setup-tests setup-video

help: ## This list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: ## Install what is missing (Debian 12 or 13, as root)
	@scripts/setup.sh

build: setup ## Build the runtime (PROFILE=release for speed) and the test bed; WASMEDGE=yes: WasmEdge's program, too
	@$(if $(WASMEDGE),scripts/setup.sh --wasmedge)
	@scripts/build.sh $(RELEASE) $(if $(WASMEDGE),--wasmedge) -p cwasi-testbed

guests: setup ## Build the test guests
	@scripts/guests.sh

demo: setup-video ## A generated street scene through four functions, fanned out and in; VIDEO=path for a video of your own
	@scripts/demo.sh $(if $(VIDEO),'$(VIDEO)')

demo-two-nodes: setup-video ## The same on two nodes, edge and cloud, then on one: equal results
	@scripts/demo.sh --two-nodes

test: ## Every test but those of the night (make nightly), end to end on a private containerd included
	@scripts/setup.sh --languages
	@scripts/test.sh

attacks: ## The attacker's suite of docs/security.md, in seconds, after a build (make test)
	@scripts/attacks.sh

soak: setup-tests ## The fault suite for MINUTES=n (30) on three containerds, SEED=n to repeat one: target/soak
	@scripts/soak.sh $(or $(MINUTES),30) $(SEED)

test-static: setup-tests setup-static guests ## End-to-end tests with static programs: calls, components, exec
	@scripts/build.sh -p cwasi-testbed
	@scripts/test.sh --static

test-vm: setup-tests ## Tests in virtual machines with cgroup v2 (QEMU without KVM, minutes; TEST=name for one)
	@scripts/vm.sh $(TEST)

test-kubernetes: setup-tests setup-static ## Tests on a Kubernetes cluster of two nodes, which the first run builds (TEST=name for one)
	@PROFILE=$(PROFILE) scripts/kubernetes.sh $(TEST)

test-collector: setup-tests guests ## Exported traces through an OpenTelemetry Collector, which the first run builds
	@scripts/collector.sh

node-image: ## The image from which deploy/kubernetes installs: target/cwasi-node.tar (PROFILE=release, ARM64=yes, WASMEDGE=yes)
	@scripts/setup.sh --static $(if $(ARM64),--arm64) $(if $(WASMEDGE),--wasmedge)
	@scripts/build.sh --static $(RELEASE)
	@$(if $(ARM64),scripts/build.sh --target aarch64-unknown-linux-musl $(RELEASE))
	@$(if $(WASMEDGE),cargo build $(RELEASE) -p cwasi-sandbox-wasmedge)
	cargo build -p cwasi-testbed
	@PROFILE=$(PROFILE) ARM64=$(ARM64) WASMEDGE=$(WASMEDGE) scripts/node-image.sh '$(BUILT)/cwasi-node.tar'

operator-image: ## The image of deploy/kubernetes/operator.yaml: target/cwasi-operator.tar (PROFILE=release, ARM64=yes)
	@scripts/setup.sh --static $(if $(ARM64),--arm64)
	@scripts/build.sh --static $(RELEASE) --only cwasi-operator
	@$(if $(ARM64),scripts/build.sh --target aarch64-unknown-linux-musl $(RELEASE) --only cwasi-operator)
	cargo build -p cwasi-testbed
	@PROFILE=$(PROFILE) ARM64=$(ARM64) scripts/operator-image.sh '$(BUILT)/cwasi-operator.tar'

manifests: ## The plain manifests of deploy/kubernetes from the chart, by Helm, which the first run builds
	@scripts/chart.sh write

bench-kubernetes: setup-tests setup-static ## Starts as pods beside native images on the test cluster, REPEATS=n (100): target/bench-kubernetes
	@scripts/setup.sh --languages
	@PROFILE=release REPEATS=$(or $(REPEATS),100) scripts/kubernetes.sh bench

test-chart: ## The chart deploy/helm/cwasi: what it makes, what it refuses
	@scripts/chart.sh check

test-arm64: setup-arm64 setup-tests guests ## Static programs for 64-bit ARM, and a smoke test in an emulated machine
	cargo build -p cwasi-testbed
	@scripts/test-arm64.sh

fuzz: setup-fuzz ## Fuzz whatever reads what others wrote, each target for MINUTES=n (1); TARGET=name for one
	@scripts/fuzz.sh $$((60 * $(or $(MINUTES),1))) $(TARGET)

bench: ## Everything beside sockets, HTTP, Redis and runc (CASE=part of a name, ENGINE=wasmedge): target/bench
	@scripts/setup.sh --languages
	@$(if $(ENGINE),CWASI_TEST_ENGINE=$(ENGINE) )scripts/bench.sh run $(if $(CASE),--case '$(CASE)')

bench-quick: ## The same, less of it, in less than 5 minutes
	@scripts/setup.sh --languages
	@$(if $(ENGINE),CWASI_TEST_ENGINE=$(ENGINE) )scripts/bench.sh quick $(if $(CASE),--case '$(CASE)')

bench-scale: ## How cost grows with functions, calls, payloads, nodes (CASE=part of a name, QUICK=yes): target/bench-scale
	@scripts/setup.sh --tests
	@scripts/bench.sh scale $(if $(QUICK),--quick) $(if $(CASE),--case '$(CASE)')

bench-ab: ## Cases of the checkout and of BASE=revision in turns (CASE=part of a name, RUNS=3 each)
	@scripts/setup.sh --languages
	@scripts/bench-ab.sh '$(BASE)' '$(CASE)' $(RUNS)

bench-engines: ## Cases with WasmEdge and with wasmtime in turns (CASE=part of a name, RUNS=3 each): target/bench-engines
	@scripts/setup.sh --languages
	@scripts/bench-engines.sh '$(CASE)' $(RUNS)

papers: ## The tables and figures of the four papers, in about half an hour (EXHIBIT=part of an id, PEERS=folder): target/papers
	@scripts/setup.sh --languages --static
	@scripts/papers.sh quick $(if $(EXHIBIT),--exhibit '$(EXHIBIT)')

papers-full: ## The same with the papers' times and repeats: hours
	@scripts/setup.sh --languages --static
	@scripts/papers.sh full $(if $(EXHIBIT),--exhibit '$(EXHIBIT)')

book: ## The documentation as a book: target/book/index.html
	@scripts/book.sh

screenshots: build guests ## Pictures of the dashboard in headless Chromium, phone and desk: target/screenshots
	@scripts/setup.sh --browser
	@scripts/screenshots.sh

lint: setup-tests setup-lint ## Format, clippy, documentation and shellcheck, warnings denied: builds everything
	@scripts/lint.sh

gate: ## What a change has to pass: .ci/run in a clean clone of HEAD; the result goes to .cwasi/gate
	@scripts/gate.sh

nightly: ## The longer tests, tier by tier: TIER='name…' for some, FROM=name to go on; results go to .cwasi/nightly.tsv
	@scripts/nightly.sh $(if $(FROM),--from $(FROM),$(TIER))

deny: setup-lint ## Licences and sources of all dependencies
	@scripts/deny.sh

advisories: setup-lint ## Known vulnerabilities of all dependencies (clones a database from GitHub)
	@scripts/deny.sh advisories

miri: setup-miri ## Undefined behaviour in the guest SDK
	@scripts/miri.sh

setup-arm64:
	@scripts/setup.sh --arm64

setup-fuzz:
	@scripts/setup.sh --fuzz

setup-lint:
	@scripts/setup.sh --lint

setup-tests:
	@scripts/setup.sh --tests

setup-miri:
	@scripts/setup.sh --miri

setup-static:
	@scripts/setup.sh --static

setup-video:
	@scripts/setup.sh --video

install: setup ## Put the runtime where containerd finds it (PREFIX=/usr/local; WASMEDGE=yes as for build)
	@$(if $(INSTALL_WASMEDGE),scripts/setup.sh --wasmedge)
	@scripts/build.sh --release $(if $(INSTALL_WASMEDGE),--wasmedge) -p kubectl-cwasi
	@scripts/install.sh '$(BUILT)/release' '$(DESTDIR)$(PREFIX)/bin' $(PROGRAMS) \
		$(if $(INSTALL_WASMEDGE),cwasi-sandbox-wasmedge)

clean: ## Remove what was built and run; keeps what set-up unpacked
	cargo clean
	rm -rf .cwasi/run .cwasi/aot .cwasi/demo
