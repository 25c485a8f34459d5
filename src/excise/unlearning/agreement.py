"""What all processes that work on a model together must have in common, and that they end with the same weights."""

from __future__ import annotations

import hashlib
import platform
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import excise
from excise import processes
from excise.errors import InputError, ProcessError
from excise.task.hashing import described, hash_of_model, update
from excise.task.sharded import is_sharded
from excise.task.task import Task

MOST_READ = 1000  # samples of a set that is not in memory, at equal distances
READ_TWICE = 4
ROWS = 4096  # of a set in memory that are hashed at once
ALIKE = 1e-3  # share of the weights' length that rounding may put processes apart


def facts_of(task: Task) -> dict[str, str]:
    """What tells model, data, objective and versions from others."""
    return {
        "version of Python, torch, numpy or excise": " ".join(
            (platform.python_version(), torch.__version__, np.__version__, excise.__version__)
        ),
        "model": digest_of_model(task.model),
        "train_set": digest_of_set(task, task.samples),
        "test_set": "" if task.test_set is None else digest_of_set(task, task.test_set),
        "loss, forward or collate": _hashed((task.loss, task.forward, task.collate)),
        "option of Task": _hashed((task.weight_decay, task.convex, task.features, task.perturbation)),
    }


def _hashed(things: tuple[Any, ...]) -> str:
    return hashlib.sha256(repr([described(one) for one in things]).encode()).hexdigest()


def digest_of_model(model: nn.Module) -> str:
    """SHA-256 of names, shapes and values, and of which weights are trained."""
    values = "" if is_sharded(model) else hash_of_model(model)  # each process has other parts
    digest = hashlib.sha256(values.encode())
    update(digest, [(name, tuple(one.shape), one.requires_grad) for name, one in model.named_parameters()])
    return digest.hexdigest()


def digest_of_set(task: Task, dataset: Any) -> str:
    """SHA-256 of a data set: of all of it where it is in memory, else of samples at equal distances.

    Of a set that gives other values at each reading, its length alone.
    """
    digest = hashlib.sha256(str(len(dataset)).encode())
    if isinstance(dataset, TensorDataset):
        for low in range(0, len(dataset), ROWS):
            update(digest, [tensor[low : low + ROWS] for tensor in dataset.tensors])
        return digest.hexdigest()
    places = np.unique(np.linspace(0, len(dataset) - 1, min(len(dataset), MOST_READ)).round().astype(int)).tolist()
    once, again = ([_sample(task, place, dataset) for place in places[:READ_TWICE]] for _ in range(2))
    if once == again:
        for one in [*once, *(_sample(task, place, dataset) for place in places[READ_TWICE:])]:
            digest.update(one)
    return digest.hexdigest()


def _sample(task: Task, place: int, dataset: Any) -> bytes:
    digest = hashlib.sha256()
    update(digest, task.batch([place], dataset))
    return digest.digest()


def require_alike(task: Task, settings: Any) -> None:
    """Refuse processes that differ in anything that decides what comes out, or that are more than there are samples."""
    if processes.count() == 1:
        return
    if processes.count() > len(task.train_set):
        raise InputError(
            f"{processes.count()} processes can't share the {len(task.train_set)} samples of train_set; start no more "
            "than there are samples."
        )
    processes.agree({**facts_of(task), "option": repr(settings)}, "what processes have in common")


def require_same_request(*asked: Any, model: nn.Module) -> None:
    """Refuse processes that are asked for different things, or have come to different models."""
    if processes.count() > 1:
        processes.agree({"request": repr(asked), "model": digest_of_model(model)}, "the request")


def require_same_models(*models: Any) -> None:
    """Refuse processes that look at different models."""
    if processes.count() > 1:
        found = {f"model {number}": digest_of_model(one) for number, one in enumerate(models, 1)}
        processes.agree(found, "the models")


def made_the_same(model: nn.Module) -> None:
    """Give all processes the first one's weights and buffers, which theirs may differ from by rounding alone."""
    if processes.count() == 1:
        return
    tensors = list(model.state_dict().values())
    before = [tensor.detach().clone() for tensor in tensors]
    processes.from_first(tensors, "the new weights")
    real = [(old, new) for old, new in zip(before, tensors, strict=True) if new.is_floating_point()]
    apart = sum(float((old.double() - new.double()).square().sum()) for old, new in real) ** 0.5
    length = sum(float(new.double().square().sum()) for _, new in real) ** 0.5
    hashes = processes.gathered((hash_of_model(model), apart <= ALIKE * length), "hashes of the new weights")
    if len({one for one, _ in hashes}) > 1 or not all(alike for _, alike in hashes):
        raise ProcessError(
            "the processes came to different weights, so that none is given out and nothing is forgotten: see whether "
            "the training set gives each of them the same values, and whether the model computes at random."
        )
