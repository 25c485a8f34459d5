"""Are forgotten classes gone from a network, or only hidden? Its features are asked with a few examples of each.

A class whose output is masked is still there: a linear classifier on the penultimate features finds it again from five
samples, as well as in the original network. After retraining without the class it finds it much less often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from excise._support.checks import whole
from excise.errors import InputError
from excise.evidence.features import Floats, penultimate
from excise.task.targets import are_classes, targets_of
from excise.task.task import Task


@dataclass(frozen=True)
class FewShot:
    """How well forgotten classes can be taught again to a linear classifier on a model's features."""

    accuracy: float
    """Share of held-out samples of these classes that it recognises, the mean over the draws."""
    spread: float
    """Standard deviation between draws; NaN of a single one."""
    chance: float
    """What guessing would score: one in the number of classes."""
    shots: int
    draws: int


def few_shot_probe(
    task: Task, model: nn.Module, classes: Sequence[int], *, shots: int = 5, draws: int = 10, seed: int = 0
) -> FewShot:
    """Teach a linear classifier all classes from a few held-out samples each, and see if it knows the forgotten ones.

    It reads the model's penultimate features and is tested on the other held-out samples of the forgotten classes.
    Compare the accuracy with that of the original model (nothing forgotten) and, where there is one, of a model that
    was retrained: alone it says little.

    Args:
        task: The task; its ``test_set`` is what the samples are drawn from.
        model: The model whose features are asked.
        classes: The forgotten classes.
        shots: Samples of every class to learn from. A class that was not forgotten may have fewer.
        draws: How often that is repeated with other samples.
        seed: Decides which samples are drawn.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.tensor([[0.0], [1.0]] * 8), torch.tensor([0, 1] * 8))
    >>> task = Task(nn.Linear(1, 2), nn.CrossEntropyLoss(reduction="none"), data, data)
    >>> few_shot_probe(task, task.model, [1]).accuracy
    1.0
    """
    shots, draws, seed = whole(shots, "shots"), whole(draws, "draws"), whole(seed, "seed", 0)
    if task.test_set is None:
        raise InputError("task has no test_set, which the probe learns from; pass test_set= to Task.")
    targets = targets_of(task, dataset=task.test_set)
    wanted = _checked(classes, targets, shots)
    features = penultimate(task, model, dataset=task.test_set)
    if not np.isfinite(features).all():
        raise InputError("model has penultimate features that are not finite; has its training diverged?")
    rates = [
        _recognised(features, targets, wanted, shots, np.random.default_rng([seed, draw])) for draw in range(draws)
    ]
    return FewShot(
        accuracy=float(np.mean(rates)),
        spread=float(np.std(rates, ddof=1)) if draws > 1 else float("nan"),
        chance=1 / len(np.unique(targets)),
        shots=shots,
        draws=draws,
    )


def _recognised(
    features: Floats, targets: NDArray[Any], wanted: NDArray[Any], shots: int, rng: np.random.Generator
) -> float:
    """Share of the forgotten classes' other samples that are told right after one draw."""
    learned = np.concatenate([rng.permutation(np.flatnonzero(targets == c))[:shots] for c in np.unique(targets)])
    head = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(features[learned], targets[learned])
    asked = np.setdiff1d(np.flatnonzero(np.isin(targets, wanted)), learned)
    return float(np.mean(head.predict(features[asked]) == targets[asked]))


def _checked(classes: Sequence[int], targets: NDArray[Any], shots: int) -> NDArray[Any]:
    if not are_classes(targets):
        raise InputError("task.test_set has targets that are not one class per sample; the probe is for classes only.")
    there, counts = np.unique(targets, return_counts=True)
    if len(there) < 2:
        raise InputError(f"task.test_set has one class only ({there[0]}), so nothing can be told apart.")
    wanted = np.unique(np.atleast_1d(np.asarray(classes)))
    if len(wanted) == 0:
        raise InputError("classes is empty; name at least one forgotten class.")
    often = dict(zip(there.tolist(), counts.tolist(), strict=True))
    for one in wanted.tolist():
        if one not in often:
            raise InputError(f"classes has {one!r}, which is not in task.test_set; it has {_listed(there)}.")
        if often[one] <= shots:
            raise InputError(
                f"class {one} has {often[one]} samples in task.test_set; the probe learns from shots={shots} and is "
                "tested on the others, so it needs more of them, or fewer shots."
            )
    return wanted


def _listed(classes: NDArray[Any]) -> str:
    return ", ".join(str(c) for c in classes[:20]) + (", …" if len(classes) > 20 else "")
