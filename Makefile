# `make demo` and `make test` do all the set-up themselves: they create .venv and install the project into it.
#
#   make PYTHON=python3.13 VENV=.venv-3.13 test     another interpreter
#   make test PYTEST_ARGS='-k globals -x'           some of the tests

PYTHON ?= python3
VENV ?= .venv
PEER_VENV ?= .venv-peer
PYTEST_ARGS ?=
# What is installed beside the project.
EXTRAS ?= dev

# The tests start thousands of interpreters: where bytecode is not kept, each of them would compile the package.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUN_PYTEST := $(BIN)/python -m pytest
# The extension modules in C are built with each installation, and anew when one of these changes.
NATIVE := $(wildcard compcache/hit/native/*.[ch] compcache/numba/*/native/*.[ch])
# A folder changes when a file of it is replaced or goes.
BUILT_FROM := pyproject.toml setup.py $(wildcard build_backend/*.py) compcache/hit/native_build.py $(NATIVE) $(sort $(dir $(NATIVE)))

.PHONY: help build demo test slow types sanitize lint format mutants stress fault peer bench conformance conformance-own conformance-tests oldest numba-series docs wheels release golden screenshots clean

help:
	@echo 'make build    .venv with the project and what it needs, the native runtime built; all others do this first'
	@echo 'make demo     compile the example kernels, load them in a fresh process, compare'
	@echo 'make test     the default tests, less than three minutes on two cores'
	@echo 'make slow     those that take a third of a second or more each: whole programs, processes that race (some eight minutes)'
	@echo 'make lint     ruff, mypy, and the C compiler with its warnings as errors'
	@echo 'make types    pyright and mypy, both strict, on a program that uses the package'
	@echo 'make sanitize tests on a native runtime with AddressSanitizer and UndefinedBehaviorSanitizer (needs gcc)'
	@echo 'make stress   long randomized and multi-process tests (COMPCACHE_TEST_SECONDS: how long each)'
	@echo 'make mutants  lines of defence taken away one at a time: a test must notice each (MUTANTS: names, or --sample N)'
	@echo 'make fault    file-system faults, kills and bit flips'
	@echo 'make peer     C and C++ libraries and Numba functions that this project did not write (needs a package index)'
	@echo 'make conformance  this cache and others beside it, each in an environment of its own; writes docs/conformance.md (hours)'
	@echo 'make conformance-tests  the tests of the suite itself: each scenario fails for a cache that is broken in its way (minutes)'
	@echo 'make conformance-own  the columns of this cache alone (three minutes); fails where one is worse than conformance/results.json'
	@echo 'make screenshots  the pictures of the README, from real runs (the page of the graph needs Chromium)'
	@echo 'make oldest   some tests with the oldest packages that are declared'
	@echo 'make numba-series  the smallest proof with each series of Numba that is supported (NUMBA_ARGS=--whole: all of its gate)'
	@echo 'make docs     the documents as a site in build/site, warnings as errors, links checked'
	@echo 'make wheels   the source distribution and the wheels, cross-compiled and checked, into dist/'
	@echo 'make release  those and compcache-runtime, built twice and compared, tried in clean environments, with SBOM and provenance'
	@echo 'make golden   what this version stores, for later versions to read (tests/golden), before it is released'
	@echo 'make bench    compare with other caches, write docs/benchmarks.md (BENCH_ARGS=--quick: shorter)'

# Installations share the work tree's extension modules: one for all Pythons, one for each free-threaded version.
ifeq ($(wildcard compcache/hit/_runtime*.so),)
.PHONY: $(INSTALLED)
endif

build: $(INSTALLED)

$(INSTALLED): $(BUILT_FROM)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'make: compcache needs Python 3.11 or later: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -q compcache # where bytecode is not written, each process would compile the package
	@touch $@

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

test: $(INSTALLED)
	$(RUN_PYTEST) --numprocesses auto --dist worksteal $(PYTEST_ARGS)

slow: $(INSTALLED)
	$(RUN_PYTEST) --numprocesses auto --dist worksteal -m 'slow and not stress and not fault and not peer' $(PYTEST_ARGS)

C_WARNINGS := -Wall -Wextra -Werror
C_OPTIONS = -O2 -std=gnu11 -DCOMPCACHE_LIMITED_API=0x030B0000 -DCOMPCACHE_SOURCE_DIGEST='""' -DCOMPCACHE_SOURCES='""' \
  -I$(shell $(BIN)/python -c "import sysconfig; print(sysconfig.get_path('include'))")

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check compcache
	$(BIN)/mypy
	cd conformance && $(abspath $(BIN))/mypy
	@if command -v $(CC) >/dev/null; then echo '$(CC) $(C_WARNINGS) ...'; else echo 'no C compiler: C is not checked'; exit; fi; \
	for file in $(filter %.c,$(NATIVE)); do $(CC) $(C_WARNINGS) $(C_OPTIONS) -c $$file -o /dev/null || exit 1; done

types: $(INSTALLED)
	$(BIN)/mypy tests/typed_program.py
	$(BIN)/pyright --project tests/typed_program.json --pythonpath $(BIN)/python

# A copy of the work tree with another native runtime. LLVM and the interpreter are not instrumented; leaks are not looked
# for (an interpreter that ends leaves much behind), and freed memory is not used again, which one test waits for.
SANITIZED := build/sanitized
SANITIZE_TESTS ?= tests/formats/test_native_readers.py tests/hit/test_runtime.py tests/hit/test_lifetimes.py tests/hit/test_loading.py tests/hit/test_threads.py \
  tests/hit/test_shapes_and_tuples.py tests/hit/test_transactions.py tests/hit/test_linking.py tests/hit/test_one_mapping.py
LIBASAN = $(shell gcc -print-file-name=libasan.so) $(shell gcc -print-file-name=libubsan.so)

sanitize: $(INSTALLED)
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	tar --create build_backend compcache examples tests pyproject.toml | tar --extract --directory $(SANITIZED)
	rm $(SANITIZED)/compcache/hit/_runtime*.so
	gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -fPIC -shared $(C_OPTIONS) \
	  $(filter %.c,$(NATIVE)) -o $(SANITIZED)/compcache/hit/_runtime.abi3.so
	cd $(SANITIZED) && LD_PRELOAD='$(LIBASAN)' ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/$(SANITIZED) \
	  $(abspath $(BIN))/python -m pytest -p no:cacheprovider -k 'not reused_addresses and not sources_that_are_here' \
	  $(SANITIZE_TESTS) $(PYTEST_ARGS)

format: $(INSTALLED)
	$(BIN)/ruff format .

stress fault: $(INSTALLED)
	$(RUN_PYTEST) -m $@ $(PYTEST_ARGS)

mutants: $(INSTALLED)
	$(BIN)/python tests/mutants/run.py $(MUTANTS)

# An environment of its own: the packages that results are compared with are not among the project's needs.
$(PEER_VENV)/.installed: $(BUILT_FROM)
	$(PYTHON) -m venv $(PEER_VENV)
	$(PEER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[peer]'
	@touch $@

peer: $(PEER_VENV)/.installed
	$(PEER_VENV)/bin/python -m pytest -m peer $(PYTEST_ARGS)

# The peers of the comparison live in environments of their own: .venv-bench, and what benchmarks/publish.py makes.
BENCH_VENV ?= .venv-bench

$(BENCH_VENV)/.installed: $(BUILT_FROM)
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

bench: $(BENCH_VENV)/.installed
	$(BENCH_VENV)/bin/python benchmarks/publish.py $(BENCH_ARGS)

# The suite knows nothing of the package: it is installed, or found on the path, beside it. Systems whose processes take seconds play a part.
CONFORMANCE := PYTHONPATH=$(CURDIR)/conformance:$(CURDIR) $(BIN)/python -m compcache_conformance
CONFORMANCE_SLOW ?= numba numba-0.66 numba-0.61 jax pytensor taichi triton typed_python warp inductor cuda.core numba-cuda joblib diskcache cffi
CONFORMANCE_RESULTS := build/conformance

conformance: $(INSTALLED)
	mkdir -p $(CONFORMANCE_RESULTS)
	-$(CONFORMANCE) run compcache compcache-compile compcache-clang ccache --partial $(CONFORMANCE_RESULTS)
	-$(CONFORMANCE) run compcache-numba compcache-lazy compcache-run $(CONFORMANCE_SLOW) --core --partial $(CONFORMANCE_RESULTS)
	$(CONFORMANCE) report $(CONFORMANCE_RESULTS)/*.json --summary conformance/results.json --html $(CONFORMANCE_RESULTS)/table.html
	$(CONFORMANCE) report conformance/results.json --page docs/conformance.md

conformance-tests: $(INSTALLED)
	PYTHONPATH=$(CURDIR)/conformance $(BIN)/python -m pytest -q --no-header -p no:cacheprovider conformance/tests $(PYTEST_ARGS)

# The columns without Numba whole. Of the others, what shows each kind of mistake with the fewest processes, without the families that ask
# about files, which is the store of all of them, and of `run` what lies above the decorators of compcache-lazy.
# The families of the facade are two halves that take equally long.
CONFORMANCE_FIRST := -k stale -k missed -k "wrong entry" -k races -k damage
CONFORMANCE_SECOND := -k places -k network -k hosts -k scale -k trust -k living
CONFORMANCE_QUICK := --quick --allow conformance/results.json
CONFORMANCE_NUMBA := -k stale -k missed -k 'wrong entry' -k races -k trust -k living
CONFORMANCE_ABOVE := -k stale -k missed -k 'wrong entry' -k places -k living

conformance-own: $(INSTALLED)
	$(BIN)/python -m compileall -q compcache conformance/compcache_conformance
	$(MAKE) --no-print-directory conformance-tests PYTEST_ARGS='-k "test_cli or test_reports or test_shared or every_scenario_has"' & tests=$$!; \
	$(CONFORMANCE) run compcache $(CONFORMANCE_FIRST) $(CONFORMANCE_QUICK) & first=$$!; \
	$(CONFORMANCE) run compcache $(CONFORMANCE_SECOND) $(CONFORMANCE_QUICK) & second=$$!; \
	$(CONFORMANCE) run compcache-run --core $(CONFORMANCE_ABOVE) $(CONFORMANCE_QUICK) & above=$$!; \
	$(CONFORMANCE) run compcache-numba compcache-lazy --core $(CONFORMANCE_NUMBA) $(CONFORMANCE_QUICK) && \
	$(CONFORMANCE) run compcache-compile $(if $(shell command -v clang),compcache-clang) $(CONFORMANCE_QUICK); core=$$?; \
	wait $$tests && wait $$first && wait $$second && wait $$above && exit $$core

# The oldest versions that pyproject.toml declares; .venv has the newest.
OLDEST_VENV ?= .venv-oldest

$(OLDEST_VENV)/.installed: $(BUILT_FROM)
	$(PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' \
	  $$($(PYTHON) tools/oldest.py)
	@touch $@

oldest: $(OLDEST_VENV)/.installed
	$(OLDEST_VENV)/bin/python -m pytest --numprocesses auto -q --no-header -p no:cacheprovider $(PYTEST_ARGS) \
	  tests/cli/test_cli.py tests/cli/test_cli_names.py tests/cli/test_cli_graph.py tests/cli/test_cli_ls_show.py tests/hit/test_loading.py \
	  tests/test_facade.py tests/cli/test_batch_command.py tests/targets/test_processor_words.py

# Each series of Numba that is supported, in an environment of its own below build/numba; .venv has the newest.
numba-series: $(INSTALLED)
	$(BIN)/python tools/numba_versions.py test $(NUMBA_ARGS)

DOCS_VENV ?= .venv-docs

$(DOCS_VENV)/.installed: pyproject.toml | $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(DOCS_VENV)
	$(BIN)/python -m pip --python $(DOCS_VENV)/bin/python install --quiet --disable-pip-version-check 'mkdocs-material>=9.5' 'mkdocstrings[python]>=0.27' 'ruff>=0.6'
	@touch $@

docs: $(DOCS_VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet

RELEASE_VENV ?= .venv-release

$(RELEASE_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check '.[release]'
	@touch $@

wheels: $(RELEASE_VENV)/.installed
	$(RELEASE_VENV)/bin/python tools/wheels.py

release: $(RELEASE_VENV)/.installed
	$(RELEASE_VENV)/bin/python tools/release.py

golden: $(INSTALLED)
	$(BIN)/python tools/golden.py

screenshots: $(INSTALLED)
	$(BIN)/python docs/screenshots.py

clean:
	rm -rf compcache/hit/_runtime*.so compcache/numba/lazy/_dispatch*.so $(VENV) $(PEER_VENV) $(BENCH_VENV) $(DOCS_VENV) $(OLDEST_VENV) $(RELEASE_VENV) .venv-bench-* build dist .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
