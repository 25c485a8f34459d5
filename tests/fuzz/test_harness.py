"""That the fuzz tests try as many inputs as is said of them, the same ones by one seed, and keep what fails."""

import subprocess
import sys
import time

import pytest
from fuzz.harness import DEFAULT, SHARES, TOTAL, Tried, share
from hypothesis import strategies as st


def test_all_shares_together_are_the_promised_count():
    assert DEFAULT == 2000
    assert sum(share(name) for name in SHARES) >= TOTAL >= DEFAULT


def inputs_by(seed, folder):
    tried, found = Tried("commands", seed=seed, kept=folder), []

    @tried.on(st.text(), st.floats())
    def check(word, number):
        found.append(repr((word, number)))

    check()
    return found


@pytest.mark.slow
def test_the_seed_decides_the_inputs(tmp_path):
    first = inputs_by("1", tmp_path)
    assert len(first) == share("commands")
    assert inputs_by("1", tmp_path) == first
    assert inputs_by("2", tmp_path) != first


def test_a_failure_names_input_and_seed_and_keeps_the_input(tmp_path):
    tried = Tried("commands", seed="5", kept=tmp_path)
    with pytest.raises(AssertionError, match=r"(?s)'odd' ended in KeyError.*EXCISE_FUZZ_SEED=5"), tried.ending("odd"):
        raise KeyError("x")
    assert tried.last.read_text() == "'odd'\n"


def test_what_was_tried_without_a_failure_is_not_kept(tmp_path):
    tried = Tried("commands", kept=tmp_path)
    for place in range(share("commands")):
        with tried.ending(place):
            if place == 0:
                raise SystemExit
    tried.require()
    assert list(tmp_path.iterdir()) == []


DIES = """
import os, sys, pathlib
sys.path.insert(0, "tests")
from fuzz import harness
harness.PATIENCE = 0.2
with harness.Tried("commands", kept=pathlib.Path(sys.argv[1])).ending("deadly"):
    eval(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("death", ["os.abort()", "sum(range(10**11))"], ids=["crash", "hang inside C"])
def test_the_input_that_a_process_died_of_is_kept(tmp_path, death):
    """Signals are not heeded inside C."""
    done = subprocess.run([sys.executable, "-c", DIES, tmp_path, death], capture_output=True, timeout=60)
    assert done.returncode != 0
    (kept,) = tmp_path.iterdir()
    assert kept.read_text().startswith("'deadly'\n")


def test_waiting_and_computing_without_end_are_hangs(tmp_path, monkeypatch):
    tried = Tried("commands", kept=tmp_path)
    for limit, work in (("PATIENCE", lambda: time.sleep(60)), ("SECONDS", lambda: [0 for _ in iter(int, 1)])):
        with monkeypatch.context() as patch:
            patch.setattr(f"fuzz.harness.{limit}", 0.05)
            with pytest.raises(AssertionError, match="took more than"), tried.ending(limit):
                work()
