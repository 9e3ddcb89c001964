# Everything here works as root or not, from a fresh clone, with Python 3.11 or later, make and the network.
# Paths are relative on purpose: the checkout may lie below a folder with a space in its name.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Where the environment forbids it, every process that starts would compile Airflow anew, which takes many seconds.
export PYTHONDONTWRITEBYTECODE :=

# The Python to make the environment with; empty: the first of the usual names that is new enough.
PYTHON ?=
# Further arguments for pytest (make test, make test-system) or for the benchmarks (make bench).
ARGS ?=
# How many jobs make soak puts through the ring, once for each of its two tests.
JOBS ?= 1000000
# How long it then lets a day go by, in minutes.
MINUTES ?= 20
# 1: make demo stops when it is done, and fails if anything in it did.
ONCE ?=

# One process more than cores, since tests also wait, each with a Postgres of its own; a file stays in one process, which keeps its Airflow to itself.
# ARGS='-n 0' runs them in this one, for a debugger.
PYTEST = $(PY) -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# 15: run the tests on Debian's Postgres of that version instead of the embedded one.
PG ?=
ifneq ($(PG),)
export PARKKEEPER_TEST_BINDIR := /usr/lib/postgresql/$(PG)/bin
endif

# What make test-system runs on Debian's Postgres, in a few minutes; make test PG=15 runs everything on it.
ON_15 := tests/migrations --ignore tests/migrations/test_killed.py --ignore tests/migrations/test_fanout.py \
  $(addprefix tests/queue/test_,enqueue.py claim.py claim_late.py close.py counts.py retry.py rotate.py prune_carry.py \
  prune_locks.py floor.py evacuate.py grow.py leases.py dead_letters.py wake.py roll_up.py verify.py) \
  $(addprefix tests/memory/test_,append.py claims.py formation.py parking.py erasure.py recall.py languages.py sweep.py \
  rebuild.py plans.py verify.py)

# What the system tests run, and the Debian packages that bring it; the same for the long ones with a real Airflow.
SYSTEM_FILES := /usr/lib/postgresql/15/bin/postgres /usr/sbin/pgbouncer
SYSTEM_PACKAGES := postgresql-15 pgbouncer
AIRFLOW_FILES := /usr/bin/chromium /usr/bin/redis-server
AIRFLOW_PACKAGES := chromium redis-server
AIRFLOW_TESTS := tests/dags/test_scheduler.py tests/ui/test_browser.py tests/system/test_celery.py tests/packaging/test_wheel.py

# $(call installed,FILES,PACKAGES): Debian packages are installed by root, and asked for by anybody else.
define installed
missing=""; \
for file in $(1); do [ -x "$$file" ] || missing=yes; done; \
if [ -n "$$missing" ]; then \
  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
    echo "make $@: needs these Debian packages: $(2)" >&2; exit 1; \
  fi; \
  echo "Installing $(2)"; \
  apt-get -qq update; \
  RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $(2) >/dev/null; \
fi
endef

# The release before this one, of which there is no tag yet, and those of its tests that show its producers, workers and
# maintainers at work. What they find is this release's schema, so a migration that they cannot live with fails here.
PREVIOUS := 82872e008f4531247e905a6f91da215964a34257
PREVIOUS_TESTS := $(addprefix tests/queue/test_,enqueue.py close.py prune_guards.py) \
  $(addprefix tests/memory/test_,append.py parking.py)

# What a package that is installed beside this one may be licensed under, in any of the forms in which they say it.
LICENCES := MIT;Apache;BSD;ISC;PSF;Python Software Foundation;MPL;Mozilla;LGPL;Lesser General;Artistic;Unlicense
# Says it in its LICENSE file only (MIT).
LICENCE_UNSAID := axe-playwright-python

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.ready
LOCK := requirements-dev.txt
UV := $(PY) -m uv --quiet
# Other queues, which only make bench looks at, and what they need.
PEERS := .venv-bench
PEERS_LOCK := tests/benchmarks/peers/requirements.txt

.PHONY: help setup demo test test-system test-airflow test-previous soak faults-full lint audit docs bench bench-figures \
  bench-plans lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Make .venv with everything that development, tests and the demo need

$(READY): setup.cfg pyproject.toml $(LOCK)
	@python=""; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11); do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make setup: no Python 3.11 or later with venv found$(if $(PYTHON), as PYTHON=$(PYTHON)); name one with PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	echo "Setting up $(VENV) (the first time takes a minute)"; \
	[ -x $(PY) ] || "$$python" -m venv $(VENV); \
	$(PY) -m pip install --quiet --disable-pip-version-check uv; \
	$(UV) pip sync --python $(PY) $(LOCK); \
	$(UV) pip install --python $(PY) --no-deps --editable .; \
	touch $(READY)

demo: setup ## Run the whole path once and stay up with Airflow's UI (ONCE=1: stop when done)
	@$(PY) -m parkkeeper.demo $(if $(filter-out 0,$(ONCE)),--once)

test: setup ## Run the tests against a real Postgres (ARGS='...' goes to pytest; PG=15: Debian's)
	@$(PYTEST) -m "not system" $(ARGS)

test-system: setup ## Run the tests that need Debian packages, which are installed when root
	@$(call installed,$(SYSTEM_FILES),$(SYSTEM_PACKAGES))
	@$(PY) -m pytest -m system $(addprefix --ignore ,$(AIRFLOW_TESTS)) $(ARGS)
	@$(MAKE) --no-print-directory test PG=15 ARGS="$(ON_15) $(ARGS)"

test-airflow: setup ## Run every DAG under a real scheduler and on Celery, and the page in a browser: some minutes
	@$(call installed,$(AIRFLOW_FILES),$(AIRFLOW_PACKAGES))
	@$(PY) -m pytest -m system $(AIRFLOW_TESTS) $(ARGS)

test-previous: setup ## Run the previous release's code and tests on this release's schema
	@if ! git cat-file -e $(PREVIOUS)^{commit} 2>/dev/null; then \
	  if [ "$$(git rev-parse --is-shallow-repository)" != true ]; then \
	    echo "make test-previous: this repository has no commit $(PREVIOUS), which PREVIOUS in the Makefile names" >&2; exit 1; \
	  elif ! git fetch --quiet --depth 1 origin $(PREVIOUS); then \
	    echo "make test-previous: LEFT OUT, because this clone has no history and its origin does not give commit $(PREVIOUS)" >&2; \
	    exit 0; \
	  fi; \
	fi; \
	here="$$PWD"; previous="$$(mktemp -d)"; trap 'rm -rf "$$previous"' EXIT; \
	git archive $(PREVIOUS) | tar -x -C "$$previous"; \
	cp tests/previous/upgrade.py "$$previous/tests/test_upgrade.py"; \
	cd "$$previous"; \
	PYTHONPATH="$$previous/plugins:$$here/tests/previous" "$$here/"$(PYTEST) -p newer_schema -p no:cacheprovider \
	  tests/test_upgrade.py $(PREVIOUS_TESTS) $(ARGS)

soak: setup ## Run the tests under load with many more jobs (JOBS=1000000), then a day in minutes (MINUTES=20)
	@PARKKEEPER_SOAK_JOBS=$(JOBS) $(PY) -m pytest --capture no \
	  tests/queue/test_everything_at_once.py tests/queue/test_claim_fuzz.py $(ARGS)
	@$(PY) tests/soak.py $(MINUTES)

faults-full: setup ## Hit every action at each statement with every kind of fault, which takes an hour or two
	@PARKKEEPER_FAULTS=full $(PYTEST) -m attack $(ARGS)

lint: setup ## Check style, types, SQL, licences and which package may import which, and tell of advisories
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --no-logo
	@for family in queue memory; do \
	  $(VENV)/bin/parkkeeper render --family $$family --namespace lint \
	    | $(VENV)/bin/squawk --stdin-filepath $$family.sql; \
	done
	@$(VENV)/bin/pip-licenses --from mixed --partial-match --allow-only "$(LICENCES)" \
	  --ignore-packages $(LICENCE_UNSAID) >/dev/null
	@$(MAKE) --no-print-directory audit || \
	  echo "make lint: the advisories above fail make audit and not this, since no change here has brought them" >&2

audit: setup ## Look up advisories for every package that is locked, and fail when there is one
	@if ! $(PY) -c "import requests; requests.head('https://api.osv.dev', timeout=5)" 2>/dev/null; then \
	  echo "make audit: LEFT OUT, advisories were not looked up, because api.osv.dev cannot be reached" >&2; exit 0; \
	fi; \
	$(VENV)/bin/pip-audit --vulnerability-service osv --progress-spinner off --disable-pip --no-deps --requirement $(LOCK)

docs: setup ## Write the pages of the reference that are made from docstrings
	@$(PY) docs/reference/generate.py

$(PEERS)/.ready: $(PEERS_LOCK) | setup
	@for candidate in $(if $(PYTHON),"$(PYTHON)") python3.14 python3.13 python3.12 $(PY); do \
	  if "$$candidate" -c 'import venv' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	echo "Setting up $(PEERS) with other queues to compare with"; \
	"$$python" -m venv --clear --without-pip $(PEERS); \
	$(UV) pip install --python $(PEERS) --requirements $(PEERS_LOCK); \
	touch $@

bench: bench-figures ## Measure all that the documents state figures of, which takes an hour
	@for script in $(filter-out %/bench_figures.py,$(wildcard tests/benchmarks/bench_*.py)); do $(PY) "$$script"; done

bench-figures: setup ## Measure Parkkeeper beside other queues and write the page (ARGS='JOBS ROUNDS')
	@$(MAKE) --no-print-directory $(PEERS)/.ready || echo "make bench-figures: other queues cannot be installed and are left out" >&2
	@$(PY) tests/benchmarks/bench_figures.py $(ARGS)

bench-plans: setup ## Write the plans of the hot statements, which needs Debian's Postgres (PG=15: which)
	@PG=$(or $(PG),15) $(PY) tests/benchmarks/explain.py

lock: setup ## Resolve the development environment anew into requirements-dev.txt
	@$(UV) pip compile --universal --python-version 3.11 --no-header --upgrade --extra test setup.cfg --output-file $(LOCK)
	@$(UV) pip compile --universal --python-version 3.11 --no-header --upgrade $(PEERS_LOCK:.txt=.in) --output-file $(PEERS_LOCK)

clean: ## Remove what make and the tools made
	@rm -rf $(VENV) $(PEERS) .demo build dist include/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
