"""How the search begins and ends, and the randomised forms."""

import os
import tracemalloc

import numpy as np
import pandas as pd
import pytest

from excise import codec, codec_test, foci, lcodec, lfoci, xi
from excise._support.checks import apart_from


def noise_table(seed, n=100, p=3):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, p)), rng.standard_normal(n)


@pytest.fixture(scope="module")
def hopeless():
    """A table whose best column has T ≤ 0."""
    for seed in range(200):
        X, y = noise_table(seed)
        if foci(X, y, stop=False, max_features=1).scores[0] <= 0:
            return X, y
    raise AssertionError("no such table among 200")


def test_nothing_is_chosen_when_the_best_column_has_no_positive_t(hopeless):
    found = foci(*hopeless)
    assert len(found) == 0
    assert found.scores.shape == found.totals.shape == (0,)


def test_keep_first_keeps_it_all_the_same(hopeless):
    found = foci(*hopeless, keep_first=True)
    assert len(found) >= 1
    assert found.scores[0] <= 0


def test_cheap_is_the_first_column_of_the_full_search():
    X, _ = noise_table(0, p=8)
    y = X[:, 2] + X[:, 5]
    assert foci(X, y, method="cheap").indices.tolist() == foci(X, y).indices[:1].tolist()
    assert lfoci(X, y, method="cheap", stop=False).indices.tolist() == foci(X, y).indices[:1].tolist()


def test_without_stop_every_column_is_ordered():
    X, y = noise_table(0, p=5)
    assert sorted(foci(X, y, stop=False).indices.tolist()) == [0, 1, 2, 3, 4]


def test_single_column():
    X, _ = noise_table(0, p=1)
    assert foci(X, X[:, 0]).indices.tolist() == [0]
    assert foci(X[:, 0], X[:, 0]).indices.tolist() == [0]


def test_search_ends_when_everything_is_known():
    X = np.random.default_rng(0).integers(0, 3, (300, 6))
    found = foci(X, 3 * X[:, 1] + X[:, 4], random_state=0)
    assert sorted(found.indices.tolist()) == [1, 4]
    assert found.totals[-1] == 1.0


@pytest.mark.slow
def test_luck_with_ties_is_not_carried_over_to_the_next_step():
    """On discrete data a winner's lucky draws must not count again, or columns of noise keep being added."""
    sizes = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        X = rng.integers(0, 2, (2000, 20))
        y = 2 * X[:, 0] + X[:, 1] + rng.integers(0, 3, 2000)
        found = foci(X, y, random_state=seed)
        assert set(found.indices[:2].tolist()) == {0, 1}
        sizes.append(len(found))
    assert np.mean(sizes) < 5


def test_selection_is_read_only():
    X, _ = noise_table(0)
    found = foci(X, X[:, 0])
    with pytest.raises(ValueError, match="read-only"):
        found.indices[0] = 2
    with pytest.raises(AttributeError):
        found.names = ("a",)


@pytest.mark.slow
def test_vanishing_noise_has_the_mean_of_small_noise():
    """The limit that noise=None stands for, against noise that is really added, on data full of ties."""
    rng = np.random.default_rng(0)
    x, z = rng.integers(0, 3, (2, 300))
    y = x + z + rng.integers(0, 2, 300)
    limit = np.mean([lcodec(y, z, x, random_state=seed) for seed in range(150)])
    small = np.mean([lcodec(y, z, x, noise=1e-6, random_state=seed) for seed in range(150)])
    assert limit == pytest.approx(small, abs=0.01)


def test_noise_hides_what_is_finer_than_it():
    x = np.arange(500) / 500
    y = np.sin(40 * x)
    assert lcodec(y, x) > 0.9
    assert lcodec(y, x, noise=1.0, random_state=0) < 0.1


def test_lfoci_with_noise_is_lfoci_of_noisy_columns():
    X, _ = noise_table(0, n=200, p=6)
    y = X[:, 1] * X[:, 3]
    noisy = X + apart_from(np.random.default_rng(3)).normal(0, 0.2, X.shape)
    expected = foci(noisy, y)
    found = lfoci(X, y, noise=0.2, random_state=3)
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.scores, expected.scores)


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_noise_is_not_the_table_once_more(seed):
    """Noise as large as the values, of which then half is left to tell y by: T is 0.3, not the 0.99 of clear values."""
    x = np.random.default_rng(seed).normal(size=1000)
    assert lcodec(x, x, noise=1.0, random_state=seed) < 0.4
    assert lfoci(x, x, noise=1.0, random_state=seed).totals[0] < 0.4


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_ties_are_not_broken_by_the_numbers_that_made_the_table(seed):
    x = np.random.default_rng(seed).random(1000)
    labels = (x > 0.5).astype(int)
    assert lcodec(labels, x, perturb="all", random_state=seed) == pytest.approx(0.5, abs=0.1)  # 1 - 1/2
    order = np.argsort(np.random.default_rng(seed).permutation(1000))
    assert xi(np.zeros(1000), order, random_state=seed) == pytest.approx(0, abs=0.1)


def rejections(draw, repetitions):
    pvalues = []
    for seed in range(repetitions):
        y, z, x = draw(np.random.default_rng(seed))
        pvalues.append(codec_test(y, z, x, n_permutations=49, random_state=seed).pvalue)
    return np.mean(np.array(pvalues) <= 0.1)


def independent(rng):
    return rng.standard_normal(80), rng.standard_normal(80), None


def independent_with_ties(rng):
    return rng.integers(0, 3, 80), rng.integers(0, 4, 80), None


def chain(rng):
    x = rng.standard_normal(150)
    return x + 0.5 * rng.standard_normal(150), x + 0.5 * rng.standard_normal(150), x


def steep_chain(rng):
    x = rng.standard_normal(150)
    return 3 * x + 0.2 * rng.standard_normal(150), x + 0.2 * rng.standard_normal(150), x


def chain_of_counts(rng):
    x = rng.integers(0, 4, 150)
    return x + rng.integers(0, 3, 150), x + rng.integers(0, 3, 150), x


def chain_of_rare_counts(rng):
    x = rng.geometric(0.05, 100)
    return x + rng.integers(0, 2, 100), x + rng.integers(0, 2, 100), x


def chain_beside_a_column_of_large_numbers(rng):
    x = rng.standard_normal((200, 2)) * [1, 100]
    return x[:, 0] + 0.5 * rng.standard_normal(200), x[:, 0] + 0.5 * rng.standard_normal(200), x


def chain_in_two_dimensions(rng):
    x = rng.standard_normal((150, 2))
    return x[:, 0] * x[:, 1] + 0.5 * rng.standard_normal(150), x.sum(axis=1) + 0.5 * rng.standard_normal(150), x


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        independent,
        independent_with_ties,
        chain,
        steep_chain,
        chain_of_counts,
        chain_of_rare_counts,
        chain_beside_a_column_of_large_numbers,
        chain_in_two_dimensions,
    ],
)
def test_type_one_error_of_the_test(draw):
    """At level 0.1; with 300 draws the binomial standard error is 0.017."""
    assert rejections(draw, 300) <= 0.1 + 3 * 0.0175


@pytest.mark.slow
@pytest.mark.parametrize("draw", [chain, chain_of_counts])
def test_power_of_the_test(draw):
    def dependent(rng):
        y, z, x = draw(rng)
        return y + z**2, z, x

    assert rejections(dependent, 40) > 0.6


def test_pvalue_is_at_least_one_over_permutations_plus_one():
    z = np.arange(100.0)
    assert codec_test(z, z, n_permutations=9, random_state=0).pvalue == 0.1


def test_large_whole_numbers_keep_apart():
    b = 2**60 + np.random.default_rng(0).permutation(200)
    assert codec(b, b) > 0.95
    X = np.column_stack((2**62 + np.arange(200), np.arange(200) % 7))
    found = foci(X, X[:, 0])
    assert found.indices[0] == 0
    assert np.isfinite(found.scores).all()
    assert codec(pd.array(b.tolist(), dtype="Int64"), b) > 0.95


def test_an_outlier_does_not_swallow_the_rest_of_its_column():
    x = np.arange(200.0)
    x[0] = 3.4e38
    assert foci(x, np.arange(200)).scores[0] > 0.9


@pytest.mark.slow
def test_many_rows_do_not_overflow():
    """Their square is beyond 32 bits; ``make cases`` takes four million."""
    rows = 4_000_000 if "EXCISE_CASES" in os.environ else 300_000
    rng = np.random.default_rng(0)
    x = rng.standard_normal(rows)
    y = x + rng.standard_normal(rows)
    truth, near = 3 / np.pi * np.arcsin((1 + 0.5) / 2) - 0.5, 4 / np.sqrt(rows)
    assert xi(x, y) == pytest.approx(truth, abs=near)
    assert codec(y, x) == pytest.approx(truth, abs=near)
    assert foci(x, y).scores[0] == pytest.approx(truth, abs=near)


def test_progress_bar_of_many_threads_is_one_bar(monkeypatch):
    from rich.progress import Progress

    monkeypatch.setattr("excise._support.progress.PATIENCE", 0.02)
    begun, ended = [], []
    start, stop = Progress.start, Progress.stop
    monkeypatch.setattr(Progress, "start", lambda self: (begun.append(1), start(self))[1])
    monkeypatch.setattr(Progress, "stop", lambda self: (ended.append(1), stop(self))[1])
    X, y = noise_table(0, n=300, p=3000)
    foci(X, y, n_jobs=4, max_features=3, progress=True)
    assert (len(begun), len(ended)) == (1, 1)


@pytest.mark.slow
def test_memory_stays_within_three_copies_of_the_table():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 8000)).astype(np.float32)
    y = X[:, 0] + X[:, 1]
    foci(X[:, :16], y, max_features=2)  # compile first
    tracemalloc.start()
    foci(X, y, max_features=3, stop=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 3 * X.nbytes


def test_progress_bar_is_shown_for_long_work_and_leaves_nothing_behind(capfd, monkeypatch):
    monkeypatch.setattr("excise._support.progress.PATIENCE", 0.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    X, y = noise_table(0, p=20)
    foci(X, y, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "reading the columns" in err
    foci(X, y)
    assert capfd.readouterr() == ("", "")
