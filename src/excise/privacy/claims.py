"""What a request with ε promises: made good by what was measured, or refused before anything is given out."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor, nn

from excise.errors import InputError, warn
from excise.privacy.certificate import Certificate, certify
from excise.privacy.constants import refuted
from excise.privacy.convexity import ResidualGradient, residual_gradient, why_not_linear
from excise.privacy.gaussian import analytic_sigma
from excise.privacy.mechanism import Privacy
from excise.task.hooks import exclusive
from excise.task.task import Task

_ROUNDING = 1 + 1e-9


class NoGuaranteeWarning(UserWarning):
    """Noise was asked for by an ε, and was added, but the ε does not follow."""


def certified(
    task: Task,
    model: nn.Module,
    residual: Tensor,
    sigma: float | None = None,
    delta: float | None = None,
    void: str | None = None,
) -> Certificate:
    """What is proven about a model before its noise, by a pass over the retained samples."""
    with exclusive(task.model, model):  # it may be asked for while another request is carried out
        gradient = residual_gradient(task, model, residual)
    return _certificate(task, gradient, sigma, delta, void)


def calibrated(task: Task, model: nn.Module, residual: Tensor, epsilon: float, delta: float) -> Certificate:
    """The certificate of a request whose noise is just as large as its own bound asks for; σ is in it."""
    gradient = residual_gradient(task, model, residual)
    found = _certificate(task, gradient, None, None, None)
    if found.bound is None:
        _refuse(gradient.why_not_convex or "the weight decay is 0")
    sigma = analytic_sigma(found.bound, epsilon, delta)
    return _certificate(task, gradient, sigma * _ROUNDING, delta, None, calibrated=True)


def require_convex(task: Task, model: nn.Module) -> None:
    """Refuse an ε where it could promise nothing, before any work is done."""
    if task.convex is None and (why := why_not_linear(task, model)) is not None:
        _refuse(why)
    if task.convex is False:
        _refuse("the task says so")


def claimed(
    task: Task,
    model: nn.Module,
    residual: Tensor,
    removed: list[int],
    privacy: Privacy,
    *,
    sigma: float,
    epsilon: float,
    delta: float,
) -> Certificate:
    """The certificate of a request for ε and δ, or an error where the promise does not hold, with the figures.

    Constants that are refuted by the data void the claim: then the certificate states no ε, and under a budget, which
    could not count it, the request is refused.
    """
    gradient = residual_gradient(task, model, residual)
    if gradient.why_not_convex is not None:
        _refuse(gradient.why_not_convex)
    void = _void(task, model, torch.cat([residual, torch.tensor(removed)]), privacy, gradient)
    if void is not None:
        if privacy.budget is not None:
            raise InputError(
                f"epsilon={epsilon:g} is not what this request would have, because {void}. Nothing was given out or "
                "spent; pass constants that hold for every sample."
            )
        if not privacy.repeatable:
            warn(f"no epsilon is guaranteed, though {epsilon:g} was asked for, because {void}.", NoGuaranteeWarning)
    if sigma == 0:
        return _exact(task, gradient, void)
    found = _certificate(task, gradient, sigma, delta, void)
    if found.epsilon is not None and found.epsilon > epsilon * _ROUNDING:
        raise InputError(
            f"epsilon={epsilon:g} at delta={delta:g} does not hold for this request: the weights can be "
            f"{found.bound:.4g} away from retrained ones, which noise of standard deviation {sigma:.4g} hides "
            f"to epsilon={found.epsilon:.4g} only. Nothing was given out or spent; take the exact way, "
            "Exact() (--method exact), or ask for a larger epsilon."
        )
    return found


def _void(task: Task, model: nn.Module, ids: Tensor, privacy: Privacy, gradient: ResidualGradient) -> str | None:
    if privacy.repeatable:
        return "it is of a seed that is meant to be repeated, so that it can be taken off again"
    if gradient.vouched or privacy.lipschitz is None or privacy.hessian_lipschitz is None:
        return None  # who vouches for convexity vouches for the constants
    return refuted(task, model, ids, privacy.lipschitz, privacy.hessian_lipschitz)


def _exact(task: Task, gradient: ResidualGradient, void: str | None) -> Certificate:
    """Of a request without noise, as for a quadratic loss: only a step that is exact needs none."""
    found = _certificate(task, gradient, None, None, None)
    also = "" if void is None else f", and {void}"
    if void is not None or gradient.norm > gradient.margin + gradient.left_by_rounding:
        raise InputError(
            f"hessian_lipschitz=0 means that no noise is needed, which is so for an exact step only; after this one "
            f"the weights can be {found.bound:.4g} away from retrained ones{also}. Nothing was given out or "
            'spent; pass the M of the loss, or for a quadratic one take Descent(steps=8, selection="all").'
        )
    words = "The step was exact, so that no noise was added; what is left is the rounding of the weights, in the open."
    return replace(found, reason=f"{found.reason} {words}")


def _certificate(
    task: Task,
    gradient: ResidualGradient,
    sigma: float | None,
    delta: float | None,
    void: str | None,
    *,
    calibrated: bool = False,
) -> Certificate:
    return certify(
        gradient.norm,
        task.weight_decay,
        convex=gradient.convex,
        sigma=sigma,
        delta=delta,
        rounding=gradient.margin,
        distance=gradient.distance,
        features=gradient.features,
        vouched=gradient.vouched,
        why_not=gradient.why_not_convex,
        void=void,
        calibrated=calibrated,
    )


def _refuse(why: str) -> NoReturn:
    raise InputError(
        f"epsilon promises nothing for this model, which is not convex, or not known to be ({why}); leave epsilon and "
        "delta out and audit what is forgotten, or train nothing but a linear last layer."
    )
