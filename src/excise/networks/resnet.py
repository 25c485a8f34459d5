"""ResNets (He et al., 2016): for CIFAR-10 (20, 56 and 18 layers), and ResNet-50 for photographs and persons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from excise._support import checks
from excise.networks.drawing import drawn
from excise.networks.embedder import Embedder
from excise.networks.small import seeded


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


class ProjectedBlock(Block):
    """The same with option B: where the shape changes, the shortcut is a 1 × 1 convolution."""

    expansion = 1

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(inputs, outputs, stride)
        self.downsample = _projection(inputs, outputs, stride)

    def shortcut(self, x: Tensor) -> Tensor:
        """Option B."""
        return x if self.downsample is None else self.downsample(x)


class Bottleneck(nn.Module):
    """A 3 × 3 convolution between a 1 × 1 that narrows and one that widens, and a shortcut past them (option B).

    The stride is that of the 3 × 3 convolution, as in all common weights; in the paper it is that of the first.
    """

    expansion = 4

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        narrow = outputs // self.expansion
        self.conv1 = nn.Conv2d(inputs, narrow, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.conv3 = nn.Conv2d(narrow, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output for a batch of images."""
        inside = F.relu(self.bn1(self.conv1(x)))
        inside = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(inside)))))
        return F.relu(inside + (x if self.downsample is None else self.downsample(x)))


class ResNet(Embedder):
    """A ResNet of 6 · ``blocks`` + 2 layers for images of 3 × 32 × 32 and 10 classes, with shortcuts of option A."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _layer(Block, 16, 16, blocks, stride=1)
        self.layer2 = _layer(Block, 16, 32, blocks, stride=2)
        self.layer3 = _layer(Block, 32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def last_maps(self, x: Tensor) -> Tensor:
        """What the last block makes of a batch of images."""
        x = F.relu(self.bn1(self.conv1(x)))
        maps: Tensor = self.layer3(self.layer2(self.layer1(x)))
        return maps


class FourStageResNet(Embedder):
    """A ResNet of four stages, as for ImageNet; its parts have the names that common weights use.

    Args:
        block: ``ProjectedBlock`` or ``Bottleneck``.
        blocks: How many of them each stage has.
        classes: Units of the linear layer.
        width: Channels of the first convolution; those of the 3 × 3 convolutions double with every stage.
        stem: ``"small"``, a 3 × 3 convolution that keeps the size of the images, or ``"large"``, a 7 × 7 and a max
            pool that divide it by four.
    """

    def __init__(
        self,
        block: type[ProjectedBlock] | type[Bottleneck],
        blocks: Sequence[int],
        *,
        classes: int,
        width: int = 64,
        stem: Literal["small", "large"] = "large",
    ) -> None:
        super().__init__()
        size, stride = (3, 1) if stem == "small" else (7, 2)
        self.conv1 = nn.Conv2d(3, width, size, stride=stride, padding=size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if stem == "small" else nn.MaxPool2d(3, stride=2, padding=1)
        one, two, three, four = (block.expansion * width * 2**stage for stage in range(4))
        self.layer1 = _layer(block, width, one, blocks[0], stride=1)
        self.layer2 = _layer(block, one, two, blocks[1], stride=2)
        self.layer3 = _layer(block, two, three, blocks[2], stride=2)
        self.layer4 = _layer(block, three, four, blocks[3], stride=2)
        self.linear = nn.Linear(four, classes)

    def last_maps(self, x: Tensor) -> Tensor:
        """What the last block makes of a batch of images."""
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return maps


def resnet20(weights: Path | None = None, *, seed: int = 0) -> ResNet:
    """ResNet-20 in eval mode with the weights of a file, a plain state dict; without one, untrained, by the seed."""
    return _resnet(3, weights, seed)


def resnet56(weights: Path | None = None, *, seed: int = 0) -> ResNet:
    """ResNet-56 in eval mode with the weights of a file, a plain state dict; without one, untrained, by the seed."""
    return _resnet(9, weights, seed)


def resnet18(seed: int, *, classes: int = 10, width: int = 64) -> FourStageResNet:
    """ResNet-18 for images of 3 × 32 × 32, untrained, by the seed, in eval mode.

    It starts with a 3 × 3 convolution and without a max pool, as is common for CIFAR. A ``width`` of less than 64 makes
    a smaller network of the same shape.

    >>> sum(weights.numel() for weights in resnet18(0).parameters())
    11173962
    """
    classes, width = checks.whole(classes, "classes"), checks.whole(width, "width")
    return drawn(
        lambda: FourStageResNet(ProjectedBlock, (2, 2, 2, 2), classes=classes, width=width, stem="small"), seed
    )


def resnet50(seed: int, *, classes: int, width: int = 64) -> FourStageResNet:
    """ResNet-50, untrained, by the seed, in eval mode: 23.5 million parameters, and 2049 for each class.

    Images may have any shape; those of persons are commonly 256 × 128. Persons are compared by ``features``, 2048
    for each image. A ``width`` of less than 64 makes a smaller network of the same shape.

    >>> sum(weights.numel() for weights in resnet50(0, classes=1000).parameters())
    25557032
    """
    classes, width = checks.whole(classes, "classes"), checks.whole(width, "width")
    return drawn(lambda: FourStageResNet(Bottleneck, (3, 4, 6, 3), classes=classes, width=width), seed)


def _layer(
    block: type[Block] | type[Bottleneck], inputs: int, outputs: int, blocks: int, *, stride: int
) -> nn.Sequential:
    return nn.Sequential(block(inputs, outputs, stride), *(block(outputs, outputs, 1) for _ in range(blocks - 1)))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    """What makes the input of a block as large as its output, where it is not."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def _resnet(blocks: int, weights: Path | None, seed: int) -> ResNet:
    with seeded(seed):
        model = ResNet(blocks)
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return model.eval()
