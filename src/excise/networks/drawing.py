"""Weights for a new network from a seed, each drawn once: a large one is ready in about a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import nn

from excise._support import checks

Network = TypeVar("Network", bound=nn.Module)


def drawn(make: Callable[[], Network], seed: int) -> Network:
    """The network that ``make`` makes, in eval mode, with weights that depend on the seed alone.

    Weights of convolutions and linear layers are uniform with He et al.'s variance for ReLUs, 2 / inputs of a unit;
    their biases are 0; all else is as torch sets it. The global random state is neither read nor changed.

    >>> layer = drawn(lambda: nn.Linear(600, 100), seed=0)
    >>> round(600 * layer.weight.var().item(), 1), bool(layer.bias.any())
    (2.0, False)
    """
    generator = torch.Generator().manual_seed(checks.whole(seed, "seed", 0))
    with torch.device("meta"):  # shapes without values, so that torch does not draw them first
        network = make()
    network.to_empty(device="cpu")
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_uniform_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            cast(Any, module).reset_parameters()  # batch normalisation, which draws nothing
    return network.eval()
