"""Models as they run: compiled, or spread over several devices. The same model is inside, and is worked with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

PREFIXES = ("_orig_mod.", "module.")
"""What names of weights begin with in a compiled and in a parallel model."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, out of ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``; weights are shared.

    >>> inner = nn.Linear(1, 1)
    >>> unwrapped(nn.DataParallel(inner)) is inner
    True
    """
    inside: Any = model
    while True:
        if isinstance(inside, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = inside.module
        elif isinstance(getattr(inside, "_orig_mod", None), nn.Module):  # of torch.compile(model)
            inside = inside._orig_mod
        elif getattr(inside, "_compiled_call_impl", None) is not None:  # of model.compile()
            inside = copy.copy(inside)
            inside._compiled_call_impl = None
        else:
            found: nn.Module = inside
            return found


def without_prefixes(state: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict as the model inside names its weights, where it was saved from a wrapped one.

    >>> without_prefixes({"module._orig_mod.weight": 1}, {"weight": 0})
    {'weight': 1}
    """
    renamed = dict(state)
    while renamed and not renamed.keys() & wanted.keys():
        prefix = next((one for one in PREFIXES if all(str(name).startswith(one) for name in renamed)), None)
        if prefix is None:
            break
        renamed = {name.removeprefix(prefix): value for name, value in renamed.items()}
    return renamed
