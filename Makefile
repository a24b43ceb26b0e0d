# make demo: train the same model with and without delayed attention, and compare.   make test: everything that CI runs.
PYTHON ?= python3
VENV := .venv
DEMO := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
# Every version is pinned, also those of the build tools. torch is pinned in the same call as what depends on it.
PIP_INSTALL := PIP_CONSTRAINT=constraints.txt $(VENV)/bin/pip install --disable-pip-version-check --editable
FLA := flash-linear-attention==0.6.0 fla-core==0.6.0 einops==0.8.2
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow torture lint format clean

demo: $(DEMO)
	$(VENV)/bin/latebloom demo

test: lint
	$(VENV)/bin/pytest -n 2 --dist worksteal -m "not slow"

test-slow: $(DEV)
	$(VENV)/bin/pytest -m slow --timeout 1800

MINUTES ?= 60
SEED ?= 0
torture: $(DEV)
	$(VENV)/bin/python tests/torture/campaign.py --minutes $(MINUTES) --seed $(SEED)

lint: $(DEV)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright

format: $(DEV)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Latebloom needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	@echo "Installing Latebloom and what it needs into $(VENV) (once, about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) .
	@touch $@

$(DEV): $(DEMO)
	@echo "Installing the integrations and the development tools into $(VENV) (once, about two minutes)"
	@$(PIP_INSTALL) ".[dev]"
	@# In a folder of its own: without a GPU its presence breaks Transformers' delta-rule models.
	@$(VENV)/bin/pip install --disable-pip-version-check --upgrade --no-deps --target $(VENV)/fla $(FLA)
	@touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
