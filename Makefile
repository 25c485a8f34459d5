# Everything runs in .venv, which is made from pyproject.toml and the pinned versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
# Compiled modules are kept, whatever the environment says: the tests start a hundred processes, and each would compile
# the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test studies fuzz cases kills flips lint docs benchmark clean

demo: .venv/ready
	$(BIN)/excise demo

# Within a minute on two cores: everything but the slow tests.
quick: .venv/ready
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

# Within six minutes on two cores.
test: .venv/ready lint
	$(BIN)/pytest -n 2 --dist worksteal

# 200 random cases of every estimator that rows can be taken out of, of which make test does a few.
cases: .venv/ready
	EXCISE_CASES=200 $(BIN)/pytest -n 2 --dist worksteal tests/estimators tests/statistics/test_foci.py tests/privacy

# 200 times kill -9 while files are written, of which make test does 20; and 500 times while requests of a ledger are
# carried out, in SQLite and in PostgreSQL each. About a quarter of an hour.
kills: .venv/ready
	EXCISE_KILLS=200 $(BIN)/pytest tests/_support/test_kills.py
	EXCISE_KILLS=500 OMP_NUM_THREADS=1 $(BIN)/pytest tests/ledger/test_kills.py

# 10,000 bytes changed in ledgers, models and certificates each, of which make test does some hundred.
flips: .venv/ready
	EXCISE_FLIPS=10000 EXCISE_MALFORMED=2000 $(BIN)/pytest -n 2 tests/ledger/test_verification.py tests/ledger/test_verify.py

# Every study of the paper in its quick form, of which make test leaves out the ten longest. About two minutes.
studies: .venv/ready
	EXCISE_STUDIES=all $(BIN)/pytest -n 2 --dist worksteal tests/reproduce

# 20,000 malformed inputs, others each time; 2,000, always the same, are in "make test". About four minutes.
# The seed is printed: "make fuzz EXCISE_FUZZ_SEED=..." tries the same ones again. What a test failed at stays in .fuzz/.
fuzz: .venv/ready
	EXCISE_FUZZ=20000 EXCISE_FUZZ_SEED=$(or $(EXCISE_FUZZ_SEED),$(shell date +%s)) $(BIN)/pytest -n 2 --dist worksteal tests/fuzz

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The pages of docs/ and the API as a site in site/.
docs: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --strict

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
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz
