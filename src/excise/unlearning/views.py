"""Views: what the model says about a forgotten image without having learned it by heart.

A network that was trained without augmentation knows a training image by its very pixels. Shifted by a few pixels, the
same image gets the answer that the network would give to any such image: so the mean answer to shifted (and, where left
and right don't matter, mirrored) copies tells what a network would say that never saw it. Taught to give this answer to
the image itself, while it goes on learning the retained ones, it forgets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional

from excise import processes
from excise._support.checks import positive, require, whole
from excise._support.turns import RoundRobin
from excise.errors import InputError
from excise.task.batches import Batch, inputs_of, real_values, with_inputs, with_real_values
from excise.task.sharing import rows_over
from excise.task.task import Task


@dataclass(frozen=True)
class Views:
    """Which copies of an image to ask the model about, and how to teach it their mean answer."""

    shift: float = 1 / 16
    """How far copies are shifted, up, down and sideways, as a share of the image's size (at least one pixel)."""
    flip: bool = False
    """Whether to mirror them too: for images whose mirror image means the same, so not for digits or text."""
    make: Callable[[Tensor], list[Tensor]] | None = None
    """Views of your own: from a batch of inputs, several batches of altered ones."""
    weight: float = 0.125
    """Of the lesson's loss, beside that of retained samples."""
    batch_size: int = 16
    """Forgotten samples taught at every step."""
    temperature: float = 4.0
    """At which answers are compared: networks that know samples by heart are so sure of themselves that without
    softening only the first of the classes would be taught."""

    def __post_init__(self) -> None:
        require(0 <= self.shift < 1, "shift", self.shift, "a share of the image's size, from 0 to less than 1")
        require(self.weight >= 0, "weight", self.weight, "0 or more")
        whole(self.batch_size, "batch_size")
        positive(self.temperature, "temperature")

    def of(self, inputs: Tensor) -> list[Tensor]:
        """Views of a batch of inputs.

        >>> [view.flatten().tolist() for view in Views().of(torch.tensor([[[[1.0, 2.0]]]]))][3:6]  # shifted by -1, 0, 1
        [[1.0, 1.0], [1.0, 2.0], [2.0, 2.0]]
        """
        if self.make is not None:
            made = list(self.make(inputs))
            require(made, "make", made, "a function that gives at least one view")
            return made
        if inputs.ndim != 4 or not inputs.is_floating_point():
            raise InputError(
                "views are of images, real numbers of shape n × channels × height × width, not "
                f"{inputs.dtype} of shape {tuple(inputs.shape)}; pass Views(make=...) that gives views of your inputs, "
                "or use Drift() without views."
            )
        return list(self._shifted(inputs))

    def _shifted(self, images: Tensor) -> Iterator[Tensor]:
        height, width = images.shape[2:]
        down, right = max(1, round(self.shift * height)), max(1, round(self.shift * width))
        framed = functional.pad(images, (right, right, down, down), mode="replicate")
        for top, left in product((0, down, 2 * down), (0, right, 2 * right)):
            view = framed[:, :, top : top + height, left : left + width]
            yield view
            if self.flip:
                yield view.flip(3)


class Lesson:
    """Forgotten samples with the answers to their views, a few at a time."""

    def __init__(self, task: Task, model: nn.Module, ids: Tensor, views: Views, seed: int) -> None:
        self._task, self._ids, self._views = task, ids, views
        self._turns = RoundRobin(len(ids), views.batch_size, seed)
        with torch.no_grad():
            size = task.batch_size_within_memory(128)
            (answers,) = rows_over(
                task, ids, lambda batch: [mean_answers(task, model, batch, views)], size, "answers to views"
            )
        self._answers = (answers / views.temperature).softmax(1)

    def loss(self, model: nn.Module) -> Tensor:
        """Weighted cross-entropy of the next few samples and the answers to give; every sample has its turn.

        Of several processes each has its part of it.
        """
        warmth = self._views.temperature  # its square keeps gradients of one size, as in distillation

        def losses(some: Tensor) -> Tensor:
            outputs, _ = self._task.outputs(model, self._task.batch(self._ids[some]))
            answers = self._answers[some.to(outputs.device)]
            return functional.cross_entropy(outputs / warmth, answers, reduction="none")

        return self._views.weight * warmth**2 * processes.part_of_mean(self._turns.next(), losses)


def mean_answers(task: Task, model: nn.Module, batch: Batch, views: Views) -> Tensor:
    """Mean logits over the views of a batch."""
    inputs = inputs_of(batch)
    # views of one's own may be of any tensor
    values = inputs if isinstance(inputs, Tensor) else real_values(inputs)
    if values is None:
        raise InputError("views need real-valued inputs, such as images; a batch has none.")
    altered = (with_inputs(batch, with_real_values(inputs, view)) for view in views.of(values))
    answers = [task.outputs(model, other)[0] for other in altered]
    if answers[0].ndim != 2:
        raise InputError(f"views need logits of classes, n × classes, not outputs of shape {tuple(answers[0].shape)}.")
    return torch.stack(answers).mean(0)
