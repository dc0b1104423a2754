# Everything a newcomer needs: `make demo` and `make test`. Both share one set-up step.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo chaos test test-sweep test-fast lint types lock clean

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
	$(BIN)/pytest -n auto -m "not sweep"

# The rest, which CI runs too: every scenario in short, more planted bugs, the explorer's searches.
test-sweep: $(READY)
	$(BIN)/pytest -n auto -m sweep

# Every scenario at its full length; a quarter of an hour.
chaos: $(READY)
	$(BIN)/chaos run --all

test-fast: $(READY)
	$(BIN)/pytest -n auto -m "not slow and not sweep"

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# Run after a change of dependencies in pyproject.toml.
lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-header --extra chaos --group dev --group build pyproject.toml --output-file requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
