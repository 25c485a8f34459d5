"""Networks that are trained in bfloat16 and kept in single precision, in half the time."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from excise import Task
from experiments.augmented import fit_augmented


class InHalf(nn.Module):
    """A network whose convolutions are computed in bfloat16."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Outputs in single precision."""
        with torch.autocast(images.device.type, dtype=torch.bfloat16):
            outputs: Tensor = self.network(images)
        return outputs.float()


def fit_augmented_in_half(task: Task, ids: Tensor, *, epochs: int, lr: float, seed: int) -> nn.Module:
    """As ``fit_augmented``, in mixed precision."""
    network, other = copy.deepcopy(task.model), copy.deepcopy(task.model)
    trained = fit_augmented(task.with_model(InHalf(other)), ids, epochs=epochs, lr=lr, seed=seed)
    network.load_state_dict({name.removeprefix("network."): one for name, one in trained.state_dict().items()})
    return network.eval()
