"""Feature maps (Yang et al., UAI 2020): small networks that bring points to numbers whose distances mean something."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from excise.networks.small import seeded
from excise.statistics._neighbors import Floats


class FeatureMaps(nn.Module):
    """A small network for each point, to one number, and one that predicts y's mean and log-variance from any of them.

    Numbers that are left out are 0, and a second input says so.
    """

    def __init__(self, features: int, hidden: int = 40, joint: int = 400) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(
            nn.Sequential(nn.Linear(3, hidden), nn.ReLU(), nn.Linear(hidden, 1)) for _ in range(features)
        )
        self.predictor = nn.Sequential(nn.Linear(2 * features, joint), nn.ReLU(), nn.Linear(joint, 2))

    def encode(self, points: Tensor) -> Tensor:
        """Samples × features."""
        return torch.cat([encoder(points[:, k]) for k, encoder in enumerate(self.encoders)], dim=1)

    def predict(self, codes: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of y."""
        mean, log_variance = self.predictor(torch.cat((codes * kept, kept), dim=-1)).unbind(-1)
        return mean, log_variance


def learn_maps(
    points: Floats,
    y: Floats,
    *,
    epochs: int,
    batch_size: int = 50,
    learning_rate: float = 1e-3,
    regulariser: float = 0.1,
    rng: np.random.Generator,
) -> Tensor:
    """One number for each point (samples × features × 1), such that near numbers tell about the same of y.

    Args:
        points: Samples × features × 3, standardised.
        y: One value a sample, standardised.
        epochs: Passes over the samples; the learning rate falls to 0 along a cosine.
        batch_size: Samples in a step.
        learning_rate: Adam's, at the start.
        regulariser: Weight of the term that makes distances equal divergences.
        rng: For weights, batches and everything else random.
    """
    samples, features = points.shape[:2]
    data = torch.tensor(points, dtype=torch.float32)
    target = torch.tensor(y, dtype=torch.float32)
    with seeded(int(rng.integers(2**31))):
        maps = FeatureMaps(features)
    batches = samples // batch_size
    optimizer = torch.optim.Adam(maps.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    for _ in range(epochs):
        for rows in np.array_split(rng.permutation(samples), batches):
            chosen = torch.from_numpy(rows)
            optimizer.zero_grad()
            _map_loss(maps, data[chosen], target[chosen], regulariser, rng).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        codes: Tensor = maps.encode(data)[:, :, None].double()
        return codes


def _map_loss(maps: FeatureMaps, points: Tensor, y: Tensor, regulariser: float, rng: np.random.Generator) -> Tensor:
    """Gaussian likelihood from a random subset of features, and Σ |squared distance - divergence| over features.

    The divergence is Jeffreys' between what is predicted with a feature and with another sample's in its place.
    """
    samples, features = points.shape[:2]
    ranks_of = torch.from_numpy(rng.random((samples, features))).argsort(1)
    kept = (ranks_of < torch.from_numpy(rng.integers(1, features, (samples, 1)))).float()
    codes = maps.encode(points)
    mean, log_variance = maps.predict(codes, kept)
    loss = 0.5 * ((y - mean) ** 2 * (-log_variance).exp() + log_variance).mean()
    swapped, swapped_kept = codes.repeat(features, 1, 1), kept.repeat(features, 1, 1)
    for k in range(features):
        order = torch.from_numpy(rng.permutation(samples))
        swapped[k, :, k], swapped_kept[k, :, k] = codes[order, k], kept[order, k]
    distance = ((codes * kept - swapped * swapped_kept) ** 2).sum(-1)
    divergence = _jeffreys(mean, log_variance, *maps.predict(swapped, swapped_kept))
    return loss + regulariser * (distance - divergence).abs().sum(0).mean()


def _jeffreys(mean: Tensor, log_variance: Tensor, other_mean: Tensor, other_log_variance: Tensor) -> Tensor:
    """(KL(p‖q) + KL(q‖p)) / 2 of two normal distributions."""
    spread = torch.cosh(log_variance - other_log_variance) / 2 - 0.5
    precision = (-log_variance).exp() + (-other_log_variance).exp()
    return precision * (mean - other_mean) ** 2 / 4 + spread
