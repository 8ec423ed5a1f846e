# The habits of this repository; `make help` lists them.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SHELL := /bin/bash
.DEFAULT_GOAL := help

help: ## list the habits
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: $(STAMP) ## make the environment from the locked, hashed requirements (about 1 GB of downloads, 3 GB on disk)

$(STAMP): deploy/requirements.txt deploy/bootstrap.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there; install Python 3.11 with venv"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/bootstrap.txt
	$(BIN)/uv pip sync --quiet --system-certs --require-hashes --compile-bytecode --python $(BIN)/python deploy/requirements.txt
	@printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s/python" -m api.cli "$$@"\n' "$(CURDIR)" "$(CURDIR)/$(BIN)" > $(BIN)/muster
	@chmod +x $(BIN)/muster
	@touch $@

lock: ## resolve deploy/*.in anew into hashed requirements
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header deploy/requirements-dev.in -o deploy/requirements.txt

demo: setup ## one job, a killed rank, two rescales: the same weights (two minutes after set-up)
	PYTHONPATH=. $(BIN)/python examples/demo.py

check: setup ## format, lint, strict types, import contracts, unit tests (under a minute)
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not mindspore and not ray and not slow"

system: # what the suite needs from Debian
	@missing=$$(dpkg-query -W -f='$${Package} $${db:Status-Status}\n' $$(cat deploy/apt.txt) 2>&1 | grep -v ' installed$$' || true); \
	if [ -n "$$missing" ]; then \
	  if [ $$(id -u) = 0 ]; then apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y $$(cat deploy/apt.txt); \
	  else echo "needed as root: apt-get install -y $$(tr '\n' ' ' < deploy/apt.txt)"; exit 2; fi; fi

test: system check ## the whole suite
	$(BIN)/pytest -q -m "mindspore or ray or slow"

bench: setup ## every benchmark, one after another (nothing else may run meanwhile)
	for name in operators reduce step checkpoint recovery; do PYTHONPATH=. $(BIN)/python -m benchmarks.$$name || exit 1; done

fmt: setup ## format and sort
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

.PHONY: help setup lock demo check system test bench fmt clean
