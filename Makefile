# Everything runs in .venv, which is made from pyproject.toml and the pinned versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint benchmark clean

demo: .venv/ready
	$(BIN)/excise demo

test: .venv/ready lint
	$(BIN)/pytest -n 2

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The speed tables and plots of docs/benchmarks.md; about half an hour on 2 cores.
benchmark: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[benchmark]'
	$(BIN)/python -m benchmarks.statistics --write

# torch goes first: pip then takes the pinned build, and no other package pulls in another one.
.venv/ready: pyproject.toml constraints.txt curvlinops.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "excise needs Python 3.11 or newer: make PYTHON=python3.11"'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/pip install --quiet --no-deps --requirement curvlinops.txt
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
