"""Tables of every kind of damage, and of every kind of cell, through reading, preparing and the search."""

import bz2
import gzip
import io
import lzma

import numpy as np
import pandas as pd
import pytest
from fuzz.harness import Tried, damaged
from hypothesis import strategies as st

from excise.statistics.blanket import find_blanket
from excise.statistics.tables import prepare, read

TEXT = ("a,kind,y\n" + "".join(f"{i % 7},{'uvw'[i % 3]},{i / 3}\n" for i in range(24))).encode()
CORPUS = {
    "plain.csv": TEXT,
    "tabs.tsv": TEXT.replace(b",", b"\t"),
    "semicolons.csv": TEXT.replace(b",", b";"),
    "quoted.csv": TEXT.replace(b"u", b'"u, ""x"" \n"'),
    "returns.csv": TEXT.replace(b"\n", b"\r\n"),
    "marked.csv": "\ufeff".encode() + TEXT,
    "wide.csv": "Größe,名,y\n".encode() + b"1,2,3\n2,1,4\n3,3,1\n4,1,1\n",
    "powers.csv": TEXT.replace(b".333", b"e333").replace(b".666", b'"E-6"'),
    "other.csv": TEXT.decode().encode("utf-16"),
    "packed.csv.gz": gzip.compress(TEXT, mtime=0),
    "packed.csv.bz2": bz2.compress(TEXT),
    "packed.csv.xz": lzma.compress(TEXT),
}


def through(file, target="y"):
    table = prepare(read(file), target)
    assert np.isfinite(table.columns.to_numpy()).all()
    assert np.isfinite(table.target.to_numpy()).all()
    if len(table.columns) <= 60 and table.columns.shape[1] <= 12:
        find_blanket(table, n_jobs=1).as_dict()


@pytest.mark.slow
def test_damaged_files(tmp_path):
    tried = Tried("tables by bytes")

    @tried.on(damaged(CORPUS))
    def check(case):
        name, content = case
        file = tmp_path / name
        file.write_bytes(content)
        with tried.ending(case):
            through(file)

    check()
    tried.require()


CELLS = st.one_of(
    st.sampled_from(
        ["", "nan", "inf", "-inf", "1e308", "-1e308", "1e-320", "1e400", "0", "-0", "1_0", "٣", "²", "True"]
    ),
    st.sampled_from(
        [
            "NULL",
            "None",
            "1970-01-01",
            "9999-12-31",
            "0x1",
            "1,5",
            '"',
            "9" * 400,
            "1e6666666667",
            "1j",
            "\x1b[31m",
            "=1+1",
        ]
    ),
    st.floats().map(repr),
    st.integers(-(2**70), 2**70).map(str),
    st.text(max_size=6),
)


@st.composite
def tables(draw):
    """A table as CSV, of columns that are each of one kind of cell, or not."""
    names = draw(st.lists(st.text(max_size=4), min_size=0, max_size=5)) + draw(
        st.sampled_from([["y"], ["y"], ["Y"], []])
    )
    rows = draw(st.integers(0, 8))
    few = [draw(st.lists(CELLS, min_size=1, max_size=3)) if draw(st.booleans()) else None for _ in names]
    numbers = st.sampled_from(["1", "2", "3.5", "-1e9", "1e-300"])
    body = [[draw(st.sampled_from(some)) if some else draw(numbers) for some in few] for _ in range(rows)]
    separator = draw(st.sampled_from([",", ",", ";", "\t"]))
    quoted = draw(st.booleans())
    lines = [[f'"{cell}"' if quoted else cell for cell in line] for line in [names, *body]]
    return "\n".join(separator.join(line) for line in lines)


@pytest.mark.slow
def test_cells_of_every_kind(tmp_path):
    tried = Tried("tables by cells")

    @tried.on(tables())
    def check(text):
        (tmp_path / "t.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
        with tried.ending(text):
            through(tmp_path / "t.csv")

    check()
    tried.require()


def parquet_corpus():
    rows = 12
    frames = {
        "usual.parquet": {"a": np.arange(rows) % 5, "kind": list("uvw" * 4), "y": np.arange(rows) / 3},
        "dates.parquet": {"when": pd.date_range("2020", periods=rows), "y": np.arange(rows) * 1.0},
        "lists.parquet": {"some": [[i] for i in range(rows)], "a": range(rows), "y": np.arange(rows) * 1.0},
        "bytes.parquet": {"some": [b"\xff%d" % i for i in range(rows)], "a": range(rows), "y": np.arange(rows) * 1.0},
    }
    found = {}
    for name, columns in frames.items():
        stream = io.BytesIO()
        pd.DataFrame(columns).to_parquet(stream)
        found[name] = stream.getvalue()
    return found


@pytest.mark.slow
def test_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    tried = Tried("parquet")

    @tried.on(damaged(parquet_corpus()))
    def check(case):
        name, content = case
        (tmp_path / name).write_bytes(content)
        with tried.ending(case):
            through(tmp_path / name)

    check()
    tried.require()
