"""Near-duplicates: retained samples so like a forgotten one that the model goes on learning it from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array
from torch import Tensor

from excise.errors import InputError
from excise.inputs import require, whole
from excise.retraining import kept
from excise.targets import targets_of
from excise.task import Batch, Ids, Task, positions

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
REFERENCE = 250  # retained samples whose nearest neighbours say what is usual: the median needs no more
MOST_VALUES = 20_000_000  # of retained samples in memory at a time


@dataclass(frozen=True)
class Twin:
    """A forgotten sample and a retained one that is nearly the same."""

    forgotten: int
    retained: int
    distance: float
    """Root mean square of the differences, in standard deviations of all values; of texts, the share of tokens that
    they don't have in common (1 − Jaccard's index, repetitions counted, wherever in the text they stand)."""
    relative: float
    """Distance over the median distance of retained samples to their nearest: 1 is usual, 0 a copy."""
    same_target: bool
    exact: bool
    """Whether the inputs are equal, value by value."""


def near_duplicates(
    task: Task, forget: Ids, *, among: Ids | None = None, closest: int = 3, threshold: float = 0.3, seed: int = 0
) -> tuple[Twin, ...]:
    """Find near-duplicates of the forgotten samples among the retained ones, nearest first.

    A pair counts when it is much nearer than retained samples usually are to their nearest neighbours, or a copy. With
    the default threshold a copy with noise of 5 % of the range is found among images such as MNIST's and CIFAR's;
    without one, about 1 in 100 of MNIST's is listed (strokes of the digit 1, which are as near) and none of CIFAR's.

    Inputs are compared as they come to the model. Whole numbers, one row a sample (or ``input_ids``), are tokens; what
    ``attention_mask`` hides is left out. All else is compared value by value, with one scale for all values.

    Args:
        task: The task; sample ids are positions in its ``train_set``.
        forget: The forgotten samples.
        among: Where to look; None for all samples that are not forgotten.
        closest: At most so many for each forgotten sample.
        threshold: The largest relative distance that counts.
        seed: Decides which retained samples say what is usual.

    >>> inputs = torch.tensor([[0.0], [10.0], [20.0], [0.0]])
    >>> data = torch.utils.data.TensorDataset(inputs, torch.tensor([0, 1, 1, 1]))
    >>> near_duplicates(Task(torch.nn.Linear(1, 2), torch.nn.CrossEntropyLoss(reduction="none"), data), [0])
    (Twin(forgotten=0, retained=3, distance=0.0, relative=0.0, same_target=False, exact=True),)
    """
    gone = positions(forget, len(task.train_set))
    rest = kept(task, gone) if among is None else positions(among, len(task.train_set))
    closest, seed = whole(closest, "closest"), whole(seed, "seed", 0)
    require(0 <= threshold < np.inf, "threshold", threshold, "a number, 0 or more")
    shared = np.intersect1d(gone.numpy(), rest.numpy())
    if len(shared):
        raise InputError(f"among has {shared[0]}, which is in forget too; name retained samples only.")
    if len(rest) == 0:
        raise InputError("forget has all samples, so none are retained to be like them; forget fewer.")
    order = np.random.default_rng(seed).permutation(len(rest))
    reference = rest[torch.as_tensor(np.sort(order[:REFERENCE]))]
    space = _Texts(task, rest) if _is_text(task.batch(gone[:1])) else _Values(task, rest, reference)
    # one search for both, since reading the data takes longest
    neighbours = space.nearest(torch.cat([reference, gone]), closest)
    usual = _usual(space, reference, neighbours[: len(reference), 0]) if len(rest) > 1 else 0.0
    found: list[Twin] = []
    targets = targets_of(task, gone)
    for sample, target, near in zip(gone.tolist(), targets, neighbours[len(reference) :], strict=True):
        near_targets = targets_of(task, near)
        for other, other_target in zip(near.tolist(), near_targets, strict=True):
            distance, exact = space.compare(sample, other)
            relative = _relative(distance, usual)
            if exact or relative <= threshold:
                found.append(Twin(sample, other, distance, relative, np.array_equal(target, other_target), exact))
    return tuple(sorted(found, key=lambda twin: (twin.distance, not twin.exact, twin.forgotten, twin.retained)))


def _usual(space: _Values | _Texts, samples: Tensor, nearest: Whole) -> float:
    """How far a retained sample usually is from its nearest."""
    return float(np.median([space.compare(a, b)[0] for a, b in zip(samples.tolist(), nearest.tolist(), strict=True)]))


def _relative(distance: float, usual: float) -> float:
    if distance == 0:
        return 0.0
    return distance / usual if usual > 0 else float("inf")


class _Values:
    """Samples as rows of numbers. Distances are found fast in float32, and then made exact for the few that matter."""

    def __init__(self, task: Task, ids: Tensor, reference: Tensor) -> None:
        self._task, self._ids = task, ids
        values = _values(task.batch(reference)).double()
        self._width = values.shape[1]
        # one mean and one standard deviation for all values, so that images keep their geometry
        self._mean, self._scale = float(values.mean()), float(values.std(correction=0)) or 1.0

    def nearest(self, queries: Tensor, count: int) -> Whole:
        """Ids of the other samples that are nearest to each query, nearest first."""
        blocks = queries.split(max(1, MOST_VALUES // self._width))
        return torch.cat([self._nearest(block, count) for block in blocks]).numpy()

    def _nearest(self, queries: Tensor, count: int) -> Tensor:
        mine = self._standard(queries)
        best, which = torch.zeros(len(queries), 0), torch.zeros(len(queries), 0, dtype=torch.long)
        for block in self._ids.split(max(1, MOST_VALUES // max(self._width, len(queries)))):
            theirs = self._standard(block)
            squares = (mine**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * mine @ theirs.T
            squares[queries[:, None] == block] = torch.inf  # not its own neighbour
            best = torch.cat([best, squares], dim=1)
            which = torch.cat([which, block.expand(len(queries), -1)], dim=1)
            best, order = best.topk(min(count, best.shape[1]), largest=False, sorted=True)
            which = which.gather(1, order)
        return which

    def compare(self, one: int, other: int) -> tuple[float, bool]:
        """Exact distance of two samples, and whether they are equal."""
        a, b = _values(self._task.batch([one, other])).double()
        return float(((a - b) ** 2).mean().sqrt() / self._scale), torch.equal(a, b)

    def _standard(self, ids: Tensor) -> Tensor:
        values = _values(self._task.batch(ids))
        if values.shape[1] != self._width:
            raise InputError("train_set has inputs of unequal size, which can't be compared value by value.")
        return ((values - self._mean) / self._scale).float()


class _Texts:
    """Samples as bags of tokens."""

    def __init__(self, task: Task, ids: Tensor) -> None:
        self._task, self._ids = task, ids.numpy()
        texts = self._texts(ids)
        self._lengths = np.array([len(text) for text in texts])
        rows = np.repeat(np.arange(len(texts)), self._lengths)
        self._vocabulary, columns = np.unique(np.concatenate(texts), return_inverse=True)
        shape = (len(texts), len(self._vocabulary))
        self._counts = csc_array((np.ones(len(rows)), (rows, columns)), shape=shape)  # repeated entries add up

    def nearest(self, queries: Tensor, count: int) -> Whole:
        """Ids of the other samples that are nearest to each query, nearest first."""
        which = []
        for sample, text in zip(queries.tolist(), self._texts(queries), strict=True):
            distances = self._distances(text)
            distances[self._ids == sample] = np.inf  # not its own neighbour
            which.append(self._ids[np.argsort(distances, kind="stable")[:count]])
        return np.array(which)

    def compare(self, one: int, other: int) -> tuple[float, bool]:
        """Distance of two samples, and whether they are equal."""
        a, b = self._texts(torch.tensor([one, other]))
        return _jaccard_distance(a, b), np.array_equal(a, b)

    def _distances(self, text: Whole) -> Floats:
        """1 − |A ∩ B| / |A ∪ B| to all samples, where only those that share a token need a look."""
        tokens, often = np.unique(text, return_counts=True)
        known = np.isin(tokens, self._vocabulary)
        columns = self._counts[:, np.searchsorted(self._vocabulary, tokens[known])]
        least = np.minimum(columns.data, np.repeat(often[known], np.diff(columns.indptr)))
        shared = np.bincount(columns.indices, weights=least, minlength=len(self._ids))
        together = np.maximum(len(text) + self._lengths - shared, 1)  # two empty texts are alike
        return np.where(len(text) + self._lengths == 0, 0.0, 1 - shared / together)

    def _texts(self, ids: Tensor) -> list[Whole]:
        return [text for batch in self._task.batches(ids, 1024) for text in _texts(batch)]


def _jaccard_distance(a: Whole, b: Whole) -> float:
    """1 − |A ∩ B| / |A ∪ B| of two bags.

    >>> _jaccard_distance(np.array([1, 1, 2]), np.array([2, 1, 3]))
    0.5
    """
    tokens = np.concatenate([a, b])
    values, place = np.unique(tokens, return_inverse=True)
    mine, theirs = (np.bincount(part, minlength=len(values)) for part in (place[: len(a)], place[len(a) :]))
    together = np.maximum(mine, theirs).sum()
    return float(1 - np.minimum(mine, theirs).sum() / together) if together else 0.0


def _inputs(batch: Batch) -> Batch:
    return batch if isinstance(batch, Mapping | Tensor) else batch[0]


def _is_text(batch: Batch) -> bool:
    inputs = _inputs(batch)
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else inputs
    return isinstance(tokens, Tensor) and tokens.ndim == 2 and tokens.dtype in (torch.int64, torch.int32)


def _texts(batch: Batch) -> list[Whole]:
    inputs = _inputs(batch)
    if not isinstance(inputs, Mapping):
        return list(inputs.cpu().long().numpy())
    tokens = inputs["input_ids"].cpu().long().numpy()
    mask = inputs.get("attention_mask")
    if mask is None:
        return list(tokens)
    return [text[shown] for text, shown in zip(tokens, mask.cpu().bool().numpy(), strict=True)]


def _values(batch: Batch) -> Tensor:
    """All numbers of a sample as a row: of float32 where they are, else of float64."""
    inputs = _inputs(batch)
    parts = [value for key, value in inputs.items() if key != "labels"] if isinstance(inputs, Mapping) else [inputs]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if not tensors or any(part.ndim == 0 for part in tensors):
        raise InputError(f"train_set has inputs of type {type(inputs).__name__}, which can't be compared; use tensors.")
    return torch.cat([_floating(part).reshape(len(part), -1) for part in tensors], dim=1)


def _floating(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype == torch.float32 else tensor.double()
