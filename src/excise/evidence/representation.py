"""Do a model's inner features lie where retrained models' lie? Linear CKA (Kornblith et al. 2019), layer by layer.

Answers can be masked at the output while everything inside stays as it was. So what each layer reads is compared too:
between the unlearned model and retrained ones, beside the same of the original, and of retrained ones with each other,
which is the floor. A distance is 1 − CKA: 0 where the features are the same but for a rotation and a common scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise import processes
from excise.errors import InputError
from excise.evidence.features import features_axis, sample_rows
from excise.evidence.gap import Gap
from excise.task.hooks import capture
from excise.task.task import Task, evaluating

Floats = NDArray[np.float64]
Grams = dict[str, Floats]

MOST_SAMPLES = 300  # of a group, drawn at random: a layer then takes 0.7 MB of every model
MOST_LAYERS = 12  # evenly spread over the network, the last one always among them
FEWEST_SAMPLES = 5  # with fewer, all features look alike
SAME = 1e-9  # relative difference of the inner products up to which two models read the same


@dataclass(frozen=True)
class LayerDistance:
    """1 − CKA of what a layer reads."""

    layer: str
    forget: Gap | None
    """To retrained models, on the forgotten samples; None of fewer than five."""
    test: Gap
    """The same on test samples."""
    to_original: float
    """Between the unlearned model and the original, on the samples on which they differ most."""


@dataclass(frozen=True)
class Representation:
    """How far inner features are from those of retrained models."""

    layers: tuple[LayerDistance, ...]
    """Those that read something else in some model: not the data itself, nor what frozen layers make of it."""
    forget_samples: int
    test_samples: int

    @property
    def forget(self) -> Gap | None:
        """Mean over layers, on the forgotten samples."""
        gaps = [one.forget for one in self.layers if one.forget is not None]
        return Gap.mean(gaps) if gaps else None

    @property
    def test(self) -> Gap:
        """Mean over layers, on test samples."""
        return Gap.mean([one.test for one in self.layers])

    @property
    def to_original(self) -> float:
        """How far the unlearned model's features are from the original's, in the layer where they are farthest."""
        return max(one.to_original for one in self.layers)


def linear_cka(X: Any, Y: Any) -> float:
    """Similarity of two tables of features, a row for each sample: ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of centred columns.

    It is 1 for features that are the same but for a rotation and one common scale, and NaN where all rows are alike.

    >>> X = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> round(linear_cka(X, 3 * X @ [[0.0, 1.0], [-1.0, 0.0]]), 12)
    1.0
    """
    return cka_of_grams(centred_gram(np.asarray(X, dtype=np.float64)), centred_gram(np.asarray(Y, dtype=np.float64)))


def centred_gram(X: Floats) -> Floats:
    """Inner products of the rows, after every column's mean is taken off: of n samples n × n, however many features."""
    centred = X - X.mean(axis=0)
    gram: Floats = centred @ centred.T
    return gram


def cka_of_grams(K: Floats, L: Floats) -> float:
    """⟨K, L⟩ / (‖K‖ ‖L‖), which equals the formula by features, since ⟨XXᵀ, YYᵀ⟩ = ‖YᵀX‖²."""
    size = float(np.linalg.norm(K) * np.linalg.norm(L))
    return float(np.sum(K * L)) / size if size else float("nan")


def representation(task: Task, forgotten: Task, models: Sequence[nn.Module], *, seed: int = 0) -> Representation | None:
    """Compare what the layers of models read: first the original, then the unlearned model, then retrained ones.

    Of each group at most 300 samples are looked at, and at most 12 layers; each sample is read once for all models.
    None where no layer reads anything but the data, as in a linear model.

    Args:
        task: Its ``test_set`` is looked at too.
        forgotten: The task with the forgotten samples alone.
        models: Built alike.
        seed: Which samples are taken, where there are more.
    """
    names = _watched(models)
    test = layer_grams(task, models, names, _some(len(task.test_set), seed), dataset=task.test_set)
    few = len(forgotten.train_set) < FEWEST_SAMPLES
    forget = None if few else layer_grams(forgotten, models, names, _some(len(forgotten.train_set), seed))
    layers = []
    for name in names:
        groups = [[one[name] for one in group if name in one] for group in (forget, test) if group is not None]
        if all(_is_comparable(grams, len(models)) for grams in groups):
            gaps = [_gap(grams) for grams in groups]
            apart = max(_distance(grams[0], grams[1]) for grams in groups)
            layers.append(LayerDistance(name, None if few else gaps[0], gaps[-1], apart))
    counts = (min(len(data), MOST_SAMPLES) for data in (forgotten.train_set, task.test_set))
    return Representation(tuple(layers), *counts) if layers else None


def layer_grams(
    task: Task, models: Sequence[nn.Module], names: Sequence[str], ids: Tensor, *, dataset: Any = None
) -> list[Grams]:
    """Of each model, the inner products of what the named layers read; without layers that don't read sample by sample.

    As for the penultimate features, what a convolution reads is averaged over space, and a sequence over its tokens.
    Several processes look at some of the models each.
    """
    if not len(models) >= processes.count() > 1:
        return _layer_grams(task, models, names, ids, dataset)
    mine = processes.share_of(models)
    with processes.alone():
        found = _layer_grams(task, mine, names, ids, dataset)
    return [one for some in processes.gathered(found, "what layers read") for one in some]


def _layer_grams(
    task: Task, models: Sequence[nn.Module], names: Sequence[str], ids: Tensor, dataset: Any
) -> list[Grams]:
    found: list[dict[str, list[Floats]]] = [{name: [] for name in names} for _ in models]
    with ExitStack() as stack, torch.no_grad():
        seen = []
        for model in models:
            stack.enter_context(evaluating(model))
            seen.append(stack.enter_context(capture(model, names, lambda call: (call.module, call.input))))
        for batch in task.batches(ids, task.batch_size_within_memory(256), dataset):
            for model, calls, kept in zip(models, seen, found, strict=True):
                count = len(task.outputs(model, batch)[1])
                for name, bucket in zip(names, calls, strict=True):
                    try:
                        rows = sample_rows(*bucket[0], batch, count)
                        kept[name].append(rows.double().cpu().numpy())
                    except (InputError, IndexError, KeyError):  # rows that are not samples, or no call
                        kept.pop(name, None)
                for bucket in (bucket for each in seen for bucket in each):  # the same model may be there twice
                    bucket.clear()
    return [{name: centred_gram(np.concatenate(parts)) for name, parts in kept.items()} for kept in found]


def _watched(models: Sequence[nn.Module]) -> list[str]:
    """Names of layers that all models have, at most twelve."""
    names = [name for name, module in models[0].named_modules() if features_axis(module) is not None]
    others = [dict(model.named_modules()) for model in models[1:]]
    names = [name for name in names if all(name in other for other in others)]
    places = np.unique(np.linspace(0, len(names) - 1, MOST_LAYERS).round().astype(int)) if names else ()
    return [names[place] for place in places]


def _some(count: int, seed: int) -> Tensor:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return order[:MOST_SAMPLES].sort().values


def _is_comparable(grams: Sequence[Floats], models: int) -> bool:
    """Whether every model has features here that tell samples apart, and some model has other ones."""
    sizes = [float(np.linalg.norm(one)) for one in grams]
    if len(grams) < models or not all(np.isfinite(sizes)) or not all(sizes):
        return False
    return any(np.linalg.norm(one - grams[0]) > SAME * sizes[0] for one in grams[1:])


def _gap(grams: Sequence[Floats]) -> Gap:
    original, unlearned, *retrained = grams
    to_original, to_unlearned = (
        float(np.mean([_distance(one, other) for other in retrained])) for one in (original, unlearned)
    )
    pairs = [_distance(one, other) for one, other in combinations(retrained, 2)]
    return Gap(to_unlearned, to_original, float(np.mean(pairs)) if pairs else float("nan"))


def _distance(K: Floats, L: Floats) -> float:
    return max(0.0, 1 - cka_of_grams(K, L))
