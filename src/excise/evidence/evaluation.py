"""What models say about forgotten, retained and held-out samples: read once, and summed up in one way everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.evidence.attacks import auc
from excise.evidence.gap import Logits, log_odds
from excise.task.ids import Ids, all_but, positions
from excise.task.predictions import Predictions, predict_all
from excise.task.task import Task

RETAINED_SAMPLES = 10_000  # of the retained samples, drawn at random, that figures are taken on
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class GroupPredictions:
    """A model's predictions for each group of samples."""

    forget: Predictions
    retain: Predictions
    test: Predictions

    @property
    def groups(self) -> tuple[Predictions, Predictions, Predictions]:
        """Of forgotten, retained and test samples."""
        return self.forget, self.retain, self.test

    @property
    def has_classes(self) -> bool:
        """Whether every sample has one class, as opposed to several labels or a number to predict."""
        return self.forget.has_classes

    @cached_property
    def comparable(self) -> Predictions:
        """Of the test samples, those to compare the forgotten ones with: of the same classes, where there are any."""
        if not self.has_classes:
            return self.test
        same = np.isin(self.test.targets, self.forget.targets)
        some = {name: getattr(self.test, name)[same] for name in ("outputs", "targets", "losses")}
        return replace(self.test, **some)

    @property
    def logits(self) -> Logits:
        """Of the forgotten and the test samples, in rows of classes."""
        return Logits(_as_classes(self.forget)[0], _as_classes(self.test)[0])

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """The true classes of these rows."""
        return _as_classes(self.forget)[1], _as_classes(self.test)[1]

    def scores(self, *, numbers: bool) -> tuple[NDArray[np.float64], ...]:
        """How well each of the forgotten, retained and test samples is known."""
        return tuple(score(one, numbers=numbers) for one in self.groups)

    @cached_property
    def accuracies(self) -> tuple[float, float, float]:
        """On forgotten, retained and test samples, of one class each."""
        forget, retain, test = (float(np.mean(one.outputs.argmax(1) == one.targets)) for one in self.groups)
        return forget, retain, test

    @cached_property
    def summary(self) -> dict[str, float]:
        """UA, RA, TA and MIA, of samples of one class each."""
        attack = auc(-self.forget.losses, -self.comparable.losses)
        return summary_of(self.accuracies, attack)


def score(said: Predictions, *, numbers: bool) -> NDArray[np.float64]:
    """How well a model knows each sample, on a scale on which trainings scatter evenly: higher is better.

    Of classes it is the margin, the log-odds of the true one; of several labels that of each label; of numbers minus
    the distance of the answer from the truth.

    >>> score(Predictions(np.array([[3.0], [6.0]]), np.array([[4.0], [4.0]]), np.ones(2)), numbers=True).tolist()
    [-1.0, -2.0]
    """
    if not numbers:
        return log_odds(*_as_classes(said))
    missed = (said.outputs - said.targets.reshape(said.outputs.shape)).reshape(len(said), -1)
    return -np.asarray(np.linalg.norm(missed, axis=1), dtype=np.float64)


def summary_of(shares: Sequence[float], attack: float) -> dict[str, float]:
    """UA, RA, TA and MIA: what other papers average their gaps over.

    Args:
        shares: How much was right of forgotten, retained and test samples.
        attack: AUC of the attack by loss, against held-out samples of the same classes.

    >>> summary_of((0.25, 1.0, 0.875), 0.5)
    {'UA': 0.75, 'RA': 1.0, 'TA': 0.875, 'MIA': 0.5}
    """
    forget, retain, test = shares
    return {"UA": 1 - forget, "RA": retain, "TA": test, "MIA": attack}


class Evaluator:
    """Asks one model after the other about the same groups of samples, each model once.

    Args:
        task: The task; its ``test_set`` is the data that no model has seen.
        forget: The forgotten samples.
        earlier: Samples that were forgotten before, which count as neither forgotten nor retained here.
        held_out: Positions in ``test_set`` of the samples to ask about; None for all.
        retained_samples: At most so many of the retained samples, drawn at random.
        seed: Decides which of them.
    """

    def __init__(
        self,
        task: Task,
        forget: Ids,
        *,
        earlier: Ids = (),
        held_out: Tensor | None = None,
        retained_samples: int = RETAINED_SAMPLES,
        seed: int = 0,
    ) -> None:
        self.task, self.forget = task, positions(forget, len(task.train_set))
        gone = torch.cat([self.forget, torch.as_tensor(earlier, dtype=torch.long)])
        left = all_but(gone, len(task.train_set))
        order = torch.randperm(len(left), generator=torch.Generator().manual_seed(seed))
        self.retained = left[order[:retained_samples].sort().values]
        self._held_out = held_out
        self._known: WeakKeyDictionary[nn.Module, GroupPredictions] = WeakKeyDictionary()  # as long as the model lives

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": None}  # other processes have other models

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _known=WeakKeyDictionary())

    def predictions(self, model: nn.Module) -> GroupPredictions:
        """What the model says about each group; computed once."""
        return self.all_predictions([model])[0]

    def all_predictions(self, models: Sequence[nn.Module]) -> list[GroupPredictions]:
        """The same of several models, with every sample read once for all those that were not asked before."""
        new = [model for model in dict.fromkeys(models) if model not in self._known]
        if new:
            groups = (
                predict_all(self.task, new, self.forget),
                predict_all(self.task, new, self.retained),
                predict_all(self.task, new, self._held_out, dataset=self.task.test_set),
            )
            self._known.update(zip(new, map(GroupPredictions, *groups), strict=True))
        return [self._known[model] for model in models]


def _as_classes(one: Predictions) -> tuple[NDArray[np.float64], Labels]:
    """Logits and classes in rows; of labels that are 0 or 1 each is a row of its own, with the logits of no and yes."""
    if one.has_classes:
        return one.outputs, one.targets
    yes = one.outputs.reshape(-1)
    return np.stack([np.zeros_like(yes), yes], axis=1), one.targets.reshape(-1).astype(np.int64)
