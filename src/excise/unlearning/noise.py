"""Noise on the result of a request: its size, what it guarantees, and adding it."""

from __future__ import annotations

import copy

from torch import nn

from excise import processes
from excise.errors import InputError
from excise.privacy.certificate import Certificate
from excise.privacy.claims import calibrated, certified, claimed, require_convex
from excise.privacy.mechanism import Privacy
from excise.slices.slices import whole_model_block
from excise.task.task import Task
from excise.unlearning.method import Applied, Method, Removal, Workspace


def size_of_noise(
    privacy: Privacy,
    method: Method,
    task: Task,
    model: nn.Module,
    removed: int,
    epsilon: float | None,
    delta: float | None,
) -> float | None:
    """Standard deviation of the noise; None for no noise, or where only the certificate will tell."""
    if epsilon is None and delta is None:
        if privacy.budget is not None:
            raise InputError(
                "epsilon and delta must be given where there is a budget: without noise a model shows all that is "
                "left of the samples, whatever was spent. Pass them, or make an Unlearner without a budget."
            )
        return None
    if epsilon is None or delta is None:
        raise InputError(f"epsilon and delta must be given together, not {epsilon!r} and {delta!r}.")
    own = getattr(method, "sigma", None)
    if own is None and privacy.noise == "certificate":
        privacy.require_room(task, epsilon, delta)
        require_convex(task, model)
        return None
    if own is None:
        sigma = privacy.sigma(task, removed, epsilon, delta)
        require_convex(task, model)
        return sigma
    if privacy.budget is not None:
        raise InputError(
            f"{type(method).__name__} has noise of its own, which guarantees nothing, so that there is nothing to "
            "count in a budget; leave the budget out, or use Step."
        )
    return float(own(task, removed, epsilon, delta))


def certificate_of_noise(
    privacy: Privacy,
    method: Method,
    task: Task,
    model: nn.Module,
    removal: Removal,
    sigma: float | None,
    epsilon: float | None,
    delta: float | None,
) -> Certificate:
    """Of a request with noise; an error where what was asked for does not hold."""
    if sigma is None and epsilon is not None and delta is not None:
        return calibrated(task, model, removal.residual, epsilon, delta)
    if epsilon is None or delta is None or hasattr(method, "sigma"):
        partial = "it is as large as the method has it, on some slices alone"
        return certified(task, model, removal.residual, sigma or None, delta if sigma else None, partial)
    noise = {"sigma": sigma or 0.0, "epsilon": epsilon, "delta": delta}
    return claimed(task, model, removal.residual, removal.ids, privacy, **noise)


def spend(privacy: Privacy, certificate: Certificate, removed: int, epsilon: float, delta: float) -> None:
    """Count a request in the budget, if there is one: in its file once, however many processes there are."""
    budget = privacy.budget
    if budget is not None and (processes.is_first() or not budget.is_in_file):
        budget.spend(epsilon, delta, removed=removed, certified=certificate.epsilon)


def blurred(
    privacy: Privacy,
    method: Method,
    workspace: Workspace,
    model: nn.Module,
    applied: Applied,
    sigma: float,
    earlier: int,
) -> nn.Module:
    """A copy with noise; of several processes the first draws it, and all get it."""
    published = copy.deepcopy(model)
    own = getattr(method, "goes_on_from_noise", False)  # such as the paper's, which blurs its block alone
    block = workspace.slices.block(applied.numbers) if own else whole_model_block(published)
    if processes.is_first():
        privacy.add(published, block, sigma, earlier)
    processes.from_first(list(published.parameters()), "noise")
    return published
