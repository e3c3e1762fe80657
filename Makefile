# Two commands: `make demo` shows what it does, `make test` checks that it does it.
# Both set themselves up: a virtual environment in .venv with pinned dependencies.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-slow test-fleet test-all fuzz bench docs lint types check clean

help:
	@echo "make demo      train, adapt and compare where every device is another (under a minute)"
	@echo "make test      the tests"
	@echo "make test-all  the tests, the slow ones too, with line coverage"
	@echo "make test-fleet  the tests with real platforms and edges (some twenty minutes)"
	@echo "make fuzz      2,000 changed inputs for everything that reads files (some ten minutes)"
	@echo "make bench     how fast a round is, against others (some 20 minutes; see benchmarks/)"
	@echo "make docs      the documentation, into build/site"
	@echo "make check     lint and types"
	@echo "make clean     remove the virtual environment and what was made in it"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"fedmeta needs Python 3.11 or newer, this is {v[0]}.{v[1]}: run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e edge
	@touch $(READY)

demo: $(READY)
	@$(BIN)/fedmeta compare admm-fedmeta per-fedavg fedavg local-only --config examples/demo.toml --steps automatic --seeds 5
	@$(BIN)/python examples/demo_picture.py

test: $(READY)
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: $(READY)
	$(BIN)/python -m pytest -n 2 -m "slow and not fleet"

test-fleet: $(READY)
	$(BIN)/python -m pytest -m fleet

FUZZ := build/fuzz
INPUTS ?= 2000
SEED ?= 0

fuzz: $(READY)
	rm -rf $(FUZZ) && mkdir -p $(FUZZ)
	PYTHONPATH=tests $(BIN)/python -m fuzz.run $(FUZZ) $(INPUTS) $(SEED)

test-all: $(READY)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

BENCH := build/bench

$(BENCH)/.ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report]' -r benchmarks/requirements.txt
	@touch $@

bench: $(BENCH)/.ready
	$(BENCH)/bin/python benchmarks/run.py
	$(BENCH)/bin/python benchmarks/report.py

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
