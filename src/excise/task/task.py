"""A trained model together with the data and the objective it was trained on."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from excise._support.checks import whole
from excise.errors import InputError
from excise.task.asking import asked, set_asked
from excise.task.batches import Batch as Batch
from excise.task.batches import (
    answer,
    inputs_of,
    labels_of,
    refuse_tables,
    require_pair,
    require_tensor,
    tensors_in,
    to_device,
)
from excise.task.collating import collated
from excise.task.fingerprint import Fingerprint, digests_of, fingerprint_of
from excise.task.hooks import capture
from excise.task.keys import group_by_key, ids_of_keys
from excise.task.losses import (
    SampleLosses,
    averages_labelled,
    labels_out_of_range,
    mean_weight,
    refuse_unlabelled,
    require_log_probabilities,
    same_as_module,
    weighs_classes,
)
from excise.task.models import refuse_unusable, require_module
from excise.task.precision import fitting, in_single
from excise.task.reading import (
    ahead,
    helpful_workers,
    part,
    read,
    read_before,
    reading_ahead,
    refuse_streams,
    samples_at,
)
from excise.task.weighting import SampleWeighted, WeightedSampleLosses, require_weights, with_weight_one
from excise.task.wrapping import unwrapped

MOST_INPUT_VALUES = (
    400_000  # in a batch that is kept for a backward pass: 130 images of 3 × 32 × 32, 2 of 3 × 224 × 224
)
MOST_KEPT_VALUES = 50_000_000  # of samples that are read once and kept: 200 MB of float32
CACHED = (
    "loss_module",
    "_sample_losses",
    "loss_scale",
    "targets",
    "sample_digests",
    "fingerprint",
    "positions_of_keys",
    "_input_size",
)
"""What of a task does not depend on its model's weights."""
LARGEST_DECAY = 1e9  # single precision overflows far beyond
Forward = Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Task:
    """What is needed to say what a model would be without some samples.

    The objective is F(w) = mean of the losses + weight_decay / 2 · ‖w‖² over the trainable parameters, as in SGD with
    ``weight_decay``.

    Args:
        model: The trained model. It is never changed. One that is compiled or wrapped by ``DataParallel`` is unwrapped:
            results are models such as the one inside, which you can wrap again.
        loss: The loss it was trained with: one of torch's, such as ``nn.CrossEntropyLoss()``, with class weights and
            label smoothing as they were, ``SampleWeighted`` of one where samples have weights, or a function
            ``loss(outputs, targets)`` that gives one value per sample.
        train_set: The data it was trained on, indexable; sample ids are positions in it.
        test_set: Data it was not trained on, for reports.
        weight_decay: λ, the weight decay of the training.
        forward: ``forward(model, batch)`` gives outputs and targets, for unusual models. By default a batch is
            ``(inputs, targets)``, or a mapping with ``"labels"`` (or ``"label"``) as for Hugging Face models.
        collate: Makes a batch of a list of samples.
        convex: Whether the objective is convex in the trainable parameters; None to find out, which succeeds for a
            linear last layer as the only trainable part, with a loss that is known to be convex.
        retrain: ``retrain(ids, seed)`` trains a new model from scratch on these samples, as the model was trained;
            None for ``fit`` with its defaults. Audits and comparisons retrain by it.
        keys: For each sample a name of your own, such as a customer's id, so that requests can be made by it. Several
            samples may have one key; any hashable will do.
        perturbation: How a sample is perturbed to find the slices that carry it, where the method does not say so
            itself, such as ``TokenReplacement.for_tokenizer(tokenizer)`` for text: ``perturbation(inputs, copies,
            generator)``. None for Gaussian noise on real-valued inputs.
        features: ``"fixed"`` if you know that the parts of the model that are not trained (a frozen body, batch
            statistics) never saw the samples to be forgotten. A certificate then speaks of retraining, where it would
            otherwise speak of retraining the last layer on features that saw them.
        plain_set: The samples of ``train_set`` without augmentation, in the same order, where ``train_set`` gives other
            values at each reading. Everything reads these then, but for training by ``fit``.
        workers: Processes that read samples ahead in every long pass, as torch's ``DataLoader`` has them; 0 for none.
    """

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    train_set: Any
    test_set: Any = None
    weight_decay: float = 0.01
    forward: Forward | None = None
    collate: Callable[[list[Any]], Batch] = collated
    convex: bool | None = None
    retrain: Callable[[Tensor, int], nn.Module] | None = None
    keys: Any = None
    perturbation: Callable[[Any, int, torch.Generator], Any] | None = None
    features: Literal["fixed"] | None = None
    plain_set: Any = None
    workers: int = 0

    def __post_init__(self) -> None:
        require_module(self.model)
        object.__setattr__(self, "model", unwrapped(self.model))
        refuse_unusable(self.model)
        if not (isinstance(self.weight_decay, int | float) and 0 <= self.weight_decay <= LARGEST_DECAY):
            raise InputError(f"weight_decay must be a number from 0 to 1e9, not {self.weight_decay!r}.")
        sets = ("train_set", self.train_set), ("test_set", self.test_set), ("plain_set", self.plain_set)
        for name, data in sets:
            refuse_tables(data, name)
            if data is not None or name == "train_set":
                refuse_streams(data, name)
        if self.features not in (None, "fixed"):
            raise InputError(f'features must be "fixed" or None, not {self.features!r}.')
        whole(self.workers, "workers", 0)
        if len(self.train_set) == 0:
            raise InputError("train_set is empty (length 0); pass the samples that the model was trained on.")
        if self.plain_set is not None and len(self.plain_set) != len(self.train_set):
            raise InputError(
                f"plain_set has {len(self.plain_set)} samples and train_set {len(self.train_set)}; pass the same "
                "samples without augmentation, in the same order."
            )
        if self.keys is not None:
            _ = self.positions_of_keys  # refuses keys that don't fit the samples
        _ = self._sample_losses  # refuses what can't be made into one loss per sample
        if self.weighting is not None and self._targets_are_at_hand:
            require_weights(self.weighting.weights(self.samples.tensors[1]))

    @property
    def samples(self) -> Any:
        """The training samples as they are read: those without augmentation, where there are such."""
        return self.train_set if self.plain_set is None else self.plain_set

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return next(self.model.parameters()).device

    @cached_property
    def loss_module(self) -> Any:
        """The loss before samples are weighted; where a function of torch was given, the module for it."""
        return same_as_module(self.loss) if self.weighting is None else self.weighting.module

    @property
    def weighting(self) -> SampleWeighted | None:
        """Where targets carry weights, what knows how."""
        return self.loss if isinstance(self.loss, SampleWeighted) else None

    @cached_property
    def _sample_losses(self) -> SampleLosses | WeightedSampleLosses:
        return SampleLosses(self.loss_module) if self.weighting is None else WeightedSampleLosses(self.weighting)

    @cached_property
    def loss_scale(self) -> float:
        """What losses are divided by, so that their mean is torch's, over classes' weights or labelled samples."""
        loss = self.loss_module
        if type(loss) is nn.NLLLoss:
            with evaluating(self.model), torch.no_grad():
                require_log_probabilities(loss, self.outputs(self.model, self.batch([0]))[0])
        mean = mean_weight(loss, self.targets) if self._counts_labels else 1.0
        if not mean > 0:
            raise InputError(
                "loss gives every sample of train_set the weight 0; pass positive class weights and labels."
            )
        return mean

    @property
    def _counts_labels(self) -> bool:
        """Whether the mean of the loss is not simply that over the samples, as far as is known."""
        if self.weighting is not None or not averages_labelled(self.loss_module):
            return False
        return weighs_classes(self.loss_module) or self._targets_are_at_hand

    def mass(self, ids: Sequence[int] | Tensor) -> float:
        """How many samples these count for in the mean of the loss: each for one, unless classes have weights.

        The mean over some samples is the sum of their losses by this: with class weights it is torch's mean of them.
        """
        if not self._counts_labels:
            return float(len(ids))
        some = self.targets[torch.as_tensor(ids, dtype=torch.long)]
        return len(some) * mean_weight(self.loss_module, some) / self.loss_scale

    @property
    def _targets_are_at_hand(self) -> bool:
        """Whether all targets can be seen without reading the samples."""
        return self.forward is None and isinstance(self.samples, TensorDataset)

    @cached_property
    def targets(self) -> Tensor:
        """What all the training samples should be answered with, read once."""
        if self._targets_are_at_hand:
            return self.plain_targets(self.samples.tensors[1].cpu())
        with evaluating(self.model), torch.no_grad():
            batches = self.batches(range(len(self.train_set)), self.batch_size_within_memory(256))
            return torch.cat([self.targets_in(batch).cpu() for batch in batches])

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """By what the training set is recognised."""
        return fingerprint_of(self)

    @cached_property
    def sample_digests(self) -> NDArray[np.uint8]:
        """SHA-256 of every training sample, input and target, one row each; one reading of the set."""
        return digests_of(self)

    @property
    def all_ids(self) -> Tensor:
        """Positions of all samples."""
        return torch.arange(len(self.train_set))

    def ids_of(self, keys: Iterable[Hashable]) -> list[int]:
        """Positions of all samples that belong to these keys, such as a customer's; an unknown key is an error."""
        return ids_of_keys(keys, self.positions_of_keys)

    @cached_property
    def positions_of_keys(self) -> dict[Hashable, list[int]]:
        """The samples of every key."""
        if self.keys is None:
            raise InputError("keys name samples only where the task has some: pass keys= to Task, one for each sample.")
        return group_by_key(self.keys, len(self.train_set))

    def with_model(self, model: nn.Module) -> Task:
        """The same task for another model of the same architecture, with what was read of the data kept."""
        other = replace(self, model=model)
        for name in CACHED:
            if name in vars(self):
                vars(other)[name] = vars(self)[name]
        return other

    def only(self, ids: Sequence[int] | Tensor) -> Task:
        """The same objective on these samples alone, at positions 0, 1, …; read once and kept, unless they are many."""
        chosen = torch.as_tensor(ids, dtype=torch.long)
        other = replace(self, train_set=self._part(chosen), plain_set=None, retrain=None, keys=None)
        for name in ("loss_module", "_sample_losses", "loss_scale", "_input_size"):  # those of the whole set
            vars(other)[name] = getattr(self, name)
        return other

    @asked("train_set")
    def _part(self, ids: Tensor) -> Any:
        return part(self.samples, ids, keep=self.fits_into_memory(len(ids)))

    def ends_in(self, layer: nn.Module) -> bool:
        """Whether the layer's output is the model's, for the first samples at least."""
        with evaluating(self.model), torch.no_grad(), capture(layer, [""], lambda call: call.output.clone()) as (seen,):
            outputs = self.outputs(self.model, self.batch([0, min(1, len(self.train_set) - 1)]))[0]
        return len(seen) == 1 and torch.equal(seen[0], outputs)

    @asked(set_asked)
    def batch(self, ids: Sequence[int] | Tensor, dataset: Any = None) -> Batch:
        """The samples of the training set (or another) as one batch, on the model's device."""
        data = self.samples if dataset is None else dataset
        batch = read_before(data, ids) if self.workers else None
        return to_device(read(data, ids, self.collate) if batch is None else batch, self.device)

    def batches(self, ids: Sequence[int] | Tensor, size: int = 256, dataset: Any = None) -> Iterator[Batch]:
        """The samples in batches, in the order given; the last one may be smaller."""
        workers = helpful_workers(self.workers, len(ids) // size)
        if not workers:
            for low in range(0, len(ids), size):
                yield self.batch(ids[low : low + size], dataset)
            return
        parts = torch.as_tensor(ids, dtype=torch.long).split(size)
        with closing(ahead(self.samples if dataset is None else dataset, parts, self.collate, workers)) as coming:
            for _ in parts:
                yield self._taken(coming, dataset)

    @asked(set_asked)
    def _taken(self, coming: Iterator[Batch], dataset: Any) -> Batch:  # noqa: ARG002 - errors name it
        """The next of the batches that are read ahead, on the model's device."""
        return to_device(next(coming), self.device)

    def reading_ahead(
        self, asked: Sequence[Tensor], dataset: Any = None, *, seed: int = 0
    ) -> AbstractContextManager[None]:
        """Inside, batches of these positions, asked for in this order, have been read ahead by the task's workers."""
        data = self.samples if dataset is None else dataset
        return reading_ahead(data, asked, self.collate, self.workers, seed)

    @asked("train_set")
    def one_by_one(self, ids: Tensor) -> list[Batch]:
        """Some samples of the training set, each as a batch of one; where they were read they stay."""
        data = self.samples
        if isinstance(data, TensorDataset):
            return list(zip(*(tensor[ids].split(1) for tensor in data.tensors), strict=True))
        found = samples_at(data, ids)
        if isinstance(found, list):
            return [self.collate([sample]) for sample in found]
        return [self.collate(samples_at(data, [place])) for place in ids]

    def batch_size_within_memory(self, most: int) -> int:
        """A batch size at which the activations of large inputs, such as photographs, still fit into memory."""
        return max(1, min(most, MOST_INPUT_VALUES // max(1, self._input_size)))

    def fits_into_memory(self, count: int) -> bool:
        """Whether so many samples are few enough to be read once and kept."""
        return count * self._input_size <= MOST_KEPT_VALUES

    @cached_property
    def _input_size(self) -> int:
        """How many values one sample has: looked up once, since every request asks."""
        return max((tensor.numel() for tensor in tensors_in(inputs_of(self.batch([0])))), default=1)

    @asked("model")
    def outputs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the model says about a batch, and what it should have said."""
        if self.forward is not None:
            given = copy.copy(batch) if isinstance(batch, Mapping) else batch  # it may take the labels out
            outputs, told = require_pair(self.forward(model, given))
            return in_single(outputs), told
        targets: Tensor = labels_of(batch)
        return in_single(require_tensor(answer(model, fitting(batch, model)))), targets

    def targets_in(self, batch: Batch) -> Tensor:
        """What the samples of a batch should be answered with; only a ``forward`` of one's own has to run the model."""
        targets: Tensor = labels_of(batch) if self.forward is None else self.outputs(self.model, batch)[1]
        return self.plain_targets(targets)

    def plain_targets(self, targets: Tensor) -> Tensor:
        """Targets without the weights that they may carry."""
        return targets if self.weighting is None else self.weighting.plain(targets)

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """One loss per sample."""
        outputs, targets = self.outputs(model, batch)
        losses = self.sample_losses(outputs, targets)
        if self.loss_scale == 1 and not self._targets_are_at_hand:
            refuse_unlabelled(self.loss_module, self.plain_targets(targets))
        return losses

    def cross_entropy_weights(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """The s of every sample with ∇²ℓ = s (diag(p) - ppᵀ); None for losses other than cross-entropy."""
        try:
            weights = self._sample_losses.cross_entropy_weights(outputs, targets)
        except IndexError as error:
            raise labels_out_of_range(outputs, error) from None
        return None if weights is None else weights / self.loss_scale

    @asked("loss")
    def sample_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per sample; those with several outputs each, as with many labels, are averaged over them."""
        try:
            losses = self._sample_losses(outputs, targets)
        except IndexError as error:
            raise labels_out_of_range(outputs, error) from None
        broadcast = losses.ndim > 1 and targets.ndim == 1 and outputs.shape[-1] == 1  # (n, 1) against (n,)
        if losses.ndim == 0 or len(losses) != len(targets) or broadcast:
            raise InputError(
                f"loss must give one value per sample, but gave shape {tuple(losses.shape)} for outputs "
                f"{tuple(outputs.shape)} and targets {tuple(targets.shape)}; pass one of torch's losses, or one with "
                'reduction="none", and outputs and targets of matching shapes.'
            )
        losses = losses.flatten(1).mean(1) if losses.ndim > 1 else losses
        return losses if self.loss_scale == 1 else losses / self.loss_scale

    def plain_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One loss per sample as if all weighed the same, for comparing samples with each other."""
        return self.sample_losses(outputs, targets if self.weighting is None else with_weight_one(targets))


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
