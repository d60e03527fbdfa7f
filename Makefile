# `make demo` and `make test` do all the set-up themselves: they create .venv and install the project into it.
#
#   make PYTHON=python3.13 VENV=.venv-3.13 test     another interpreter
#   make test PYTEST_ARGS='-k globals -x'           some of the tests

PYTHON ?= python3
VENV ?= .venv
PEER_VENV ?= .venv-peer
PYTEST_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUN_PYTEST := $(BIN)/python -m pytest

.PHONY: help demo test lint format stress fault peer bench screenshots clean

help:
	@echo 'make demo     compile the example kernels, load them in a fresh process, compare'
	@echo 'make test     the default tests, under two minutes'
	@echo 'make lint     ruff and mypy'
	@echo 'make stress   long randomized and multi-process tests (COMPCACHE_TEST_SECONDS: how long each)'
	@echo 'make fault    file-system faults, kills and bit flips'
	@echo 'make peer     C libraries and Numba functions that this project did not write (needs a package index)'
	@echo 'make screenshots  the pictures of the README, from real runs (the page of the graph needs Chromium)'
	@echo 'make bench    compare with other caches, write docs/benchmarks.md (BENCH_ARGS=--quick: shorter)'

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'make: compcache needs Python 3.11 or later: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

test: $(INSTALLED)
	$(RUN_PYTEST) --numprocesses auto $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .

stress fault: $(INSTALLED)
	$(RUN_PYTEST) -m $@ $(PYTEST_ARGS)

# An environment of its own: the packages that results are compared with are not among the project's needs.
$(PEER_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[peer]'
	@touch $@

peer: $(PEER_VENV)/.installed
	$(PEER_VENV)/bin/python -m pytest -m peer $(PYTEST_ARGS)

# The peers of the comparison live in environments of their own: .venv-bench, and what benchmarks/publish.py makes.
BENCH_VENV ?= .venv-bench

$(BENCH_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check '.[bench]'
	@touch $@

bench: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python benchmarks/publish.py $(BENCH_ARGS)

screenshots: $(INSTALLED)
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf $(VENV) $(PEER_VENV) $(BENCH_VENV) .venv-bench-* build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
