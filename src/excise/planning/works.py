"""The works that are planned, each set up at a size, so that a small one of its kind can be measured."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from excise.curvature.strategies import SAMPLES as OF_CURVATURE
from excise.errors import NothingForgotten
from excise.evidence.auditing import audit
from excise.evidence.duplicates import near_duplicates
from excise.evidence.effort import Effort
from excise.evidence.relearning import relearn_steps
from excise.planning.bench import FEW, Bench, some_of
from excise.planning.scaling import Estimate, Pair
from excise.planning.stopwatch import bytes_kept
from excise.privacy.claims import certified
from excise.processes import together
from excise.slices.slices import whole_model_block
from excise.task.fingerprint import fingerprint_of
from excise.task.parameters import trainable
from excise.task.task import Task, evaluating
from excise.training.loop import fit
from excise.training.retraining import fresh, seeded
from excise.unlearning.answers import MOST_HELD_OUT
from excise.unlearning.descent import Descent
from excise.unlearning.drift import Drift, batch_size_of, drift
from excise.unlearning.method import Applied, Method, Removal, Unprepared, Workspace
from excise.unlearning.predicted import SAMPLES as OF_DEFAULT
from excise.unlearning.selection import AllSlices
from excise.unlearning.step import Step
from excise.unlearning.unlearner import Unlearner

IN_TRAINING = 64  # samples that a training is measured on at least: in small batches each takes longer
STEPS = 8  # of a training, that are measured first
MOST_AUDITED = 3  # models that an audit is measured with, beside the two that are given
FIRST_PARTS = 8  # of so many samples, that an audit is measured on first
STEPS_TAKEN = 3  # by a request of several steps
LITTLE = Effort(relearn_steps=1)  # stand-ins say nothing of how long models learn again, which is counted besides
NEVER = -1e30  # a loss that no training gets to
NOISE = 1e-3  # share of the weights by which stand-ins of retrained models differ


def preparation(bench: Bench, method: Method | str) -> tuple[Estimate, int]:
    """Of what all requests share, and how many bytes of it are kept."""
    most = OF_CURVATURE if isinstance(method, Step) else OF_DEFAULT
    kept = [0]

    def set_up(bench: Bench, size: int) -> Callable[[], object]:
        task = bench.task if size == most else bench.part(size)

        def work() -> None:
            prepared = Unlearner(task, method).prepare()._prepared
            kept[0] = bytes_kept(prepared)

        return work

    return bench.estimate(set_up, min(most, bench.count), start=bench.few), kept[0]


def step_request(bench: Bench, prepared: Estimate) -> Estimate:
    """Of one request by the step."""
    selection = Step().selection
    most = int(getattr(selection, "copies", 1))

    def set_up(bench: Bench, copies: int) -> Callable[[], object]:
        chosen = replace(selection, copies=copies) if hasattr(selection, "copies") else selection  # type: ignore[type-var]
        return _requests(bench, Step(chosen), prepared)

    return bench.estimate(set_up, most, start=max(8, most // 4)).plus(_guarding(bench, prepared))


def default_request(bench: Bench, prepared: Estimate) -> Estimate:
    """Of one request by the default method, which looks at retained samples too.

    Of very few samples a request harms more of the others than of many, and what it harms costs it time.
    """
    most, few = min(OF_DEFAULT, bench.count), 2 * bench.few
    if prepared.measured_at == 1:
        return bench.estimate(lambda bench, _: _requests(bench, "auto", prepared), 1, start=1)
    return bench.estimate(lambda bench, size: _requests(bench, "auto", prepared, size), most, start=few, most=2 * few)


def several_steps(bench: Bench) -> Estimate:
    """Of one request by three Newton steps, each with some passes over the retained samples."""

    def set_up(bench: Bench, count: int) -> Callable[[], object]:
        return _requests(bench, Descent(steps=STEPS_TAKEN), Estimate(0, 0, count / bench.count), count)

    return bench.estimate(set_up, bench.count, start=min(bench.count, FIRST_PARTS * bench.few))


def _requests(bench: Bench, method: Method | str, prepared: Estimate, size: int = 0) -> Callable[[], object]:
    """Requests one after the other: of the whole task, if that could be prepared, else of a part."""
    task = bench.task if prepared.measured_at == 1 else bench.part(bench.fitting(size or bench.few))
    unlearner = Unlearner(task, method).prepare()
    ids = iter(torch.randperm(len(task.train_set), generator=torch.Generator().manual_seed(1)).split(bench.request))
    _forget(unlearner, next(ids))  # the first one loads what later ones find there

    def work() -> None:
        _forget(unlearner, next(ids))

    return work


def _guarding(bench: Bench, prepared: Estimate) -> Estimate:
    """By how much the guard of the whole task takes more than that of the part that was measured."""
    if prepared.measured_at == 1:
        return Estimate(0.0, 0.0, 1.0, Pair(0.0))
    part, most = bench.fitting(bench.few), min(bench.count, MOST_HELD_OUT)

    def set_up(bench: Bench, size: int) -> Callable[[], object]:
        return _requests(bench, _Nudge(), prepared, size)

    few = bench.estimate(set_up, part, start=part)
    return bench.estimate(set_up, max(part, most), start=2 * part).beyond(few)


@dataclass(frozen=True)
class _Nudge(Unprepared):
    """Hardly changes the model: what is left of a request is what the guard and the record look at."""

    heeds_guard: ClassVar[bool] = True

    def apply(self, workspace: Workspace, prepared: None, model: nn.Module, removal: Removal) -> Applied:  # noqa: ARG002
        """Change one tensor by as little as can be."""
        weight = next(iter(trainable(model).values()))
        with torch.no_grad():
            weight.copy_(torch.nextafter(weight, torch.full_like(weight, torch.inf)))
        losses = removal.retained.of_each(model)
        removal.retained.keeps(model, losses)
        return Applied(losses=losses)


def _forget(unlearner: Unlearner, ids: Tensor) -> None:
    with suppress(NothingForgotten):  # which takes as long
        unlearner.forget(ids)


def drift_request(bench: Bench, prepared: Estimate) -> Estimate:
    """Of one request by drift: what every request has, and the steps of its pass."""
    how = Drift()
    left = bench.count - bench.request
    size = batch_size_of(how, left)
    steps = how.epochs * math.ceil(left / size)
    fixed = bench.estimate(lambda bench, _: _requests(bench, Step(AllSlices()), prepared), 1, start=1)

    def set_up(bench: Bench, count: int) -> Callable[[], object]:
        def work() -> None:
            model = copy.deepcopy(bench.task.model)
            push = {name: torch.zeros_like(weight) for name, weight in trainable(model).items()}
            ids, block = bench.order[: min(left, count * size)], whole_model_block(model)
            with together("drift"), evaluating(model):
                drift(bench.task, model, ids, push, how, block=block, seed=0, batch_size=size)

        return work

    most = math.ceil(left / size)
    first = max(1, STEPS * bench.few // FEW)
    found = bench.estimate(set_up, steps, start=min(first, most), most=most, streams=True, in_steps=True)
    return found.plus(fixed).plus(_guarding(bench, prepared))


def certificate(bench: Bench) -> Estimate:
    """Of the proof after a request: one or two passes over the retained samples."""
    batch = bench.task.batch_size_within_memory(256)

    def set_up(bench: Bench, count: int) -> Callable[[], object]:
        ids = torch.arange(bench.request, bench.request + count)

        def work() -> None:
            with together("certificate"):
                certified(bench.task, bench.task.model, ids)

        return work

    start = max(batch, 4 * batch * bench.few // FEW)  # a whole one: parts of a batch take longer
    return bench.estimate(set_up, bench.count - bench.request, start=start, streams=True)


def retraining(bench: Bench) -> Estimate:
    """Of one training without the samples, by the task's recipe, which is never divided."""

    def set_up(bench: Bench, count: int) -> Callable[[], object]:
        ids = bench.order[:count].sort().values

        def work() -> None:
            if bench.task.retrain is not None:
                with seeded(0):
                    bench.task.retrain(ids, 0)
            else:
                fit(bench.task.with_model(fresh(bench.task.model, 0)), ids=ids)

        return work

    alone = replace(bench, prices=None)
    return alone.estimate(set_up, bench.count - bench.request, start=max(bench.few, IN_TRAINING), streams=True)


def auditing(bench: Bench, retrainings: int) -> Estimate:
    """Of an audit without its retrainings: every figure of all models, and the readings of the training set.

    Models learn the samples again until they know them as well as the original, which models that never saw them often
    don't within the steps that are allowed: all of these are counted.
    """
    test = bench.task.test_set
    if test is None or len(test) == 0:
        raise ValueError("there is no test_set")
    most = min(bench.count, Effort().retained_samples)
    share = math.ceil(max(most, len(test)) / bench.few)  # how many times larger all of it is than a part
    few = min(retrainings, MOST_AUDITED)

    def with_models(models: int) -> Estimate:
        def set_up(bench: Bench, part: int) -> Callable[[], object]:
            task = _audited(bench, min(most, part * bench.few), min(len(test), part * bench.few))
            others = [_stand_in(task.model, seed) for seed in range(models + 1)]
            ids = list(range(bench.request))
            return lambda: audit(task, task.model, others[0], ids, retrained=others[1:] or None, effort=LITTLE)

        return bench.estimate(set_up, share, start=min(share, FIRST_PARTS))

    found = with_models(few)
    if retrainings > few:
        found = found.plus(found.beyond(with_models(few - 1)), retrainings - few)
    found = found.plus(_learning_again(bench), retrainings + 1)
    return found.plus(_passes(bench), max(0, bench.count - most))


def _learning_again(bench: Bench) -> Estimate:
    """What a model takes to learn a request again, as if it never knew the samples as well as the original."""
    ids = list(range(bench.request))

    def set_up(bench: Bench, steps: int) -> Callable[[], object]:
        def work() -> None:
            with together("learning again"):
                relearn_steps(bench.task, bench.task.model, ids, NEVER, lr=1e-6, most=steps)

        return work

    steps = Effort().relearn_steps - LITTLE.relearn_steps
    return bench.estimate(set_up, steps, start=STEPS, most=STEPS)


def _audited(bench: Bench, count: int, test: int) -> Task:
    task = bench.part(count)
    held_out = bench.task.test_set
    return task if test >= len(held_out) else replace(task, test_set=some_of(held_out, torch.arange(test)))


def _stand_in(model: nn.Module, seed: int) -> nn.Module:
    """A model that differs a little, in place of one that would have to be trained."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in trainable(other).values():
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            weight.add_(noise, alpha=NOISE * float(weight.abs().mean()))
    return other


def _passes(bench: Bench) -> Estimate:
    """What a training sample takes that an audit only reads: to recognise the set, and to find near-duplicates."""

    def set_up(bench: Bench, size: int) -> Callable[[], object]:
        task = bench.part(size)

        def work() -> None:
            with together("reading"):
                fingerprint_of(task)
                near_duplicates(task, list(range(bench.request)))

        return work

    few, more = (bench.estimate(set_up, size, start=size) for size in (4 * bench.few, 8 * bench.few))
    return Estimate(0.0, 0.0, 1.0, Pair(0.0)).plus(more.beyond(few), 1 / (4 * bench.few))
