"""The ResNets for CIFAR-10 of He et al. (2016, section 4.2), with shortcuts that have no parameters (option A)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.networks import seeded


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut past them; with a stride of 2, half the size and more channels."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.added = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch of images."""
        inside = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(inside + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """Option A: every second pixel, and channels of zeros before and after the ones there are."""
        below = self.added // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, below, self.added - below))


class ResNet(nn.Module):
    """A ResNet of 6 · ``blocks`` + 2 layers for images of 3 × 32 × 32 and 10 classes."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _layer(16, 16, blocks, stride=1)
        self.layer2 = _layer(16, 32, blocks, stride=2)
        self.layer3 = _layer(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of images."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.linear(x.mean(dim=(2, 3)))
        return logits


def resnet20(weights: Path | None = None, *, seed: int = 0) -> ResNet:
    """ResNet-20 in eval mode with the weights of a file, a plain state dict; without one, untrained, by the seed."""
    return _resnet(3, weights, seed)


def resnet56(weights: Path | None = None, *, seed: int = 0) -> ResNet:
    """ResNet-56 in eval mode with the weights of a file, a plain state dict; without one, untrained, by the seed."""
    return _resnet(9, weights, seed)


def _layer(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))


def _resnet(blocks: int, weights: Path | None, seed: int) -> ResNet:
    with seeded(seed):
        model = ResNet(blocks)
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()
