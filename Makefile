# Everything from a fresh machine with Python 3.11 or newer and a C++ compiler. Works with GNU make 3.81 (macOS).
#
#   make demo    measure the bundled model pair and write a report
#   make test    run the tests
#   make lint    check style and types
#   make clean   remove the environment and caches; results, reports and engine builds stay
#
# PYTHON=python3.12 chooses the interpreter; ENGINE_FLAGS=--cuda builds the engine for a GPU; a llama-server of one's
# own in BENCHCTL_LLAMA_SERVER is used instead of building one, and a vLLM of one's own in BENCHCTL_VLLM instead of
# installing its CPU build (3.5 GB, for the tests); ARGS="-k name" is handed to pytest.

find_python = for python in python3 python3.14 python3.13 python3.12 python3.11; do \
  if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$python; break; fi; done
PYTHON ?= $(shell $(find_python))
ENGINE_FLAGS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
RECIPE := recipes/quickstart.yaml

.PHONY: help demo test lint engine vllm clean
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
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[build]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed constraints-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints-dev.txt \
	  --editable ".[build,dev]"
	@touch $@

engine: $(VENV)/.installed
	@if [ -n "$$BENCHCTL_LLAMA_SERVER" ]; then echo "Using $$BENCHCTL_LLAMA_SERVER"; \
	else $(BIN)/benchctl engines install llama.cpp $(ENGINE_FLAGS); fi

# Published for Linux on x86-64 alone; elsewhere the tests that need it are skipped and say so.
vllm: $(VENV)/.installed
	@if [ -n "$$BENCHCTL_VLLM" ]; then echo "Using $$BENCHCTL_VLLM"; \
	elif [ "$$(uname -sm)" = "Linux x86_64" ]; then $(BIN)/benchctl engines install vllm --cpu; \
	else echo "There is no CPU build of vLLM for $$(uname -sm)"; fi

# "Not lossless" (exit status 1) is an answer, not a breakdown: the report is written and the answer stands at the end.
# Every other status ends the demo.
demo: engine
	$(BIN)/benchctl run $(RECIPE) --out results
	@status=0; $(BIN)/benchctl verify-lossless || status=$$?; \
	if [ $$status -gt 1 ]; then exit $$status; fi; \
	$(BIN)/benchctl report || exit $$?; \
	echo; \
	if [ $$status -eq 0 ]; then echo "The demo is done: every arm is lossless."; \
	else echo "The demo is done: NOT every arm is lossless (verify-lossless: exit status 1; see above and the report)."; fi

test: $(VENV)/.installed-dev engine vllm
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
