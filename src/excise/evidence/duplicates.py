"""Near-duplicates: retained samples so like a forgotten one that the model goes on learning it from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csc_array
from torch import Tensor

from excise._support.checks import require, whole
from excise.errors import InputError
from excise.task.batches import Batch, inputs_of, tensors_in, token_mask, tokens_in
from excise.task.ids import Ids, all_but, positions
from excise.task.targets import targets_of
from excise.task.task import Task

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
REFERENCE = 250  # retained samples whose nearest neighbours say what is usual: the median needs no more
MOST_VALUES = 20_000_000  # of retained samples in memory at a time
TEXTS_AT_ONCE = 4096


@dataclass(frozen=True)
class NearDuplicate:
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
) -> tuple[NearDuplicate, ...]:
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
    (NearDuplicate(forgotten=0, retained=3, distance=0.0, relative=0.0, same_target=False, exact=True),)
    """
    gone = positions(forget, len(task.train_set))
    rest = all_but(gone, len(task.train_set)) if among is None else positions(among, len(task.train_set))
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
    near = space.nearest(torch.cat([reference, gone]), closest)
    usual = float(np.median(near.distances[: len(reference), 0])) if len(rest) > 1 else 0.0
    targets = targets_of(task)
    found: list[NearDuplicate] = []
    for row, sample in enumerate(gone.tolist(), start=len(reference)):
        for other, distance, exact in zip(near.ids[row], near.distances[row], near.exact[row], strict=True):
            relative = _relative(float(distance), usual)
            if exact or relative <= threshold:
                same = np.array_equal(targets[sample], targets[other])
                found.append(NearDuplicate(sample, int(other), float(distance), relative, same, bool(exact)))
    return tuple(sorted(found, key=lambda pair: (pair.distance, not pair.exact, pair.forgotten, pair.retained)))


def _relative(distance: float, usual: float) -> float:
    if distance == 0:
        return 0.0
    return distance / usual if usual > 0 else float("inf")


@dataclass(frozen=True)
class _Neighbours:
    """The nearest other samples of each query, a row each, nearest first."""

    ids: Whole
    distances: Floats
    exact: NDArray[np.bool_]

    def with_more(self, others: _Neighbours, count: int) -> _Neighbours:
        """Of one query, the nearest of these and of others that come after them."""
        distances = np.concatenate([self.distances, others.distances])
        order = np.argsort(distances, kind="stable")[:count]
        ids, exact = np.concatenate([self.ids, others.ids]), np.concatenate([self.exact, others.exact])
        return _Neighbours(ids[order], distances[order], exact[order])


class _Values:
    """Samples as rows of numbers. Distances are found fast in float32, and made exact for the nearest at once.

    Every sample is read once for as many queries as fit into memory.
    """

    def __init__(self, task: Task, ids: Tensor, reference: Tensor) -> None:
        self._task, self._ids = task, ids
        self._reference, self._rows_of_reference = reference, _values(task.batch(reference))
        values = self._rows_of_reference.double()
        self._width = values.shape[1]
        # one mean and one standard deviation for all values, so that images keep their geometry
        self._mean, self._scale = float(values.mean()), float(values.std(correction=0)) or 1.0

    def nearest(self, queries: Tensor, count: int) -> _Neighbours:
        """The other samples that are nearest to each query, with exact distances."""
        found = [self._nearest(block, count) for block in queries.split(max(1, MOST_VALUES // self._width))]
        ids, distances, exact = (torch.cat(parts).numpy() for parts in zip(*found, strict=True))
        return _Neighbours(ids, distances, exact)

    def _nearest(self, queries: Tensor, count: int) -> list[Tensor]:
        rows = self._read(queries, self._reference, self._rows_of_reference)
        mine = self._standard(rows)
        best: list[Tensor] = []
        for block in self._ids.split(max(1, MOST_VALUES // max(self._width, len(queries)))):
            others = self._read(block, queries, rows)
            theirs = self._standard(others)
            squares = (mine**2).sum(1)[:, None] + (theirs**2).sum(1) - 2 * mine @ theirs.T
            squares[queries[:, None] == block] = torch.inf  # not its own neighbour
            order = _lowest(squares, count)
            found = [squares.gather(1, order), block[order], *self._compare(rows, others, order)]
            both = [torch.cat(parts, dim=1) for parts in zip(best, found, strict=True)] if best else found
            order = _lowest(both[0], count)
            best = [part.gather(1, order) for part in both]
        return best[1:]

    def _compare(self, rows: Tensor, others: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Exact distances of each row to those of the others that are named, and whether they are equal."""
        distances, exact = torch.zeros(which.shape).double(), torch.zeros(which.shape, dtype=torch.bool)
        for some in torch.arange(len(rows)).split(max(1, MOST_VALUES // (self._width * which.shape[1]))):
            a, b = rows[some].double()[:, None], others[which[some]].double()
            distances[some], exact[some] = ((a - b) ** 2).mean(2).sqrt() / self._scale, (a == b).all(2)
        return distances, exact

    def _read(self, ids: Tensor, known: Tensor, rows: Tensor) -> Tensor:
        """The values of samples, of which some are known."""
        place = torch.full((len(self._task.train_set),), -1)
        place[known] = torch.arange(len(known))
        held = place[ids] >= 0
        if held.all():
            return rows[place[ids]]
        values = _values(self._task.batch(ids[~held]))
        if values.shape[1] != self._width:
            raise InputError("train_set has inputs of unequal size, which can't be compared value by value.")
        order = torch.cat([held.nonzero()[:, 0], (~held).nonzero()[:, 0]]).argsort()
        return torch.cat([rows[place[ids[held]]], values])[order]

    def _standard(self, values: Tensor) -> Tensor:
        return ((values - self._mean) / self._scale).float()


def _lowest(table: Tensor, count: int) -> Tensor:
    """Columns of the lowest values of each row, lowest first."""
    return table.topk(min(count, table.shape[1]), largest=False, sorted=True).indices


class _Texts:
    """Samples as bags of tokens, a block of them in memory at a time."""

    def __init__(self, task: Task, ids: Tensor) -> None:
        self._task, self._ids = task, ids

    def nearest(self, queries: Tensor, count: int) -> _Neighbours:
        """The other samples that are nearest to each query."""
        asked = self._read(queries, {})
        best = {sample: _Neighbours(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool)) for sample in asked}
        for block in self._ids.split(TEXTS_AT_ONCE):
            bags = _Bags(block.numpy(), list(self._read(block, asked).values()))
            for sample, text in asked.items():
                best[sample] = best[sample].with_more(bags.nearest(sample, text, count), count)
        parts = zip(*(vars(best[sample]).values() for sample in queries.tolist()), strict=True)
        ids, distances, exact = (np.stack(part) for part in parts)
        return _Neighbours(ids, distances, exact)

    def _read(self, ids: Tensor, known: dict[int, Whole]) -> dict[int, Whole]:
        """The texts of samples, of which some are known."""
        missing = [sample for sample in ids.tolist() if sample not in known]
        read = (text for batch in self._task.batches(missing, TEXTS_AT_ONCE) for text in _texts(batch))
        found = known | dict(zip(missing, read, strict=True))
        return {sample: found[sample] for sample in ids.tolist()}


class _Bags:
    """Bags of tokens, by which of them have each token."""

    def __init__(self, ids: Whole, texts: list[Whole]) -> None:
        self._ids, self._texts = ids, texts
        self._lengths = np.array([len(text) for text in texts])
        rows = np.repeat(np.arange(len(texts)), self._lengths)
        self._vocabulary, columns = np.unique(np.concatenate(texts), return_inverse=True)
        shape = (len(texts), len(self._vocabulary))
        self._counts = csc_array((np.ones(len(rows)), (rows, columns)), shape=shape)  # repeated entries add up

    def nearest(self, sample: int, text: Whole, count: int) -> _Neighbours:
        """Those that are nearest to a text, but for its own sample."""
        distances = self._distances(text)
        others = np.argsort(distances, kind="stable")
        others = others[self._ids[others] != sample][:count]
        pairs = [(_jaccard_distance(text, self._texts[i]), np.array_equal(text, self._texts[i])) for i in others]
        distance, exact = (np.array([pair[k] for pair in pairs], dtype=kind) for k, kind in enumerate((float, bool)))
        return _Neighbours(self._ids[others], distance, exact)

    def _distances(self, text: Whole) -> Floats:
        """1 − |A ∩ B| / |A ∪ B| to all samples, where only those that share a token need a look."""
        tokens, often = np.unique(text, return_counts=True)
        known = np.isin(tokens, self._vocabulary)
        columns = self._counts[:, np.searchsorted(self._vocabulary, tokens[known])]
        least = np.minimum(columns.data, np.repeat(often[known], np.diff(columns.indptr)))
        shared = np.bincount(columns.indices, weights=least, minlength=len(self._ids))
        together = np.maximum(len(text) + self._lengths - shared, 1)  # two empty texts are alike
        return np.where(len(text) + self._lengths == 0, 0.0, 1 - shared / together)


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


def _is_text(batch: Batch) -> bool:
    tokens = tokens_in(inputs_of(batch))
    return isinstance(tokens, Tensor) and tokens.ndim == 2 and tokens.dtype in (torch.int64, torch.int32)


def _texts(batch: Batch) -> list[Whole]:
    inputs = inputs_of(batch)
    tokens = tokens_in(inputs).cpu().long().numpy()
    mask = token_mask(inputs)
    if mask is None:
        return list(tokens)
    return [text[shown] for text, shown in zip(tokens, mask.cpu().bool().numpy(), strict=True)]


def _values(batch: Batch) -> Tensor:
    """All numbers of a sample as a row: of float32 where they are, else of float64."""
    inputs = inputs_of(batch)
    tensors = tensors_in(inputs)
    if not tensors or any(part.ndim == 0 for part in tensors):
        raise InputError(f"train_set has inputs of type {type(inputs).__name__}, which can't be compared; use tensors.")
    return torch.cat([_floating(part).reshape(len(part), -1) for part in tensors], dim=1)


def _floating(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype == torch.float32 else tensor.double()
