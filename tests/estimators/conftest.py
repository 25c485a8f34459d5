"""Sums of few rows to a leaf, so that small tables have trees with several levels."""

import pytest

from excise.estimators import sums


@pytest.fixture(autouse=True, scope="package")
def small_leaves():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "FEWEST", 4)
        patch.setattr(sums, "SHARE", 0.25)
        yield
