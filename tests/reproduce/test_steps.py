"""An experiment's steps: each in a file of its own, and what is not what was written for it is made anew."""

import json
import os
import pickle
import shutil
import warnings
from dataclasses import dataclass

import pytest
import torch

from excise.errors import DataError, InputError
from excise.reproduce.framework.run import DiskError, Run, throw_away
from excise.reproduce.framework.steps import (
    SEAL,
    Outcome,
    file_name,
    tensors_to_bytes,
    values_to_bytes,
)
from excise.training.model_cache import DamagedWarning


@dataclass(frozen=True)
class Settings:
    samples: int = 10


def new_run(folder):
    return Run(folder, "example", Settings(), data_dir=folder)


def the_file(folder, key, ending=".json"):
    return folder / "steps" / file_name(key, ending)


class Mischief:
    def __reduce__(self):
        return os.system, ("exit 1",)


# ---- names


def test_keys_that_read_alike_have_files_of_their_own(tmp_path):
    keys = ["a/b", "a b", "a-b", "a.b", "A b", " a b", "ä", "ö", "", "..", "x" * 300, "x" * 301]
    for _ in range(2):
        run = new_run(tmp_path)
        assert [run.step(key, lambda key=key: f"of {key}") for key in keys] == [f"of {key}" for key in keys]
        assert [run.tensors(key + "!", lambda key=key: {"of": key})["of"] for key in keys] == keys
    assert len(list((tmp_path / "steps").glob("[!.]*"))) == 2 * len(keys) + 1


def test_the_name_of_a_file_tells_the_step():
    assert file_name("fit of seed 3", ".pt").startswith("fit-of-seed-3-")
    assert len(file_name("x" * 1000, ".pt")) < 130


# ---- damage


def edited(**changes):
    return lambda content: json.dumps(json.loads(content) | changes).encode()


DAMAGED_VALUES = {
    "another value": (edited(value=[9]), "its hash is that of other values"),
    "another time": (edited(seconds=9.0), "its hash is that of other values"),
    "no hash": (lambda _: json.dumps({"key": "one", "seconds": 1.0, "value": 1}).encode(), "it is no record of a step"),
    "of another step": (lambda _: values_to_bytes(Outcome("two", 1.0, 9)), "it is of the step 'two'"),
    "NaN seconds": (lambda _: values_to_bytes_of_nan(), "it took nan seconds"),
    "seconds in words": (lambda _: values_to_bytes(Outcome("one", "long", 9)), "it took 'long' seconds"),
    "half": (lambda content: content[:-9], "it is no JSON"),
    "empty": (lambda _: b"", "it is no JSON"),
    "nested without end": (lambda _: b"[" * 100_000, "it is no JSON"),
    "not UTF-8": (lambda _: b"\xff\xfe\xfd", "it is no JSON"),
    "a list": (lambda _: b"[]", "it is no record of a step"),
    "null": (lambda _: b"null", "it is no record of a step"),
    "a pickle": (lambda _: pickle.dumps(Mischief()), "it is no JSON"),
}


def values_to_bytes_of_nan():
    from excise.reproduce.framework.steps import _hash_of_record

    record = {"key": "one", "seconds": float("nan"), "value": 9}
    return json.dumps(record | {"sha256": _hash_of_record(record)}).encode()


@pytest.mark.parametrize("how", DAMAGED_VALUES)
def test_damaged_values_are_named_and_made_anew(tmp_path, how):
    new_run(tmp_path).step("one", lambda: [1])
    file, (damage, words) = the_file(tmp_path, "one"), DAMAGED_VALUES[how]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(DamagedWarning, match=rf"{file.name} is damaged \({words}\); this step is made anew"):
        assert new_run(tmp_path).step("one", lambda: [2]) == [2]
    with warnings.catch_warnings(action="error"):
        assert new_run(tmp_path).step("one", lambda: 1 / 0) == [2]


def sealed(content):
    import hashlib

    return content + SEAL + hashlib.sha256(content).hexdigest().encode()


def bytes_of(thing):
    import io

    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


DAMAGED_TENSORS = {
    "a byte": (lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:], "its hash"),
    "no hash": (lambda content: content.rpartition(SEAL)[0], "its hash"),
    "half": (lambda content: content[: len(content) // 2], "its hash"),
    "empty": (lambda _: b"", "its hash"),
    "of another step": (lambda _: tensors_to_bytes(Outcome("two", 1.0, {})), "it is of the step 'two'"),
    "a pickle": (lambda _: sealed(pickle.dumps(Mischief())), "can't be read as tensors"),
    "a pickle of torch": (lambda _: sealed(bytes_of({"key": Mischief()})), "can't be read as tensors"),
    "a tensor alone": (lambda _: sealed(bytes_of(torch.ones(2))), "it is no record of a step"),
    "seconds gone": (lambda _: sealed(bytes_of({"key": "one", "value": {}})), "it is no record of a step"),
}


@pytest.mark.parametrize("how", DAMAGED_TENSORS)
def test_damaged_tensors_are_named_and_made_anew(tmp_path, how):
    new_run(tmp_path).tensors("one", lambda: {"a": torch.zeros(5)})
    file, (damage, words) = the_file(tmp_path, "one", ".pt"), DAMAGED_TENSORS[how]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(DamagedWarning, match=rf"{file.name} is damaged \(.*{words}.*\); this step is made anew"):
        assert (new_run(tmp_path).tensors("one", lambda: {"a": torch.ones(5)})["a"] == 1).all()
    with warnings.catch_warnings(action="error"):
        assert (new_run(tmp_path).tensors("one", lambda: 1 / 0)["a"] == 1).all()


@pytest.mark.parametrize("leads_to", ["a step", "nothing"])
def test_a_link_is_not_followed_and_what_it_leads_to_stays(tmp_path, leads_to):
    run, other = tmp_path / "run", tmp_path / "theirs.json"
    new_run(run).step("first", lambda: 0)
    if leads_to == "a step":
        other.write_bytes(values_to_bytes(Outcome("one", 1.0, "theirs")))
    before = other.read_bytes() if other.exists() else None
    file = the_file(run, "one")
    file.symlink_to(other)
    with pytest.warns(DamagedWarning, match="it is a link"):
        assert new_run(run).step("one", lambda: "mine") == "mine"
    assert not file.is_symlink()
    assert (other.read_bytes() if other.exists() else None) == before


@pytest.mark.parametrize("method", ["step", "tensors"])
@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_named_before_the_step_is_made(tmp_path, make, method):
    run = new_run(tmp_path)
    make(the_file(tmp_path, "one", ".json" if method == "step" else ".pt"))
    with pytest.raises(DataError, match="is no file; remove it"):
        getattr(run, method)("one", lambda: 1 / 0)


# ---- the record of the run

RECORDS = {
    "a list": lambda file: file.write_text("[]"),
    "null": lambda file: file.write_text("null"),
    "text": lambda file: file.write_text('"run"'),
    "no JSON": lambda file: file.write_text("{"),
    "not UTF-8": lambda file: file.write_bytes(b"\xff\xfe"),
    "nested without end": lambda file: file.write_text("[" * 100_000),
    "gone": lambda file: file.unlink(),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("how", RECORDS)
def test_a_run_whose_record_is_damaged_is_refused_and_can_be_thrown_away(tmp_path, how):
    new_run(tmp_path).step("one", lambda: 1)
    RECORDS[how](tmp_path / "steps" / "run.json")
    with pytest.raises(InputError, match=r"holds another run \(run\.json is missing or damaged\).*--fresh"):
        new_run(tmp_path)
    throw_away(tmp_path)
    assert new_run(tmp_path).step("one", lambda: 2) == 2


def test_a_folder_in_place_of_a_record_of_nothing_is_named(tmp_path):
    (tmp_path / "steps" / "run.json").mkdir(parents=True)
    with pytest.raises(DiskError, match=r"run\.json: could not be written \(it is a folder\)"):
        new_run(tmp_path)
    shutil.rmtree(tmp_path / "steps")
    (tmp_path / "steps").write_text("")
    with pytest.raises(DiskError, match="could not be written"):
        new_run(tmp_path)


def test_throwing_away_names_what_it_cannot_remove(tmp_path):
    (tmp_path / "result.json").mkdir()
    with pytest.raises(InputError, match=r"result\.json"):
        throw_away(tmp_path)
