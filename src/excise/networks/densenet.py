"""DenseNet-BC for small images (Huang et al., 2017): every layer reads the outputs of all layers before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excise._support import checks
from excise.networks.drawing import drawn
from excise.networks.embedder import Embedder

STAGES = 3


class DenseLayer(nn.Module):
    """Appends ``growth`` maps to those it reads: a 1 × 1 convolution to 4 · ``growth`` (the B of BC), then a 3 × 3."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The maps it was given, and its own after them."""
        inside = self.conv1(F.relu(self.bn1(x)))
        return torch.cat([x, self.conv2(F.relu(self.bn2(inside)))], dim=1)


class Transition(nn.Module):
    """Half as many maps (the C of BC), of half the size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The maps after it."""
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(Embedder):
    """Three stages of ``layers`` dense layers, with transitions between them."""

    def __init__(self, layers: int, growth: int, classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        modules: list[nn.Module] = []
        for stage in range(STAGES):
            if stage:
                modules.append(Transition(channels))
                channels //= 2
            for _ in range(layers):
                modules.append(DenseLayer(channels, growth))
                channels += growth
        self.stages = nn.Sequential(*modules)
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, classes)

    def last_maps(self, x: Tensor) -> Tensor:
        """All maps of the last stage, normalised and rectified."""
        return F.relu(self.bn(self.stages(self.conv(x))))


def densenet(seed: int, *, classes: int = 10, depth: int = 40, growth: int = 12) -> DenseNet:
    """DenseNet-BC of ``depth`` layers for images of 3 × 32 × 32, untrained, by the seed, in eval mode.

    The depth is 6 n + 4: a dense layer has two convolutions, and the first convolution, the two transitions and the
    linear layer count one each. With the defaults it is small enough to be trained on a CPU.

    >>> sum(weights.numel() for weights in densenet(0).parameters())
    176122
    """
    classes, growth, depth = (
        checks.whole(value, name) for name, value in (("classes", classes), ("growth", growth), ("depth", depth))
    )
    layers, left = divmod(depth - STAGES - 1, 2 * STAGES)
    checks.require(layers > 0 and not left, "depth", depth, "6 n + 4 with n of 1 or more, such as 22, 40 or 100")
    return drawn(lambda: DenseNet(layers, growth, classes), seed)
