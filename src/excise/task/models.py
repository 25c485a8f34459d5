"""Which models can't be worked with at all, because copies of them are not what they are; each with the remedy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.prune import BasePruningMethod

from excise.errors import InputError


def require_module(model: Any) -> None:
    """Refuse what is no network of torch."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model must be a torch.nn.Module, not {type(model).__name__}{_way_to_port(model)}.")


def _way_to_port(model: Any) -> str:
    """How a linear model of scikit-learn becomes one of torch."""
    if not hasattr(model, "fit") or not hasattr(model, "predict"):
        return ""
    return (
        "; a linear model of scikit-learn is nn.Linear(features, classes) with weight = coef_ and bias = intercept_ "
        "(for two classes one output, with nn.BCEWithLogitsLoss and targets of shape (n, 1)), and weight_decay = "
        "1 / (C · n)"
    )


def refuse_unusable(model: nn.Module) -> None:
    """Refuse a model that has no weights yet, can't be copied, or whose weights share memory unseen."""
    for name, part in model.named_modules():
        called = name or "the model"
        if any(is_lazy(weight) for weight in part.parameters(recurse=False)):
            raise InputError(
                f"model has no weights yet in {called}, a {type(part).__name__}; run it on a batch, train it, and pass "
                "it then."
            )
        if any(isinstance(hook, BasePruningMethod) for hook in part._forward_pre_hooks.values()):
            raise InputError(
                f"model is pruned in {called} by hooks, so that it can't be copied; make it permanent by "
                'torch.nn.utils.prune.remove(module, "weight"), which gives the same model.'
            )
        if isinstance(part, torch.jit.ScriptModule) and any(weight.requires_grad for weight in part.parameters()):
            raise InputError(
                f"model is a program of torch.jit in {called}, of which no copy can be trained; pass the model that it "
                "was made from, with its weights (load_state_dict)."
            )
    _refuse_shared_memory(model)


def _refuse_shared_memory(model: nn.Module) -> None:
    """Two names of one parameter are known to be one; two parameters in one place are not, and copies part them."""
    first: dict[tuple[torch.device, int], str] = {}
    for name, weight in model.named_parameters():
        if _overlaps_itself(weight):
            raise InputError(
                f"model has {name} of which several entries share one place in memory (it was expanded); give each its "
                "own, by nn.Parameter(weight.detach().clone(memory_format=torch.contiguous_format))."
            )
        if weight.layout != torch.strided or not weight.numel() or weight.device.type == "meta":
            continue
        if hasattr(weight, "device_mesh"):  # a part of it is here, and parts have memory of their own
            continue
        other = first.setdefault((weight.device, weight.data_ptr()), name)
        if other != name:
            raise InputError(
                f"model has {other} and {name} in one place in memory, as two parameters; tie them by making them one "
                "(one.weight = other.weight), or give each its own memory."
            )


def _overlaps_itself(weight: Tensor) -> bool:
    if weight.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(weight.stride(), weight.shape, strict=True))
