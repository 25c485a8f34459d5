"""Tables in files: read by columns as if read at once, and rows drawn from them without holding the rest."""

import datetime
import decimal
import gzip
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from excise.errors import InputError
from excise.statistics import _sampling, parquet, table_files, unpacking
from excise.statistics.blanket import find_blanket
from excise.statistics.selection import Tolerance
from excise.statistics.tables import prepare, read, read_rows

pytest.importorskip("pyarrow")


def frame(n=400, seed=0):
    """A column of every kind, and what prepare has something to say on."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame(
        {
            "dose": rng.random(n),
            "count": rng.integers(0, 7, n),
            "small": rng.integers(0, 3, n).astype(np.int8),
            "single": rng.random(n).astype(np.float32),
            "yes": rng.random(n) < 0.5,
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 500, n), unit="D"),
            "color": rng.choice(["red", "green", "blue"], n),
            "name": [f"id{i}" for i in range(n)],
            "kind": pd.Categorical(rng.choice(["a", "b"], n)),
            "price": [decimal.Decimal(int(value)) / 4 for value in rng.integers(0, 90, n)],
            "nullable": pd.array(rng.integers(0, 5, n), dtype="Int64"),
            "huge": rng.integers(0, 2**60, n),
            "day": [datetime.date(2020, 1, 1 + int(d)) for d in rng.integers(0, 4, n)],
            "always": 3,
            "nothing": np.nan,
        }
    )
    made.loc[5, "dose"] = np.inf
    made.loc[[7, 9], "nullable"] = pd.NA
    made.loc[11, "color"] = None
    return made.assign(y=made["single"] * made["count"] + rng.random(n))


def equal(one, other):
    assert one.notes == other.notes
    assert list(one.columns.columns) == list(other.columns.columns)
    np.testing.assert_array_equal(one.columns.to_numpy(), other.columns.to_numpy())
    np.testing.assert_array_equal(one.target.to_numpy(), other.target.to_numpy())
    assert one.columns.to_numpy().flags["F_CONTIGUOUS"] == other.columns.to_numpy().flags["F_CONTIGUOUS"]


@pytest.mark.parametrize("at_once", [1, 8 * 400 * 4, 2**26])
@pytest.mark.parametrize(
    "change",
    [
        lambda table: table,
        lambda table: table.set_index("count"),
        lambda table: table.set_index(["count", "dose"]),
        lambda table: table.rename(columns={"dose": "a", "single": "a.b"}),
        lambda table: table[["y", "dose"]].rename(columns={"dose": 7}),
        lambda table: table[table["small"] > 0],
    ],
)
def test_by_columns_is_as_at_once(tmp_path, monkeypatch, at_once, change):
    monkeypatch.setattr(parquet, "BYTES_AT_ONCE", at_once)
    change(frame()).to_parquet(tmp_path / "t.parquet")
    whole = prepare(pd.read_parquet(tmp_path / "t.parquet"), "y")
    equal(prepare(read(tmp_path / "t.parquet"), "y"), whole)
    assert whole.columns.shape[1] > (1 if change(frame()).shape[1] > 2 else 0)


def test_notes_are_those_of_before(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "BYTES_AT_ONCE", 1)
    frame().to_parquet(tmp_path / "t.parquet")
    assert prepare(read(tmp_path / "t.parquet"), "y").notes == (
        "Left out, because empty: nothing.",
        "Left out 4 of 400 rows, because a value is missing (most often nullable).",
        "when is a date: counted in days.",
        "color is categorical (3 levels): taken as 0/1 columns color=blue, color=green, color=red.",
        "Left out name: text with 396 different values (at most 20).",
        "kind is categorical (2 levels): taken as 0/1 columns kind=b.",
        "day is categorical (4 levels): taken as 0/1 columns day=2020-01-01, day=2020-01-02, day=2020-01-03, "
        "day=2020-01-04.",
        "Left out, because always the same: always.",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.assign(y="a"), "The target 'y' is text"),
        (lambda table: table.assign(y=1.0), "The target 'y' is always 1.0"),
        (lambda table: table.assign(y=np.nan), "The target 'y' has no values at all"),
        (lambda table: table[:2], "The table has 2 rows"),
        (lambda table: table.drop(columns="y"), "no column 'y'"),
        (lambda table: table[["y", "always"]], "no usable column besides 'y'. Left out, because always the same"),
        (lambda table: table.assign(dose=[1.0, 2.0] + [np.nan] * 398), "Only 2 rows have a value in every column"),
        (lambda table: table.assign(**{"color=red": 1.5}), "make a second column named 'color=red'"),
    ],
)
def test_errors_are_those_of_before(tmp_path, monkeypatch, change, words):
    monkeypatch.setattr(parquet, "BYTES_AT_ONCE", 1)
    change(frame()).to_parquet(tmp_path / "t.parquet")
    for table in (read(tmp_path / "t.parquet"), pd.read_parquet(tmp_path / "t.parquet")):
        with pytest.raises(InputError, match=words):
            prepare(table, "y")


@pytest.mark.slow
def test_memory_stays_near_what_is_kept(tmp_path, monkeypatch):
    """Of 40 columns of which two take 8 bytes a row at a time, what is held is the array of numbers."""
    import pyarrow

    n = 100_000
    rng = np.random.default_rng(0)
    table = pd.DataFrame({f"c{i}": rng.random(n) for i in range(40)}).assign(y=rng.random(n))
    table.to_parquet(tmp_path / "t.parquet")
    del table
    monkeypatch.setattr(parquet, "BYTES_AT_ONCE", 8 * n * 2)
    pool = pyarrow.default_memory_pool()
    before = pool.bytes_allocated()
    most = [0]
    frames = parquet.ParquetColumns.frames

    def watched(self):
        for some in frames(self):
            most[0] = max(most[0], pool.bytes_allocated() - before)
            yield some

    monkeypatch.setattr(parquet.ParquetColumns, "frames", watched)
    tracemalloc.start()
    prepared = prepare(read(tmp_path / "t.parquet"), "y")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    values = prepared.columns.to_numpy()
    assert values.shape == (n, 40)
    assert values.base is not None  # no copy of what was collected
    assert peak < 1.3 * 8 * n * 41
    assert most[0] < 4 * 8 * n * 2


def test_size_guard_is_about_what_is_held(tmp_path):
    pd.DataFrame({"a": np.zeros(50_000), "y": np.arange(50_000)}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"unpack to 800,000 or more.*--max-gigabytes.*--sample"):
        read(tmp_path / "t.parquet", max_bytes=700_000)
    rows, count = read_rows(tmp_path / "t.parquet", lambda _: 1000, np.random.default_rng(0), max_bytes=17_000)
    assert (len(rows), count) == (1000, 50_000)
    with pytest.raises(InputError, match="unpack to 16,000 or more"):
        read_rows(tmp_path / "t.parquet", lambda _: 1000, np.random.default_rng(0), max_bytes=15_000)


WRITERS = {
    "t.parquet": lambda table, path: table.to_parquet(path, row_group_size=77),
    "t.csv": lambda table, path: table.to_csv(path, index=False),
    "t.csv.gz": lambda table, path: table.to_csv(path, index=False),
    "t.tsv": lambda table, path: table.to_csv(path, index=False, sep="\t"),
    "semicolons.csv": lambda table, path: table.to_csv(path, index=False, sep=";"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_drawn_rows_are_rows_of_the_file(tmp_path, monkeypatch, name):
    monkeypatch.setattr(parquet, "BYTES_AT_ONCE", 8 * 77 * 3)
    monkeypatch.setattr(table_files, "VALUES_AT_ONCE", 2000)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"row": range(1000), "a": rng.random(1000), "c": rng.choice(list("uvw"), 1000)})
    WRITERS[name](table, tmp_path / name)
    drawn = [
        read_rows(tmp_path / name, lambda columns: 40 * columns, np.random.default_rng(seed)) for seed in (0, 0, 1)
    ]
    for rows, count in drawn:
        assert count == 1000
        assert len(rows) == len(set(rows["row"])) == 120
        pd.testing.assert_frame_equal(
            rows, table.iloc[rows["row"]].reset_index(drop=True), check_dtype=False, check_categorical=False
        )
        assert not rows["row"].is_monotonic_increasing
    pd.testing.assert_frame_equal(drawn[0][0], drawn[1][0])
    assert set(drawn[0][0]["row"]) != set(drawn[2][0]["row"])
    whole, count = read_rows(tmp_path / name, lambda _: 1000, np.random.default_rng(0))
    assert count == 1000
    assert whole["row"].tolist() == list(range(1000))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.parquet", "t.csv"])
def test_every_row_of_a_file_is_as_likely(tmp_path, name):
    """Of 30 rows 10 are drawn, 300 times: each about 100 times, with a standard deviation of 8."""
    WRITERS[name](pd.DataFrame({"row": range(30), "y": 1.5}), tmp_path / name)
    times = np.zeros(30)
    for seed in range(300):
        rows, _ = read_rows(tmp_path / name, lambda _: 10, np.random.default_rng(seed))
        times[rows["row"]] += 1
    assert np.abs(times - 100).max() < 5 * 8.2


def test_kinds_of_columns_survive_the_drawing(tmp_path):
    frame().to_parquet(tmp_path / "t.parquet", row_group_size=90)
    rows, count = read_rows(tmp_path / "t.parquet", lambda _: 399, np.random.default_rng(0))
    assert (len(rows), count) == (399, 400)
    assert rows.dtypes.tolist() == pd.read_parquet(tmp_path / "t.parquet").dtypes.tolist()
    table = prepare(rows, "y", of_rows=count)
    assert table.notes[0] == "Read 399 of 400 rows, drawn at random; what is said here is about these."
    assert "when is a date: counted in days." in table.notes


@pytest.mark.slow
def test_drawing_holds_no_more_than_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "VALUES_AT_ONCE", 8000)
    rng = np.random.default_rng(0)
    some = pd.DataFrame(rng.random((1000, 8))).to_csv(index=False, header=False).encode()
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a,b,c,d,e,f,g,y\n" + 80 * some, 1))
    read_rows(tmp_path / "t.csv.gz", lambda _: 10, rng)
    tracemalloc.start()
    rows, count = read_rows(tmp_path / "t.csv.gz", lambda _: 200, rng)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(rows), count) == (200, 80_000)
    assert peak < 4 * 2**20  # its text has 12 MiB, its numbers 5; a megabyte at a time is unpacked


DRAW = """
import sys
from pathlib import Path
import numpy as np
from excise.statistics import parquet
from excise.statistics.tables import prepare, read_rows

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

parquet.BYTES_AT_ONCE = 2**22
small, large = map(Path, sys.argv[1:])
for path in (small, large):
    rows, count = read_rows(path, lambda _: 1000, np.random.default_rng(0))
    prepare(rows, "y", of_rows=count)
    print(count, peak())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
def test_resident_memory_stays_far_below_a_wide_file(tmp_path):
    """100 columns of 200,000 rows in one group: 160 MB as numbers, of which 4 MB are read at a time."""
    rng = np.random.default_rng(0)
    for name, n in (("small", 2000), ("large", 200_000)):
        values = rng.integers(0, 50, (101, n))
        pd.DataFrame({f"c{i}": values[i] for i in range(100)} | {"y": values[100]}).to_parquet(
            tmp_path / f"{name}.parquet", row_group_size=n
        )
    done = subprocess.run(
        [sys.executable, "-c", DRAW, tmp_path / "small.parquet", tmp_path / "large.parquet"],
        capture_output=True,
        text=True,
        check=True,
    )
    (rows, before), (more, after) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (rows, more) == (2000, 200_000)
    assert after - before < 50 * 2**20


def test_traps_are_not_drawn_from(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "SUSPECT_BYTES", 2**20)
    trap = tmp_path / "t.csv.gz"
    trap.write_bytes(gzip.compress(b"y,a\n" + b"1,2\n" * 2**19))
    with pytest.raises(InputError, match="bytes unpack to"):
        read_rows(trap, lambda _: 100, np.random.default_rng(0))
    assert read_rows(trap, lambda _: 100, np.random.default_rng(0), max_bytes=2**30)[1] == 2**19


@pytest.mark.parametrize("name", ["none.csv", "none.parquet", "t.doc", "."])
def test_files_that_are_none(tmp_path, name):
    (tmp_path / "t.doc").write_text("")
    with pytest.raises(InputError, match=r"no such file|not a table"):
        read_rows(tmp_path / name, lambda _: 100, np.random.default_rng(0))


@pytest.mark.parametrize("content", [b"", b"a,y\n", b"\x00\xff", b"a,y\n1"])
def test_files_with_hardly_anything(tmp_path, content):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError):
        prepare(read_rows(tmp_path / "t.csv", lambda _: 100, np.random.default_rng(0))[0], "y")


def test_blanket_of_a_sample_is_foci_of_a_sample(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((5000, 3)), columns=list("abc"))
    table["y"] = table["b"] + 0.5 * rng.standard_normal(5000)
    table.to_parquet(tmp_path / "t.parquet")
    rows, count = read_rows(tmp_path / "t.parquet", lambda _: 1200, np.random.default_rng(3))
    found = find_blanket(prepare(rows, "y", of_rows=count), sample=600)
    assert found.rows == found.sampling.table_rows == 5000
    assert (found.sampling.searched, found.sampling.measured) == (600, 600)
    assert found.names[0] == "b"
    gaps = rows.assign(a=rows["a"].where(np.arange(1200) % 2 == 0))
    half = find_blanket(prepare(gaps, "y", of_rows=count), sample=600)
    assert (half.sampling.searched, half.sampling.measured, half.sampling.fresh) == (300, 300, True)


def test_tolerance_reads_no_more_rows_than_it_may_hold(tmp_path, monkeypatch):
    pd.DataFrame({name: np.arange(9000.0) for name in "abcy"}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setattr(_sampling, "FIRST", 500)
    monkeypatch.setattr(_sampling, "HELD_VALUES", 4 * 3000)
    most = _sampling.rows_to_hold(Tolerance(0.01))
    assert most(4) == 3000
    rows, count = read_rows(tmp_path / "t.parquet", most, np.random.default_rng(0))
    assert (len(rows), count) == (3000, 9000)
