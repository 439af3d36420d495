# Each target sets up what it needs: on a fresh machine `make demo` is the first command.
#
#   make demo                  a first evaluation, on data that comes with the package
#   make test                  the fast tests; ARGS="-k oracle" passes arguments to pytest,
#                              ARGS="-m slow" runs the slow ones
#   make check                 format, lint and types
#   make docs                  the documentation, into docs/_build/html
#   make clean                 removes the environment and all caches

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: demo test check docs clean help setup

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test processes; 0 runs everything in one process, for a debugger.
WORKERS ?= 2
ARGS ?=

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

# A name on PATH may be a shim that starts no Python, or a Python without venv, so each one is tried.
$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
	  for candidate in python3.11 python3.12 python3.13 python3 python; do \
	    if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then echo "besiege needs Python 3.11 or newer with venv; none is on PATH." >&2; exit 1; fi; \
	  $$found -m venv $(VENV) || exit 1; \
	fi
	@echo "Installing besiege and its development tools into $(VENV) (about a minute, once) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check -qq -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python examples/demo.py $(ARGS)

# One torch thread per process: results are compared bitwise, and two workers fill two cores.
# A module's tests stay in one process, which makes its fixtures once. Compiled tests are kept even
# where the environment forbids it: reading them takes a third of the time.
test: $(STAMP)
	@echo "Testing with $(WORKERS) processes, one torch thread each ..."
	@PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope $(ARGS)

check: $(STAMP)
	@echo "Checking format, lint and types ..."
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted; run: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy $(wildcard src tests examples benchmarks docs/_ext)

# Warnings are errors: they report broken links and missing names.
docs: $(STAMP)
	@echo "Building the documentation ..."
	@$(BIN)/python -m sphinx -M html docs docs/_build --fail-on-warning --keep-going --quiet
	@echo "Open docs/_build/html/index.html"

clean:
	@echo "Removing the environment and all caches ..."
	@rm -rf $(VENV) .ci/data .mypy_cache .ruff_cache .pytest_cache dist build docs/_build docs/attacks docs/reference
	@find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
