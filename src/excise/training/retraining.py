"""Exact retraining, the truth that unlearning is held against: from fresh weights, without the samples, done once."""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.checks import whole
from excise._support.randomness import seeded as seeded
from excise.errors import InputError
from excise.task.hashing import described
from excise.task.ids import Ids, all_but, positions
from excise.task.task import Task
from excise.task.wrapping import unwrapped
from excise.training.loop import Fitted, fit
from excise.training.model_cache import KeptModel, content_key, kept_model

KEPT_IN = Path("~/.cache/excise/retrained")
SEEDS = 1000  # apart, so that audits with seeds next to each other share no retrained model


@dataclass(frozen=True)
class Retrained:
    """A model that never saw some samples."""

    model: nn.Module
    seconds: float
    """What its training took, also where it was read from the cache."""
    from_cache: bool
    threads: int | None = None
    """Of torch, with which it was trained, where that is known: sums depend on their number."""


def retrain(
    task: Task, forget: Ids, *, seed: int, cache: str | Path | None = None, progress: bool = False
) -> Retrained:
    """Train a model from scratch on all samples but these, by ``task.retrain`` or else by ``fit``.

    With a folder ``cache`` the model is kept there under a hash of everything it depends on: data, forgotten samples,
    architecture, recipe and seed. A recipe of your own is known by its code, the options it is given and the plain
    values (numbers, text, tensors, and mappings or tuples of these) it reads, not by the functions it calls; clear the
    folder after changing these. A recipe finds the global randomness of torch, numpy and Python seeded, and leaves no
    trace in it. The file says which samples were left out, so that it is found once others are to be forgotten.
    """
    return _made_once(task, positions(forget, len(task.train_set)), seed, cache, progress=progress)


def train_anew(task: Task, *, seed: int, cache: str | Path | None = None, progress: bool = False) -> Retrained:
    """Train a model from scratch on all samples, as ``retrain`` does without some: another original."""
    return _made_once(task, torch.tensor([], dtype=torch.long), seed, cache, progress=progress)


def _made_once(task: Task, gone: Tensor, seed: int, cache: str | Path | None, *, progress: bool) -> Retrained:
    found = made_in(file_of(task, gone, seed, cache), task, gone, seed, progress=progress)
    return Retrained(found.fitted.model, found.seconds, found.from_file, found.threads)


def file_of(task: Task, gone: Tensor, seed: int, cache: str | Path | None) -> Path | None:
    """Where the model of this seed without these samples is kept; None where it can't be."""
    whole(seed, "seed", 0)
    key = None if cache is None else content_key(task, sorted(gone.tolist()), int(seed), recipe(task))
    return None if cache is None or key is None else Path(cache).expanduser() / f"model-{key}.safetensors"


def made_in(file: Path | None, task: Task, gone: Tensor, seed: int, *, progress: bool = False) -> KeptModel:
    """The same model, from its file or trained now."""

    def train() -> Fitted:
        return Fitted(_train(task, all_but(gone, len(task.train_set)), seed, progress=progress).eval(), (), 0.0)

    return kept_model(file, task.model, train, trained_on=None if file is None else trained_on(task, gone))


def trained_on(task: Task, gone: Tensor) -> dict[str, Any]:
    """What a file says of the samples that its model was trained on: of which set, and without which positions."""
    return {"train_set": task.fingerprint.ordered, "left_out": sorted(gone.tolist())}


def fresh(model: nn.Module, seed: int) -> nn.Module:
    """A copy of the model with new random weights, as when it was made; the global random state is left alone.

    Every module with weights of its own must say how they begin: by ``reset_parameters``, as torch's do, or by an
    ``_init_weights`` of a model that it is part of, as in Hugging Face's. Buffers such as batch statistics begin anew
    too. What is frozen was not learned from the samples, and stays.

    >>> layer = fresh(nn.BatchNorm1d(1).requires_grad_(True), seed=0)
    >>> layer.weight.item(), layer.running_mean.item()
    (1.0, 0.0)
    """
    new = copy.deepcopy(model)
    with seeded(seed), torch.no_grad():
        for weight in new.parameters():
            if weight.requires_grad:
                weight.fill_(torch.nan)  # a weight that is still NaN in the end was set by nobody
        for name, module in reversed(list(new.named_modules())):  # parts before the whole, as when it was made
            mine = list(module.parameters(recurse=False))
            if not mine or any(weight.requires_grad for weight in mine):
                _reset(new, name, module)
        for weight, old in zip(new.parameters(), model.parameters(), strict=True):
            if not weight.requires_grad:
                weight.copy_(old)
    for name, weight in new.named_parameters():
        if weight.isnan().any():
            owner = new.get_submodule(name.rpartition(".")[0])
            raise InputError(
                f"model has {name} (of a {type(owner).__name__}), which no reset_parameters() sets anew, so it can't "
                "be trained from scratch: pass retrain= to Task."
            )
    return new


def _reset(model: nn.Module, name: str, module: nn.Module) -> None:
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if callable(reset):
        reset()
    parts = name.split(".") if name else []
    for count in range(len(parts), -1, -1):  # the innermost model around it that knows
        own = getattr(model.get_submodule(".".join(parts[:count])), "_init_weights", None)
        if callable(own):
            own(module)
            return


def _train(task: Task, ids: Tensor, seed: int, *, progress: bool) -> nn.Module:
    if task.retrain is not None:
        with seeded(seed):
            model = task.retrain(ids, seed)
        model = unwrapped(model) if isinstance(model, nn.Module) else model
        require_same_architecture(task.model, model, "task.retrain gave a model that")
        if model is task.model:
            raise InputError("task.retrain gave the task's own model back; it must make a new one and train that.")
        return model
    start = task.with_model(fresh(task.model, seed))
    return fit(start, ids=ids, seed=seed, progress=progress).model


def require_same_architecture(model: nn.Module, other: nn.Module, what: str) -> None:
    """Refuse a model whose weights differ in name or shape."""
    if not isinstance(other, nn.Module):
        raise InputError(f"{what} is no torch.nn.Module, but a {type(other).__name__}; pass a trained model.")
    mine = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    theirs = {name: tuple(tensor.shape) for name, tensor in other.state_dict().items()}
    if mine != theirs:
        differing = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        raise InputError(
            f"{what} is of another architecture: {differing[0]} is {theirs.get(differing[0], 'missing')} there and "
            f"{mine.get(differing[0], 'missing')} in the task's model; pass one that is built as task.model."
        )


def recipe(task: Task) -> Any:
    """What tells how it is trained; of frozen weights the values count, since a retraining keeps them."""
    if task.retrain is not None:
        return described(task.retrain)
    frozen = {name: weight for name, weight in task.model.named_parameters() if not weight.requires_grad}
    return ["fit", str(inspect.signature(fit)), described(frozen)]
