"""Every figure of one model after the other, taken in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from excise.errors import InputError
from excise.evidence.admission import require_comparable, require_finite, require_labels, require_several_classes
from excise.evidence.attacks import Attack, threshold_attack
from excise.evidence.effort import Effort
from excise.evidence.evaluation import Evaluator, GroupPredictions
from excise.evidence.features import penultimate
from excise.evidence.few_shot import FewShot, few_shot_probe
from excise.evidence.held_out import HeldOutComparison, against_held_out
from excise.evidence.metrics import Score, chosen_attacks
from excise.evidence.model_metrics import ModelMetrics
from excise.evidence.relearning import relearn_steps
from excise.evidence.utility import Utility, retrieval, utility
from excise.task.hashing import hash_of_model
from excise.task.predictions import Predictions
from excise.task.targets import are_classes, targets_of
from excise.task.task import Task

Kind = Literal["auto", "samples", "class"]
UtilityName = Literal["auto", "accuracy", "micro-f1", "rmse", "retrieval"]
SHOTS = 5  # samples of each class that the few-shot probe learns from, or fewer where the test set has fewer
QUANTILES = 201  # of held-out losses, for plots


@dataclass(frozen=True)
class Scope:
    """Whether single samples were forgotten, or whole classes, and which."""

    kind: Literal["samples", "class"]
    classes: tuple[int, ...]


def scope_of(targets: NDArray[Any], forget: NDArray[np.int64], kind: Kind) -> Scope:
    """What was forgotten; ``"auto"`` looks whether any sample of the classes is left.

    >>> scope_of(np.array([0, 1, 1]), np.array([0]), "auto")
    Scope(kind='class', classes=(0,))
    """
    classes = np.unique(targets[forget]) if are_classes(targets) else np.array([], dtype=np.int64)
    left = np.delete(targets, forget, axis=0)
    whole_classes = len(classes) > 0 and not np.isin(left, classes).any()
    if kind == "samples" or (kind == "auto" and not whole_classes):
        return Scope("samples", ())
    if len(classes) == 0:
        raise InputError('kind="class" is for targets that are one class each; pass kind="samples".')
    return Scope("class", tuple(classes.tolist()))


class Measurer:
    """Takes all figures of one model after the other; what the original says settles what can be measured.

    Args:
        evaluator: What models say about the groups of samples.
        forgotten: The task with the forgotten samples alone.
        original: The model before.
        seed: For everything random.
        kind: Whether single samples or whole classes were forgotten.
        utility_name: What answers are scored by.
        attacks: Names of the membership attacks to run.
        effort: How much work to do.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        forgotten: Task,
        original: nn.Module,
        *,
        seed: int,
        kind: Kind,
        utility_name: UtilityName,
        attacks: Sequence[str] | None,
        effort: Effort,
    ) -> None:
        self._evaluator, self._task, self._seed = evaluator, evaluator.task, seed
        self._forgotten, self._effort = forgotten, effort
        targets = targets_of(self._task)
        if are_classes(targets):
            require_several_classes(targets)
        self.scope = scope_of(targets, evaluator.forget.numpy(), kind)
        before = evaluator.predictions(original)
        require_finite("original", before)
        require_labels(self._task, before)
        if are_classes(targets):
            require_comparable(before)
        self._attacks = chosen_attacks(attacks, has_classes=before.has_classes)
        self._target_loss = float(before.forget.losses.mean())
        self._asked = utility_name
        self.utility_name = "mAP" if utility_name == "retrieval" else self._utility(before.test).metric

    def metrics(self, name: str, model: nn.Module) -> ModelMetrics:
        """All figures of a model."""
        found = self._evaluator.predictions(model)
        require_finite(name, found)
        forget, retain, test = self._utilities(model, found)
        return ModelMetrics(
            name=name,
            forget=forget,
            retain=retain,
            test=test,
            attacks={one.name: self._attack(one.score, found) for one in self._attacks},
            held_out=self._held_out(found),
            relearning=relearn_steps(
                self._forgotten,
                model,
                self._forgotten.all_ids,
                self._target_loss,
                most=self._effort.relearn_steps,
                seed=self._seed,
            ),
            few_shot=self._few_shot(model, found),
            model_hash=hash_of_model(model),
        )

    def _held_out(self, found: GroupPredictions) -> HeldOutComparison:
        return against_held_out(
            found.forget.losses,
            found.forget.targets,
            found.test.losses,
            found.test.targets,
            seed=self._seed,
            permutations=self._effort.permutations,
            resamples=self._effort.held_out_resamples,
        )

    def _utility(self, said: Predictions) -> Utility:
        name = "auto" if self._asked == "retrieval" else self._asked
        return utility(said, metric=name, resamples=self._effort.resamples)

    def _utilities(self, model: nn.Module, found: GroupPredictions) -> list[Utility]:
        if self._asked != "retrieval":
            return [self._utility(one) for one in found.groups]
        task, forget = self._task, self._evaluator.forget
        trained = np.concatenate([penultimate(task, model, ids) for ids in (forget, self._evaluator.retained)])
        ranked = retrieval(trained, np.concatenate([found.forget.targets, found.retain.targets]))
        held_out = retrieval(penultimate(task, model, dataset=task.test_set), found.test.targets)
        return [
            ranked.of(slice(None, len(forget)), found.forget),
            ranked.of(slice(len(forget), None), found.retain),
            held_out.of(slice(None), found.test),
        ]

    def _attack(self, score: Score, found: GroupPredictions) -> Attack:
        inside, outside = score(found.forget), score(found.comparable)
        return threshold_attack(inside, outside, seed=self._seed, resamples=self._effort.resamples)

    def _few_shot(self, model: nn.Module, found: GroupPredictions) -> FewShot | None:
        """Asked with five samples of each class, or with as many as leave one to be tested on."""
        classes, targets = self.scope.classes, found.test.targets
        shots = min([SHOTS, *(int(np.sum(targets == one)) - 1 for one in classes)])
        several = len(np.unique(targets)) > 1
        if not classes or shots < 1 or not several:
            return None
        return few_shot_probe(
            self._task, model, classes, shots=shots, draws=self._effort.few_shot_draws, seed=self._seed
        )


def losses_to_plot(found: GroupPredictions) -> dict[str, tuple[float, ...]]:
    """Losses of the forgotten, and quantiles of those of held-out samples of the same classes."""
    others = np.quantile(found.comparable.losses, np.linspace(0, 1, QUANTILES))
    return {"forget": tuple(found.forget.losses.tolist()), "held-out": tuple(others.tolist())}
