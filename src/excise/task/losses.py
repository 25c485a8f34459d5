"""Losses as users have them, made into one loss per sample.

Unlearning needs each sample's own loss. Torch's losses are usually trained with their mean, so they are turned here:
the mean of what they become, over the training set, is the mean that they had.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from excise.errors import InputError

Loss = Callable[[Tensor, Tensor], Tensor]
FUNCTIONS: dict[Any, type[nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.mse_loss: nn.MSELoss,
    functional.l1_loss: nn.L1Loss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.huber_loss: nn.HuberLoss,
}
"""Functions that average over the samples unless told otherwise, and the modules that can be told."""
NO_CLASS = -100


def no_class(loss: object) -> int:
    """The label of samples that have none."""
    found: int = getattr(loss, "ignore_index", NO_CLASS)
    return found


"""The label that cross-entropy leaves out unless told otherwise."""
NORMALISED = 1e-3  # how far from 1 the probabilities that NLLLoss takes may sum up


def of_torch(loss: Loss) -> bool:
    """Whether the loss is one of torch's own, not a subclass, which may do anything."""
    return isinstance(loss, nn.Module) and type(loss).__module__ == "torch.nn.modules.loss"


def same_as_module(loss: Loss) -> Loss:
    """The module for a function of torch; any other loss as it is."""
    try:
        kind = FUNCTIONS.get(loss)
    except TypeError:  # what can't be hashed is no function of torch
        return loss
    return loss if kind is None else kind()


def is_classification(loss: Loss) -> bool:
    """Whether the loss is the negative log-likelihood of a class."""
    return type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss)


def averages_labelled(loss: Loss) -> bool:
    """Whether the mean of the loss is over labelled samples, rather than over all."""
    return is_classification(loss) and getattr(loss, "reduction", None) == "mean"


def weighs_classes(loss: Loss) -> bool:
    """Whether the mean is over classes' weights as well, or a label for no class was named."""
    if not averages_labelled(loss):
        return False
    return getattr(loss, "weight", None) is not None or no_class(loss) != NO_CLASS


def mean_weight(loss: Loss, targets: Tensor) -> float:
    """What torch divides the mean of a classification loss by, for each sample: the mean weight of their classes.

    Samples without a label weigh nothing.

    >>> mean_weight(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])), torch.tensor([0, 1, -100, -100]))
    1.0
    """
    if targets.is_floating_point():  # probabilities of classes, whose losses are averaged over the samples
        return 1.0
    labelled = targets != no_class(loss)
    weight = getattr(loss, "weight", None)
    weights = labelled.double() if weight is None else weight.cpu().double()[targets * labelled] * labelled
    return float(weights.mean())


def refuse_unlabelled(loss: Loss, targets: Tensor) -> None:
    """Refuse samples without a label where it is not known how many there are, since the mean is over the others."""
    if not averages_labelled(loss) or targets.is_floating_point():
        return
    none = no_class(loss)
    if getattr(loss, "weight", None) is None and bool((targets == none).any()):
        raise InputError(
            f"train_set has samples with the label {none}, which the mean of the loss leaves out, and that can't be "
            "counted without reading all samples; pass a TensorDataset, or a train_set without them."
        )


class SampleLosses:
    """A loss that gives one value per sample (or several, as with many labels), in whatever precision outputs have.

    Torch's ``NLLLoss`` of log-probabilities is computed as cross-entropy, which is the same function of them, but has
    the curvature that the log-softmax before it takes away.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        if getattr(loss, "reduction", None) == "sum":
            raise InputError(
                'loss has reduction="sum", whose weight against weight_decay depends on the batch size; pass '
                'reduction="mean", and as weight_decay that of the training divided by its batch size.'
            )
        # made now and not when they are needed, which may be inside a transform of torch.func
        self._made = {dtype: _unreduced(loss, dtype) for dtype in (torch.float32, torch.float64)}

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The losses of a batch."""
        loss = self._made.get(outputs.dtype) or _unreduced(self._loss, outputs.dtype)
        if isinstance(loss, nn.Module) and any(own.device != outputs.device for own in loss.buffers()):
            loss = copy.deepcopy(loss).to(outputs.device)
        return loss(outputs, targets)

    def cross_entropy_weights(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        """The s of every sample with ∇²ℓ = s (diag(p) - ppᵀ), as cross-entropy has it; None for other losses.

        With class weights w and targets q (after smoothing) the loss is -Σ q_c w_c log p_c, so that s = Σ q_c w_c.
        """
        loss: Any = self._loss
        if not is_classification(loss) or outputs.ndim != 2:
            return None
        classes, smoothing = outputs.shape[1], getattr(loss, "label_smoothing", 0.0)
        weights = torch.ones(classes).to(outputs) if loss.weight is None else loss.weight.to(outputs)
        if targets.is_floating_point():
            of_target = targets.to(outputs) @ weights
        else:
            labelled = targets != loss.ignore_index
            of_target = weights[targets * labelled] * labelled  # a label for no class may be any number
        smooth = smoothing * weights.mean()
        if not targets.is_floating_point():
            smooth = smooth * labelled
        return (1 - smoothing) * of_target + smooth


def _unreduced(loss: Loss, dtype: torch.dtype) -> Loss:
    """The loss without its mean, and with its weights in a precision; one that is not torch's as it is."""
    if not of_torch(loss):
        return loss
    made: Any = copy.deepcopy(_as_cross_entropy(loss) if isinstance(loss, nn.NLLLoss) else loss)
    made.reduction = "none"
    unreduced: Loss = made.to(dtype) if dtype.is_floating_point else made
    return unreduced


def _as_cross_entropy(loss: nn.NLLLoss) -> nn.CrossEntropyLoss:
    return nn.CrossEntropyLoss(weight=loss.weight, ignore_index=loss.ignore_index)


def require_log_probabilities(loss: Loss, outputs: Tensor) -> None:
    """Refuse outputs that ``NLLLoss`` does not take: of others it is no likelihood."""
    if type(loss) is nn.NLLLoss and float(outputs.detach().double().logsumexp(1).abs().max()) > NORMALISED:
        raise InputError(
            "loss is NLLLoss, which takes log-probabilities, but the model's outputs are none (they do not sum up to "
            "1); end the model in nn.LogSoftmax(dim=1), or use nn.CrossEntropyLoss for logits."
        )


def nonnegative_weights(loss: Loss) -> bool:
    """Whether no weight of the loss's own turns it upside down."""
    weights = [getattr(loss, name, None) for name in ("weight", "pos_weight")]
    return all(bool((weight >= 0).all()) for weight in weights if isinstance(weight, torch.Tensor))


def labels_out_of_range(outputs: Tensor, error: IndexError) -> InputError:
    """Why a loss can't be computed of labels that no output is for."""
    return InputError(
        f"loss can't be computed of outputs {tuple(outputs.shape)}: {error} Labels must be from 0 to "
        f"{outputs.shape[-1] - 1}, one for each output of the model; number the classes anew, or check targets."
    )
