# make demo: see the cliff and how delayed attention avoids it.   make test: everything that CI runs.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow lint format clean

demo: $(STAMP)
	$(VENV)/bin/latebloom demo

test: lint
	$(VENV)/bin/pytest -n 2 -m "not slow"

test-slow: $(STAMP)
	$(VENV)/bin/pytest -m slow --timeout 1800

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

format: $(STAMP)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# One pip call with every version pinned (also of what builds the package), so that torch is the pinned release.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Latebloom needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	@echo "Setting up $(VENV) (once; two or three minutes, in which nothing is shown)"
	@$(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT=constraints.txt $(VENV)/bin/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
