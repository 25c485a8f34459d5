"""A retrained model becomes the head: it answers the requests that no unlearning could."""

from __future__ import annotations

import copy
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import excise
from excise.ledger.processing import Processed, Worker
from excise.ledger.subjects import Finder
from excise.task.parameters import trained_parameters
from excise.task.weights import load_weights
from excise.unlearning.forgotten import PAIRS

if TYPE_CHECKING:
    from excise.ledger.ledger import Ledger
    from excise.task.task import Task

WORD = "The model was retrained. That the samples were not in its training set is the operator's word."


def register_retrained(
    ledger: Ledger, task: Task, weights: str | Path, *, finders: Mapping[str, Finder] | None = None
) -> Processed:
    """Make retrained weights the head version; all requests that need a retraining are completed by it.

    Args:
        ledger: The ledger.
        task: The task, with the training set of the ledger.
        weights: The file of the retrained weights, of the same architecture.
        finders: How subjects are found (see ``Subjects``).
    """
    model = copy.deepcopy(task.model)
    load_weights(model, Path(weights))
    return Worker(ledger, task, finders=finders).adopt(model, _record(model))


def _record(model: torch.nn.Module) -> dict[str, Any]:
    return {
        **dict.fromkeys(PAIRS),
        "slices": [],
        "seconds": 0.0,
        "step_share": 1.0,
        "parameters_changed": sum(weight.numel() for weight in trained_parameters(model).values()),
        "settings": {},
        "said": WORD,
        "audit": None,
        "guarantee": None,
        "budget": None,
        "policy": {},
        "software": {"excise": excise.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
