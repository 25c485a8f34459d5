"""What is asked to be forgotten, in words that were meant well, and others."""

import pytest
import torch
from fuzz.harness import Tried, damaged
from hypothesis import strategies as st
from torch import nn

from excise import Task
from excise.task.requests import ids_in_file, ids_in_text, parse_request

NUMBERS = st.one_of(
    st.integers(-3, 60).map(str),
    st.sampled_from(
        ["²", "--3", "٣", "1_0", "-0", "+1", "", " ", "9" * 5000, "1e3", "0x1", "nan", "inf", "1.0", "１", "½"]
    ),
    st.integers(-(2**80), 2**80).map(str),
)
AMOUNTS = st.one_of(NUMBERS, NUMBERS.map(lambda word: f"{word}%"), st.floats().map(lambda one: f"{one!r}%"))


@st.composite
def specs(draw):
    """Requests of the right form, more or less."""
    kind = draw(st.sampled_from(["random", "class", "hardest", "ids", "Random", "rand", ""]))
    if kind == "ids":
        separator = draw(st.sampled_from([",", " ", ", ", ";", ",,"]))
        return "ids:" + separator.join(draw(st.lists(NUMBERS, max_size=80)))
    words = draw(st.lists(AMOUNTS, max_size=3))
    return ":".join([kind, *words])


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(40, 2), torch.arange(40) % 3)
    return Task(nn.Linear(2, 3), nn.CrossEntropyLoss(), data)


@pytest.mark.slow
def test_requests(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tried = Tried("requests")

    @tried.on(
        st.one_of(specs(), specs(), st.text(max_size=30), st.binary(max_size=9), st.none()), st.integers(-1, 2**65)
    )
    def check(spec, seed):
        with tried.ending((spec, seed)):
            found = parse_request(spec, task, seed=seed % 2**63 if seed % 3 else seed)
            assert 0 < len(found) < 40
            assert len(set(found.ids)) == len(found)
            assert all(0 <= one < 40 for one in found.ids)
        if isinstance(spec, str):
            with tried.ending(spec):
                ids_in_text(spec)

    check()
    tried.require()


FILES = {
    "lines": b"3\n5\n9\n",
    "commas": b"3,5, 9",
    "windows": b"3\r\n5\r\n",
    "marked": "3\n5".encode("utf-8-sig"),
    "wide": "3\n5".encode("utf-16"),
    "long": b"1\n" * 4000,
    "many digits": b"9" * 6000,
    "other digits": "٣\n²\n１".encode(),
    "nothing": b"",
}


def test_files_of_ids(tmp_path):
    tried = Tried("ids in files")

    @tried.on(damaged(FILES))
    def check(case):
        (tmp_path / "ids.txt").write_bytes(case[1])
        with tried.ending(case):
            ids_in_file(tmp_path / "ids.txt")

    check()
    tried.require()
