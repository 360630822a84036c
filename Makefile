# Commands a contributor runs; `make` lists them. `make demo` and `make test` need only Python 3.11, make and a C compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install demo test check format docs bench migration clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Lake needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP) ## install Lake and its tools into .venv

demo: install ## open a lake in ./.lake, ingest the recorded runs, resolve and print each incident
	$(BIN)/python examples/demo.py

test: install ## the whole test suite
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

check: install ## lint, strict types, tidy, fast tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_tidy.py tests/docs -q
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow"

format: install ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: install ## regenerate functions.md, tables.md, cli.md in docs and the console output of README and guide
	COLUMNS=100 $(BIN)/python docs/generate.py

bench: install ## print ratios against peers and limits, one run each
	$(BIN)/python -m bench

migration: install ## a new catalog migration: make migration m="add column x"
	$(BIN)/python -m migrations "$(m)"

clean: ## remove the environment, the demo lake and caches
	rm -rf $(VENV) .lake .mypy_cache .ruff_cache .hypothesis
