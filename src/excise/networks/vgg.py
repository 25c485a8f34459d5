"""The VGG networks of Simonyan and Zisserman (2015): stages of 3 × 3 convolutions, then fully connected layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excise._support import checks
from excise.errors import InputError
from excise.networks.drawing import drawn
from excise.networks.embedder import Embedder

VGG11 = ((1,), (2,), (4, 4), (8, 8), (8, 8))  # the convolutions of each stage, their filters in multiples of the width
VGG16 = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))


class VGG(Embedder):
    """Stages of convolutions that end in a max pool each, two hidden layers and an output layer.

    There is no dropout: a step is taken on an objective, which dropout would make random. The features are those of
    the second hidden layer, by which VGG-Face compares faces; the last maps are those before the last max pool.

    Args:
        stages: The convolutions of each stage, their filters in multiples of ``width``.
        hidden: Units of each of the two hidden layers.
        classes: Units of the output layer.
        side: Height and width of the images, 32 or more.
        width: Filters of the first convolution.
        batch_norm: Whether each convolution is followed by batch normalisation.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[int]],
        *,
        hidden: int,
        classes: int,
        side: int,
        width: int = 64,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for number, stage in enumerate(stages):
            if number:
                layers.append(nn.MaxPool2d(2))
            for multiple in stage:
                layers.append(nn.Conv2d(channels, multiple * width, 3, padding=1))
                channels = multiple * width
                layers += [nn.BatchNorm2d(channels), nn.ReLU()] if batch_norm else [nn.ReLU()]
        self.convolutions = nn.Sequential(*layers)
        sizes = (channels * (side // 2 ** len(stages)) ** 2, hidden, hidden)
        dense = [nn.Sequential(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
        self.hidden = nn.Sequential(*dense)
        self.linear = nn.Linear(hidden, classes)

    def last_maps(self, x: Tensor) -> Tensor:
        """What the last convolution makes of a batch of images, after its ReLU and before the last max pool."""
        maps: Tensor = self.convolutions(x)
        return maps

    def features(self, x: Tensor) -> Tensor:
        """The second hidden layer."""
        found: Tensor = self.hidden(F.max_pool2d(self.last_maps(x), 2).flatten(1))
        return found

    def load_pairs(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Set the weights and biases of all convolutions and linear layers, first to last; batch norms stay.

        Weights are arrays or tensors, units first: out × in × 3 × 3 and out × in. Those of a linear layer may also come
        as the filters that it is equal to, such as 4096 × 512 × 7 × 7. After an error nothing has changed.
        """
        layers = {name: module for name, module in self.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)}
        given = [(torch.as_tensor(weight), torch.as_tensor(bias)) for weight, bias in pairs]
        if len(given) != len(layers):
            raise InputError(
                f"pairs has {len(given)} pairs of weight and bias, and the network {len(layers)} layers; "
                "pass one pair for each convolution and linear layer, first to last."
            )
        for number, ((name, layer), (weight, bias)) in enumerate(zip(layers.items(), given, strict=True)):
            as_filters = isinstance(layer, nn.Linear) and weight.ndim == 4
            flat = weight.flatten(1) if as_filters else weight
            if flat.shape != layer.weight.shape or bias.shape != (len(layer.weight),):
                raise InputError(
                    f"pairs[{number}] has a weight of {tuple(weight.shape)} and a bias of {tuple(bias.shape)}, and "
                    f"{name} takes {tuple(layer.weight.shape)} and ({len(layer.weight)},); "
                    "check the order of the pairs, and that units are the first axis of each weight."
                )
        with torch.no_grad():
            for layer, (weight, bias) in zip(layers.values(), given, strict=True):
                layer.weight.copy_(weight.reshape(layer.weight.shape))
                layer.get_parameter("bias").copy_(bias)


def vgg11(seed: int, *, classes: int = 10, batch_norm: bool = False, side: int = 32, width: int = 64) -> VGG:
    """VGG-11 for small images, untrained, by the seed, in eval mode.

    The convolutions are those of the original. What they make of 32 × 32 pixels is 512 values, so that the hidden
    layers have 512 units in place of 4096: 9.75 million parameters, where the original has 133. A ``width`` of less
    than 64 makes a smaller network of the same shape.

    >>> sum(weights.numel() for weights in vgg11(0).parameters())
    9750922
    """
    return _vgg(VGG11, 8, seed, classes=classes, side=side, width=width, batch_norm=batch_norm)


def vgg16(seed: int, *, classes: int = 2622, side: int = 224, width: int = 64) -> VGG:
    """VGG-16 at full size, untrained, by the seed, in eval mode; by default the VGG-Face network of Parkhi et al.

    That has 145,002,878 parameters, which take 580 MB. ``load_pairs`` sets them from published weights. A ``width`` of
    less than 64 makes a smaller network of the same shape.
    """
    return _vgg(VGG16, 64, seed, classes=classes, side=side, width=width, batch_norm=False)


def _vgg(
    stages: Sequence[Sequence[int]], hidden: int, seed: int, *, classes: int, side: int, width: int, batch_norm: bool
) -> VGG:
    """The hidden layers have ``hidden`` times the width in units."""
    classes, width = checks.whole(classes, "classes"), checks.whole(width, "width")
    side = checks.whole(side, "side", 32)
    return drawn(
        lambda: VGG(stages, hidden=hidden * width, classes=classes, side=side, width=width, batch_norm=batch_norm), seed
    )
