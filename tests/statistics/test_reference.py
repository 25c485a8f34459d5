"""The fast search against the slow, obvious one, on hundreds of random problems."""

import cases
import numpy as np
import pytest
import reference

from excise import codec, foci, lcodec, lfoci
from excise.statistics._neighbors import nearest


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_nearest_equals_all_pairs(kind, d):
    rng = np.random.default_rng([d, cases.KINDS.index(kind)])
    for _ in range(15):
        points = cases.table(kind, int(rng.integers(3, 80)), d, rng).astype(np.float64)
        np.testing.assert_array_equal(nearest(points, np.uint64(d)), reference.nearest(points, d))


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("z_columns", "x_columns"), [(1, 0), (3, 0), (1, 1), (1, 3), (2, 2)])
def test_codec_equals_all_pairs(kind, ties, z_columns, x_columns):
    rng = np.random.default_rng([ties, z_columns, x_columns, cases.KINDS.index(kind)])
    for seed in range(8):
        X = cases.table(kind, int(rng.integers(20, 90)), z_columns + x_columns, rng)
        y = cases.target(X, rng, ties=ties)
        z, x = X[:, :z_columns], X[:, z_columns:] if x_columns else None
        expected = reference.codec(y, z, x, seed)
        assert codec(y, z, x, random_state=seed) == pytest.approx(expected, abs=1e-12)
        assert lcodec(y, z, x, random_state=seed) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_foci_equals_all_pairs(kind, ties, standardize):
    rng = np.random.default_rng([ties, standardize, cases.KINDS.index(kind)])
    for seed in range(6):
        n, p = int(rng.integers(10, 70)), int(rng.integers(2, 14))
        X = cases.table(kind, n, p, rng)
        y = cases.target(X, rng, ties=ties)
        for stop in (False, True):
            options = {"max_features": min(p, 5), "stop": stop, "standardize": standardize}
            with np.errstate(invalid="ignore"):
                indices, scores = reference.foci(X, y, seed, **options)
            found = foci(X, y, random_state=seed, **options)
            np.testing.assert_array_equal(found.indices, indices)
            np.testing.assert_allclose(found.scores, scores, atol=1e-12)
            again = lfoci(X, y, random_state=seed, **options)
            np.testing.assert_array_equal(again.indices, indices)


def test_scores_and_totals_are_codec_of_the_chosen_columns():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 20))
    y = X[:, 3] + X[:, 5] * X[:, 7] + 0.1 * rng.standard_normal(300)
    found = foci(X, y, stop=False, max_features=6, random_state=0)
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    for k, (column, score, total) in enumerate(zip(found.indices, found.scores, found.totals, strict=True)):
        before = Z[:, found.indices[:k]] if k else None
        assert codec(y, Z[:, column], before) == pytest.approx(score, abs=1e-12)
        assert codec(y, Z[:, found.indices[: k + 1]]) == pytest.approx(total, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "zero-inflated", "heavy-tailed", "discrete"])
def test_more_rows_than_the_neighbor_lists_hold(kind, monkeypatch):
    """Short lists, many blocks of them: the ways out that small problems never take."""
    monkeypatch.setattr("excise.statistics._incremental.LIST_FACTOR", 0.5)
    monkeypatch.setattr("excise.statistics._incremental.LIST_EXTRA", 2)
    monkeypatch.setattr("excise.statistics._incremental.LIST_BYTES", 2000)
    rng = np.random.default_rng(1)
    X = cases.table(kind, 250, 9, rng)
    y = cases.target(X, rng, ties=False)
    indices, scores = reference.foci(X, y, 3, max_features=4, stop=False)
    found = foci(X, y, random_state=3, max_features=4, stop=False)
    np.testing.assert_array_equal(found.indices, indices)
    np.testing.assert_allclose(found.scores, scores, atol=1e-12)


def test_more_than_65536_rows_of_few_values():
    """Rows beyond what 16-bit indices hold; few cells, so that T has a closed form to compare with."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (70_000, 3))
    y = 2 * X[:, 2] + (X[:, 1] & X[:, 0])
    found = foci(X, y, random_state=0)
    assert found.indices.tolist()[0] == 2
    assert sorted(found.indices.tolist()) == [0, 1, 2]
    assert found.totals[-1] == 1.0
