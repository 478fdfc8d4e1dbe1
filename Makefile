# planq needs Python 3.11 or newer, make, and a package index for the first installation; nothing else.
#   make up      install what running needs, start everything, run the sample job, stay up (Ctrl-C stops it all)
#   make test    install what tests need too, and run them     (PYTEST_ARGS="-k name" narrows them, "--whole" runs all)
#   make test-fast   unit tests and a smoke test of the store, about a minute
#   make check   lint, formatting, types, import rules, house rules
#   make bench   planq beside Celery, LangGraph and DBOS, and its own figures   (ARGS="--quick B1 B2 --json")
#   make chaos   kill and restart everything under load, and prove that nothing is lost   (ARGS="--seconds 600 --rolling")
#   make docs    write the reference pages of docs/ from the code
#   make release  build and tag one   (VERSION=0.2.0; docs/releasing.md)
#   make dist    build the release that is checked out once more
#   make clean   remove .venv and caches; the data in .planq stays
# Ports and data folder: PLANQ_PORT, PLANQ_FLOWER_PORT, PLANQ_DATA, from the environment or as `make up PLANQ_PORT=9000`.

PYTHON ?= python3
PYTEST_WORKERS ?= auto
VENV := .venv
BIN := $(VENV)/bin
# What is installed: enough to run planq, or enough to test it too. The second includes the first.
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
# An environment is that of one Python: another one, of another shell say, makes its own instead of half of this one.
WHICH := 'import sys; print(sys.base_prefix, sys.version)'
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: up test test-fast check bench chaos docs release dist clean
.DEFAULT_GOAL := up

up: $(STAMP)
	@exec $(BIN)/planq up --sample --flower $(ARGS)

# Compiled once, whatever the caller's environment says: the tests start hundreds of interpreters.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(DEV_STAMP)
ifneq (,$(findstring --whole,$(PYTEST_ARGS)))
	@$(BIN)/python -m tests.support.litellm_env
	@$(BIN)/python -m tests.support.generators_env
	@$(BIN)/python -m tests.support.examples_env
	@$(BIN)/python -m tests.support.kombu_suite
	@$(BIN)/python -m tests.support.workflow_env
endif
	@exec $(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(PYTEST_ARGS)

# Two processes, not two a core: these tests compute.
test-fast: export PYTHONDONTWRITEBYTECODE :=
test-fast: $(DEV_STAMP)
	@exec $(BIN)/python -m pytest --fast -q -n 2 tests/unit tests/integration/store/test_job_ends.py $(PYTEST_ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -p no:xdist --whole tests/unit/test_house.py

bench: $(DEV_STAMP)
	@exec $(BIN)/python -m tests.bench $(ARGS)

docs: $(DEV_STAMP)
	@$(BIN)/python -m tests.support.reference

chaos: $(DEV_STAMP)
	@exec $(BIN)/python -m tests.chaos $(ARGS)

release: $(DEV_STAMP)
	@exec $(BIN)/python -m tests.support.release $(VERSION)

dist: $(DEV_STAMP)
	@exec $(BIN)/python -m tests.support.release --dist

clean:
	rm -rf $(VENV) .planq-test-envs build dist deploy/package/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find api worker shared tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "The data folder is kept; remove $${PLANQ_DATA:-.planq} yourself if its jobs may go."

# Installed again only when the locked versions or the project's own metadata change; what is there already is kept. The
# last step builds with the setuptools that the one before installed, so it asks no index.
$(STAMP): requirements.lock pyproject.toml
$(DEV_STAMP): requirements-dev.lock pyproject.toml
$(STAMP) $(DEV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "planq needs Python 3.11 or newer; name one with PYTHON=...")'
	@[ "$$($(BIN)/python -c $(WHICH) 2>/dev/null)" = "$$($(PYTHON) -c $(WHICH))" ] || rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) || { echo "No virtual environment could be made. On Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python deploy/install.py $<
	@$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --no-index -e .
	@touch $(STAMP) $@
