"""MobileNetV2 (Sandler et al., 2018): blocks that widen, filter each map by itself, and narrow again."""

from __future__ import annotations

from torch import Tensor, nn

from excise._support import checks
from excise.networks.drawing import drawn
from excise.networks.embedder import Embedder

# the paper's table 2, from its second row on: expansion, channels, blocks, stride of the first
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM, LAST = 32, 1280
SMALL_SIDE = 64  # images up to here are halved three times, not five: of 32 × 32 pixels 4 × 4 are left, not one


class InvertedResidual(nn.Module):
    """A 1 × 1 convolution to ``expansion`` times the channels, a depthwise 3 × 3, and a 1 × 1 without a ReLU."""

    def __init__(self, before: int, after: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        inside = expansion * before
        widen = [] if expansion == 1 else _convolution(before, inside, 1)
        filter_each = _convolution(inside, inside, 3, stride=stride, groups=inside)
        self.body = nn.Sequential(*widen, *filter_each, *_convolution(inside, after, 1)[:-1])
        self.has_shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """The block's output; where it has the shape of the input, added to that."""
        found: Tensor = self.body(x)
        return x + found if self.has_shortcut else found


class MobileNetV2(Embedder):
    """A first convolution, seven stages of inverted residuals, and a 1 × 1 convolution to the features.

    There is no dropout: a step is taken on an objective, which dropout would make random.

    Args:
        classes: Units of the linear layer.
        width: Multiple of all numbers of channels, which are then rounded to multiples of 8; the features, 1280,
            are only ever multiplied by 1 or more.
        small_images: Whether the first convolution and the second stage keep the size of the maps.
    """

    def __init__(self, classes: int, *, width: float = 1.0, small_images: bool = False) -> None:
        super().__init__()
        channels = _rounded(STEM * width)
        modules: list[nn.Module] = _convolution(3, channels, 3, stride=1 if small_images else 2)
        for number, (expansion, outputs, blocks, stride) in enumerate(STAGES):
            first = 1 if small_images and number == 1 else stride
            after = _rounded(outputs * width)
            for block in range(blocks):
                modules.append(InvertedResidual(channels, after, expansion=expansion, stride=1 if block else first))
                channels = after
        last = _rounded(LAST * max(1.0, width))
        self.stages = nn.Sequential(*modules, *_convolution(channels, last, 1))
        self.linear = nn.Linear(last, classes)

    def last_maps(self, x: Tensor) -> Tensor:
        """What the last 1 × 1 convolution makes of a batch of images."""
        maps: Tensor = self.stages(x)
        return maps


def mobilenet_v2(seed: int, *, classes: int = 10, width: float = 1.0, side: int = 32) -> MobileNetV2:
    """MobileNetV2, untrained, by the seed, in eval mode.

    ``side``, the shorter side of the images, decides how often they are halved: three times up to 64 pixels, as is
    common for CIFAR, and five times beyond, as in the original. Images of any shape are then accepted.

    >>> sum(weights.numel() for weights in mobilenet_v2(0, classes=1000, side=224).parameters())
    3504872
    """
    classes, side = checks.whole(classes, "classes"), checks.whole(side, "side")
    checks.positive(width, "width")
    return drawn(lambda: MobileNetV2(classes, width=width, small_images=side <= SMALL_SIDE), seed)


def _convolution(before: int, after: int, size: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, size, stride=stride, padding=size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU6()]


def _rounded(channels: float) -> int:
    """The nearest multiple of 8, and the next one where that would take away more than a tenth."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near
