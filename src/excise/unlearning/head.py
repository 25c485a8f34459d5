"""Heads on frozen networks: the network runs once for each sample, and every deletion is exact and takes milliseconds.

Where a linear layer is all that is trained, the rest of the model is a function of the sample alone. What it says, the
embedding, is computed once, and the layer on embeddings is a convex task of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise._support.spilling import TYPES, Spilled
from excise.errors import InputError, NeverSupportedError
from excise.privacy.certificate import ABOUT_FEATURES, Certificate
from excise.privacy.convexity import MOST_KEPT
from excise.privacy.heads import head_of
from excise.privacy.sightings import ALIKE, disagreement, seen_again, sight
from excise.privacy.sightings import Head as LayerOfModel
from excise.task.fingerprint import sample_digest
from excise.task.ids import Ids, all_but
from excise.task.requests import Request
from excise.task.task import Task, evaluating
from excise.unlearning.embeddings import EmbeddingFile, Kept
from excise.unlearning.exact import why_not_head
from excise.unlearning.forgotten import Forgotten
from excise.unlearning.unlearner import Unlearner

CHECKED = 8  # embeddings in a file that are computed anew, to see whether they still hold


@dataclass(frozen=True, eq=False)
class Head:
    """A linear layer as a task of its own, on embeddings; see ``head``."""

    whole: Task
    """The task with the frozen network."""
    task: Task
    """The same samples and objective: the layer alone, on embeddings."""
    file: EmbeddingFile | None
    """Where embeddings are kept; None where they are held in memory alone."""

    @cached_property
    def unlearner(self) -> Unlearner:
        """The session that ``forget`` goes on with."""
        return Unlearner(self.task)

    def forget(
        self,
        what: Ids | str | Request | None = None,
        *,
        keys: Iterable[Hashable] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> Forgotten:
        """A whole model without the samples, in addition to those of earlier requests; their embeddings are purged.

        Arguments are those of ``Unlearner.forget``. The certificate is of the layer's weights.
        """
        done = self.unlearner.forget(what, keys=keys, epsilon=epsilon, delta=delta)
        if self.file is not None:
            left = all_but(list(done.forgotten), len(self.whole.train_set)).tolist()
            self.file.purge(self.whole, done.forgotten, left)
        name, task = self._name, self.whole
        return replace(
            done,
            model=self.attached(done.model),
            before=None if done.before is None else self.attached(done.before),
            slices=tuple(one.replace("(model)", name) for one in done.slices),
            scores={one.replace("(model)", name): score for one, score in done.scores.items()},
            _read=lambda: task.fingerprint,
            _fingerprint=[],
            _certify=None if done._certify is None else lambda: _of_whole(task, done.certificate),
            _certificate=[_of_whole(task, one) for one in done._certificate],
        )

    def attached(self, layer: nn.Module) -> nn.Module:
        """A copy of the whole model with this layer in place of its own."""
        model = copy.deepcopy(self.whole.model)
        model.get_submodule(self._name).load_state_dict(layer.state_dict())
        return model

    @cached_property
    def _name(self) -> str:
        layer = head_of(self.whole.model)
        names = [name for name, module in self.whole.model.named_modules() if module is layer]
        return str(names[0])


def _of_whole(task: Task, found: Certificate) -> Certificate:
    """The certificate of a layer as that of the model around it, which may have seen the samples."""
    if task.features == "fixed" or found.bound is None:
        return found
    return replace(found, reason=found.reason + ABOUT_FEATURES, last_layer_only=True)


def head(task: Task, *, cache: str | Path | None = None) -> Head:
    """Find that a linear layer is all that is trained, and embed all samples once.

    For a classifier on a frozen encoder, a network with a new last layer, any model with ``requires_grad=False``
    elsewhere. Deletions are then exact and certified, without touching the frozen part. They say nothing about what
    that part keeps of the samples, should it have seen them: tell ``Task(features="fixed")`` where it never did.

    Args:
        task: With the whole model.
        cache: Folder for embeddings, by the samples' contents, which later calls read; None for none. Those of a
            forgotten sample are purged from it.
    """
    if (why := why_not_head(task)) is not None:
        raise NeverSupportedError(
            f"head is for models of which one linear layer is trained and is the last ({why}); freeze the rest by "
            "requires_grad_(False), or use Unlearner(task)."
        )
    layer = head_of(task.model)
    file = None if cache is None else EmbeddingFile.of(task, layer, cache)
    model = LayerOfModel(task.model, layer)
    with evaluating(task.model):
        train = _embedded(task, model, task.samples, file)
        test = None if task.test_set is None else _embedded(task, model, task.test_set, None)
    own = copy.deepcopy(layer)
    small = Task(
        own,
        task.loss,
        train,
        test,
        weight_decay=task.weight_decay,
        keys=task.keys,
        features=task.features,
        convex=task.convex,
    )
    return Head(task, small, file)


def _embedded(task: Task, model: LayerOfModel, dataset: Any, file: EmbeddingFile | None) -> TensorDataset:
    """What the layer sees of each sample, and its target; read from the file as far as it goes, which then has all."""
    count = len(dataset)
    if file is None:
        rows, targets = _seen(task, model, torch.arange(count), dataset)
        return TensorDataset(rows, targets)
    hashes, kept = [sample_digest(task, place) for place in range(count)], file.read()
    if not _still_hold(task, model, dataset, hashes, kept):
        kept = {}
    missing = torch.tensor([place for place, one in enumerate(hashes) if one not in kept], dtype=torch.long)
    if len(missing):
        rows, targets = _seen(task, model, missing, dataset)
        pairs = zip(missing.tolist(), rows.cpu(), targets.cpu(), strict=True)
        kept |= {hashes[place]: [row, target] for place, row, target in pairs}
        file.write(kept)
    rows, targets = (torch.stack(part) for part in zip(*(kept[one] for one in hashes), strict=True))
    device = model.layer.weight.device
    return TensorDataset(rows.to(device), targets.to(device))


def _still_hold(task: Task, model: LayerOfModel, dataset: Any, hashes: list[bytes], kept: Kept) -> bool:
    """Whether the network says of some samples what is kept of them: not all that it depends on has a hash."""
    known = [place for place, one in enumerate(hashes) if one in kept][:CHECKED]
    if not known:
        return True
    rows, _ = _seen(task, model, torch.tensor(known), dataset)
    said = torch.stack([kept[hashes[place]][0] for place in known])
    return said.shape == rows.shape and torch.allclose(
        said, rows.cpu(), rtol=ALIKE, atol=ALIKE * float(said.abs().max())
    )


def _seen(task: Task, model: LayerOfModel, places: Tensor, dataset: Any) -> tuple[Tensor, Tensor]:
    """What the layer sees of samples, one row each, and their targets; whatever company they are in."""
    if not len(places):
        raise InputError("a set of the task is empty (length 0), so there is nothing to embed; pass samples.")
    rows, done = torch.empty(0), 0
    targets: list[Tensor] = []
    for some in places.split(task.batch_size_within_memory(256)):
        one = sight(task, model, task.batch(some, dataset))
        again = seen_again(task, model, some, places, one) if dataset is task.samples else one
        doubt = disagreement(task, one, one) or (again if isinstance(again, str) else None)
        if doubt is not None or one.rows.shape[1] != 1:
            raise NeverSupportedError(
                f"head is for models of which one linear layer is trained and is the last "
                f"({doubt or 'it sees several rows of a sample'}); use Unlearner(task)."
            )
        flat = one.inputs.reshape(one.samples, -1)
        rows = rows if done else _table(len(places), flat)
        rows[done : done + len(flat)] = flat
        done += len(flat)
        targets.append(one.targets)
    return rows, torch.cat(targets)


def _table(count: int, like: Tensor) -> Tensor:
    """Room for so many rows: in memory, or where they are too many in a temporary file."""
    if count * like.shape[1] <= MOST_KEPT or like.device.type != "cpu" or like.dtype not in TYPES:
        return torch.empty(count, like.shape[1]).to(like)
    return Spilled((count, like.shape[1]), like.dtype).tensor
