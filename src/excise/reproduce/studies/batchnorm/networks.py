"""Networks with batch normalisation: a small one, and the one that the published scripts train."""

from __future__ import annotations

import torch
from torch import nn

from excise.networks.drawing import drawn
from excise.networks.resnet import FourStageResNet, ProjectedBlock


def small_network(seed: int, *, width: int = 16) -> nn.Sequential:
    """Three convolutions with batch normalisation, the last of 4 × 4 pixels, and a linear layer."""

    def make() -> nn.Sequential:
        layers: list[nn.Module] = []
        before = 3
        for after in (width, 2 * width, 4 * width):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
            before = after
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))

    return drawn(make, seed)


def published_network(seed: int, *, width: int = 64) -> FourStageResNet:
    """The ResNet-18 of Torch Hub, made for ImageNet: of 32 × 32 pixels its last maps have one."""
    return drawn(lambda: FourStageResNet(ProjectedBlock, (2, 2, 2, 2), classes=10, width=width), seed)


NETWORKS = {"small": small_network, "ResNet-18": published_network}


def refusal() -> str:
    """What batch normalisation says to a single image whose maps have one pixel; empty if it says nothing."""
    network = published_network(0, width=8).train()
    try:
        network(torch.zeros(1, 3, 32, 32))
    except ValueError as error:
        return str(error)
    return ""
