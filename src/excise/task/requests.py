"""Which samples to forget, from a few words: ``random:1%``, ``class:3``, ``hardest:20``, ``ids:3,5,9``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from excise._support.checks import choice, whole
from excise._support.reading import is_regular_file, reason, require_regular_file
from excise.errors import InputError
from excise.task.ids import Ids, all_but, positions
from excise.task.keys import keys_from_text
from excise.task.predictions import plain_losses_of
from excise.task.targets import are_classes, targets_of
from excise.task.task import Task

Whole = NDArray[np.int64]
PERCENT = re.compile(r"(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
SHOWN = 60  # characters of what was given, in a message


@dataclass(frozen=True)
class Request:
    """Samples to forget."""

    ids: tuple[int, ...]
    """Positions in the training set: rising, with ``hardest`` the hardest first, with ``ids`` as they were given."""
    spec: str
    kind: Literal["samples", "class"]
    """``"class"`` where nothing but whole classes is forgotten."""
    classes: tuple[int, ...]
    """The classes of which no sample is left."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class _Source:
    """What a request is chosen from."""

    task: Task
    model: nn.Module
    targets: NDArray[Any]
    present: Whole
    """Positions of the samples that are not forgotten yet."""
    rng: np.random.Generator

    def __len__(self) -> int:
        return len(self.targets)


def parse_request(
    spec: str, task: Task, *, seed: int = 0, model: nn.Module | None = None, forgotten: Ids = ()
) -> Request:
    """Find the samples that a short text asks to forget.

    ========================== =======================================================================
    ``random:40``              40 samples at random; ``random:1%`` a share of all
    ``class:3``                all samples of class 3
    ``class:3:100``            100 samples of class 3 at random; a share works too
    ``hardest:20``             the 20 samples of largest loss under the model; a share works too
    ``ids:3,5,9``              these positions in the training set
    ``ids:FILE``               the same from a file, one a line or with commas between
    ``keys:ann,bob``           all samples of these keys (see ``Task``)
    ========================== =======================================================================

    Args:
        spec: The text.
        task: The task whose training set is meant.
        seed: Decides what is drawn at random.
        model: The model that finds samples hard; None for the task's.
        forgotten: Samples that earlier requests have forgotten: they are not chosen again.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.zeros(5, 1), torch.tensor([0, 1, 0, 1, 2]))
    >>> task = Task(nn.Linear(1, 3), nn.CrossEntropyLoss(reduction="none"), data)
    >>> parse_request("class:1", task)
    Request(ids=(1, 3), spec='class:1', kind='class', classes=(1,))
    """
    if not isinstance(spec, str):
        raise InputError(f"the request must be text such as 'random:1%', not {spec!r}.")
    kind, colon, what = (part.strip() for part in spec.partition(":"))
    choose = CHOOSERS[choice(kind, tuple(CHOOSERS), "the request's kind")]
    if not colon or not what:
        raise InputError(f"the request {spec!r} does not say what to forget; write it as {EXAMPLES[kind]}.")
    model = task.model if model is None else model
    present = all_but(forgotten, len(task.train_set)).numpy()
    source = _Source(task, model, targets_of(task), present, np.random.default_rng(whole(seed, "seed", 0)))
    ids = positions(choose(what, source), len(source)).numpy()
    if len(ids) == len(present):
        raise InputError(f"the request {spec!r} is for all {len(ids)} samples; leave some to keep, or train anew.")
    gone = _emptied(ids, np.setdiff1d(present, ids), source.targets)
    whole_classes = bool(len(gone)) and bool(np.isin(source.targets[ids], gone).all())
    return Request(tuple(ids.tolist()), spec, "class" if whole_classes else "samples", tuple(gone.tolist()))


def _random(what: str, source: _Source) -> Whole:
    return _draw(source.present, what, source.rng, "the training set")


def _of_class(what: str, source: _Source) -> Whole:
    word, colon, amount = (part.strip() for part in what.partition(":"))
    if not are_classes(source.targets):
        raise InputError(
            f"the request 'class:{what}' needs one class per sample, but the targets are {source.targets.dtype} of "
            f"shape {source.targets.shape}; ask for random, hardest or ids."
        )
    wanted = _number(word, "a class")
    members = source.present[source.targets[source.present] == wanted]
    if len(members) == 0:
        there = np.unique(source.targets[source.present])
        listed = ", ".join(map(str, there[:20].tolist())) + (", …" if len(there) > 20 else "")
        left = "" if len(source.present) == len(source.targets) else " left"
        raise InputError(f"class {wanted} has no samples{left} in the training set, which has the classes {listed}.")
    return _draw(members, amount, source.rng, f"class {wanted}") if colon else members


def _hardest(what: str, source: _Source) -> Whole:
    count = _amount(what, len(source.present), "the training set")
    losses = plain_losses_of(source.task, source.model, source.present)
    return source.present[np.argsort(-losses, kind="stable")[:count]]


def _listed(what: str, _: _Source) -> Whole:
    file = Path(what)
    if is_regular_file(file):  # which a long list of ids is not
        return ids_in_file(file)
    if not what.replace(",", " ").split():
        raise InputError(f"ids:{shortened(what)} names no id.")
    try:
        return ids_in_text(what)
    except InputError:
        raise InputError(
            f"ids must be whole numbers such as ids:3,5,9, or a file that exists, not {shortened(what)}."
        ) from None


def ids_in_file(file: Path) -> Whole:
    """The ids that a text file lists, one a line or with commas between."""
    require_regular_file(file)
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors write a mark of three bytes first
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} can't be read as a list of ids, in UTF-8: {reason(error)}.") from None
    if not text.split():
        raise InputError(f"{file} is empty; write one id a line.")
    return ids_in_text(text, f"{file} must have whole numbers, one id a line")


def ids_in_text(text: str, rule: str = "ids must be whole numbers") -> Whole:
    """The ids that a text lists, with commas or spaces between."""
    words = text.replace(",", " ").split()
    wrong = [word for word in words if not _is_whole(word)]
    if wrong:
        raise InputError(f"{rule}, not {shortened(wrong[0])}.")
    return np.array([int(word) for word in words], dtype=np.int64)


def _of_keys(what: str, source: _Source) -> Whole:
    words = [word.strip() for word in what.split(",") if word.strip()]
    return np.array(source.task.ids_of(keys_from_text(words, source.task.positions_of_keys)), dtype=np.int64)


CHOOSERS: dict[str, Callable[[str, _Source], Whole]] = {
    "random": _random,
    "class": _of_class,
    "hardest": _hardest,
    "ids": _listed,
    "keys": _of_keys,
}
EXAMPLES = {
    "random": "random:40 or random:1%",
    "class": "class:3 or class:3:100",
    "hardest": "hardest:20 or hardest:1%",
    "ids": "ids:3,5,9 or ids:FILE",
    "keys": "keys:ann,bob",
}


def _draw(members: Whole, amount: str, rng: np.random.Generator, where: str) -> Whole:
    """Some of the members at random, in rising order."""
    return np.sort(rng.choice(members, _amount(amount, len(members), where), replace=False))


def _amount(text: str, total: int, where: str) -> int:
    """A count, or a share of the total (at least one)."""
    if text.endswith("%"):
        return max(1, math.floor(_percent(text) / 100 * total + 0.5))
    count = _number(text, "an amount")
    if count < 1:
        raise InputError(f"an amount must be 1 or more, or a share such as 1%, not {text!r}.")
    if count > total:
        raise InputError(f"{count} samples were asked for, but {where} has {total}; ask for fewer.")
    return count


def _percent(text: str) -> float:
    percent = float(text[:-1]) if PERCENT.fullmatch(text[:-1].strip()) else math.nan
    if not 0 < percent <= 100:
        raise InputError(f"a share must be above 0% and at most 100%, not {shortened(text)}.")
    return percent


def _number(text: str, what: str) -> int:
    if not _is_whole(text):
        raise InputError(f"{what} must be a whole number, not {shortened(text)}.")
    return int(text)


def _is_whole(text: str) -> bool:
    """Plain decimal digits, of a number that fits: int() takes other alphabets, underscores and more."""
    digits = text.removeprefix("-")
    plain = digits.isascii() and digits.isdigit() and len(digits) <= 18
    return plain and (digits == text or int(digits) > 0)  # what is "-0" meant to be?


def shortened(text: str) -> str:
    """What was given, quoted, for a message that stays readable."""
    return repr(text) if len(text) <= SHOWN else f"{text[:SHOWN]!r} and {len(text) - SHOWN:,} characters more"


def _emptied(ids: Whole, left: Whole, targets: NDArray[Any]) -> Whole:
    """The classes that have no other samples than these."""
    if not are_classes(targets):
        return np.array([], dtype=np.int64)
    return np.setdiff1d(targets[ids], targets[left])
