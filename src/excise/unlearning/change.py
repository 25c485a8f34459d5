"""What was done to a model: which slices changed, how far the weights moved, what is proven, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from excise.errors import NeverSupportedError, NotYetSupportedError
from excise.privacy.certificate import Certificate
from excise.slices.layers import Layer
from excise.slices.slices import find_slices
from excise.task.parameters import trainable
from excise.unlearning.forgotten import Forgotten


@dataclass(frozen=True)
class Change:
    """What was done to the model, and what it cost."""

    parameters: int
    changed: int
    distance: float
    """‖w' - w‖."""
    relative: float
    """The same as a share of ‖w‖."""
    layers: dict[str, tuple[int, int]]
    """For each layer, how many of its slices changed, and how many it has."""
    moved: dict[str, tuple[float, ...]]
    """For each layer and slice, how far it moved: ‖change‖ as a share of ‖weights‖."""
    scores: dict[str, float]
    """Why: T of the slices that L-FOCI picked, where it is known."""
    certificate: Certificate | None
    budget: dict[str, Any] | None
    """What is left of the privacy budget, where there is one."""
    seconds: float | None = field(compare=False)
    retraining_seconds: float | None = field(compare=False)


def change_between(
    before: nn.Module,
    after: nn.Module,
    done: Forgotten | None,
    budget: dict[str, Any] | None,
    retraining_seconds: float | None,
) -> Change:
    """What differs between a model before and after, slice by slice."""
    old, new = trainable(before), trainable(after)
    difference = {name: new[name].double() - old[name].double() for name in old}
    distance = sum(float((one**2).sum()) for one in difference.values()) ** 0.5
    size = sum(float((one.double() ** 2).sum()) for one in old.values()) ** 0.5
    moved = {layer.name: _moved(layer, difference, old) for layer in _layers(before)}
    return Change(
        parameters=sum(one.numel() for one in old.values()),
        changed=sum(int((one != 0).sum()) for one in difference.values()),
        distance=distance,
        relative=distance / size if size else float("nan"),
        layers={name: (sum(far > 0 for far in each), len(each)) for name, each in moved.items()},
        moved=moved,
        scores={name: done.scores.get(name, 0.0) for name in done.slices} if done else {},
        certificate=done.certificate if done else None,
        budget=budget,
        seconds=done.seconds if done else None,
        retraining_seconds=retraining_seconds,
    )


def _moved(layer: Layer, difference: dict[str, Tensor], old: dict[str, Tensor]) -> tuple[float, ...]:
    """How far each slice moved, relative to its weights."""
    units = torch.arange(layer.units)

    def squares(tensors: dict[str, Tensor]) -> Tensor:
        return torch.stack([(rows.take(tensors[rows.parameter], units).double() ** 2).sum(1) for rows in layer.parts])

    far, size = (squares(tensors).sum(0).sqrt().cpu() for tensors in (difference, old))
    return tuple((far / size.clamp_min(1e-12)).tolist())


def _layers(model: nn.Module) -> tuple[Layer, ...]:
    """Layers with slices; none where the model can't be sliced, since other methods may have changed it."""
    try:
        return find_slices(model).layers
    except (NotYetSupportedError, NeverSupportedError):
        return ()
