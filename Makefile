# The project's commands. Each makes what it needs: an environment of its own beside the sources.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= --layout tp=2,cp=2,pp=2

.PHONY: demo test lint fix engines bench clean help
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' Makefile | sed 's/:.*##/ \t/'

demo: $(VENV)/.runs  ## watch a simulated engine publish one stream per data-parallel rank
	$(BIN)/kvevents demo $(DEMO)

test: $(VENV)/.tests  ## lint, types, layers, and every test that needs no engine of its own
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -W error -m pytest $(PYTEST)

lint: $(VENV)/.tests  ## ruff, mypy and import-linter only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.tests  ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.bench  ## measure beside the engines' own publishers; writes bench/RESULTS.md
	$(BIN)/python -m bench $(BENCH)

engines: $(VENV)/.tests  ## build the engines' environments (some 10 GB, outside the clone) and test in them
	$(BIN)/python tests/engines/build_environment.py
	KVEVENTS_REQUIRE_ENGINES=1 $(BIN)/python -W error -m pytest tests/engines $(PYTEST)

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Downloads fail now and then: three tries before giving up.
install = for try in 1 2 3; do $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1) && exit 0; sleep 2; done; exit 1

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvevents needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@$(call install,--upgrade pip)

$(VENV)/.runs: $(VENV)/bin/python pyproject.toml
	@$(call install,--editable '.[all]')
	@touch $@

$(VENV)/.tests: $(VENV)/.runs pyproject.toml
	@$(call install,--group dev)
	@touch $@

$(VENV)/.bench: $(VENV)/.runs pyproject.toml
	@$(call install,--group bench)
	@touch $@
