"""Carrying out a batch: a model without the samples, what was measured of it, and whether it may be given out."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

import excise
from excise.errors import InputError
from excise.ledger.policy import GateBroken, Policy
from excise.ledger.training_set import TrainingSet
from excise.ledger.versions import Version
from excise.privacy.convexity import why_not_linear
from excise.task.weights import with_weights
from excise.unlearning.forgotten import PAIRS, Forgotten, _plain
from excise.unlearning.method import settings_of
from excise.unlearning.performance import HELD_OUT
from excise.unlearning.unlearner import Unlearner

if TYPE_CHECKING:
    from torch import nn

    from excise.evidence.auditing import Audit
    from excise.ledger.batch import Answer
    from excise.ledger.retained_tree import RetainedTree
    from excise.privacy.accountant import BudgetAccountant
    from excise.task.task import Task


@dataclass(frozen=True, eq=False)
class Carried:
    """A new model, and all that is written down about it."""

    model: nn.Module
    working: nn.Module
    """The weights before noise, from which later requests go on; the same model where there is none."""
    columns: dict[str, Any]
    """Of the table of versions."""
    tree: RetainedTree
    """Over the samples that are left."""
    requests: int
    """How many were carried out together."""


def carry_out(
    task: Task,
    model: nn.Module,
    head: Version,
    asking: Sequence[Answer],
    training_set: TrainingSet,
    policy: Policy,
    budget: BudgetAccountant | None,
) -> Carried:
    """Make the model forget the samples of a batch; an error where it can't be, or must not be given out."""
    asked = sorted(place for one in asking for place in one.positions)
    _require_some_left(asked, training_set)
    if policy.epsilon is not None and not training_set.is_whole:
        raise InputError(
            "epsilon counts all removals since the training, and the rows of earlier ones are no longer in train_set; "
            "pass the training set as it was, or retrain."
        )
    unlearner = Unlearner(
        task.with_model(model),
        policy.method,
        guard=policy.guard,
        privacy=policy.privacy(budget),
        forgotten=sorted(training_set.gone),
        batch_statistics=policy.batch_statistics,
        seed=policy.seed,
    )
    done = unlearner.forget(asked, epsilon=policy.epsilon, delta=policy.delta)
    audited = None if policy.retrainings is None else _audited(task, model, done, policy)
    first = head.record.get("first_accuracy", None if done.held_out_accuracy is None else done.held_out_accuracy[0])
    policy.require_gates(done, first, _held_out(task), audited)
    tree = training_set.tree.without([bytes.fromhex(leaf) for one in asking for leaf in one.leaves])
    working = done.model if policy.epsilon is None else with_weights(model, unlearner.state_dict()["model"])
    columns = {
        "method": str(settings_of(policy.method) if isinstance(policy.method, str) else _name_of(policy.method)),
        "retained_count": tree.count,
        "retained_root": tree.root.hex(),
        "epsilon": policy.epsilon,
        "delta": policy.delta,
        "record": _plain(
            {
                **_measured(done),
                "first_accuracy": first,
                "policy": policy.settings(),
                "audit": None if audited is None else _verdict(audited),
                "guarantee": _guarantee(task, model, done, policy),
                "budget": None if budget is None else _budget(budget, policy),
                "software": {
                    "excise": excise.__version__,
                    "torch": torch.__version__,
                    "python": platform.python_version(),
                },
            }
        ),
    }
    return Carried(done.model, working, columns, tree, len(asking))


def _require_some_left(asked: Sequence[int], training_set: TrainingSet) -> None:
    left = training_set.tree.count - len(asked)
    if left < 1:
        raise GateBroken(
            "the requests are for all samples that are left, and a model of nothing must be trained anew.",
            {"gate": "samples", "asked": len(asked), "left": left},
        )


def _held_out(task: Task) -> int:
    """How many samples of the test set accuracies are of."""
    return 0 if task.test_set is None else min(HELD_OUT, len(task.test_set))


def _audited(task: Task, model: nn.Module, done: Forgotten, policy: Policy) -> Audit:
    from excise.evidence.auditing import audit  # which takes a while to load

    return audit(task, model, done, done.ids, retrained=policy.retrainings or None, seed=policy.seed, cache=None)


def _measured(done: Forgotten) -> dict[str, Any]:
    """What the outcome says, but for which samples it was."""
    record = done.as_dict() if done._certificate else _without_certificate(done)
    kept = ("slices", "seconds", "step_share", "parameters_changed", "settings", *PAIRS)
    return {**{name: record[name] for name in kept}, "said": done.shortened}


def _without_certificate(done: Forgotten) -> dict[str, Any]:
    names = ("slices", "seconds", "step_share", "parameters_changed", "settings", *PAIRS)
    plain: dict[str, Any] = _plain({name: getattr(done, name) for name in names})
    return plain


def _verdict(audited: Audit) -> dict[str, Any]:
    from excise.evidence.metrics import rows_of

    figures: dict[str, float | None] = {}
    for row in rows_of(audited):
        name = row.metric.name.format(metric=audited.metric)
        for model, values in row.values.items():
            mean = sum(values) / len(values) if values else math.nan
            figures[f"{name}; {model}"] = mean if math.isfinite(mean) else None
    return {
        "verdict": audited.verdict.outcome,
        "sentences": [audited.verdict.sentence, *(f"{one.title}: {one.text}" for one in audited.verdict.findings)],
        "figures": figures,
        "retrained_models": len(audited.retrained),
    }


def _guarantee(task: Task, model: nn.Module, done: Forgotten, policy: Policy) -> dict[str, Any]:
    """What is proven. It takes a pass over the retained samples, which is spared where nothing could follow."""
    why = "the task says that it is not convex" if task.convex is False else None
    if task.convex is None:
        why = why_not_linear(task, model)
    if why is not None and policy.epsilon is None:
        return {"kind": "heuristic", "text": f"Nothing is proven of the distance to a retrained model: {why}."}
    found = asdict(done.certificate)
    return {**found, "text": found.pop("reason")}


def _budget(budget: BudgetAccountant, policy: Policy) -> dict[str, Any]:
    left = budget.remaining
    return {
        "epsilon": budget.total.epsilon,
        "delta": budget.total.delta,
        "spent_epsilon": budget.spent.epsilon,
        "left_epsilon": left.epsilon,
        "capacity": budget.capacity(policy.epsilon or 0.0, policy.delta or 0.0),
    }


def _name_of(method: Any) -> str:
    return str(getattr(method, "name", type(method).__name__))
