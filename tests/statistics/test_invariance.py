"""What must not change the answer: monotone maps of y, order, scale, threads, chunks, the kind of container."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from excise import codec, codec_test, foci, lcodec, lfoci, xi

relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)


def varying(X):
    return (X.max(axis=0) > X.min(axis=0)).all()


@st.composite
def continuous(draw, columns=5):
    """Columns of distinct values, and a y that depends on two of them."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.integers(8, 60))
    X = rng.standard_normal((n, columns))
    return X, X[:, 0] * X[:, 1] + 0.2 * rng.standard_normal(n)


whole_numbers = hnp.arrays(
    np.int64, st.tuples(st.integers(5, 40), st.integers(2, 5)), elements=st.integers(-6, 6)
).filter(varying)


@pytest.mark.slow
@given(data=continuous(), seed=seeds)
@relaxed
def test_monotone_map_of_y(data, seed):
    X, y = data
    for f in (np.exp, np.arctan, lambda v: v**3 + 2 * v):
        assert xi(X[:, 0], f(y), random_state=seed) == xi(X[:, 0], y, random_state=seed)
        assert codec(f(y), X[:, 0], X[:, 1:], random_state=seed) == codec(y, X[:, 0], X[:, 1:], random_state=seed)
        np.testing.assert_array_equal(foci(X, f(y), random_state=seed).scores, foci(X, y, random_state=seed).scores)


@pytest.mark.slow
@given(data=continuous(), seed=seeds)
@relaxed
def test_permutation_of_rows(data, seed):
    X, y = data
    order = np.random.default_rng(seed).permutation(len(y))
    assert codec(y[order], X[order]) == codec(y, X)
    assert xi(X[order, 0], y[order]) == xi(X[:, 0], y)
    np.testing.assert_array_equal(foci(X[order], y[order]).indices, foci(X, y).indices)


@pytest.mark.slow
@given(X=whole_numbers, seed=seeds)
@relaxed
def test_permutation_of_columns(X, seed):
    y = X[:, 0] * X[:, 1]
    if y.max() == y.min():
        return
    order = np.random.default_rng(seed).permutation(X.shape[1])
    options = {"random_state": 7, "stop": False, "max_features": 1}
    assert foci(X[:, order], y, **options).scores[0] == foci(X, y, **options).scores[0]
    assert codec(y, X[:, order], random_state=7) == codec(y, X, random_state=7)


@pytest.mark.slow
@given(data=continuous(columns=7), seed=seeds)
@relaxed
def test_permutation_of_columns_moves_the_selection_with_them(data, seed):
    X, y = data
    plain = foci(X, y)
    assume(not any_step_is_a_draw(X, y, plain.indices))  # a draw goes to the first column
    order = np.random.default_rng(seed).permutation(X.shape[1])
    np.testing.assert_array_equal(order[foci(X[:, order], y).indices], plain.indices)


def any_step_is_a_draw(X, y, chosen):
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    for k in range(len(chosen) + 1):
        left = [c for c in range(Z.shape[1]) if c not in chosen[:k]]
        gains = sorted(codec(y, Z[:, c], Z[:, chosen[:k]] if k else None) for c in left)
        if len(gains) > 1 and gains[-1] == gains[-2]:
            return True
    return False


@pytest.mark.slow
@given(
    X=whole_numbers,
    seed=seeds,
    slope=st.floats(1e-3, 1e3) | st.floats(-1e3, -1e-3),
    shift=st.floats(-1e3, 1e3),
)
@relaxed
def test_affine_maps_under_standardize_keep_even_the_ties(X, seed, slope, shift):
    y = X[:, 0] + X[:, -1] ** 2
    if y.max() == y.min():
        return
    options = {"random_state": seed, "stop": False, "max_features": 2}
    moved, plain = foci(slope * X + shift, y, **options), foci(X, y, **options)
    np.testing.assert_array_equal(moved.indices, plain.indices)
    np.testing.assert_allclose(moved.scores, plain.scores, atol=1e-12)


@pytest.mark.slow
@given(exponent=st.integers(-250, 250), data=continuous())
@relaxed
def test_huge_and_tiny_values(exponent, data):
    X, y = data
    scale = 2.0**exponent
    for standardize in (False, True):
        np.testing.assert_array_equal(
            foci(X * scale, y * scale, standardize=standardize).scores, foci(X, y, standardize=standardize).scores
        )
    assert codec(y, X[:, 0] * scale, X[:, 1:] * scale) == codec(y, X[:, 0], X[:, 1:])


@pytest.mark.slow
@given(X=whole_numbers, seed=seeds)
@relaxed
def test_t_is_at_most_one(X, seed):
    y = X[:, 0]
    assert codec(y, X, random_state=seed) <= 1
    assert xi(X[:, 1], y, random_state=seed) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("discrete", [False, True])
def test_threads_and_chunks_do_not_matter(discrete, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, (400, 60)) if discrete else rng.standard_normal((400, 60))
    y = X[:, 3] * X[:, 8] + X[:, 20]
    results = []
    for n_jobs in (1, 2, 5, None, -1):
        results.append(foci(X, y, random_state=0, n_jobs=n_jobs, stop=False, max_features=6))
    monkeypatch.setattr("excise.statistics._incremental.LIST_BYTES", 10_000)
    results.append(foci(X, y, random_state=0, stop=False, max_features=6))
    for other in results[1:]:
        np.testing.assert_array_equal(other.indices, results[0].indices)
        np.testing.assert_array_equal(other.scores, results[0].scores)


def test_same_seed_same_answer():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 4, (200, 6))
    y = X[:, 0] + X[:, 1] * X[:, 3]
    for call in (
        lambda seed: codec(y, X[:, 2], X[:, :2], random_state=seed),
        lambda seed: lcodec(y, X[:, 0], X[:, 1], noise=0.1, perturb="all", random_state=seed),
        lambda seed: xi(X[:, 0], y, random_state=seed),
        lambda seed: codec_test(y, X[:, 0], X[:, 1], n_permutations=20, random_state=seed).pvalue,
        lambda seed: lfoci(X, y, noise=0.01, random_state=seed).scores.tolist(),
    ):
        assert call(5) == call(5)
        assert call(np.random.default_rng(5)) == call(5)
    assert len({codec(y, X[:, 0], X[:, 1], random_state=seed) for seed in range(10)}) > 1


@pytest.mark.parametrize(
    "convert",
    [
        np.asfortranarray,
        lambda a: a[::-1][::-1],
        lambda a: a.tolist(),
        pd.DataFrame,
        lambda a: pd.DataFrame(a).astype("Int64"),
        lambda a: torch.tensor(a),
        lambda a: torch.tensor(a, dtype=torch.bfloat16),
        lambda a: torch.tensor(a, dtype=torch.float32, requires_grad=True),
        lambda a: a.astype(np.int8),
        lambda a: a.astype(np.float16),
        lambda a: a.astype(np.float32),
        lambda a: a.astype(np.longdouble),
        lambda a: a.astype(object),
    ],
)
def test_containers_and_types(convert):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (60, 4))
    y = X[:, 0] * X[:, 2]
    plain = foci(X, y, random_state=0)
    other = foci(convert(X), convert(y[:, None]), random_state=0)
    np.testing.assert_array_equal(other.indices, plain.indices)
    np.testing.assert_array_equal(other.scores, plain.scores)
    assert codec(convert(y[:, None]), convert(X), random_state=0) == codec(y, X, random_state=0)


def test_bool_columns():
    X = np.random.default_rng(0).random((500, 3)) < 0.5
    found = foci(X, X[:, 0] & X[:, 1], random_state=0)
    assert sorted(found.indices.tolist()) == [0, 1]


def test_names_come_with_a_data_frame():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.standard_normal((200, 3)), columns=["a", "b", "c"])
    assert foci(X, X["b"] ** 2).names == ("b",)
    assert foci(X.to_numpy(), X["b"] ** 2).names is None
