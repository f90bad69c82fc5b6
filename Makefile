# Two commands do everything on a fresh machine:  make quickstart  and  make test
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q
# tests start thousands of Python processes: what one has compiled serves the next
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install quickstart test test-full fast lint bench

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: ## Make .venv and install what is missing; instant when nothing changed
	@scripts/install.sh

quickstart: install ## Train a small model to fix bugs in real sandboxes, on this machine, in minutes
	@$(BIN)/hone quickstart recipes/quickstart.toml

test: install lint ## Lint, types, import floors, and every test; installs the services that tests start
	@scripts/install-services.sh
	$(PYTEST) -m "not sandbox and not model and not e2e and not vllm and not sglang and not full" -n 2 --dist loadfile --no-loadscope-reorder
	$(PYTEST) -m "(sandbox or model) and not e2e and not vllm and not sglang and not full" -n 4 --dist loadfile --no-loadscope-reorder
	$(PYTEST) tests/e2e tests/policy/engines -m "(e2e or vllm) and not sglang and not full" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python benchmarks/soak_sandboxes.py $(if $(CI),--minutes 1,--minutes 0.5 --sandboxes 100)

test-full: install lint ## Everything: every provider, chaos, soak, engines; no limit on time
	@scripts/install-services.sh
	HYPOTHESIS_PROFILE=full $(PYTEST) -m "not vllm and not sglang" -n 2 --dist worksteal
	$(PYTEST) tests/e2e tests/policy/engines -m "vllm" -n 2 --dist loadfile --no-loadscope-reorder
	$(BIN)/python benchmarks/soak_sandboxes.py --minutes 5

fast: install ## The tests that need no sandbox and no model, in seconds
	$(PYTEST) -m "not sandbox and not model and not e2e and not vllm and not sglang and not full"

lint: install ## Ruff, pyright and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: install ## Every benchmark; each ends with one line of JSON
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done
