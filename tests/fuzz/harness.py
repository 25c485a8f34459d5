"""What every fuzz test needs: how many inputs, which ones, and what a clear ending is.

``make test`` tries 2,000 inputs, the same ones every time. ``make fuzz`` tries 20,000, others each time; it prints its
seed, and ``make fuzz EXCISE_FUZZ_SEED=7`` tries the same ones again. The input that a test failed at, or died of, stays
in ``.fuzz/``.
"""

import contextlib
import faulthandler
import math
import os
import re
import signal
import warnings
from pathlib import Path

import click
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from excise.errors import ExciseError

DEFAULT = 2000
TOTAL = int(os.environ.get("EXCISE_FUZZ", DEFAULT))
SEED = os.environ.get("EXCISE_FUZZ_SEED", "0")
KEPT = Path(__file__).parents[2] / ".fuzz"
DRAFT = re.compile(r"\.excise-draft|\..*\.[0-9a-f]{16}|\.tmp")
SECONDS = 10  # of its own computing, after which an input counts as a hang
PATIENCE = 60  # seconds by the clock, after which it does so whatever it waits for; twice that ends what no signal can

# of all inputs, how many each test tries
SHARES = {
    "tables by bytes": 0.12,
    "tables by cells": 0.12,
    "parquet": 0.05,
    "requests": 0.14,
    "ids in files": 0.06,
    "weights by bytes": 0.14,
    "weights by parts": 0.06,
    "caches": 0.05,
    "pieces of populations": 0.03,
    "run folders": 0.06,
    "records": 0.05,
    "numbers": 0.08,
    "task objects": 0.05,
    "extreme tasks": 0.03,
    "commands": 0.03,
}


def share(name):
    """How many inputs a test has to try."""
    return math.ceil(SHARES[name] * TOTAL)


class Hang(BaseException):
    """Raised by the clock; nothing catches it."""


class Tried:
    """Counts inputs, and holds each to a clear ending: success, or an error of excise's own that says something."""

    def __init__(self, name, *, seed=SEED, kept=KEPT):
        self.name, self.seed = name, seed
        self.inputs = 0
        self.refused = 0
        kept.mkdir(exist_ok=True)
        self.last = kept / f"{name.replace(' ', '-')}-{seed}.txt"
        self._file = self.last.open("w", encoding="utf-8", errors="backslashreplace")

    def on(self, *strategies):
        """Make a test of one input a test of as many as its share."""

        def often(check):
            return seed(f"{self.name} {self.seed}")(_settings(share(self.name))(given(*strategies)(check)))

        return often

    @contextlib.contextmanager
    def ending(self, what):
        """Around the work on one input, which is printed and kept if it ends in another way."""
        self.inputs += 1
        self._keep(what)
        try:
            with self._clocks(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except (ExciseError, click.ClickException) as error:
            self.refused += 1
            message = str(error)
            if len(message.strip()) < 10 or len(message) > 2000:
                raise self._failure(what, f"ended in an unclear message: {message[:300]!r}") from error
        except SystemExit:
            self.refused += 1
        except Hang:
            raise self._failure(what, f"took more than {SECONDS} s of computing, or {PATIENCE} s") from None
        except BaseException as error:
            raise self._failure(what, f"ended in {type(error).__name__}: {error}") from error

    def require(self, *, refused=True):
        """That as many inputs were tried as promised, and that both endings are among them, or none was refused."""
        promised, found = share(self.name), f"{self.refused} of {self.inputs} were refused"
        assert self.inputs >= promised, f"only {self.inputs} of {promised} inputs were tried"
        assert 0 < self.refused < self.inputs if refused else self.refused == 0, found
        self._file.close()
        self.last.unlink(missing_ok=True)

    def _keep(self, what):
        """Before the work, since a crash of the process leaves no time for it."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{what!r}\n")
        self._file.flush()

    def _failure(self, what, ending):
        again = f"EXCISE_FUZZ={TOTAL} EXCISE_FUZZ_SEED={self.seed}"
        return AssertionError(f"{what!r} {ending}\n(kept in {self.last.name}; {again} tries it again)")

    @contextlib.contextmanager
    def _clocks(self):
        """One of computing, so that other work on the machine does not count; one on the wall, for what waits."""

        def ring(*_):
            raise Hang

        clocks = {signal.SIGPROF: (signal.ITIMER_PROF, SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE)}
        before = {number: signal.signal(number, ring) for number in clocks}
        for timer, seconds in clocks.values():
            signal.setitimer(timer, seconds)
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True, file=self._file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            for number, (timer, _) in clocks.items():
                signal.setitimer(timer, 0)
                signal.signal(number, before[number])


def _settings(count):
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # what is found is printed as it is; shrinking a hang would take for ever
        suppress_health_check=list(HealthCheck),
    )


def no_drafts(folder):
    """That nothing half-written is left in the folder."""
    drafts = [path.name for path in folder.rglob(".*") if DRAFT.match(path.name)]
    assert not drafts, f"left behind: {drafts}"


@st.composite
def damaged(draw, corpus):
    """Bytes of one of the corpus with a few bytes flipped, cut out, put in or doubled; now and then as it is."""
    name = draw(st.sampled_from(sorted(corpus)))
    content = bytearray(corpus[name])
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(len(content) - 1, 0)))
        how = draw(st.sampled_from(["flip", "byte", "cut", "remove", "insert", "double", "early"]))
        if not content:
            break
        if how == "flip":
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif how == "byte":
            content[place] = draw(st.integers(0, 255))
        elif how == "early":  # where formats have their headers
            content[min(place, 40) % len(content)] = draw(st.integers(0, 255))
        elif how == "cut":
            del content[place:]
        elif how == "remove":
            del content[place : place + draw(st.integers(1, 64))]
        elif how == "insert":
            content[place:place] = draw(st.binary(min_size=1, max_size=16))
        else:
            content[place:place] = content[place : place + draw(st.integers(1, 64))]
    return name, bytes(content)
