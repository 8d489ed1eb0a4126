# One front door: `make` lists the targets. Each creates what it needs.
#
# demo, test, check and bench use a virtual environment in .venv and pinned packages.
# gpu and bench-gpu use $(PYTHON) as it is: no network, nothing installed.

PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
CONSTRAINTS := tests/constraints.txt

# Processes that pytest spreads the tests over; with more the interpreters' start costs more than it gives.
JOBS := $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
PYTEST_RUN := pytest -n $(JOBS) --dist worksteal
PYTEST := $(PY) -m $(PYTEST_RUN)

# Without a GPU to run them, kernels for every architecture only cost time.
ifeq ($(shell command -v nvidia-smi 2> /dev/null),)
UMEM_CUDA_ARCHS ?= ptx
endif
export UMEM_CUDA_ARCHS

.DEFAULT_GOAL := help
.NOTPARALLEL: # two pip at once would spoil .venv; compilers run in parallel by themselves
.PHONY: help demo test check mutations fuzz gpu bench bench-gpu format clean build build-here \
	check-format check-lint check-types check-sanitize check-threads check-valgrind check-coverage

help:
	@echo "make demo       set up and run the main job"
	@echo "make test       set up and run every test that needs no GPU"
	@echo "make check      format, lint, types, sanitizers, Valgrind, coverage"
	@echo "make mutations  take each wait out of the coherence rules and see a test fail"
	@echo "make fuzz       feed the importers with objects that lie, FUZZ_SECONDS=60 on each backend"
	@echo "make gpu        build for this machine's GPU and run the GPU tests, offline"
	@echo "make bench      benchmarks without a GPU, into benchmarks/results/"
	@echo "make bench-gpu  benchmarks with the GPU, offline, into benchmarks/results/"
	@echo "make format     format C, CUDA and Python"
	@echo "make clean      remove builds, caches and .venv"

# --- the virtual environment

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "umem needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	         "Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

# What a build needs. The toolkit's packages (if nvcc is missing) stay out of site-packages, where a
# CUDA build of PyTorch pins other versions of some; tools/cuda_toolkit.py looks in .venv/cuda.
$(VENV)/.build-deps: $(VENV)/.created $(CONSTRAINTS) tools/cuda_toolkit.py
	$(PIP) install -q -c $(CONSTRAINTS) setuptools wheel numpy
	needed=$$($(PY) tools/cuda_toolkit.py requirements); \
	if [ -n "$$needed" ]; then $(PIP) install -q --upgrade --target $(VENV)/cuda $$needed; fi
	touch $@

# .venv/.extra-NAME: umem in place (editable), with the packages of an extra.
$(VENV)/.extra-%: $(VENV)/.build-deps pyproject.toml
	@echo "installing umem[$*] into $(VENV); a first time this may take minutes"
	$(PIP) install -q -c $(CONSTRAINTS) --no-build-isolation -e '.[$*]'
	touch $@

# Always run: setup.py compiles only what changed, and so nothing stale is ever tested.
build: $(VENV)/.build-deps
	$(PY) setup.py --quiet build_ext --inplace

build-here:
	$(PYTHON) setup.py --quiet build_ext --inplace

# --- the main job and the tests

demo: $(VENV)/.extra-demo build
	$(PY) -m umem demo

test: $(VENV)/.extra-test build
	$(PYTEST) $(PYTEST_ARGS)

# Clear of pyproject.toml's addopts, which leave tests/gpu out.
GPU_PYTEST = $(PYTHON) -m pytest -o addopts= -ra --strict-markers \
	$(shell $(PYTHON) -c 'import pytest_timeout' 2> /dev/null && echo --timeout=120)
GPU_ENV := PYTHONPATH=. UMEM_ALLOC_CONF=limit:4GiB UMEM_RESULTS_DIR=benchmarks/results \
	UMEM_TEST_BACKENDS=cuda

# tests/gpu, and the whole contract suite on the real driver.
gpu: build-here
	$(GPU_ENV) timeout 290 $(GPU_PYTEST) tests $(PYTEST_ARGS)

bench: $(VENV)/.extra-test build
	$(PY) benchmarks/run.py

bench-gpu: build-here
	$(GPU_ENV) $(PYTHON) benchmarks/run.py --gpu

# --- checks

C_FILES = $(shell find src tests -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh')

check: check-format check-lint check-types check-sanitize check-threads check-valgrind check-coverage

check-format: $(VENV)/.extra-dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/clang-format --dry-run --Werror $(C_FILES)

check-lint: $(VENV)/.extra-dev build
	$(VENV)/bin/ruff check .
	$(VENV)/bin/cppcheck --project=build/compile_commands.json --quiet --error-exitcode=1 -j 2 \
	    --library=python --enable=warning,performance,portability --inline-suppr \
	    --suppressions-list=tools/cppcheck.txt
	$(PY) -c 'import json; [print(c["file"]) for c in json.load(open("build/compile_commands.json"))]' \
	    | xargs -P 2 -n 1 $(VENV)/bin/clang-tidy --quiet -p build

check-types: $(VENV)/.extra-dev $(VENV)/.extra-test build
	$(PY) -m mypy
	if [ -f umem/_core.pyi ]; then $(PY) -m mypy.stubtest umem._core; fi

# $(call copy_tree,NAME): build/NAME, the tree without what is built in place, so that this cannot be picked up instead; and
# build/NAME/without, for PYTHONPATH where torch is left out: it is slow under sanitizers, and not ours.
define copy_tree
	mkdir -p build/$(1)/build build/$(1)/without
	rm -rf build/$(1)/src build/$(1)/umem build/$(1)/tests
	tar -cf - --exclude=./.git --exclude=./$(VENV) --exclude=./build --exclude='*.so' \
	    --exclude=__pycache__ . | tar -xf - -C build/$(1)
	if [ -d build/kernels ]; then cp -a build/kernels build/$(1)/build/; fi
	echo 'raise ModuleNotFoundError("torch is left out of sanitizer runs", name="torch")' \
	    > build/$(1)/without/torch.py
endef

BUILD_IN_PLACE = $(CURDIR)/$(PY) setup.py --quiet build_ext --inplace

# $(call sanitized,RUNTIMES): runs what follows with the sanitizers' runtimes. CPython is not built with them, so they have to be loaded
# first, and libstdc++ with them, or exceptions in other libraries abort. Sanitizers of older compilers cannot place their maps where
# addresses are very random: setarch -R, where it is allowed.
sanitized = runtime=$$(ldd umem/_core*.so | awk '/lib($(1)|stdc\+\+)\./ {print $$3}') && \
	fixed=$$(setarch -R true 2> /dev/null && echo setarch -R || true) && \
	UMEM_NO_SKIPS= PYTHONPATH=$$PWD:$$PWD/without PYTHONMALLOC=malloc \
	ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 \
	TSAN_OPTIONS=halt_on_error=1:exitcode=66:suppressions=$(CURDIR)/tools/tsan.supp \
	$$fixed env LD_PRELOAD="$$(echo $$runtime)"

# --capture=sys lets the report of a run that aborts through to the terminal.
IN_COPY := --timeout=300 --capture=sys -p no:cacheprovider

ASAN := export UMEM_SANITIZE=address,undefined;
TSAN := export UMEM_SANITIZE=thread;

ASAN_TESTS ?= tests
check-sanitize: $(VENV)/.extra-test build
	$(call copy_tree,asan)
	cd build/asan && $(ASAN) $(BUILD_IN_PLACE)
	cd build/asan && $(ASAN) $(call sanitized,asan|ubsan) $(CURDIR)/$(PYTEST) $(ASAN_TESTS) $(IN_COPY)

# Tests with threads, by their names; of the C programs all but those of the kernels have some. They are slow there: every 7th round.
TSAN_TESTS ?= tests -k "thread or test_c.py and not test_um_kernel"
check-threads: $(VENV)/.extra-test build
	$(call copy_tree,tsan)
	cd build/tsan && $(TSAN) $(BUILD_IN_PLACE)
	cd build/tsan && $(TSAN) export UMEM_TEST_STEP=7; $(call sanitized,tsan) $(CURDIR)/$(PYTEST) $(TSAN_TESTS) $(IN_COPY)

# The C programs. Valgrind simulates the processor: only every 7th round of the random ones.
VALGRIND = valgrind --quiet --leak-check=full --errors-for-leak-kinds=definite,indirect,possible \
    --error-exitcode=99 --suppressions=tools/valgrind.supp
check-valgrind: $(VENV)/.extra-test build
	@command -v valgrind > /dev/null || { echo "valgrind is missing: apt-get install valgrind" >&2; exit 1; }
	UMEM_VALGRIND="$(VALGRIND)" UMEM_TEST_STEP=7 $(PYTEST) tests/test_c.py --timeout=300

# Built with gcc's counters. Both tables are printed, whichever is too low.
COVERAGE_TESTS ?= tests
check-coverage: $(VENV)/.extra-test $(VENV)/.extra-dev build
	$(call copy_tree,coverage)
	cd build/coverage && find . -name '*.gcda' -delete && rm -rf .coverage* build/ctests && UMEM_COVERAGE=1 $(BUILD_IN_PLACE)
	cd build/coverage && UMEM_COVERAGE=1 PYTHONPATH=$$PWD $(CURDIR)/$(PY) -m coverage run -m $(PYTEST_RUN) $(COVERAGE_TESTS) $(IN_COPY)
	cd build/coverage && $(CURDIR)/$(PY) -m coverage combine --quiet && low=0; \
	    $(CURDIR)/$(PY) -m coverage report --fail-under=95 || low=1; \
	    $(CURDIR)/$(PY) tools/c_coverage.py --fail-under=90 build || low=1; exit $$low

# --- what takes as long as one lets it, and is no part of check

# Rewrites docs/mutations.md.
mutations: $(VENV)/.extra-test build
	$(PY) tools/mutations.py --jobs $(JOBS)

# What it has learnt stays in build/fuzz/corpus-*.
FUZZ_SECONDS ?= 60
ATHERIS := atheris==3.0.0
fuzz: $(VENV)/.extra-test build
	$(PIP) install -q $(ATHERIS)
	$(call copy_tree,fuzz)
	cd build/fuzz && $(ASAN) CFLAGS=-fsanitize-coverage=trace-pc,trace-cmp $(BUILD_IN_PLACE)
	cd build/fuzz && $(CC) -O2 -fPIC -shared -o coverage.so tests/fuzz/coverage.c
	cd build/fuzz && for backend in host fake; do \
	    mkdir -p corpus-$$backend; \
	    $(ASAN) $(call sanitized,asan|ubsan) $(CURDIR)/$(PY) tests/fuzz/fuzz_importers.py $$backend \
	        ./coverage.so -max_total_time=$(FUZZ_SECONDS) -max_len=256 -len_control=0 -timeout=60 \
	        -rss_limit_mb=4096 -artifact_prefix=$$backend- corpus-$$backend; \
	done

# --- housekeeping

format: $(VENV)/.extra-dev
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .
	$(VENV)/bin/clang-format -i $(C_FILES)

clean:
	rm -rf build dist $(VENV) umem.egg-info umem/_core*.so .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
