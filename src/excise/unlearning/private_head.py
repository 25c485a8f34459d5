"""Objective perturbation: a head that is trained for certified removal (Guo, Goldstein, Hannun, van der Maaten 2020).

A random linear term ⟨b, W⟩, b ~ N(0, σ²I), is added to the sum of the losses before training. What is left of a deleted
sample after Newton steps is a gradient u of that sum, and the weights are the exact minimum for b - u instead of b. So
whoever sees them can't tell b - u from b better than the Gaussian mechanism of sensitivity ‖u‖ allows, whatever the
data: noise is drawn once, at training, and no request adds any.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from excise._support.checks import positive
from excise.errors import InputError, NeverSupportedError
from excise.privacy.accountant import BudgetAccountant
from excise.privacy.certificate import ABOUT_FEATURES, Certificate
from excise.privacy.convexity import has_features, residual_gradient
from excise.privacy.gaussian import gaussian_epsilon
from excise.privacy.head_objective import Objective, Precondition, set_trained_weights, trained_weights
from excise.privacy.heads import head_of
from excise.privacy.mechanism import NoiseSource, SecretSource, add_noise
from excise.privacy.rounding import gamma, smoothness
from excise.task.ids import Ids, all_but, positions
from excise.task.requests import parse_request
from excise.task.task import Task
from excise.unlearning.exact import Exact, Kept, newton, why_not_head
from excise.unlearning.method import Workspace

STEPS = 200  # of Newton's method, at most
REASON = (
    "Guaranteed: ({epsilon:.4g}, {delta:.4g})-certified removal in the sense of Guo et al. (2020): whatever is looked "
    "for in the weights is at most e^{epsilon:.4g} times as likely to be found as in weights trained without the "
    "samples by the same randomised training, plus a probability of {delta:.4g}, and the other way round. The "
    "randomness is that of b, of standard deviation {sigma:.4g}, which was drawn at training and is kept secret; the "
    "gradient that is left of all forgotten samples has norm {norm:.4g}, rounding included. Not guaranteed: anything "
    "against someone who also sees models of this data from before, or who knows b."
)


@dataclass(frozen=True)
class Removed:
    """A model without some samples, and the ε of its removal."""

    model: nn.Module
    ids: tuple[int, ...]
    forgotten: tuple[int, ...]
    """By this request and by earlier ones."""
    certificate: Certificate


@dataclass(eq=False)
class PrivateHead:
    """A linear layer that was trained with a random linear term; it is as secret as the training set."""

    task: Task
    """With the model as it was trained."""
    sigma: float
    budget: BudgetAccountant | None
    _kept: Kept = field(repr=False)
    _weights: Tensor = field(repr=False)
    """The layer's, as they are now."""
    _gone: set[int] = field(default_factory=set, repr=False)

    @property
    def model(self) -> nn.Module:
        """The model as it is now: a copy."""
        return _with_weights(self.task.model, self._weights)

    def forget(
        self, what: Ids | str | None = None, *, keys: Iterable[Hashable] | None = None, epsilon: float, delta: float
    ) -> Removed:
        """Go to the minimum without the samples, and certify it; refused where ε would be larger than asked for."""
        positive(epsilon, "epsilon")
        if self.budget is not None:
            self.budget.require_room(epsilon, delta)
        asked = self._asked(what, keys)
        gone = self._gone | set(asked)
        objective = self._objective(gone)
        weights = _minimum(objective, self._weights, self._kept.inverse, self.task.model)
        certificate = self._certificate(objective, weights, delta)
        if certificate.epsilon is None or certificate.epsilon > epsilon:
            raise InputError(
                f"epsilon={epsilon:g} does not hold for this request: the gradient that is left asks for "
                f"{certificate.epsilon or float('inf'):.4g} at sigma={self.sigma:g}. Nothing was given out or spent; "
                "train with a larger sigma."
            )
        if self.budget is not None:
            self.budget.spend(epsilon, delta, removed=len(asked), certified=certificate.epsilon)
        self._gone, self._weights = gone, weights
        return Removed(_with_weights(self.task.model, weights), tuple(asked), tuple(sorted(gone)), certificate)

    def _asked(self, what: Any, keys: Iterable[Hashable] | None) -> list[int]:
        if (what is None) == (keys is None):
            raise InputError("name the samples either by positions or by keys=, one of the two.")
        if keys is not None:
            what = self.task.ids_of(keys)
        elif isinstance(what, str):
            what = parse_request(what, self.task, seed=0, forgotten=tuple(sorted(self._gone))).ids
        found: list[int] = positions(what, len(self.task.train_set)).tolist()
        for one in found:
            if one in self._gone:
                raise InputError(f"ids has {one}, which is forgotten already.")
        if len(self._gone) + len(found) >= len(self.task.train_set):
            raise InputError("ids would leave no sample of train_set; a model of nothing must be trained anew.")
        return found

    def _objective(self, gone: set[int]) -> Objective:
        left = ~torch.isin(self._kept.ids, torch.tensor(sorted(gone), dtype=torch.long))
        return self._kept.objective.without(left, self.task.mass(self._kept.ids[left]))

    def _certificate(self, objective: Objective, weights: Tensor, delta: float) -> Certificate:
        layer = head_of(self.task.model)
        beta = smoothness(self.task.loss_module, layer.out_features, self.task.loss_scale)
        norm = _left(objective, weights, beta)
        epsilon = gaussian_epsilon(self.sigma, norm, delta)
        features = self.task.features != "fixed" and has_features(self.task.model)
        words = REASON.format(epsilon=epsilon, delta=delta, sigma=self.sigma, norm=norm)
        words += ABOUT_FEATURES if features else ""
        bound, mean = norm / objective.mass / objective.decay, norm / objective.mass
        return Certificate(bound, "convex", words, mean, epsilon, delta, self.sigma, last_layer_only=features)


def fit_private(
    task: Task, *, sigma: float, budget: BudgetAccountant | None = None, source: NoiseSource | None = None
) -> PrivateHead:
    """Train a linear layer with objective perturbation, so that later removals are (ε, δ)-certified without noise.

    Args:
        task: A convex one: a linear layer is all that is trained, with a convex loss and weight decay.
        sigma: Standard deviation of the random linear term in the sum of the losses. It costs accuracy, the less the
            more samples there are, and buys a smaller ε for the same gradient that a removal leaves.
        budget: What all requests together may spend.
        source: Of the randomness; None for the operating system's, which nobody can draw again. Others are for tests.
    """
    positive(sigma, "sigma")
    if (why := why_not_head(task)) is not None or not task.weight_decay > 0:
        raise NeverSupportedError(
            f"fit_private is for a linear layer with a convex loss and weight decay ({why or 'weight_decay is 0'})."
        )
    model = copy.deepcopy(task.model)
    kept = Exact().prepare(Workspace(task, 0, None), model, all_but([], len(task.train_set)))
    if kept is None:
        raise NeverSupportedError("fit_private is for models whose linear layer sees one row of each sample.")
    layer = head_of(model)
    start = trained_weights(layer)
    drawn = add_noise(torch.zeros(start.numel(), dtype=torch.double), sigma, source or SecretSource())
    tilted = kept.objective.tilted(drawn.reshape(start.shape))
    doubt = residual_gradient(task, model, task.all_ids).why_not_convex  # by every sample, in other company too
    if doubt is not None:
        raise NeverSupportedError(f"fit_private is for a linear layer with a convex loss and weight decay ({doubt}).")
    weights = _minimum(tilted, start, kept.inverse, model)
    inverse = tilted.at(weights).inverse()
    trained = task.with_model(_with_weights(model, weights))
    return PrivateHead(trained, sigma, budget, Kept(kept.ids, tilted, inverse), weights)


def _minimum(objective: Objective, start: Tensor, inverse: Precondition, model: nn.Module) -> Tensor:
    """The weights of the minimum, rounded to the model's precision."""
    *_, last = newton(objective, start, inverse, STEPS)
    return _rounded(last.weights, model)


def _rounded(weights: Tensor, model: nn.Module) -> Tensor:
    layer = head_of(model)
    return weights.to(layer.weight.dtype).double()


def _with_weights(model: nn.Module, weights: Tensor) -> nn.Module:
    copied = copy.deepcopy(model)
    layer = head_of(copied)
    set_trained_weights(layer, weights)
    return copied


def _left(objective: Objective, weights: Tensor, beta: float) -> float:
    """‖u‖: the gradient of the sum of the losses that is left, with room for rounding as in ``privacy.rounding``."""
    size, count, width = float(weights.norm()), 0, weights.shape[1]
    scale = objective.mass * objective.decay * size
    scale += 0.0 if objective.tilt is None else float(objective.tilt.norm())
    for piece in objective.pieces():
        near, rows = piece.at(weights), piece.rows.norm(dim=1)
        slopes = near.slopes.detach().norm(dim=1) + beta * (size * rows + near.outputs.detach().norm(dim=1) + 1)
        scale += float((slopes * rows).sum())
        count += len(rows)
    steps = count + width + weights.shape[0] + 64
    return objective.mass * float(objective.at(weights).gradient.norm()) + 2 * gamma(steps) * scale
