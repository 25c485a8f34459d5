"""Networks of the population tasks that the package itself has no use for; the same seed gives the same weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from excise.networks.small import seeded


def bn_cnn(seed: int, classes: int = 10) -> nn.Sequential:
    """Three convolutions with batch normalisation and one linear layer, for images of 3 × 32 × 32."""
    with seeded(seed):
        return nn.Sequential(
            *_convolution(3, 16),
            nn.MaxPool2d(2),
            *_convolution(16, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4, classes),
        )


class Residual(nn.Module):
    """Two convolutions beside the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_convolution(channels, channels), *_convolution(channels, channels))

    def forward(self, maps: Tensor) -> Tensor:
        """Add what the convolutions find."""
        both: Tensor = maps + self.body(maps)
        return both


def resnet9(seed: int, *, width: int = 64, classes: int = 10) -> nn.Sequential:
    """ResNet-9 for images of 3 × 32 × 32, as in fast trainings on CIFAR-10; a width of 16 makes a quarter of it."""
    with seeded(seed):
        return nn.Sequential(
            *_convolution(3, width),
            *_convolution(width, 2 * width),
            nn.MaxPool2d(2),
            Residual(2 * width),
            *_convolution(2 * width, 4 * width),
            nn.MaxPool2d(2),
            *_convolution(4 * width, 8 * width),
            nn.MaxPool2d(2),
            Residual(8 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )


def face_cnn(seed: int, people: int = 40) -> nn.Sequential:
    """Three convolutions and two linear layers for grey faces of 56 × 46."""
    with seeded(seed):
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 6, 64),
            nn.ReLU(),
            nn.Linear(64, people),
        )


class TextTransformer(nn.Module):
    """Two layers of attention over a text of numbered words, 0 for padding; classes by the mean of its words."""

    def __init__(self, words: int, length: int, classes: int, size: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, size, padding_idx=0), nn.Embedding(length, size)
        layer = nn.TransformerEncoderLayer(size, 2, 2 * size, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, classes)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the classes."""
        there = (text != 0).unsqueeze(-1)
        places = torch.arange(text.shape[1], device=text.device)
        found = self.body(self.words(text) + self.places(places), src_key_padding_mask=text == 0)
        mean = (self.norm(found) * there).sum(1) / there.sum(1).clamp_min(1)
        logits: Tensor = self.head(mean)
        return logits


def text_transformer(seed: int, words: int, length: int, classes: int) -> TextTransformer:
    """A small transformer for texts, untrained."""
    with seeded(seed):
        return TextTransformer(words, length, classes)


def _convolution(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
