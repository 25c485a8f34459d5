"""Settling: a gentle pass over retained samples after a step, which brings back what the step has harmed.

A step is right to first order only: it also moves retained samples that are like the forgotten ones. Some dozens of
steps of plain training put that right, as long as they are no larger than a training ends with. They give a little back
to forgotten samples that many retained ones are like. SGD of momentum m is stable below 2 (1 + m) / λ, with λ the
largest eigenvalue of the curvature, which is at most its trace; so the trace tells a learning rate for any model.
Weight decay, which is often a guess, is left out: over so few steps the right one would change next to nothing.

A model that was trained otherwise than on the samples as they are, such as on crops of images, is not at rest on these,
and a pass alone would change all of its answers. So one is made on trial, with nothing forgotten before it.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from excise.curvature.margins import margins
from excise.slices.slices import Block
from excise.task.task import Task
from excise.unlearning.answered import Answered
from excise.unlearning.drift import Drift, batch_size_of, drift
from excise.unlearning.selection import SliceSelection

MOST_SAMPLES = 8192  # of which a pass is made: more steps than they make are not needed
BATCH = 128
MOST_RATE = 0.02  # for batches of that size
UNKNOWN_RATE = 0.003  # where the curvature has no trace that is known
SETTLED = "a gentle pass over retained samples followed, which brings back what the step harms"
MOST_MOVED = 0.5  # of what tells training samples from held-out ones, by which a pass alone may move the latter
HELD_OUT = 1000  # samples that tell how far a pass moves them
STABLE = 1.5  # of the 3.8 that momentum 0.9 allows


def settle(
    task: Task,
    model: nn.Module,
    block: Block,
    retained: Tensor,
    trace: float | None,
    seed: int,
    selection: SliceSelection | None = None,
) -> None:
    """Train the model on retained samples for a moment, in place; ``trace`` is that of its curvature.

    All parameters are trained, or where slices were selected those of the block.
    """
    order = torch.randperm(len(retained), generator=torch.Generator().manual_seed(seed))
    seen = retained[order[:MOST_SAMPLES]]
    batch = batch_size_of(Drift(batch_size=task.batch_size_within_memory(BATCH)), len(seen))
    how = Drift(active=0.0, push=0.0, lr=rate(trace) * batch / BATCH, selection=selection)
    without_decay = replace(task, weight_decay=0.0)
    drift(without_decay, model, seen, {}, how, block=block, seed=seed, batch_size=batch)


def moves_little(
    task: Task, model: nn.Module, block: Block, retained: Tensor, trace: float | None, seed: int, answered: Answered
) -> bool:
    """Whether a pass alone hardly moves held-out samples, next to what tells training samples from them."""
    trial, held_out, some = copy.deepcopy(model), answered.held_out.values, answered.held_out_ids[:HELD_OUT]
    settle(task, trial, block, retained, trace, seed)
    moved = (margins(task, trial, some, task.test_set).values - held_out[: len(some)]).abs().mean()
    return bool(moved < MOST_MOVED * (answered.retained.values.mean() - held_out.mean()))


def rate(trace: float | None) -> float:
    """The learning rate for batches of 128.

    >>> rate(1.0), rate(150.0), rate(None)
    (0.02, 0.01, 0.003)
    """
    if trace is None:
        return UNKNOWN_RATE
    return min(MOST_RATE, STABLE / max(trace, 1e-12))
