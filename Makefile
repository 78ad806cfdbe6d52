# Everything from a fresh checkout: needs Python 3.11 or newer, and make. Java for Spark comes from PyPI if there is none.

PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3 python; do \
	$$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && { echo $$python; break; }; \
	done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.headrace-installed
# Spark's classes for the many sessions of the tests; a user's own are in the user's cache.
WARM := $(VENV)/cache/.warm
TESTED := XDG_CACHE_HOME=$(CURDIR)/$(VENV)/cache $(BIN)/python
DAYS ?= 1

.PHONY: help setup check test soak clients demo bench docs warm clean

help:
	@echo 'make setup   .venv with headrace and its tools; does nothing the second time'
	@echo 'make check   style, types, import rules and the fast tests: two to four minutes on two cores'
	@echo 'make test    everything, with servers, Spark and kill -9: 20 to 30 minutes on two cores'
	@echo 'make soak    random and repeated tests for longer, and make clients: some hours'
	@echo 'make clients the suites of drivers, from their registries, against a server: some hours'
	@echo 'make demo    DAYS=1 of flights through a server, its change stream and Spark into a table'
	@echo 'make bench   measures the server'
	@echo 'make docs    the documentation as a site, in site/'
	@echo 'make warm    keeps Spark'"'"'s classes in your cache: its sessions start in half the time (150 MB)'

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'headrace needs Python 3.11 to 3.13; none was found. Set PYTHON=/path/to/python.' >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

check: setup
	$(BIN)/python tests/lanes.py check

test: setup $(WARM)
	$(TESTED) tests/lanes.py test

soak: setup $(WARM)
	$(TESTED) tests/lanes.py soak

clients: setup
	$(TESTED) tests/lanes.py clients

$(WARM): $(STAMP)
	@mkdir -p $(@D)
	$(TESTED) -m headrace.spark.session
	@touch $@

demo: setup
	@$(BIN)/python -m headrace.demo --days $(DAYS)

bench: setup
	$(BIN)/python bench/load.py

# The generator has an environment of its own, so that the others need not install it.
docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo 'site/index.html is written'

.venv-docs/.installed: pyproject.toml constraints.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs || $(PYTHON) -m virtualenv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

clean:
	rm -rf $(VENV) .venv-docs site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache

warm: setup
	$(BIN)/python -m headrace.spark.session
