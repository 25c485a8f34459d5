"""The models that never saw the forgotten samples, which everything else is held against: made, kept, or given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from excise import processes
from excise._support.checks import whole
from excise._support.progress import Stages
from excise.errors import InputError
from excise.evidence.admission import admitted_model
from excise.evidence.evaluation import GroupPredictions
from excise.task.ids import Ids
from excise.task.task import Task
from excise.task.weights import portable_state, with_weights
from excise.training.several import retraining, retrainings

ACCURACY_LOST = 0.03  # on retained samples, that retrained models may have less than the original
LOSS_FACTOR, LOSS_SHARE = 2.0, 0.25
"""By what their loss may be larger where there are no classes: so many times, or by this share of the loss on the test
set, whose scale tells a large rise from a small one."""


def retrained_models(
    task: Task, forget: Ids, count: int, *, seed: int, cache: str | Path | None, stages: Stages, label: str
) -> tuple[list[nn.Module], float]:
    """So many retrained models, and the mean of the seconds that they took, now or when they were kept.

    Audits and comparisons of one seed ask for the same models, so that those find what these have kept.
    """
    stages.begin(label, count)
    if processes.count() > 1:
        return _by_several_processes(task, forget, count, seed, cache)
    found = []
    for one in retrainings(task, forget, count, seed=seed, cache=cache):
        found.append(one)
        stages.advance()
    return [one.model for one in found], float(np.mean([one.seconds for one in found]))


def _by_several_processes(
    task: Task, forget: Ids, count: int, seed: int, cache: str | Path | None
) -> tuple[list[nn.Module], float]:
    """The same models, of which each process trains some by itself: they are what a single one would train."""

    def train(number: int) -> tuple[dict[str, Tensor], float]:
        made = retraining(task, forget, number, seed=seed, cache=cache)
        return portable_state(made.model), made.seconds

    found = processes.each(range(whole(count, "count")), train, "retrainings")
    models = [with_weights(task.model, state).eval() for state, _ in found]
    return models, float(np.mean([seconds for _, seconds in found]))


def given_or_retrained(
    task: Task,
    forget: Ids,
    retrained: int | nn.Module | Sequence[nn.Module] | None,
    *,
    seed: int,
    cache: str | Path | None,
    stages: Stages,
) -> tuple[list[nn.Module], float | None]:
    """The models that were given, or as many as were asked for, and the seconds that one took where that is known."""
    if retrained is None:
        return [], None
    if isinstance(retrained, nn.Module):
        retrained = [retrained]
    if isinstance(retrained, Iterable):
        models = [admitted_model(task, model, "retrained has a model that") for model in retrained]
        if not models:
            raise InputError("retrained has no model; pass some, how many to train, or None to do without.")
        return models, None
    count = whole(retrained, "retrained")
    made, seconds = retrained_models(task, forget, count, seed=seed, cache=cache, stages=stages, label="retraining")
    return [admitted_model(task, model, "task.retrain gave a model that") for model in made], seconds


def require_as_good(original: GroupPredictions, retrained: Sequence[GroupPredictions]) -> None:
    """Refuse models of ``fit`` as the truth where they have learned what is retained less well than the original.

    They were then not trained as it was, and what tells it from them is not what was forgotten.
    """
    if original.has_classes:
        before, after = original.accuracies[1], float(np.mean([one.accuracies[1] for one in retrained]))
        worse, what = before - after > ACCURACY_LOST, f"accuracy {after:.3f} against {before:.3f}"
    else:
        before = float(original.retain.losses.mean())
        after = float(np.mean([one.retain.losses.mean() for one in retrained]))
        scale = float(original.test.losses.mean())
        worse = after > LOSS_FACTOR * before and after - before > LOSS_SHARE * scale
        what = f"loss {after:.3g} against {before:.3g}"
    if worse:
        raise InputError(
            f"the retrained models, which fit trained with its defaults, are not as good as the original on retained "
            f"samples ({what}), so they are no truth to hold it against. Pass retrain= to Task, which trains as the "
            "model was trained, or pass such models as retrained=."
        )
