"""What the image networks have in common: maps, features made of the maps, and one linear layer that decides."""

from __future__ import annotations

from torch import Tensor, nn


class Embedder(nn.Module):
    """A network whose answer to an image can be read at three depths: its last maps, its features and its logits.

    Identification of persons and faces compares features; activation maps are drawn from the last maps. A family of
    networks says what its ``last_maps`` are and sets ``linear``; the rest is here.
    """

    linear: nn.Linear
    """From features to logits, a row for each class or identity."""

    def last_maps(self, x: Tensor) -> Tensor:
        """What the last convolution makes of a batch of images: images × channels × height × width."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """The vector by which each image of a batch is recognised: by default the mean of each of the last maps."""
        return self.last_maps(x).mean(dim=(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of a batch of images."""
        logits: Tensor = self.linear(self.features(x))
        return logits
