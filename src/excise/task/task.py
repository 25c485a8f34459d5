"""A trained model together with the data and the objective it was trained on."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate

from excise.errors import InputError

Batch = Any
MOST_INPUT_VALUES = (
    400_000  # in a batch that is kept for a backward pass: 130 images of 3 × 32 × 32, 2 of 3 × 224 × 224
)
Ids = Sequence[int] | Tensor | NDArray[Any]
CONVEX_LOSSES = (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss, nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss, nn.L1Loss)
Forward = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """What is needed to say what a model would be without some samples.

    The objective is F(w) = mean of the losses + weight_decay / 2 · ‖w‖² over the trainable parameters, as in SGD with
    ``weight_decay``.

    Args:
        model: The trained model. It is never changed.
        loss: ``loss(outputs, targets)`` gives one loss per sample, such as ``nn.CrossEntropyLoss(reduction="none")``.
        train_set: The data it was trained on, indexable; sample ids are positions in it.
        test_set: Data it was not trained on, for reports.
        weight_decay: λ, the weight decay of the training.
        forward: ``forward(model, batch)`` gives outputs and targets, for unusual models. By default a batch is
            ``(inputs, targets)``, or a mapping with ``"labels"`` as for Hugging Face models.
        collate: Makes a batch of a list of samples.
        convex: Whether the objective is convex in the trainable parameters; None to find out, which succeeds for a
            linear last layer as the only trainable part, with a loss that is known to be convex.
        retrain: ``retrain(ids, seed)`` trains a new model from scratch on these samples, as the model was trained;
            None for ``fit`` with its defaults. Audits and comparisons retrain by it.
    """

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    train_set: Any
    test_set: Any = None
    weight_decay: float = 0.01
    forward: Forward | None = None
    collate: Callable[[list[Any]], Batch] = default_collate
    convex: bool | None = None
    retrain: Callable[[Tensor, int], nn.Module] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise InputError(f"model must be a torch.nn.Module, not {type(self.model).__name__}.")
        if not (isinstance(self.weight_decay, int | float) and 0 <= self.weight_decay < float("inf")):
            raise InputError(f"weight_decay must be a non-negative number, not {self.weight_decay!r}.")
        if not hasattr(self.train_set, "__len__") or not hasattr(self.train_set, "__getitem__"):
            raise InputError("train_set must be indexable and have a length, so that samples can be named by position.")

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    @property
    def is_convex(self) -> bool:
        """Whether a small gradient means a near minimum, which is what certificates rest on."""
        if self.convex is not None:
            return self.convex
        trained = [m for m in self.model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
        return (
            len(trained) == 1
            and isinstance(trained[0], nn.Linear)
            and isinstance(self.loss, CONVEX_LOSSES)
            and self.ends_in(trained[0])
        )

    def ends_in(self, layer: nn.Module) -> bool:
        """Whether the layer's output is the model's."""
        seen: list[Tensor] = []
        handle = layer.register_forward_hook(lambda _, __, output: seen.append(output))
        try:
            with torch.no_grad():
                outputs = self.outputs(self.model, self.batch([0, min(1, len(self.train_set) - 1)]))[0]
        finally:
            handle.remove()
        return len(seen) == 1 and torch.equal(seen[0], outputs)

    def batch(self, ids: Sequence[int] | Tensor, dataset: Any = None) -> Batch:
        """The samples of the training set (or another) as one batch, on the model's device."""
        data = self.train_set if dataset is None else dataset
        if isinstance(data, TensorDataset):
            batch: Batch = data[torch.as_tensor(ids, dtype=torch.long)]
        else:
            batch = self.collate([data[int(i)] for i in ids])
        return to_device(batch, self.device)

    def batches(self, ids: Sequence[int] | Tensor, size: int = 256, dataset: Any = None) -> Iterator[Batch]:
        """The samples in batches, in the order given; the last one may be smaller."""
        for low in range(0, len(ids), size):
            yield self.batch(ids[low : low + size], dataset)

    def modest_batch(self, most: int) -> int:
        """A batch size at which the activations of large inputs, such as photographs, still fit into memory."""
        return max(1, min(most, MOST_INPUT_VALUES // max(1, self._input_size)))

    @cached_property
    def _input_size(self) -> int:
        """How many values one sample has: looked up once, since every request asks."""
        inputs = self.batch([0])
        inputs = next(iter(inputs.values())) if isinstance(inputs, Mapping) else inputs[0]
        return inputs.numel() if isinstance(inputs, Tensor) else 1

    def outputs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the model says about a batch, and what it should have said."""
        if self.forward is not None:
            return self.forward(model, batch)
        if isinstance(batch, Mapping):
            if "labels" not in batch:
                raise InputError("a batch that is a mapping needs a 'labels' entry; or pass forward=.")
            answer = model(**{key: value for key, value in batch.items() if key != "labels"})
            return (answer.logits if hasattr(answer, "logits") else answer), batch["labels"]
        inputs, targets = batch[0], batch[1]
        return model(inputs), targets

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per sample."""
        outputs, targets = self.outputs(model, batch)
        return self.sample_losses(outputs, targets)

    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per sample; those with several outputs each, as with many labels, are averaged over them."""
        losses = self.loss(outputs, targets)
        broadcast = losses.ndim > 1 and targets.ndim == 1 and outputs.shape[-1] == 1  # (n, 1) against (n,)
        if losses.ndim == 0 or len(losses) != len(targets) or broadcast:
            raise InputError(
                f"loss must give one value per sample, but gave shape {tuple(losses.shape)} for outputs "
                f'{tuple(outputs.shape)} and targets {tuple(targets.shape)}; pass reduction="none" and matching shapes.'
            )
        return losses.flatten(1).mean(1) if losses.ndim > 1 else losses


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in eval mode inside; afterwards each module in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that training changes, by name."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    if not weights:
        raise InputError("model has no trainable parameters; call requires_grad_(True) on what is to be trained.")
    return weights


def positions(ids: Ids | None, count: int) -> Tensor:
    """Checked positions in a data set of so many samples; None for all."""
    if count == 0:
        raise InputError("train_set is empty (length 0); pass at least one sample.")
    if ids is None:
        return torch.arange(count)
    try:
        found = torch.as_tensor(ids).cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"ids must be whole numbers, positions in train_set, not {ids!r}.") from None
    if found.ndim != 1 or len(found) == 0:
        raise InputError(f"ids must be one list of at least one position, not of shape {tuple(found.shape)}.")
    if found.is_floating_point() or found.is_complex() or found.dtype == torch.bool:
        raise InputError(f"ids must be whole numbers, not {found.dtype}; of a mask, pass mask.nonzero()[:, 0].")
    wrong = found[(found < 0) | (found >= count)]
    if len(wrong):
        raise InputError(f"ids must be from 0 to {count - 1} (positions in train_set), not {int(wrong[0])}.")
    values, often = found.unique(return_counts=True)
    if len(values) < len(found):
        raise InputError(f"ids has {int(values[often > 1][0])} more than once; name every sample once.")
    return found.long()


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with all its tensors on the device."""
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [to_device(value, device) for value in batch]
    return batch


def load_task(address: str) -> Task:
    """The task that ``module:factory`` makes; the module may lie in the current folder."""
    module_name, _, factory_name = address.partition(":")
    if not module_name or not factory_name:
        raise InputError(f"the task must be given as module:factory, not {address!r}; such as my_project.tasks:digits.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(f"the task's module {module_name!r} can't be imported: {error}.") from None
    finally:
        sys.path.pop(0)
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise InputError(f"the task's module {module_name!r} has no function {factory_name!r}.")
    task = factory()
    if not isinstance(task, Task):
        raise InputError(f"{address} must return an excise.Task, but returned a {type(task).__name__}.")
    return task
