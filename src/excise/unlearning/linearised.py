"""What a network would say had it never seen some samples: linear in its weights, with the loss as it is.

How samples hold the weights is what the linear network does not know (see ``hold``). It is found once for a model, and
is right for requests of all kinds, since retained samples resist (see ``response``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from excise.curvature import kfac
from excise.curvature.margins import Margins, margin_rows
from excise.curvature.rows import parts_of
from excise.curvature.whitened import WhitenedRows, Whitening
from excise.errors import InputError
from excise.slices.slices import Block, Slices
from excise.task.task import Task
from excise.unlearning.response import added_pull

DAMPING = 1e-4  # share of the curvature's trace, from which on the right one is looked for
ROW_BYTES = 2**30  # what the rows of some samples may take, whitened; as much again is needed for a moment
RIDGE = 0.01  # share of a kernel's mean diagonal, where margins are to be moved by given amounts


@dataclass(frozen=True)
class Gradients:
    """Some samples, their margins and how these change with the weights."""

    ids: Tensor
    margins: Margins
    rows: WhitenedRows
    """∇φ, whitened by C · n."""

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, which: Tensor) -> Gradients:
        """Some of them."""
        return Gradients(self.ids[which], self.margins.at(which), self.rows.at(which))

    def joined(self, other: Gradients) -> Gradients:
        """Both."""
        ids = torch.cat([self.ids, other.ids])
        return Gradients(ids, self.margins.joined(other.margins), self.rows.joined(other.rows))


def kernel(of: Gradients, by: Gradients) -> Tensor:
    """How the margins of samples answer to the pull of others: ∇φ C⁻¹ ∇φᵀ / n."""
    return of.rows.kernel(by.rows)


@dataclass(frozen=True)
class Linearised:
    """A model as a linear one."""

    task: Task
    slices: Slices
    block: Block
    """All of them."""
    curvature: kfac.KroneckerPlusRows
    """C."""
    damping: float
    mass: float
    """n, that of the retained samples: how many, where all count the same."""
    by: tuple[Whitening, ...]
    """C · n, damped."""

    @property
    def trace(self) -> float:
        """Of C."""
        return self.curvature.trace

    @staticmethod
    def of(task: Task, model: nn.Module, slices: Slices, ids: Tensor, *, mass: float, seed: int) -> Linearised:
        """With the curvature of these samples."""
        found = kfac.cache(task, model, slices, ids, exact=0, seed=seed)
        damping = max(DAMPING * found.trace, torch.finfo(torch.float32).tiny)
        block = slices.block(range(len(slices)))
        return Linearised(task, slices, block, found, damping, mass, found.whitenings(block, damping, mass))

    def damped(self, damping: float) -> Linearised:
        """The same with another damping."""
        return replace(self, damping=damping, by=self.curvature.whitenings(self.block, damping, self.mass))

    def precondition(self, vector: Tensor) -> Tensor:
        """(C + damping I)⁻¹ of a vector on the block."""
        return self.curvature.precondition(self.block, self.damping)(vector)

    def gradients(self, model: nn.Module, ids: Tensor) -> Gradients:
        """Of samples of the training set."""
        answers, rows = margin_rows(self.task, model, self.slices, ids)
        finite = torch.stack([one.norms.isfinite() for one in rows]).all(0)
        if not bool(finite.all()):
            wrong = int(ids[(~finite).nonzero()[0, 0]])
            raise InputError(
                f"sample {wrong} of train_set has a gradient that is not finite, so nothing can be predicted from it; "
                "check its input and target, or scale the inputs."
            )
        return Gradients(ids, answers, WhitenedRows.of(self.by, rows))


def most_rows(task: Task, model: nn.Module, slices: Slices) -> int:
    """How many samples' gradients fit into memory, by that of the first: outer products take hardly any."""
    rows = margin_rows(task, model, slices, torch.tensor([0]))[1]
    leading = sum(units * min(kfac.RANK, width) for units, width in (one.shape for one in rows))
    values = leading + sum(part.numel() for one in rows for part in parts_of(one))
    return max(1, ROW_BYTES // (4 * values))


@dataclass(frozen=True)
class Prediction:
    """What the linear network says, once it has let go of the samples."""

    margins: Tensor
    """Of the forgotten samples."""
    step: Tensor
    """Of the weights, on the block."""


@dataclass(frozen=True)
class Request:
    """Samples to forget and retained ones that resist, with their kernels: each is computed once."""

    forgotten: Gradients
    retained: Gradients
    own: Tensor
    """Kernel of the forgotten samples,"""
    across: Tensor
    """of forgotten by retained ones,"""
    among: Tensor
    """and of the retained ones."""

    @staticmethod
    def of(forgotten: Gradients, retained: Gradients, among: Tensor) -> Request:
        """With the kernel of the retained samples, which is known."""
        return Request(forgotten, retained, kernel_among(forgotten), kernel(forgotten, retained), among)

    def with_more(self, more: Gradients) -> Request:
        """With further retained samples."""
        beside = kernel(more, self.retained)
        among = _bordered(self.among, beside.T, kernel_among(more))
        across = torch.cat([self.across, kernel(self.forgotten, more)], 1)
        return Request(self.forgotten, self.retained.joined(more), self.own, across, among)

    def predict(self, let_go: Tensor) -> Prediction:
        """What the forgotten samples pulled by is gone, while the others resist."""
        before, others = self.forgotten.margins, self.retained.margins
        let_go = -let_go
        added = added_pull(self.among, others.values, others.weights, self.across.T @ let_go)
        margins = before.values + self.own @ let_go + self.across @ added
        return Prediction(margins, self.step(let_go, added))

    def step(self, of_forgotten: Tensor, of_retained: Tensor) -> Tensor:
        """The step of the weights by which samples' pulls change so much."""
        return self.forgotten.rows.solved(of_forgotten) + self.retained.rows.solved(of_retained)

    def correction(self, missed: Tensor) -> Tensor:
        """The smallest step of the weights that moves margins by so much, those of the forgotten samples first."""
        matrix = _bordered(self.own, self.across, self.among)
        matrix = matrix + RIDGE * matrix.diagonal().mean() * torch.eye(len(matrix)).to(matrix)
        return self.step(*torch.linalg.solve(matrix, missed).split([len(self.forgotten), len(self.retained)]))


def kernel_among(some: Gradients) -> Tensor:
    """The kernel of samples with each other, exactly symmetric."""
    found = kernel(some, some)
    return (found + found.T) / 2


def _bordered(first: Tensor, across: Tensor, last: Tensor) -> Tensor:
    return torch.cat([torch.cat([first, across], 1), torch.cat([across.T, last], 1)])
