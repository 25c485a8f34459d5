"""Training as many people do it: AdamW, a learning rate that rises and falls, and a seed for all that is random."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset


def fit_by_adamw(
    model: nn.Module, data: TensorDataset, ids: Tensor, *, epochs: int, decay: float, batch: int, seed: int
) -> nn.Module:
    """The model, trained in place on some of the samples."""
    inputs, labels = (tensor[ids] for tensor in data.tensors)
    batches = -(-len(ids) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * batches)
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # of dropout too
        model.train()
        for _ in range(epochs):
            for some in torch.randperm(len(ids)).tensor_split(batches):
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs[some]), labels[some]).backward()
                optimizer.step()
                schedule.step()
    return model.eval()
