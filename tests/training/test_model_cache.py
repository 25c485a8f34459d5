"""Kept models: what is not what was written under a name is named, and made anew."""

import json
import multiprocessing
import os
import pickle
import warnings
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn
from torch.utils.data import TensorDataset

from excise import Task
from excise.task.hashing import described, hash_of_model
from excise.training import model_cache
from excise.training.loop import Fitted
from excise.training.model_cache import DamagedWarning, NotKeptWarning, content_key, kept_model
from excise.training.retraining import retrain


class Mischief:
    def __reduce__(self):
        return os.system, ("exit 1",)


def model_of(value):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).requires_grad_(False)
    model[0].weight.fill_(value)
    model[0].bias.zero_()
    return model


def made(value=1.0, *, counting=None):
    def make():
        if counting is not None:
            counting.append(value)
        return Fitted(model_of(value), (0.5, 0.25), 1.5)

    return make


def content_of(file):
    with safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}, opened.metadata()  # noqa: SIM118


def resealed(tensors, record):
    """As who changes a file and its hash would write it."""
    rest = {name: value for name, value in record.items() if name != model_cache.SEAL}
    return save(tensors, rest | {model_cache.SEAL: model_cache._hash_of_content(tensors, rest)})


def with_weight(weight):
    return lambda tensors, record: save({**tensors, "0.weight": weight(tensors["0.weight"])}, record)


def sealed_with_weight(weight):
    return lambda tensors, record: resealed({**tensors, "0.weight": weight(tensors["0.weight"])}, record)


def sealed_with(**changes):
    return lambda tensors, record: resealed(tensors, record | {name: json.dumps(of) for name, of in changes.items()})


HASH = "its hash is that of another content"
TAMPERED = {
    "zeros": (with_weight(torch.zeros_like), HASH),
    "one bit": (with_weight(lambda weight: torch.nextafter(weight, torch.tensor(9.0))), HASH),
    "NaN": (with_weight(lambda weight: weight * torch.nan), HASH),
    "seconds": (lambda tensors, record: save(tensors, record | {"seconds": "9.0"}), HASH),
    "losses": (lambda tensors, record: save(tensors, record | {"losses": "[]"}), HASH),
    "another value in the record": (lambda tensors, record: save(tensors, record | {"more": "1"}), HASH),
    "no hash": (lambda tensors, record: save(tensors, {k: v for k, v in record.items() if k != "sha256"}), HASH),
    "no record": (lambda tensors, _: save(tensors), HASH),
    "another key": (sealed_with(key="model-b.safetensors"), r"it was written as model-b\.safetensors"),
    "infinite, hash and all": (sealed_with_weight(lambda weight: weight * torch.inf), "0.weight .*not finite"),
    "whole numbers": (sealed_with_weight(lambda weight: weight.long()), r"0\.weight is of torch\.int64, not torch"),
    "halves": (sealed_with_weight(lambda weight: weight.half()), r"0\.weight is of torch\.float16"),
    "another shape": (sealed_with_weight(lambda weight: weight.T.contiguous()), r"0\.weight is \(3, 2\), not \(2, 3\)"),
    "a name more": (lambda tensors, record: resealed({**tensors, "z": torch.ones(1)}, record), "z is unknown"),
    "NaN seconds": (sealed_with(seconds=float("nan")), "it took"),
    "seconds below 0": (sealed_with(took=-1.0), "it took"),
    "seconds in words": (sealed_with(took="long"), "TypeError"),
    "half": (lambda tensors, record: save(tensors, record)[:-40], "SafetensorError"),
    "empty": (lambda *_: b"", "SafetensorError"),
    "a pickle": (lambda *_: pickle.dumps(Mischief()), "SafetensorError"),
    "a huge header": (lambda *_: b"\xff" * 8 + b"{}", "SafetensorError"),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_entry_is_named_and_made_anew(tmp_path, how):
    file, asked = tmp_path / "model-a.safetensors", []
    kept_model(file, model_of(0), made(counting=asked))
    tamper, words = TAMPERED[how]
    file.write_bytes(tamper(*content_of(file)))
    with pytest.warns(DamagedWarning, match=rf"model-a\.safetensors is damaged \(.*{words}.*\); its model is trained"):
        found = kept_model(file, model_of(0), made(counting=asked))
    assert not found.from_file
    assert hash_of_model(found.fitted.model) == hash_of_model(model_of(1.0))
    with warnings.catch_warnings(action="error"):
        again = kept_model(file, model_of(0), made(counting=asked))
    assert again.from_file
    assert hash_of_model(again.fitted.model) == hash_of_model(model_of(1.0))
    assert (again.fitted.losses, again.fitted.seconds) == ((0.5, 0.25), 1.5)
    assert len(asked) == 2


def test_an_entry_copied_to_another_name_is_found_out(tmp_path):
    one, other = tmp_path / "model-a.safetensors", tmp_path / "model-b.safetensors"
    kept_model(one, model_of(0), made(1.0))
    other.write_bytes(one.read_bytes())
    with pytest.warns(DamagedWarning, match=r"it was written as model-a\.safetensors"):
        assert (kept_model(other, model_of(0), made(2.0)).fitted.model[0].weight == 2.0).all()


@pytest.mark.parametrize("leads_to", ["a model", "nothing", "itself"])
def test_a_link_is_not_followed_and_what_it_leads_to_stays(tmp_path, leads_to):
    folder = tmp_path / "cache"
    file, elsewhere = folder / "model-a.safetensors", tmp_path / "model-a.safetensors"
    folder.mkdir()
    if leads_to == "a model":
        kept_model(elsewhere, model_of(0), made(7.0))
    content = elsewhere.read_bytes() if elsewhere.exists() else None
    file.symlink_to(file if leads_to == "itself" else elsewhere)
    with pytest.warns(DamagedWarning, match="it is a link"):
        found = kept_model(file, model_of(0), made(1.0))
    assert (found.fitted.model[0].weight == 1.0).all()
    assert not file.is_symlink()
    assert kept_model(file, model_of(0), made(9.0)).from_file
    assert (elsewhere.read_bytes() if elsewhere.exists() else None) == content


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_named_and_left(tmp_path, make):
    file = tmp_path / "model-a.safetensors"
    make(file)
    with (
        pytest.warns(DamagedWarning, match="it is no file"),
        pytest.warns(NotKeptWarning, match="could not be written"),
    ):
        found = kept_model(file, model_of(0), made(1.0))
    assert (found.fitted.model[0].weight == 1.0).all()
    assert not file.is_file()


# ---- two processes on one cache

CALLS = 6


def task(folder):
    def recipe(ids, seed):
        model = nn.Linear(300, 300).requires_grad_(False)
        model.weight.fill_(float(seed))
        model.bias.fill_(float(len(ids)))
        with (folder / "trained.log").open("a") as log:
            log.write(f"{seed}\n")
        return model

    data = TensorDataset(torch.ones(4, 300), torch.zeros(4, dtype=torch.long))
    return Task(nn.Linear(300, 300), nn.CrossEntropyLoss(), data, retrain=recipe)


def retrain_at_once(folder, gate, answers):
    warnings.simplefilter("error")
    mine, found = task(folder), []
    try:
        for seed in range(CALLS):
            gate.wait(60)  # both begin to look for the same model
            found.append(hash_of_model(retrain(mine, [1], seed=seed, cache=folder / "cache").model))
        answers.put(found)
    except BaseException as error:
        answers.put(repr(error))
        raise


@pytest.mark.slow
def test_two_processes_on_one_cache_both_end_with_valid_models(tmp_path):
    context = multiprocessing.get_context("fork")
    gate, answers = context.Barrier(2), context.Queue()
    workers = [context.Process(target=retrain_at_once, args=(tmp_path, gate, answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    one, other = answers.get(timeout=120), answers.get(timeout=120)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert one == other
    names = [path.name for path in (tmp_path / "cache").iterdir()]
    assert len(names) == CALLS
    assert not any(name.startswith(".") for name in names)
    with warnings.catch_warnings(action="error"):
        kept = [retrain(task(tmp_path), [1], seed=seed, cache=tmp_path / "cache") for seed in range(CALLS)]
    assert all(found.from_cache for found in kept)
    assert [hash_of_model(found.model) for found in kept] == one


# ---- options that a recipe reads


@dataclass(frozen=True)
class Optimiser:
    rate: float = 0.1


@dataclass(frozen=True)
class Options:
    epochs: int = 3
    widths: tuple[int, ...] | list[int] = (8,)
    optimiser: Optimiser = Optimiser()
    train: Callable[..., None] = print  # says nothing by itself


def key(options):
    def recipe(ids, seed):
        return options.epochs, options.optimiser, ids, seed

    data = TensorDataset(torch.ones(4, 3), torch.zeros(4, dtype=torch.long))
    return content_key(Task(nn.Linear(3, 2), nn.CrossEntropyLoss(), data), described(recipe))


@pytest.mark.parametrize("kind", [Options, lambda **told: Namespace(**vars(Options(**told)))])
def test_recipes_with_other_options_are_others(kind):
    """Else the model of one would be taken for one of the other, and an audit would go by it."""
    same, *others = (
        key(kind(**told))
        for told in ({}, {"epochs": 4}, {"widths": (9,)}, {"widths": [8, 8]}, {"optimiser": Optimiser(0.2)})
    )
    assert same == key(kind())
    assert len({same, *others}) == 5


def test_options_that_hold_themselves_do_not_hang():
    around = SimpleNamespace(epochs=3)
    around.again = around
    assert key(around) == key(around)
