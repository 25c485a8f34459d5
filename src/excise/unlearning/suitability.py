"""Is a task one that can be worked with? What is not is refused before any work, with the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from excise import processes
from excise._support.sampling import NotFiniteError
from excise.errors import ExciseError, InputError, NotYetSupportedError, warn
from excise.slices.slices import Slices
from excise.task.fingerprint import sample_digest
from excise.task.objective import losses_on
from excise.task.parameters import trainable, trained_parameters
from excise.task.task import Task, evaluating
from excise.training.retraining import seeded
from excise.unlearning.convergence import require_finite

TOGETHER = 8  # samples whose losses are computed together and one by one
PRECISE = (torch.float32, torch.float64)
NAMED = 5  # parameters that a warning names
READ_TWICE = 8  # samples, to see whether they are the same at every reading


class UntouchedParametersWarning(UserWarning):
    """Some trainable parameters belong to no slice, so that the method leaves them as they are."""


class ChangingDataWarning(UserWarning):
    """The training set gives other values at each reading, as an augmenting one does."""


def check_task(task: Task, model: nn.Module, ids: Tensor, *, bfloat16: bool = False) -> None:
    """Refuse what can't be worked with, and warn of data that change; of the samples only these are looked at.

    ``bfloat16`` says that the method knows how to change weights of that precision.
    """
    _require_usable_weights(model, (*PRECISE, torch.bfloat16) if bfloat16 else PRECISE)
    _refuse_normalised_weights(model)
    require_independent_losses(task, model, ids)
    warn_of_changing_data(task, ids)


def _require_usable_weights(model: nn.Module, usable: tuple[torch.dtype, ...]) -> None:
    for name, weight in [*model.named_parameters(), *model.named_buffers()]:
        if weight.device.type == "meta":
            raise InputError(
                f"model has {name} on the meta device, which holds no values; load the weights before "
                "(model.to_empty(device=...) and load_state_dict)."
            )
    for name, weight in trained_parameters(model).items():
        if weight.dtype not in usable:
            short = str(weight.dtype).removeprefix("torch.")
            other = ", or take Step() (--method step)" if weight.dtype == torch.bfloat16 else ""
            raise InputError(
                f"model has {name} in {short}, in which the small changes of forgetting are lost to rounding; pass a "
                f"copy in single precision, copy.deepcopy(model).float(), with inputs in float32, and turn the result "
                f"back by .to({weight.dtype}){other}."
            )


def _refuse_normalised_weights(model: nn.Module) -> None:
    """Refuse weights that are computed from others, which slices don't know."""
    for name, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        old = any(type(hook).__name__ in ("WeightNorm", "SpectralNorm") for hook in hooks)
        if not old and not parametrize.is_parametrized(module):
            continue
        if any(weight.requires_grad for weight in module.parameters()):
            remedy = (
                "torch.nn.utils.remove_weight_norm (or remove_spectral_norm)"
                if old
                else 'torch.nn.utils.parametrize.remove_parametrizations(module, "weight")'
            )
            raise NotYetSupportedError(
                f"{name or 'the model'} computes its weights from others (weight normalisation or another "
                f"parametrisation), which can't be updated yet; call {remedy} on it, which gives the same model."
            )


def require_independent_losses(task: Task, model: nn.Module, ids: Tensor) -> None:
    """Refuse a loss that mixes samples, as one does where shapes (n, 1) and (n,) are broadcast to (n, n)."""
    count = min(TOGETHER, len(ids))
    with evaluating(model), torch.no_grad():
        outputs, targets = task.outputs(model, task.batch(ids[:count]))
        if len(outputs) != count or len(targets) != count:
            raise InputError(
                f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {count} samples must have a row "
                "for each; see collate= and forward= of Task."
            )
        try:
            together = task.sample_losses(outputs, targets)
            alone = torch.cat([task.sample_losses(outputs[i : i + 1], targets[i : i + 1]) for i in range(count)])
        except (ExciseError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise InputError(
                f"loss can't be computed of outputs {tuple(outputs.shape)} ({outputs.dtype}) and targets "
                f"{tuple(targets.shape)} ({targets.dtype}): {str(error).splitlines()[0] if str(error) else error!r}."
            ) from error
    if not torch.allclose(together, alone.to(together), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            f"loss gives a sample another value alone than together with others, for outputs {tuple(outputs.shape)} "
            f"and targets {tuple(targets.shape)}: shapes such as (n, 1) and (n,) are broadcast against each other, or "
            "samples are compared with each other. Give both one shape, such as by outputs.squeeze(1), and pass a loss "
            "of each sample by itself."
        )


def warn_of_changing_data(task: Task, ids: Tensor) -> None:
    """Warn of a training set that gives other values at each reading; the global randomness is left alone."""
    if gives_other_values(task, ids):
        warn(
            "train_set gives other values at each reading, as with augmentation: losses, gradients and hashes are of "
            "samples that the model may never have seen, and the results are poorer. Pass the samples without "
            "augmentation as plain_set=, or as train_set with the transforms in retrain=.",
            ChangingDataWarning,
        )


def gives_other_values(task: Task, ids: Tensor) -> bool:
    """Whether a few of the samples, read twice, differ."""
    with seeded(0):  # one seed for both readings, so that what is drawn differs
        places = ids[:READ_TWICE].tolist()
        return any(sample_digest(task, place) != sample_digest(task, place) for place in places)


def warn_of_untouched(model: nn.Module, slices: Slices) -> None:
    """Warn of trainable parameters outside slices; those of normalisation layers are known to stay."""
    sliced = {rows.parameter for layer in slices.layers for rows in layer.parts}
    weights = trainable(model)
    outside = [name for name in weights if name not in sliced and not _normalises(model, name)]
    if not outside:
        return
    count = sum(weights[name].numel() for name in outside)
    shown = ", ".join(outside[:NAMED]) + (f" and {len(outside) - NAMED} more" if len(outside) > NAMED else "")
    warn(
        f"{count:,} of {sum(weight.numel() for weight in weights.values()):,} trainable parameters belong to no known "
        f"layer and stay as they are ({shown}), so that what they know of the samples is not forgotten; Drift() "
        "(--method drift) updates all of them, and so does Descent('all', 'ggn').",
        UntouchedParametersWarning,
    )


def _normalises(model: nn.Module, name: str) -> bool:
    return "norm" in type(model.get_submodule(name.rpartition(".")[0])).__name__.lower()


@contextmanager
def naming_bad_samples(task: Task, model: nn.Module, ids: Tensor) -> Iterator[None]:
    """Where work on samples fails because one of them is no number, say which; and where torch lacks a derivative."""
    try:
        yield
    except (ExciseError, torch.OutOfMemoryError) as error:
        if isinstance(error, NotFiniteError):
            _require_finite_losses(task, model, ids)
        raise
    except NotImplementedError as error:
        raise NotYetSupportedError(
            f"the curvature of the model can't be computed ({str(error).splitlines()[0]}); use Drift(push=0.0) "
            "(--method drift --set push=0), which needs none."
        ) from error
    except (RuntimeError, ValueError, ArithmeticError):
        _require_finite_losses(task, model, ids)
        raise


def _require_finite_losses(task: Task, model: nn.Module, ids: Tensor) -> None:
    with processes.alone(), evaluating(model):  # others may be well
        require_finite(losses_on(task, model, ids), ids.tolist())
