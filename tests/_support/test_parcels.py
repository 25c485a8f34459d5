"""What is packed for workers comes out the same, and files that are mapped into memory stay where they are."""

import pickle
import sys
import threading
import types

import numpy as np
import pytest

from excise._support import parcels
from excise._support.parcels import opened, packed, send_along
from excise.errors import InputError


def through(thing):
    parcel = packed(thing, "a thing")
    return opened(parcel.data, parcel.digest)


def test_functions_of_a_session_are_sent_by_value():
    factor = 3
    assert through({"times": lambda x: factor * x})["times"](5) == 15


def test_the_same_parcel_is_opened_once_in_a_process():
    parcel = packed([1, 2], "a list")
    assert opened(parcel.data, parcel.digest) is opened(parcel.data, parcel.digest)
    assert opened(np.frombuffer(parcel.data, dtype=np.uint8), parcel.digest) == [1, 2]


@pytest.mark.parametrize(
    "part", [lambda a: a, lambda a: a[3:7], lambda a: a[5], lambda a: a[2:].reshape(-1), lambda a: a[4:].view("<u2")]
)
def test_a_mapped_array_is_sent_by_its_place_in_the_file(tmp_path, part):
    table = np.arange(8000.0).reshape(8, 1000)
    table.tofile(tmp_path / "table.bin")
    mapped = np.memmap(tmp_path / "table.bin", dtype=np.float64, mode="r", shape=(8, 1000))
    parcel = packed(part(mapped), "a table")
    assert len(parcel.data) < 2000
    found = opened(parcel.data, parcel.digest)
    assert isinstance(found, np.memmap)
    np.testing.assert_array_equal(found, part(table))


def test_a_mapped_array_with_an_offset_in_its_file(tmp_path):
    np.arange(100, dtype=np.int32).tofile(tmp_path / "numbers.bin")
    mapped = np.memmap(tmp_path / "numbers.bin", dtype=np.int32, mode="r", offset=40)
    np.testing.assert_array_equal(through(mapped[5:]), np.arange(15, 100))


def test_a_mapped_view_with_gaps_is_sent_by_value(tmp_path):
    np.arange(20).tofile(tmp_path / "numbers.bin")
    mapped = np.memmap(tmp_path / "numbers.bin", dtype=np.int64, mode="r")
    np.testing.assert_array_equal(through(mapped[::3]), np.arange(0, 20, 3))


def test_what_belongs_to_this_process_is_refused_by_name():
    with pytest.raises(InputError, match=r"the task can't be sent to workers \(TypeError: .*lock.*open these when"):
        packed({"lock": threading.Lock()}, "the task")


def test_what_a_worker_lacks_is_said(tmp_path):
    np.arange(20).tofile(tmp_path / "numbers.bin")
    parcel = packed(np.memmap(tmp_path / "numbers.bin", dtype=np.int64, mode="r"), "numbers")
    (tmp_path / "numbers.bin").unlink()
    with pytest.raises(InputError, match=r"a worker can't open what it was sent \(FileNotFoundError"):
        opened(parcel.data, parcel.digest)


def test_a_module_that_is_sent_along_need_not_be_importable(monkeypatch):
    module = types.ModuleType("users_own")
    exec("FACTOR = 4\ndef times(x):\n    return FACTOR * x", vars(module))
    monkeypatch.setitem(sys.modules, "users_own", module)
    monkeypatch.setattr(parcels, "_SENT_ALONG", set())
    by_name = packed(module.times, "a function")
    send_along("users_own.inner")
    by_value = packed(module.times, "a function")
    monkeypatch.delitem(sys.modules, "users_own")
    assert pickle.loads(by_value.data)(5) == 20
    with pytest.raises(InputError, match="No module named 'users_own'"):
        opened(by_name.data, by_name.digest)
