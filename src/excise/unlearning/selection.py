"""Which slices carry a sample: the ways to choose the block that is updated, each an object with its options.

L-FOCI reads the observations (activations and losses over a sample's perturbed copies). Over all slices of a deep
network together, as in the paper, it hardly ever looks past the output layer, because given the logits the loss depends
on nothing before them; done layer by layer, every depth contributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from excise import processes
from excise._support.checks import choice, is_number, require, whole
from excise._support.names import fill_in, named
from excise.curvature.strategies import InverseCurvature
from excise.errors import InputError
from excise.slices.activations import Observation, Perturbation, observe, pass_over
from excise.slices.slices import Slices
from excise.task import objective
from excise.task.parameters import trainable
from excise.unlearning.blankets import SelectedSlices, blanket_of_all, blanket_per_layer
from excise.unlearning.method import Removal, Workspace

COPIES = 128


class SliceSelection(Protocol):
    """A way to choose."""

    def select(
        self, workspace: Workspace, inverse: InverseCurvature, model: nn.Module, removal: Removal
    ) -> SelectedSlices:
        """The slices to update for a request; the curvature may be asked what a full step would change."""


@dataclass(frozen=True, kw_only=True)
class _Observing:
    """Perturbs samples and watches the activations."""

    copies: int = COPIES
    """Perturbed copies of each sample."""
    observed_samples: int = 16
    """How many of the samples to perturb and observe, at the most."""
    perturbation: Perturbation | None = None
    """How to perturb a sample; None for the task's ``perturbation``, or else Gaussian noise on real-valued inputs."""

    def __post_init__(self) -> None:
        whole(self.copies, "copies")
        whole(self.observed_samples, "observed_samples")
        right = self.perturbation is None or callable(self.perturbation)
        require(right, "perturbation", self.perturbation, "an object such as GaussianNoise(0.1), or None")

    def observe(self, workspace: Workspace, model: nn.Module, removal: Removal) -> list[Observation]:
        """Activations and losses over the copies of each observed sample; several processes observe some each."""
        generator = torch.Generator().manual_seed(removal.seed)
        observed, task = removal.ids[: self.observed_samples], workspace.task
        shared = len(observed) >= processes.count() > 1
        mine = processes.share_of(range(len(observed))) if shared else range(len(observed))
        how: dict[str, Any] = {"copies": self.copies, "perturbation": self.perturbation, "generator": generator}
        removal.stages.begin("watching the samples", len(observed))
        found = []
        for number, sample in enumerate(observed[: mine.stop]):
            if number in mine:
                found.append(observe(task, model, workspace.slices, sample, **how))
            else:
                pass_over(task, sample, **how)
            removal.stages.advance()
        removal.stages.begin("choosing slices", len(found))
        return [one for some in processes.gathered(found, "observations") for one in some] if shared else found


@dataclass(frozen=True)
class PerLayer(_Observing):
    """L-FOCI for each sample and layer; then the most-voted share of each layer's slices."""

    share: float = 0.3
    """The most slices of a layer to update, as a share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_share(self.share)

    def select(self, workspace: Workspace, _: InverseCurvature, model: nn.Module, removal: Removal) -> SelectedSlices:
        """The most-voted slices."""
        return blanket_per_layer(
            self.observe(workspace, model, removal),
            workspace.slices,
            share=self.share,
            seed=removal.seed,
            n_jobs=workspace.n_jobs,
        )


@dataclass(frozen=True)
class Joint(_Observing):
    """The paper's way: L-FOCI over all slices together, for each sample; the union."""

    search: Literal["full", "cheap"] = "full"
    """Whether L-FOCI looks at all slices in every step, or ranks them once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        choice(self.search, ("full", "cheap"), "search")

    def select(self, workspace: Workspace, _: InverseCurvature, model: nn.Module, removal: Removal) -> SelectedSlices:
        """The union of the samples' blankets."""
        return blanket_of_all(
            self.observe(workspace, model, removal),
            workspace.slices,
            seed=removal.seed,
            method=self.search,
            n_jobs=workspace.n_jobs,
        )


@dataclass(frozen=True)
class AllSlices:
    """All of them, without a search; where the curvature knows them, parameters outside slices too."""

    def select(self, workspace: Workspace, _: InverseCurvature, __: nn.Module, ___: Removal) -> SelectedSlices:
        """All slices."""
        return SelectedSlices(tuple(range(len(workspace.known_slices))))


@dataclass(frozen=True)
class OneSlice:
    """A single one at random, another for every request: what a choice has to beat by far."""

    def select(self, workspace: Workspace, _: InverseCurvature, __: nn.Module, removal: Removal) -> SelectedSlices:
        """One slice."""
        rng = np.random.default_rng(removal.seed + removal.earlier)
        return SelectedSlices((int(rng.integers(len(workspace.slices))),))


@dataclass(frozen=True)
class AtRandom:
    """As many slices of each layer as another selection has, at random: what that one has to beat."""

    like: SliceSelection = field(default_factory=PerLayer)

    def __post_init__(self) -> None:
        fill_in(self, like=selection_named(self.like))

    def select(
        self, workspace: Workspace, inverse: InverseCurvature, model: nn.Module, removal: Removal
    ) -> SelectedSlices:
        """Other slices for every request."""
        like = self.like.select(workspace, inverse, model, removal)
        return at_random(like, workspace.slices, seed=removal.seed + removal.earlier)


@dataclass(frozen=True)
class LargestChange:
    """The slices that a full update would change most (eq. 6), of all layers together."""

    share: float = 0.3

    def __post_init__(self) -> None:
        _require_share(self.share)

    def select(
        self, workspace: Workspace, inverse: InverseCurvature, model: nn.Module, removal: Removal
    ) -> SelectedSlices:
        """By the step of all slices."""
        slices = workspace.slices
        block = slices.block(range(len(slices)))
        downhill = objective.removal_gradient(workspace.task, model, removal.ids, len(removal.residual))
        step = inverse.solve(model, block, block.gather(downhill), without=removal.gone)
        return largest(slice_norms(slices, block.scatter(step, trainable(model))), share=self.share)


@dataclass(frozen=True)
class Chosen:
    """Slices that a function of the workspace and the removal names by their numbers."""

    function: Callable[[Workspace, Removal], Iterable[int]]

    def select(self, workspace: Workspace, _: InverseCurvature, __: nn.Module, removal: Removal) -> SelectedSlices:
        """What the function gives, checked."""
        numbers = tuple(sorted({int(number) for number in self.function(workspace, removal)}))
        count = len(workspace.slices)
        wrong = [number for number in numbers if not 0 <= number < count]
        if wrong or not numbers:
            got = str(wrong[0]) if wrong else "none"
            raise InputError(f"selection must give slice numbers from 0 to {count - 1}, at least one, not {got}.")
        return SelectedSlices(numbers)


SELECTIONS: dict[str, Callable[[], SliceSelection]] = {
    "per-layer": PerLayer,
    "joint": Joint,
    "cheap": lambda: Joint(search="cheap"),
    "one": OneSlice,
    "random": AtRandom,
    "largest-change": LargestChange,
    "all": AllSlices,
}


def selection_named(given: Any) -> SliceSelection:
    """A selection, given as such, by its name, or as a function that chooses."""
    if callable(given) and not hasattr(given, "select"):
        return Chosen(given)
    found: SliceSelection = named(given, SELECTIONS, "selection")
    if isinstance(found, type) or not hasattr(found, "select"):
        raise InputError(f"selection must be a name such as 'per-layer', an object or a function, not {given!r}.")
    return found


def at_random(like: SelectedSlices, slices: Slices, *, seed: int) -> SelectedSlices:
    """As many slices of each layer as another choice has, at random."""
    rng = np.random.default_rng(seed)
    numbers: list[int] = []
    for low, layer in zip(slices.offsets, slices.layers, strict=False):
        count = sum(low <= number < low + layer.units for number in like.numbers)
        numbers += (low + rng.permutation(layer.units)[:count]).tolist()
    return SelectedSlices(tuple(sorted(numbers)))


def largest(sizes: NDArray[np.float64], *, share: float) -> SelectedSlices:
    """The share of the slices whose sizes are largest."""
    count = max(1, math.ceil(share * len(sizes)))
    order = np.argsort(-sizes, kind="stable")[:count]
    return SelectedSlices(tuple(sorted(order.tolist())), {int(i): float(sizes[i]) for i in order})


def slice_norms(slices: Slices, tensors: dict[str, Tensor]) -> NDArray[np.float64]:
    """The Euclidean norm of every slice's part of tensors that are shaped like the parameters."""
    sizes = []
    for layer in slices.layers:
        units = torch.arange(layer.units)
        squares = sum((rows.take(tensors[rows.parameter], units) ** 2).sum(1) for rows in layer.parts)
        sizes.append(torch.as_tensor(squares).sqrt())
    norms: NDArray[np.float64] = torch.cat(sizes).double().cpu().numpy()
    return norms


def _require_share(share: float) -> None:
    require(is_number(share) and 0 < share <= 1, "share", share, "above 0 and at most 1")
