# Every command of the project. Each target sets up what it needs first; `make help` lists them.

BIN := .venv/bin
TYPED := datacoord coordinator datanode_client tools tests examples benchmarks

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-long lint format types imports proto proto-check docs fixture bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv from requirements/dev.lock, with a Java for Spark if there is none
	@sh tools/setup.sh

# Values reach the command through the environment, so that a path may hold any character.
demo: setup ## Land a git history exactly once, with kills: [REPO=path] [SOURCE=generated ROWS=n] [KILL=0]
	@$(BIN)/datacoord demo $(if $(REPO),--repo "$$REPO") $(if $(SOURCE),--source "$$SOURCE") \
		$(if $(ROWS),--rows "$$ROWS") $(if $(filter 0,$(KILL)),--no-kill)

# Java runs for seconds in these tests: the compiler that makes long queries fast takes half of a short one's time.
test: lint types imports proto-check ## Everything that must pass: lint, types, import rules, contract, tests
	@echo "Tests: the rules, the code and the documents (pytest)."
	@SPARK_SUBMIT_OPTS="$${SPARK_SUBMIT_OPTS--XX:TieredStopAtLevel=1 -XX:+UseSerialGC}" $(BIN)/python -m pytest -m "not long" -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST)

test-long: setup ## The tests that take too long for `make test`
	@echo "Long tests (pytest)."
	@$(BIN)/python -m pytest -m long $(PYTEST)

lint: setup ## Check style, likely bugs and formatting
	@echo "Lint: style and likely bugs (ruff)."
	@$(BIN)/ruff check --quiet
	@echo "Format: one way to lay out code (ruff)."
	@$(BIN)/ruff format --check --quiet || { echo "format: run \`make format\` and commit the result" >&2; exit 1; }

format: setup ## Format the code and mend what can be mended automatically
	@$(BIN)/ruff check --fix-only
	@$(BIN)/ruff format

types: setup ## Check types
	@echo "Types: strict, packages, tools and tests (mypy)."
	@$(BIN)/mypy --no-error-summary $(TYPED)

imports: setup ## Check who may import whom
	@echo "Imports: who may know whom (import-linter)."
	@$(BIN)/lint-imports --no-logo

proto: setup ## Generate the Python stubs of the contract
	@$(BIN)/python tools/generate_stubs.py

proto-check: setup ## Lint the contract and check that its stubs are fresh
	@echo "Contract: style (buf) and fresh stubs (protoc)."
	@mkdir -p .cache
	@$(BIN)/python tools/generate_stubs.py --image .cache/contract.binpb
	@$(BIN)/buf lint .cache/contract.binpb --config proto/buf.yaml
	@$(BIN)/python tools/generate_stubs.py --check

docs: setup ## Write the reference pages and the dashboards from the code
	@$(BIN)/python tools/generate_reference.py
	@$(BIN)/python tools/generate_dashboards.py

fixture: setup ## Write a database of the newest schema revision with data in it, for tests of later upgrades
	@$(BIN)/python tools/revision_fixture.py

bench: setup ## Run a benchmark: NAME=one of benchmarks/*.py [ARGS="…"]; prints a table and, last, one JSON object
	@if [ -n "$$NAME" ] && [ -f "benchmarks/$$NAME.py" ]; then exec $(BIN)/python -m "benchmarks.$$NAME" $(ARGS); fi; \
	echo "bench: name one with NAME=…; there are: $$(cd benchmarks && ls [a-z]*.py | sed 's/\.py$$//' | tr '\n' ' ')" >&2; exit 2

lock: setup ## Write requirements/*.lock from pyproject.toml: [UPGRADE=1]
	@$(BIN)/python tools/lock.py $(if $(UPGRADE),--upgrade)

clean: ## Remove caches, builds and the files of the demo; .venv stays
	@rm -rf .cache .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist spark-warehouse metastore_db derby.log
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
