"""What every fuzz test needs: how many inputs, and what a clear ending is.

``make test`` tries 2,000 inputs, the same ones every time; ``make fuzz`` (EXCISE_FUZZ=20000) tries as many others.
"""

import contextlib
import math
import os
import re
import signal
import warnings

import click
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from excise.errors import ExciseError

DEFAULT = 2000
TOTAL = int(os.environ.get("EXCISE_FUZZ", DEFAULT))
DRAFT = re.compile(r"\.excise-draft|\..*\.[0-9a-f]{16}|\.tmp")
SECONDS = 10  # after which an input counts as a hang

# of all inputs, how many each test tries
SHARES = {
    "tables by bytes": 0.12,
    "tables by cells": 0.12,
    "parquet": 0.05,
    "requests": 0.17,
    "ids in files": 0.06,
    "weights by bytes": 0.14,
    "weights by parts": 0.06,
    "caches": 0.05,
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


def fuzzed(name):
    """Settings of hypothesis for the test: always the same inputs in ``make test``, always others in ``make fuzz``."""
    return settings(
        max_examples=share(name),
        deadline=None,
        database=None,
        derandomize=TOTAL <= DEFAULT,
        phases=[Phase.generate],  # what is found is printed as it is; shrinking a hang would take for ever
        suppress_health_check=list(HealthCheck),
    )


class Hang(BaseException):
    """Raised by the clock; nothing catches it."""


class Tried:
    """Counts inputs, and holds each to a clear ending: success, or an error of excise's own that says something."""

    def __init__(self):
        self.inputs = 0
        self.refused = 0

    @contextlib.contextmanager
    def ending(self, what):
        """Around the work on one input, which is printed if it ends in another way."""
        self.inputs += 1
        try:
            with _alarm(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except (ExciseError, click.ClickException) as error:
            self.refused += 1
            message = str(error)
            if len(message.strip()) < 10 or len(message) > 2000:
                raise AssertionError(f"{what!r} ended in an unclear message: {message[:300]!r}") from error
        except SystemExit:
            self.refused += 1
        except Hang:
            raise AssertionError(f"{what!r} took more than {SECONDS} seconds") from None
        except AssertionError:
            raise
        except BaseException as error:
            raise AssertionError(f"{what!r} ended in {type(error).__name__}: {error}") from error

    def require(self, name):
        """That as many inputs were tried as promised, and that both endings are among them."""
        assert self.inputs >= share(name), f"only {self.inputs} of {share(name)} inputs were tried"
        assert 0 < self.refused < self.inputs, f"{self.refused} of {self.inputs} were refused: the inputs are one-sided"


@contextlib.contextmanager
def _alarm():
    def ring(*_):
        raise Hang

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


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
