"""Sums of few rows to a leaf, so that small tables have trees with several levels."""

import pytest

from excise.estimators import sums


@pytest.fixture(autouse=True)
def small_leaves(monkeypatch):
    monkeypatch.setattr(sums, "FEWEST", 4)
    monkeypatch.setattr(sums, "SHARE", 0.25)
