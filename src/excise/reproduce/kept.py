"""Trained models of an experiment, kept with its steps."""

from __future__ import annotations

import copy
from typing import Any

from excise.reproduce.run import Run
from excise.task import Task
from excise.training import Fitted, GradientTrace, fit
from excise.weights import portable_state


def kept_fit(run: Run[Any], key: str, task: Task, **options: Any) -> Fitted:
    """``fit(task, **options)``, or its outcome from the run's folder; with ``recorder=True`` it has the trace."""

    def train() -> dict[str, Any]:
        fitted = fit(task, **options)
        trace = fitted.trace
        return {
            "weights": portable_state(fitted.model),
            "losses": list(fitted.losses),
            "seconds": fitted.seconds,
            "trace": None if trace is None else [list(trace.gradients), list(trace.parameters)],
        }

    state = run.tensors(key, train)
    model = copy.deepcopy(task.model)
    model.load_state_dict(state["weights"])
    trace = state["trace"] and GradientTrace(gradients=tuple(state["trace"][0]), parameters=tuple(state["trace"][1]))
    return Fitted(model.eval(), tuple(state["losses"]), state["seconds"], trace)
