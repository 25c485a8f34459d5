"""Rows drawn from a table that need not fit in memory: which ones, of what, and how much is held."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sampled_tables import Watched, table

from excise import InputError, foci
from excise.statistics._drawing import FromArrays, FromPieces, some_of
from excise.statistics.tables import read_rows

relaxed = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)


@pytest.mark.slow
def test_every_row_is_as_likely_as_any_other():
    """Of 40 rows 10 are drawn, 4,000 times: each about 1,000 times, with a standard deviation of 27."""
    X = np.arange(40.0)
    sources = {
        "arrays": lambda rng: FromArrays(X, X, lambda _: 10, rng),
        "pieces": lambda rng: FromPieces(
            ((X[i : i + 7], X[i : i + 7]) for i in range(0, 40, 7)), None, lambda _: 10, rng
        ),
    }
    for source in sources.values():
        times, first = np.zeros(40), np.zeros(40)
        for seed in range(4000):
            rows = source(np.random.default_rng(seed)).read(slice(0, 10))[1].astype(int)
            assert len(set(rows)) == 10
            times[rows] += 1
            first[rows[:3]] += 1
        assert np.abs(times - 1000).max() < 5 * 27.4
        assert np.abs(first - 300).max() < 5 * 16.7  # the order is random too


def made_from(seed, n=4000):
    """Uniform numbers, as a user makes them."""
    return np.random.default_rng(seed).random(n)


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_a_table_made_from_the_same_seed_does_not_say_which_rows_are_drawn(seed, tmp_path):
    """The mean of 400 uniform numbers is within 5 standard errors of a half; of the lowest 400 it is a twentieth."""
    X = made_from(seed)
    pd.DataFrame({"x": X}).to_csv(tmp_path / "t.csv", index=False)
    pd.DataFrame({"x": X}).to_parquet(tmp_path / "t.parquet")
    rng = np.random.default_rng
    drawn = {
        "arrays": FromArrays(X, X, lambda _: 400, rng(seed)).read(slice(0, 400))[1],
        "pieces": FromPieces(iter([(X, X)]), None, lambda _: 400, rng(seed)).read(slice(0, 400))[1],
        "csv": read_rows(tmp_path / "t.csv", lambda _: 400, rng(seed))[0]["x"],
        "parquet": read_rows(tmp_path / "t.parquet", lambda _: 400, rng(seed))[0]["x"],
    }
    for source, values in drawn.items():
        assert np.mean(values) == pytest.approx(0.5, abs=5 * 0.289 / 20), source
        assert abs(np.corrcoef(values, np.arange(400))[0, 1]) < 0.25, source


@given(seed=seeds, cuts=st.lists(st.integers(0, 500), max_size=8))
@relaxed
def test_how_a_table_is_cut_does_not_matter(seed, cuts):
    X, y = table(500)
    kept = []
    for places in ([], sorted(cuts)):
        pieces = zip(np.split(X, places), np.split(y, places), strict=True)
        kept.append(FromPieces(iter(list(pieces)), None, lambda _: 60, np.random.default_rng(seed)).read(slice(0, 60)))
    np.testing.assert_array_equal(kept[0][0], kept[1][0])
    np.testing.assert_array_equal(kept[0][1], kept[1][1])


@given(n=st.integers(1, 400), share=st.floats(0, 1), seed=seeds)
@relaxed
def test_drawn_numbers_are_different_and_in_range(n, share, seed):
    count = round(share * n)
    found = some_of(n, count, np.random.default_rng(seed))
    assert len(found) == len(set(found.tolist())) == count
    assert all(0 <= row < n for row in found)


def test_no_more_than_the_sample_is_held():
    def pieces():
        for seed in range(40):
            yield table(20_000, p=5, seed=seed)

    foci(table(300)[0], table(300)[1])  # compile first
    tracemalloc.start()
    found = foci(pieces(), None, sample=500, random_state=0, max_features=2, n_jobs=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.sampling.table_rows == 800_000
    assert peak < 6 * 20_000 * 6 * 8  # a few pieces; the table has 38 MB


def in_batches(X, y):
    pyarrow = pytest.importorskip("pyarrow")
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y)
    return iter(pyarrow.Table.from_pandas(frame).to_batches(max_chunksize=300)), "y", ("a", "b")


CONTAINERS = {
    "array": lambda X, y: (X, y, None),
    "list": lambda X, y: (X.tolist(), y.tolist(), None),
    "frame": lambda X, y: (pd.DataFrame(X, columns=list("abcd")), pd.Series(y), ("a", "b")),
    "tensor": lambda X, y: (torch.tensor(X), torch.tensor(y), None),
    "pairs": lambda X, y: (zip(np.split(X, 5), np.split(y, 5), strict=True), None, None),
    "pairs of frames": lambda X, y: (
        ((pd.DataFrame(X[i : i + 400], columns=list("abcd")), pd.Series(y[i : i + 400])) for i in range(0, 2000, 400)),
        None,
        ("a", "b"),
    ),
    "arrays with y": lambda X, y: (iter(np.split(np.column_stack((X, y)), 5)), 4, None),
    "arrays with y, counted from the end": lambda X, y: (iter(np.split(np.column_stack((X, y)), 5)), -1, None),
    "frames with y": lambda X, y: (
        (pd.DataFrame(X, columns=list("abcd")).assign(y=y).iloc[i : i + 100] for i in range(0, 2000, 100)),
        "y",
        ("a", "b"),
    ),
    "record batches": in_batches,
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_all_kinds_of_tables(kind):
    X, y = table(2000)
    X, y, names = CONTAINERS[kind](X, y)
    found = foci(X, y, sample=600, random_state=0, max_features=2)
    assert sorted(found.indices.tolist()) == [0, 1]
    assert (sorted(found.names) if names else found.names) == (list(names) if names else None)
    assert found.sampling.table_rows == 2000
    assert found.sampling.rows == 1200


def test_a_mapped_file_gives_what_the_array_gives(tmp_path):
    X, y = table(3000)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    mapped = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "Xy")
    one, other = (foci(*given, sample=500, random_state=3) for given in (mapped, (X, y)))
    np.testing.assert_array_equal(one.totals, other.totals)
    np.testing.assert_array_equal(one.sampling.high, other.sampling.high)


def test_a_file_is_read_in_the_order_it_lies_in():
    X, y = table(3000)
    watched = Watched(X)
    foci(watched, y, sample=500, random_state=3)
    assert all((np.diff(rows) > 0).all() for rows in watched.read)


LARGE, TARGET = table(1000)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (lambda: (LARGE, TARGET, 20), "sample must be a whole number, 100 or more, not 20"),
        (lambda: (LARGE, TARGET, 0.01), "sample must be a whole number.*or excise.Tolerance"),
        (lambda: (LARGE, TARGET, True), "sample must be"),
        (lambda: (LARGE, TARGET[:-1], 100), "same number of rows, but X has 1000, y has 999"),
        (lambda: (LARGE, "a", 100), "y must be numeric"),
        (lambda: (np.where(LARGE > 3, np.nan, LARGE), TARGET, 500), "the sample of X contains nan"),
        (lambda: (np.zeros((1000, 3)), TARGET, 500), "X has a constant column"),
        (lambda: (LARGE[:, :, None], TARGET, 100), "X must be rows × columns, but has shape"),
        (lambda: (iter([LARGE]), TARGET, 100), "y must be the name or the number of its column"),
        (lambda: (iter([LARGE]), None, 100), "Piece 0 of X is no pair"),
        (lambda: (iter([(LARGE, TARGET), (LARGE[:, :2], TARGET)]), None, 100), "Piece 1 of X has other columns"),
        (lambda: (iter([(LARGE, TARGET[:5])]), None, 100), "same number of rows"),
        (lambda: (iter([]), None, 100), "X came in no pieces with rows"),
        (lambda: (iter([LARGE]), "a", 100), "the pieces of X have no names"),
        (lambda: (iter([pd.DataFrame(LARGE)]), "a", 100), "no one column 'a'; they have 0, 1, 2, 3"),
        (lambda: (iter([LARGE]), 4, 100), "y=4 is no column of the pieces of X, which have 4"),
        (lambda: (iter([TARGET]), 0, 100), "Piece 0 of X must be rows × columns"),
        (lambda: (iter([["a", "b"]]), 0, 100), "X contains text|X must be numeric"),
    ],
)
def test_bad_input(arguments, words):
    X, y, sample = arguments()
    with pytest.raises(InputError, match=words):
        foci(X, y, sample=sample, random_state=0)


def test_pieces_without_a_sample_are_refused():
    with pytest.raises(InputError, match=r"X is read in pieces .*; pass sample="):
        foci(iter([np.ones((3, 3))]), 0)


def test_max_features_is_checked_before_rows_are_read():
    X, y = table(1000)
    watched = Watched(X)
    with pytest.raises(InputError, match="max_features must be from 1 to 4"):
        foci(watched, y, sample=100, max_features=5)
    assert watched.read == []
