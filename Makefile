# make run: start Pagoda. make test: everything CI checks. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Test files are shared out to so many processes: half of the tests compute, the others wait.
WORKERS ?= 2

.PHONY: run test chaos audit lint format clean

run: $(VENV)/.run-ready
	@$(BIN)/pagoda serve $(ARGS)

test: $(VENV)/.test-ready lint
	@bash .ci/chromium
	@bash .ci/node
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# Break Pagoda many times at random moments; the counts go to tests/chaos/last_run.md. SEED=n repeats a run.
ROUNDS ?= 20
SEED ?=
chaos: $(VENV)/.test-ready
	PAGODA_CHAOS_ROUNDS=$(ROUNDS) PAGODA_CHAOS_SEED=$(SEED) PAGODA_CHAOS_REPORT=tests/chaos/last_run.md \
	  $(BIN)/python -m pytest tests/chaos -s -o timeout=0 $(ARGS)

# A report of known weaknesses in what Pagoda depends on. It never fails: a list that cannot be fetched is no fault here.
audit: $(VENV)/.run-ready
	@$(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/python -m pip install -q --disable-pip-version-check pip-audit \
	  && $(VENV)/audit/bin/pip-audit --progress-spinner off --timeout 5 --skip-editable \
	  --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
	  || echo "This is a report, not a test: read what stands above."

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.test-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis

$(VENV)/.venv-ready:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Pagoda needs Python 3.11 or newer. Name one: make run PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up Pagoda in $(VENV) (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.run-ready: $(VENV)/.venv-ready pyproject.toml constraints.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.test-ready: $(VENV)/.venv-ready pyproject.toml constraints.txt
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.run-ready
