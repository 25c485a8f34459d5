"""As many rows as a tolerance needs: no fewer, and a word where there are none left."""

from dataclasses import replace

import numpy as np
import pytest
from sampled_tables import table

from excise import InputError, Tolerance, ToleranceWarning, foci
from excise.statistics import _sampling
from excise.statistics._measuring import measure


@pytest.mark.slow
def test_tolerance_takes_the_rows_that_it_needs(monkeypatch):
    monkeypatch.setattr(_sampling, "FIRST", 500)
    X, y = table(60_000, p=3)
    rows = []
    for half_width in (0.15, 0.03, 0.01):
        found = foci(X, y, sample=Tolerance(half_width), random_state=0)
        assert found.sampling.reached
        assert found.sampling.half_width <= half_width == found.sampling.tolerance
        assert max(found.totals[-1] - found.sampling.low[-1], found.sampling.high[-1] - found.totals[-1]) <= half_width
        rows.append(found.sampling.measured)
    assert rows[0] < rows[1] < rows[2]
    assert rows[2] > 4 * rows[0]
    assert rows[2] < 30_000  # half of them are there to be searched


def test_the_rows_searched_say_how_many_others_are_measured(monkeypatch):
    """Half the width takes four times the rows, and half as many again to be on the safe side."""
    monkeypatch.setattr(_sampling, "FIRST", 1000)
    asked = []

    def known(points, y, *, fresh, **options):
        asked.append((len(y), fresh))
        found = measure(points, y, fresh=fresh, **options)
        width = 0.04 * (1000 / len(y)) ** 0.5
        return replace(found, low=found.totals - width, high=found.totals + width)

    monkeypatch.setattr(_sampling, "measure", known)
    found = foci(*table(60_000), sample=Tolerance(0.02), random_state=0)
    assert asked == [(1000, False), (6000, True)]
    assert (found.sampling.searched, found.sampling.measured, found.sampling.reached) == (6000, 6000, True)


def test_a_tolerance_that_is_not_reached_is_said(monkeypatch):
    monkeypatch.setattr(_sampling, "FIRST", 500)
    X, y = table(6000)
    with pytest.warns(ToleranceWarning, match=r"not to the ± 0.001 asked for, from .* rows; allow more rows"):
        found = foci(X, y, sample=Tolerance(0.001, most_rows=1000), random_state=0)
    assert not found.sampling.reached
    assert str(found.sampling).endswith("not the 0.001 asked for.")
    with pytest.warns(ToleranceWarning, match="6,000 rows; the table has no more rows"):
        foci(X, y, sample=Tolerance(0.001), random_state=0)
    monkeypatch.setattr(_sampling, "HELD_VALUES", 4 * 1200)
    with pytest.warns(ToleranceWarning, match="1,200 rows; no more were kept"):
        foci(zip(np.split(X, 4), np.split(y, 4), strict=True), None, sample=Tolerance(0.001), random_state=0)


def test_a_small_table_with_a_tolerance_is_searched_whole():
    X, y = table(400)
    with pytest.warns(ToleranceWarning, match="the table has no more rows"):
        found = foci(X, y, sample=Tolerance(0.01))
    np.testing.assert_array_equal(found.totals, foci(X, y).totals)
    assert "Searched 400 of 400 rows; T is measured on the same" in str(found.sampling)


@pytest.mark.parametrize("options", [{"half_width": 0}, {"half_width": 1}, {"half_width": "a"}, {"most_rows": 5}])
def test_bad_tolerance(options):
    with pytest.raises(InputError, match=f"{next(iter(options))} must be"):
        Tolerance(**options)
