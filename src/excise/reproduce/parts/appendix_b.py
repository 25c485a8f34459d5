"""How the paper's appendix B trains its MNIST regressor: the settings that several studies share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AppendixB:
    """Of the training, and of L-FOCI."""

    weight_decay: float = 0.01
    epochs: int = 50
    learning_rate: float = 0.1
    batch_size: int = 256
    copies: int = 1000
