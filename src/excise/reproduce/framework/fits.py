"""Trained models of an experiment, kept with its steps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from excise.reproduce.framework.run import Run
from excise.task.task import Task
from excise.training.exact import exact_fit
from excise.training.loop import Fitted, fit


def kept_fit(run: Run[Any], key: str, task: Task, **options: Any) -> Fitted:
    """``fit(task, **options)``, or its outcome from the run's folder; with ``recorder=True`` it has the trace."""
    return run.trained(key, task.model, lambda: fit(task, **options))


def kept_exact(run: Run[Any], key: str, task: Task, **options: Any) -> Fitted:
    """The same of ``exact_fit``."""
    return run.trained(key, task.model, lambda: exact_fit(task, **options))


def with_weights(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with other weights, in evaluation mode."""
    model = copy.deepcopy(model)
    model.load_state_dict(state)
    return model.eval()


class Trainable(Protocol):
    """Settings that a training follows from."""

    @property
    def epochs(self) -> int:
        """Passes over the samples."""

    @property
    def learning_rate(self) -> float:
        """Of SGD."""

    @property
    def batch_size(self) -> int:
        """Samples in a step."""


def plain_sgd(settings: Trainable) -> dict[str, Any]:
    """Options of ``fit`` as in appendix B for MNIST: a constant learning rate, and no momentum."""
    return {
        "epochs": settings.epochs,
        "lr": settings.learning_rate,
        "batch_size": settings.batch_size,
        "momentum": 0.0,
        "schedule": "constant",
    }
