# Everything a newcomer needs: `make demo` and `make test`. Both share one set-up step.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Images of containers often forbid bytecode files. Tests and scenarios start hundreds of processes,
# and each would compile both packages anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo chaos soak hunt bench test test-long test-fast lint types lock clean

setup: $(READY)

# The lock file pins every version with its hashes; the project itself is installed editable.
$(READY): pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: $(READY)
	$(BIN)/chaos run scenarios/kill-mid-run.yaml

test: $(READY)
	$(BIN)/pytest -n auto

# The rest, which CI runs too: every scenario in short, more planted bugs, the explorer's searches.
test-long: $(READY)
	$(BIN)/pytest -n auto --chaos-long -m chaos_long

# Every scenario at its full length; a quarter of an hour.
chaos: $(READY)
	$(BIN)/chaos run --all

# Scenarios in turn, with ever new seeds, for as long as you like.
SOAK_SECONDS ?= 600
soak: $(READY)
	$(BIN)/chaos soak --seconds $(SOAK_SECONDS)

# The harness against planted bugs, against every clause of the SQL dropped, and against correct
# variants, at which it must not cry; an hour.
hunt: $(READY)
	$(BIN)/chaos hunt
	$(BIN)/chaos hunt --generated
	$(BIN)/chaos variants

# Our defaults and two more settings beside pgbench; at most ten minutes.
bench: $(READY)
	$(BIN)/chaos bench contention --workers 1,2,8,32 --batches default,1,1+99 --tasks 3000

test-fast: $(READY)
	$(BIN)/pytest -n auto -m "not slow"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# Run after a change of dependencies in pyproject.toml.
lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --extra chaos --extra http --extra bench --extra containers --group dev --group build pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
