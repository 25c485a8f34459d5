"""The figures of populations whose margins are known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from excise.evidence.population.likelihood_ratio import likelihood_ratio
from excise.evidence.population.pieces import GROUPS, Piece
from excise.evidence.population.population import measured as figures_of


def pieces(seed, shift=0.0, *, models=24, seconds=10.0, refused=0.0):
    """Of models whose margins on forgotten samples are so much off."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(models):
        margins = {group: rng.normal(shift if group == "forget" else 0.0, 1, 30) for group in GROUPS}
        made.append(Piece(margins, {"forget": 0.9, "retain": 1.0, "test": 0.8}, seconds, 1.0, refused))
    return made


def measured(shift=3.0, *, models=24):
    found = {"original": pieces(0, shift, models=models), "retrained": pieces(1, models=models)}
    found |= {"half": pieces(2, shift / 2, models=models, seconds=0.5), "whole": pieces(3, models=models, seconds=2.0)}
    settings = {"half": {"name": "a"}, "whole": {"name": "b"}}
    return figures_of(found, request="random:1%", ids=[4, 2], settings=settings, seed=0)


def test_a_run_that_was_paused_does_not_make_its_method_slow():
    slow = [replace(one, seconds=1e6) if number < 5 else one for number, one in enumerate(pieces(2, seconds=0.5))]
    found = {"original": pieces(0), "retrained": [replace(pieces(1)[0], seconds=1e6), *pieces(1)[1:]], "slow": slow}
    told = figures_of(found, request="random:1%", ids=[4, 2], settings={"slow": {}}, seed=0)
    assert (told.rows[1].seconds, told.floor.seconds) == (0.5, 10)


def test_rows_are_in_order_and_each_says_how_far_it_is():
    found = measured()
    nothing, half, whole = found.rows
    assert [row.name for row in found.rows] == ["nothing done", "half", "whole"]
    assert nothing.z["forget"] == pytest.approx(3, abs=0.4)
    assert half.z["forget"] == pytest.approx(1.5, abs=0.3)
    assert nothing.auc > half.auc > whole.auc + 0.1
    assert nothing.score < half.score < whole.score
    assert nothing.klom["forget"] > whole.klom["forget"]
    assert (half.seconds, half.preparation, nothing.seconds, found.floor.seconds) == (0.5, 1.0, 0, 10)
    for row in (*found.rows, found.floor):
        assert row.z["test"] < 0.5
        assert row.accuracies == pytest.approx({"forget": 0.9, "retain": 1.0, "test": 0.8})
    assert likelihood_ratio(*(np.stack([one.margins["forget"] for one in pieces(s)]) for s in (3, 1))).auc == whole.auc


@pytest.mark.slow
def test_the_floor_is_that_of_halves_and_of_as_many_models_for_deviations():
    floor = measured().floor
    assert floor.name == "retrained"
    alike = np.random.default_rng(9).normal(size=(2, 12, 2000))
    assert floor.auc == pytest.approx(likelihood_ratio(*alike).auc, abs=0.04)
    expected = math.sqrt(2 / 24) * math.sqrt(2 / math.pi)  # E|z| of two means of 24, as of a method that retrains
    for group in GROUPS:
        assert floor.z[group] == pytest.approx(expected, rel=0.25)


def test_the_share_left_goes_from_one_to_nothing():
    found = measured()
    nothing, half, whole = (found.share_left(row) for row in found.rows)
    assert nothing == 1
    assert half == pytest.approx(0.45, abs=0.1)
    assert whole == pytest.approx(0, abs=0.1)


def test_there_is_no_share_of_what_chance_alone_gives():
    found = measured(0.1)
    assert math.isnan(found.share_left(found.rows[0]))
    assert found.as_dict()["rows"][0]["share_left"] is None


def test_as_json_nothing_is_lost():
    found = measured()
    record = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert record["rows"][1]["share_left"] == found.share_left(found.rows[1])
    assert record["floor"]["auc"] == found.floor.auc
    assert (record["request"], record["ids"], record["models"], record["seed"]) == ("random:1%", [4, 2], 24, 0)
    assert record["settings"] == {"half": {"name": "a"}, "whole": {"name": "b"}}


@pytest.mark.parametrize(("models", "enough"), [(6, False), (19, False), (20, True)])
def test_few_models_are_too_few(models, enough):
    found = measured(models=models)
    assert (found.is_enough, found.as_dict()["is_enough"]) == (enough, enough)
