# Everything a developer does, in one place. `make help` lists it.

PYTHON ?= python3.11
ARGS ?=

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
# Compiled modules and rewritten tests are kept: otherwise every process compiles them again.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# A changed lock recreates the environment, a changed pyproject.toml reinstalls the project. Stamps
# are written last, so that an interrupted setup starts over.
LOCKED := $(VENV)/.locked-$(shell sha256sum requirements-dev.lock | cut -c1-16)
INSTALLED := $(VENV)/.installed-$(shell cat requirements-dev.lock pyproject.toml | sha256sum | cut -c1-16)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  ARGS="..." is handed on: make demo ARGS="--fleet 200 --for 60s", make test ARGS="-k settings"'

.PHONY: setup
setup: $(INSTALLED) ## Make .venv from the lock (once; again when the lock changes)
	@# `pip install .` has replaced the link to these sources by a copy of them?
	@grep -qs '"editable": true' $(VENV)/lib/python3*/site-packages/springtide-*.dist-info/direct_url.json || { \
	  echo "setup: installing springtide into $(VENV) (editable), where a copy was installed"; \
	  $(PIP) install --quiet --no-deps --no-build-isolation --editable .; }

$(LOCKED):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "setup: no $(PYTHON) here; Python 3.11 or newer is needed: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setup: making $(VENV) with $$($(PYTHON) -V) from requirements-dev.lock; the first time this fetches about 410 MB"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@# The lock is complete: pip must not resolve newer versions.
	@$(PIP) install --require-hashes --no-deps --progress-bar off -r requirements-dev.lock | \
	  awk -v all="$$(grep -c '^[a-z].*==' requirements-dev.lock)" \
	  '/^Collecting/ {printf "\rsetup: %d of %d packages", ++n, all} \
	  /^Installing/ {printf "; unpacking them"} {fflush()} END {print ""}'
	@$(PIP) check
	@touch $@

$(INSTALLED): $(LOCKED)
	@echo "setup: installing springtide into $(VENV) (editable)"
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.installed-*
	@touch $@

.PHONY: lint
lint: setup ## ruff, mypy --strict, import contracts, language of documents
	@echo "lint: ruff check";        $(BIN)/ruff check --quiet .
	@echo "lint: ruff format";       $(BIN)/ruff format --quiet --check .
	@echo "lint: mypy --strict";     $(BIN)/mypy
	@echo "lint: import contracts";  PYTHONPATH=.:node-exporter $(BIN)/lint-imports | tail -n 3
	@echo "lint: language";          $(BIN)/python -m tests.docs.language

.PHONY: jars
jars: setup ## Fetch the local broker's jars (once; checked by SHA-256)
	@$(BIN)/springtide kafka fetch

.PHONY: plane
plane: setup ## Build the local Kubernetes control plane and a Prometheus (once; minutes)
	@$(BIN)/python -m pipeline.local.build_programs

PYTEST = $(BIN)/python -m pytest
# Tests that need neither broker, control plane, cgroups, virtual machine, browser nor
# patience.
PURE := not broker and not plane and not cgroups and not guest and not browser and not slow and not soak

# Tracing coverage doubles the time of a test: it is traced where it is enforced.
COVERED := tests/processors tests/topics

# Pure tests have short time-outs and run by themselves; then tests that wait more than they work,
# four files at a time. The control plane is built beside them; tests that need it come last then,
# and wait for it.
.PHONY: test
test: setup lint jars ## Lint, then every test; names what this machine could not run
ifeq ($(ARGS),)
	@echo "plane: building it in the background if it is missing; progress is in $(VENV)/plane.log"
	@setsid nice -n 19 $(BIN)/python -m pipeline.local.build_programs >$(VENV)/plane.log 2>&1 & \
	  plane=$$! failed=; trap 'kill -- -$$plane 2>/dev/null || true' EXIT; \
	  $(PYTEST) --numprocesses 2 -m "$(PURE)" --cov --cov-report=term --cov-fail-under=95 $(COVERED) \
	    || failed=yes; \
	  $(PYTEST) --numprocesses 2 -m "$(PURE)" $(COVERED:%=--ignore=%) || failed=yes; \
	  $(PYTEST) --numprocesses 4 -m "not soak and not peer and not ($(PURE))" || failed=yes; \
	  test -z "$$failed"
else
	@$(BIN)/python -m pytest $(ARGS)
endif

.PHONY: test-fast
test-fast: setup ## The pure tests alone, in a few minutes
	@$(PYTEST) --numprocesses 2 -m "$(PURE)" $(ARGS)

.PHONY: demo
demo: setup ## Broker, exporter, worker, extender and node actuator on this machine
	@$(BIN)/springtide demo $(ARGS)

.PHONY: bench
bench: setup jars ## Cost of the exporter, of the models, throughput of the worker
	@$(BIN)/python -m benchmarks.exporter $(ARGS)
	@$(BIN)/python -m benchmarks.model
	@$(BIN)/python -m benchmarks.ingest $(ARGS)

.PHONY: soak
soak: setup jars ## Memory of every role for an hour; ARGS="--hours 8" at night
	@$(BIN)/python -m benchmarks.soak $(ARGS)

.PHONY: fuzz
fuzz: setup ## Ten minutes of random requests to an extender; `make test` has half a minute
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-600} $(BIN)/python -m pytest tests/extender/fuzz $(ARGS)

.PHONY: nightly
nightly: setup jars ## Properties, fuzzing, kills with 30 seeds, chaos for two hours, soak for eight
	@$(MAKE) test-fast ARGS=--hypothesis-profile=nightly
	@$(MAKE) fuzz ARGS=
	@KILL_SEEDS=30 $(BIN)/python -m pytest tests/system -k kills_at_random_moments
	@$(MAKE) chaos ARGS="--minutes 120"
	@$(MAKE) soak ARGS="--hours 8 $(ARGS)"

.PHONY: chaos
chaos: setup jars ## Everything under faults of a seed; ARGS="--seed 7 --minutes 60"
	@$(BIN)/python -m tests.chaos.run $(ARGS)

.PHONY: koordinator
koordinator: setup jars plane ## Compare with koord-scheduler and koord-manager, built once; minutes
	@$(BIN)/python -m pytest -m peer tests/cluster/test_koordinator*.py $(ARGS)

.PHONY: docs
docs: setup ## Write settings and tables of declarations, such as topics and limits, into docs
	@$(BIN)/python -m tests.docs.tables
	@file=deploy/kafka/strimzi/topics-and-users.yaml; head -n 1 $$file >$$file.new; \
	  $(BIN)/springtide topics strimzi --replication-factor 3 >>$$file.new; mv $$file.new $$file
	@$(BIN)/python -m tests.deploy.values_schema
	@$(BIN)/python -m tests.deploy.monitoring_files
	@$(BIN)/python -m tests.deploy.kafka_files

.PHONY: site
site: setup ## The documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site: build/site/index.html; search needs $(BIN)/python -m http.server --directory build/site"

# --no-emit-options: a lock must not contain a registry or the directories of one machine.
COMPILE = .venv-lock/bin/pip-compile --quiet --generate-hashes --no-emit-options --no-header \
  --strip-extras $(ARGS)

.PHONY: lock
lock: ## Resolve the pins again; ARGS="--upgrade" for newer ones
	@test -x .venv-lock/bin/pip-compile || { $(PYTHON) -m venv .venv-lock && \
	  .venv-lock/bin/pip install --quiet --disable-pip-version-check 'pip-tools>=7.5,<8'; }
	@echo "lock: requirements-dev.lock, then the two for images, from the same pins"
	@$(COMPILE) --extra control-plane --extra dev --extra kubernetes --extra local --extra pipeline \
	  --extra tracing -o requirements-dev.lock pyproject.toml
	@$(COMPILE) --extra kubernetes --extra pipeline --extra tracing -c requirements-dev.lock -o requirements-pipeline.lock pyproject.toml
	@$(COMPILE) -c requirements-dev.lock -o requirements-exporter.lock pyproject.toml

# Equal sources are equal bytes, wherever and whenever they are built: the time of all files is that
# of the commit.
EPOCH = $$(git log -1 --format=%ct 2>/dev/null || echo 315532800)
.PHONY: dist
dist: setup ## Wheel, sdist, man page and lists of components (SBOM) in dist/
	@rm -rf dist
	@SOURCE_DATE_EPOCH=$(EPOCH) $(BIN)/hatchling build --directory dist
	@$(BIN)/python -m pipeline.cli.man_page >dist/springtide.1
	@for image in exporter pipeline; do \
	  $(BIN)/cyclonedx-py requirements requirements-$$image.lock --pyproject pyproject.toml \
	    --mc-type application --output-reproducible --validate --output-format JSON \
	    --output-file dist/springtide-$$image.cdx.json; done
	@$(BIN)/python -m tests.packages.npm_components dist/springtide-*.cdx.json

.PHONY: image-check
image-check: setup ## Build both images twice with buildah and run them; as root, ten minutes
	@$(BIN)/python -m tests.packages.image_check

.PHONY: clean
clean: ## Remove what can be made again
	rm -rf $(VENV) .venv-lock build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage \
	  .import_linter_cache htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
