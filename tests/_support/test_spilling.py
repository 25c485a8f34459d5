"""Tensors in files without a name, and sizes in words."""

import gc
import os
import tempfile
from pathlib import Path

import pytest
import torch

from excise._support import memory
from excise._support.memory import available, bytes_in, in_words, resident
from excise._support.spilling import Spilled
from excise.errors import InputError


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_what_is_written_is_read_back_after_its_memory_was_given_back(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    numbers = torch.arange(12).reshape(3, 4).to(dtype)
    spilled = Spilled((3, 4), dtype)
    spilled.tensor.copy_(numbers)
    spilled.give_back()
    assert torch.equal(spilled.tensor, numbers)
    assert spilled.bytes == numbers.numel() * numbers.element_size()
    assert list(tmp_path.iterdir()) == []  # it has no name, so that nothing can be left
    tensor = spilled.tensor
    del spilled
    gc.collect()
    assert torch.equal(tensor, numbers)


def test_nothing_of_it_is_in_memory_once_it_is_given_back():
    start = resident()
    spilled = Spilled((2**24,), torch.float32)  # 64 MiB
    spilled.tensor.fill_(1.0)
    assert resident() - start > 2**25
    spilled.give_back()
    assert resident() - start < 2**24
    assert float(spilled.tensor.double().sum()) == 2**24


def test_an_empty_one():
    assert Spilled((0, 5), torch.float32).tensor.shape == (0, 5)


def open_files():
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_no_room_is_said_with_a_remedy(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    before = open_files()
    with pytest.raises(InputError, match=r"no room for 0.1 GiB \(No space left on device\).*TMPDIR"):
        Spilled((2**24,), torch.float32)
    assert open_files() == before


@pytest.mark.parametrize(("words", "size"), [("2GiB", 2**31), ("1 kB", 1000), ("3", 3), (5, 5), ("0.5MiB", 2**19)])
def test_sizes_in_words(words, size):
    assert bytes_in(words, "memory") == size


@pytest.mark.parametrize("words", ["", "GiB", "2 gigs", "-1GiB", 1.5, True, None, "1e3"])
def test_what_is_no_size(words):
    with pytest.raises(InputError, match="memory must be a number of bytes or a size such as '2GiB'"):
        bytes_in(words, "memory")


def test_what_is_free_is_no_more_than_the_group_may_have(tmp_path, monkeypatch):
    everything = available()
    assert everything > 2**20
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    assert available() == pytest.approx(everything, rel=0.5)
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("3000000\n")
    assert available() == 2_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available() > 2**20
    assert in_words(2**20) == "1.0 MiB"
