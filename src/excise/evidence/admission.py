"""What an audit refuses, with the remedy: best before anything was trained."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from excise.errors import InputError
from excise.evidence.elsewhere import input_digest
from excise.evidence.evaluation import GroupPredictions
from excise.task.ids import Ids, positions
from excise.task.losses import no_class
from excise.task.task import Task
from excise.task.wrapping import unwrapped
from excise.training.retraining import require_same_architecture


def admitted_ids(task: Task, forget: Ids) -> Tensor:
    """Positions of the forgotten samples, of which some must be left."""
    try:
        gone = positions(forget, len(task.train_set))
    except InputError as error:
        raise InputError(f"forget: {error}") from None
    if len(gone) == len(task.train_set):
        raise InputError(f"forget has all {len(gone)} samples of train_set; leave at least one to retain.")
    return gone


def admitted_model(task: Task, model: Any, what: str) -> nn.Module:
    """The model, if it is built as the task's; what that one trains is trainable in it too, else in a copy of it."""
    if isinstance(model, nn.Module):
        model = unwrapped(model)
    require_same_architecture(task.model, model, what)
    trained = [weight.requires_grad for weight in task.model.parameters()]
    if trained != [weight.requires_grad for weight in model.parameters()]:
        model = copy.deepcopy(model)
        for weight, right in zip(model.parameters(), trained, strict=True):
            weight.requires_grad_(right)
    admitted: nn.Module = model
    return admitted


def require_test_set(task: Task, forget: Tensor, forgotten: Task) -> None:
    """Refuse a task without held-out data, or with forgotten samples among them."""
    if task.test_set is None or len(task.test_set) == 0:
        raise InputError("task has no test_set: an audit needs data that no model has seen; pass test_set= to Task.")
    known = {
        input_digest(forgotten, place, forgotten.train_set): sample for place, sample in enumerate(forget.tolist())
    }
    for place in range(len(task.test_set)):
        sample = known.get(input_digest(task, place, task.test_set))
        if sample is not None:
            raise InputError(
                f"forget has sample {sample}, which is also in task.test_set (position {place}): what is forgotten "
                "can't serve as data that was never seen; take it out of the test set."
            )


def require_several_classes(targets: NDArray[Any]) -> None:
    """Refuse data of a single class."""
    if len(np.unique(targets)) < 2:
        raise InputError(
            f"train_set has one class only ({targets[0]}), so every answer is right and nothing can be measured; "
            "pass data of two or more classes."
        )


def require_labels(task: Task, found: GroupPredictions) -> None:
    """Refuse samples without a label: whatever a model says of them would count as wrong."""
    none = no_class(task.loss_module)
    for name, group in zip(("forget", "train_set", "task.test_set"), found.groups, strict=True):
        if group.has_classes and (count := int((group.targets == none).sum())):
            raise InputError(
                f"{name} has {count} samples with the label {none}, which is no class, so that no answer to them is "
                "right; audit without them, by a task whose train_set and test_set have labelled samples alone."
            )


def require_comparable(found: GroupPredictions) -> None:
    """Refuse a test set without samples to compare the forgotten ones with."""
    missing = np.setdiff1d(found.forget.targets, found.test.targets)
    if len(missing):
        raise InputError(
            f"forget has samples of class {missing[0]}, of which task.test_set has none to compare with; add some, two "
            "or more."
        )
    if len(found.comparable) < 2:
        raise InputError("task.test_set has 1 sample of forget's classes to compare with; add some, two or more.")


def require_finite(name: str, found: GroupPredictions) -> None:
    """Refuse a model whose predictions can't be measured."""
    for group in found.groups:
        if not (np.isfinite(group.outputs).all() and np.isfinite(group.losses).all()):
            raise InputError(
                f"{name}: the model's answers or losses are not all finite, so there is nothing to measure; see "
                "whether its training diverged (to mask a class, take a large number rather than infinity)."
            )
