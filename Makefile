# Two commands do everything on a fresh machine:  make quickstart  and  make test
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# a group of tests stays on one worker: what a module or a service has in common is made once
GROUPED := --dist loadgroup --no-loadscope-reorder
# tests start thousands of Python processes: what one has compiled serves the next
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-full fast mutants lint bench wheel docs

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Make .venv and install what is missing; instant when nothing changed
	@scripts/install.sh

quickstart: install ## Train a small model to fix bugs in real sandboxes, on this machine, in minutes
	@$(BIN)/hone quickstart

test: install lint ## Lint, types, import floors, and the tests of every part; minutes
	@scripts/install-services.sh
	$(PYTEST) -m "not sglang and not full" -n 4 $(GROUPED) --durations=15

test-full: install lint ## Everything: every provider, chaos, soak, engines; no limit on time
	@scripts/install-services.sh --full
	HYPOTHESIS_PROFILE=full $(PYTEST) -m "not sglang and not full" -n 4 $(GROUPED)
	HYPOTHESIS_PROFILE=full $(PYTEST) -m "full and not sglang" -n 3 $(GROUPED) --durations=40
	$(BIN)/python benchmarks/soak_sandboxes.py --minutes 5
	$(MAKE) mutants

fast: install ## The tests that need no sandbox, no model and no server, in seconds
	$(PYTEST) --fast -n 2 --dist worksteal --durations=5

mutants: install ## Judge the fast tests by small bugs seeded into Hone; each must make one fail
	$(BIN)/python scripts/mutants.py --workers 2

lint: install ## Ruff, pyright and import-linter
	$(BIN)/ruff check
	$(BIN)/python scripts/check_words.py
	$(BIN)/ruff format --check
	$(BIN)/pyright --threads 2
	$(BIN)/lint-imports

wheel: install ## Build dist/hone_rl-VERSION-py3-none-any.whl
	@$(BIN)/python -m hatchling build -t wheel

docs: install ## Build the pages of docs/ into site/, for a browser without a server; a warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

bench: install ## Every benchmark; each ends with one line of JSON
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done
